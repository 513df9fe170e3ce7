"""Keeps the read model up to date: finds tables, follows events or looks at the tables, examines what changed."""

from __future__ import annotations

import heapq
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from typing import Any

from tideline_cli.fleet import PARALLEL, Fleet
from tideline_cli.inspection import mode_of
from tideline_console.event_rows import event_row, shard_row
from tideline_console.instants import time_of
from tideline_console.model import DUE, URGENCY, ReadModel
from tideline_console.settings import ConsoleSettings
from tideline_events import (
    CATALOG,
    DECISIONS,
    JOBS,
    LOCKS,
    MIRRORS,
    TABLES,
    TIMELINE,
    EventLog,
    Heartbeat,
    PoisonEvent,
    Tail,
    Transition,
    decode,
)
from tideline_locks import LockProbe
from tideline_planner.settings import PlannerSettings
from tideline_runtime.cleaner_settings import CleanerSettings
from tideline_runtime.logging import get_logger
from tideline_runtime.policy import Policies
from tideline_runtime.policy.live import LivePolicies
from tideline_runtime.policy.resolution import Requested
from tideline_runtime.table_search import PROPERTIES
from tideline_runtime.table_source import TableSource
from tideline_table.action import failure_document, pending_bytes, status_document
from tideline_table.clock import Clock
from tideline_table.errors import InvalidOption, TidelineError
from tideline_table.storage import hudi_root
from tideline_table.table import Finding, FindingKind, Table, read_identity

_log = get_logger(__name__)
TOPICS = tuple(topic.name for topic in (TIMELINE, TABLES, CATALOG, DECISIONS, JOBS, LOCKS, MIRRORS))
"""The topics that the console reads."""
LOOK_AT_PENDING_S = 10.0
"""Longest time between two examinations of a table with a pending action: its process may die without an entry in the log."""
PATIENCE_S, GLANCE_S = 2.0, 0.1
"""Time that the event log has to answer a turn, and one that did not answer before."""
MOST_AGAIN = 100
"""Tables that one turn examines again although nothing names them: events of others do not wait for more."""
_NOTHING: Mapping[str, Requested] = {}
_STEPS = 2000
"""Steps that are stored at once."""


@dataclass(slots=True)
class _Known:
    """A table that was found."""

    table: Table | None = None
    sequence: int = -1
    examined_s: float = float("-inf")
    is_hinted: bool = True
    is_pending: bool = False
    policies: Policies | None = None
    """The policies by which it was opened and examined."""


class Follower:
    """Fills a read model. One thread calls `turn`; other threads may call `opened`, `fleet` and read the attributes."""

    def __init__(
        self,
        settings: ConsoleSettings,
        model: ReadModel,
        clock: Clock,
        open_log: Callable[[], EventLog] | None = None,
        beat: Callable[[], None] = lambda: None,
        stopping: threading.Event | None = None,
        source: TableSource | None = None,
    ) -> None:
        self._source, self._requested, self._resources_failure = source, _NOTHING, ""
        self._combined: tuple[Policies, Mapping[str, Requested], Policies] | None = None
        self._stopping = stopping or threading.Event()
        self._settings, self._model, self._clock, self._open_log, self._beat = settings, model, clock, open_log, beat
        planner, self._cleaner = settings.of(PlannerSettings), settings.of(CleanerSettings)
        self._planner = planner.model_copy(update={"tables": settings.tables})
        self._policies = LivePolicies(settings.policy_file, clock)
        self._probe = LockProbe(settings.locks, clock)
        self._known: dict[str, _Known] = {}
        self._bases: dict[str, str] = {}
        """The base path of each table that is open, by uid."""
        self._scan_at_s = float("-inf")
        self._tail: Tail | None = None
        self._is_live = False
        """Whether all events of the past were read, so that the next ones are new."""
        self._reading: Future[None] | None = None
        self._answered_s = 0.0
        self._pool = ThreadPoolExecutor(PARALLEL, "examine")
        self._guard = threading.Lock()
        self.failures: list[dict[str, Any]] = []
        """Documents of patterns that select no table or cannot be searched."""
        self.events_failure = ""
        """Why the event log cannot be read; empty if it can, or if none is read."""
        self.is_complete = False
        """Whether all tables were examined since the start."""
        self.checked_s = clock.now().timestamp()
        """When the last turn ended, in seconds since the epoch."""

    def policies(self) -> Policies:
        """Return the policies in force, with what HudiTable resources ask; the same object while nothing changed."""
        file, requested, known = self._policies.current(), self._requested, self._combined
        if known is None or known[0] is not file or known[1] is not requested:
            known = self._combined = file, requested, replace(file, requested=requested) if requested else file
        return known[2]

    @property
    def policy_refusal(self) -> str:
        """Why the present policy file is not in force; empty if it is."""
        return self._policies.refusal

    @property
    def tables(self) -> int:
        """Number of tables that were found."""
        return len(self._known)

    def fleet(self) -> Fleet:
        """Return the settings and policies by which tables are judged now."""
        return Fleet(self._planner, self._cleaner, {}, policies=self.policies(), probe=self._probe)

    def opened(self, base_path: str) -> Table:
        """Return the table, refreshed. Raises as `Fleet.open`, and `ObjectNotFound` for one that was deleted."""
        with self._guard:
            known = self._known.get(base_path)
        table = known.table if known is not None else None
        if table is None:
            return self.fleet().open(base_path)
        # A table that was deleted, or created again at its place, has no new entry, which alone is no sign.
        table.storage.stat(PROPERTIES)
        if not _stands(table):
            return self.fleet().open(base_path)
        table.refresh()
        return table

    def close(self) -> None:
        """Release threads and connections."""
        self._pool.shutdown()
        if self._source is not None:
            self._source.close()
        self._drop_tail()
        self._probe.close()

    def turn(self, wait_s: float = 0.0) -> None:
        """Do what is due. Waits up to `wait_s` for an event, if events are read. Ends early once a stop is asked for."""
        now_s = self._clock.monotonic_s()
        self._read_resources()
        fleet = self.fleet()
        if now_s >= self._scan_at_s:
            self._scan(fleet)
            self._scan_at_s = now_s + self._settings.tables_rescan_s
        if self._open_log is not None:
            self._await_events(self._open_log, wait_s if self.is_complete else 0.0)
        again = self._again(fleet, self._clock.monotonic_s())
        looks_itself = self._open_log is None or bool(self.events_failure)  # No event tells which have changed.
        wanted = [path for path, known in list(self._known.items()) if looks_itself or known.is_hinted or path in again]
        for _ in self._pool.map(lambda path: self._looked(fleet, path, is_again=path in again), wanted):
            self._beat()
        if self._stopping.is_set():
            return
        self.is_complete = True
        self.checked_s = self._clock.now().timestamp()

    def _read_resources(self) -> None:
        """Read what HudiTable resources ask. While they do not answer, what they asked last holds."""
        if self._source is None:
            return
        before = self._requested, self._resources_failure
        try:
            self._requested, self._resources_failure = self._source.requested(), ""
        except TidelineError as error:
            self._resources_failure = str(error)
        if before[0] is not self._requested or before[1] != self._resources_failure:
            self._scan_at_s = float("-inf")

    def _scan(self, fleet: Fleet) -> None:
        try:
            found, self.failures = fleet.find()
            found = sorted({*found, *self._requested})
            if self._resources_failure:
                why = f"the HudiTable resources cannot be read: {self._resources_failure}"
                self.failures.append(failure_document("HudiTable resources", Finding(FindingKind.CANNOT_OPEN, why)))
        except InvalidOption:
            raise
        except Exception as error:  # noqa: BLE001 - what breaks the search must not hide the tables that are known
            _log.warning("tables cannot be searched", exc_info=error)
            why = f"the search failed, and shows only tables found before: unexpected {type(error).__name__}: {error}"
            found = list(self._known)
            self.failures = [failure_document(text, Finding(FindingKind.CANNOT_OPEN, why)) for text in self._settings.tables]
        with self._guard:
            self._known = {base_path: self._known.get(base_path) or _Known() for base_path in found}
            self._bases = {uid: base_path for uid, base_path in self._bases.items() if base_path in self._known}
        unfound = {document["base_path"]: document for document in self.failures}
        self._model.keep_tables([*found, *unfound])
        for base_path, document in unfound.items():
            self._model.put_table(table_row(base_path, document, self._clock.now().timestamp()))

    def _await_events(self, open_log: Callable[[], EventLog], wait_s: float) -> None:
        """Read events; a log that does not answer is left to its thread, because the turn has to look at the tables instead."""
        if self._reading is None:
            self._answered_s = self._clock.monotonic_s()
            self._reading = self._pool.submit(self._read_events, open_log, wait_s)
        patience_s = GLANCE_S if self.events_failure else wait_s + PATIENCE_S
        while not wait((self._reading,), patience_s).done:
            if self._clock.monotonic_s() - self._answered_s >= patience_s:
                self.events_failure = self.events_failure or "It does not answer."
                return
        reading, self._reading = self._reading, None
        reading.result()

    def _read_events(self, open_log: Callable[[], EventLog], wait_s: float) -> None:
        try:
            if self._tail is None:
                self._tail = open_log().tail(TOPICS)
            while records := self._tail.poll(wait_s):
                wait_s, self._answered_s = 0.0, self._clock.monotonic_s()
                self._beat()
                if self._stopping.is_set():
                    return
                steps, others, shards = [], [], []
                for record in records:
                    try:
                        event = decode(record)
                    except PoisonEvent:
                        continue  # Consumers of the topic move it to the dead letters.
                    if isinstance(event, Transition):
                        steps.append(event)
                    elif isinstance(event, Heartbeat):
                        shards.append(shard_row(event))
                    elif (row := event_row(event, record)) is not None:
                        others.append(row)
                if self._is_live:
                    self._model.put_lags(steps, self._clock.now().timestamp())
                self._model.add_steps(steps)
                self._model.add_events(others)
                self._model.put_shards(shards)
                self._hint({step.table.base_path for step in steps} | {row["base_path"] for row in others})
                self._hint(self._bases.get(row["uid"], "") for row in others)
            self.events_failure, self._is_live = "", self._is_live or self._tail.is_at_end()
        except TidelineError as error:
            if not self.events_failure:
                _log.warning("events cannot be read", reason=str(error))
            self.events_failure = str(error)
            self._drop_tail()

    def hint(self, base_path: str) -> None:
        """Let the next turn examine a table."""
        self._hint([base_path])

    def _hint(self, base_paths: Iterable[str]) -> None:
        for base_path in base_paths:
            if (known := self._known.get(base_path)) is not None:
                known.is_hinted = True

    def _drop_tail(self) -> None:
        tail, self._tail, self._is_live = self._tail, None, False
        if tail is not None:
            tail.close()

    def _is_old(self, known: _Known, now_s: float) -> bool:
        interval_s = self._settings.examine_interval_s
        return now_s - known.examined_s >= (min(interval_s, LOOK_AT_PENDING_S) if known.is_pending else interval_s)

    def _again(self, fleet: Fleet, now_s: float) -> set[str]:
        """Return the tables that waited longest among those whose examination is old, or by other policies."""
        known = self._known
        old = [path for path, one in known.items() if one.policies is not fleet.policies or self._is_old(one, now_s)]
        return set(heapq.nsmallest(MOST_AGAIN, old, key=lambda path: known[path].examined_s))

    def _looked(self, fleet: Fleet, base_path: str, *, is_again: bool) -> None:
        """Examine a table if it changed, an event names it, or it is to be examined again. Not once a stop is asked for."""
        if self._stopping.is_set():
            return
        known, now_s = self._known[base_path], self._clock.monotonic_s()
        has_other_policies = known.policies is not fleet.policies
        is_named, known.is_hinted, sequence = known.is_hinted, False, -1
        if has_other_policies and not is_named and not is_again:
            return  # Its turn comes.
        table = None if has_other_policies else known.table
        try:
            if table is not None and (is_named or is_again) and not _stands(table):
                table = None
            is_opened = table is None
            table = table or fleet.open(base_path)
            sequence = table.state.sequence if is_opened else table.refresh().sequence
            if not is_opened and sequence == known.sequence and table.capabilities.keeps_log and not is_again:
                return
            document = status_document(fleet.examine_table(table))
            if not _is_copy(table):
                self._add_steps(table)
            row = table_row(base_path, document, self._clock.now().timestamp(), table)
            row["tags"] = ", ".join(fleet.policies.tags_of(base_path, table.uid))
        except TidelineError as error:
            table, row = None, self._failed(base_path, str(error))
        except Exception as error:  # noqa: BLE001 - a table that breaks the engine must not hide the others
            _log.warning("table cannot be examined", base_path=base_path, exc_info=error)
            table, row = None, self._failed(base_path, f"unexpected {type(error).__name__}: {error}")
        known.table, known.examined_s, known.is_pending, known.policies = table, now_s, bool(row["pending"]), fleet.policies
        # Not that of the table now: the thread of a page may have refreshed it meanwhile.
        known.sequence = -1 if table is None else sequence
        with self._guard:
            if base_path in self._known:
                self._bases |= {row["uid"]: base_path} if row["uid"] else {}
                self._model.put_table(row)

    def _failed(self, base_path: str, why: str) -> dict[str, Any]:
        document = failure_document(base_path, Finding(FindingKind.CANNOT_OPEN, why))
        return table_row(base_path, document, self._clock.now().timestamp())

    def _add_steps(self, table: Table) -> None:
        if not table.capabilities.keeps_log:
            return
        from tideline_events.transitions import backfill

        last = table.state.sequence
        first = max(self._model.last_sequence(table.uid) + 1, last - self._settings.history_steps + 1)
        batch: list[Transition] = []
        for step in backfill(table, first, last):
            batch.append(step)
            if len(batch) == _STEPS:
                self._model.add_steps(batch)
                self._beat()
                if self._stopping.is_set():
                    return
                batch = []
        self._model.add_steps(batch)


def _stands(table: Table) -> bool:
    """Return whether an open table is the one at its place, opened as what it is now. One request."""
    return read_identity(table.storage) == table.identity and not table.timeline.is_outdated


def _is_copy(table: Table) -> bool:
    """Return whether a table is not where it was created: its uid is that of another table, whose steps are not its own."""
    try:
        if table.identity is not None:
            table.identity.check_place(table.storage.root)
    except TidelineError:
        return True
    return False


def table_row(base_path: str, document: dict[str, Any], now_s: float, table: Table | None = None) -> dict[str, Any]:
    """Return the row of a table from its document, of which `table` is the state."""
    backlog = document["backlog"] or dict.fromkeys(("file_groups", "small_files", "log_files", "log_bytes", "base_bytes"))
    writes = table.state.completed_writes() if table is not None else []
    last_write_s = None if table is None or not writes else time_of(writes[-1].instant, table.zone)
    size_bytes = None if backlog["base_bytes"] is None else backlog["base_bytes"] + backlog["log_bytes"]
    # A pattern that selects no table is shown as it was written; paths of files on disk are quoted.
    path = hudi_root(base_path)
    folder, _, last = path.rstrip("/").rpartition("/")
    return {
        "base_path": base_path,
        "uid": "" if table is not None and _is_copy(table) else document["uid"],
        "name": last,
        "folder": folder.rpartition("/")[2],
        "type": document["type"],
        "version": None if table is None else table.definition.version,
        "mode": "" if table is None else mode_of(table),
        "verdict": document["verdict"],
        "urgency": URGENCY.get(document["verdict"], 0),
        "state": document["state"],
        "sequence": document["sequence"],
        "size_bytes": size_bytes,
        **{name: backlog[name] for name in ("file_groups", "small_files", "log_files", "log_bytes")},
        "pending": len(document["pending"]),
        "due": sum(service["outcome"] in DUE for service in document["services"].values()),
        "findings": len(document["findings"]),
        "last_write_s": last_write_s,
        "tags": "",
        "reserved_bytes": 0 if table is None else pending_bytes(table.state),
        "examined_s": now_s,
        "document": document,
    }
