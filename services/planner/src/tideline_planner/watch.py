"""The status of the tables of this instance, kept for the HTTP API, and their findings as metrics, log lines and events."""

from __future__ import annotations

import json
import math
import threading
import zlib
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any

from tideline_events import FindingEvent
from tideline_locks import LockProbe
from tideline_planner.metrics import FINDINGS, STATES
from tideline_planner.observed import ObservedTables
from tideline_planner.rules import rules_of, with_planner
from tideline_planner.settings import PlannerSettings
from tideline_runtime.cleaner_settings import CleanerSettings
from tideline_runtime.cleaning import with_cleaner, with_cleaner_options
from tideline_runtime.contract import ServiceContext
from tideline_runtime.logging import get_logger
from tideline_runtime.open_tables import OpenTables
from tideline_runtime.policy import TablePolicy
from tideline_table.action import (
    Rules,
    Standing,
    TableService,
    Verdict,
    examine_beside,
    failure_document,
    judge_all,
    status_document,
)
from tideline_table.errors import TidelineError
from tideline_table.table import Finding, FindingKind, Table, damage_of, lost_of, why_refused

_log = get_logger(__name__)
LOOK_AGAIN_S = 60.0
"""Time after which a table that did not change is examined again, because ages grow, and after which it is checked whether damage
is mended."""
LOOK_AT_TOLD_S = 900.0
"""The same for a table of which the mirror tells that it has no news: the verdicts ask for the leases of readers."""
LOOK_AT_QUIET_S = 21_600.0
"""Most seconds between two examinations of such a table: as long as it has been quiet, up to this."""
LOOK_AT_PENDING_S = 10.0
"""Time for a table with a pending action: without a log entry, its process may die, and the launcher may give up a plan."""
LOOK_AT_STANDING_S = 300.0
"""Time after which it is checked again whether writers refuse a table: five requests."""
LOOK_AT_TIMELINE_S = 30.0
"""Time after which the timeline of a shared table is listed again, to find a completed file that is gone; that of an
exclusive table is listed as often as it is checked whether writers refuse it."""
LOOK_AT_FILES_S = 3600.0
"""Time after which the partitions of a table are listed again, to find data files that are gone or have wrong sizes. Of a table of
which the mirror tells that it has no news, this is done with each audit, and `why_refused` this often."""
GONE_SHOWN_S = 86_400.0
"""Time for which a table that is gone is shown: it may have been dropped on purpose."""
FOUND, CLEARED = "found", "cleared"
"""States of a `FindingEvent`."""
Document = dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Standing:
    """What costs requests to find out about a table that does not change, and when it was found out."""

    refused: TidelineError | None = None
    refused_at_s: float = -math.inf
    damage: tuple[Finding, ...] = ()
    damage_at_s: float = -math.inf
    lost: tuple[Finding, ...] = ()
    lost_at_s: float = -math.inf

    @property
    def is_wrong(self) -> bool:
        """Whether something is wrong that may be mended at any time, without an entry in the table log."""
        return self.refused is not None or bool(self.damage) or bool(self.lost)

    def at(self, table: Table, now_s: float, quiet_for_s: float | None) -> _Standing:
        """Return what is known now; look again at what is too old: what was wrong may be mended at any time.

        `quiet_for_s`: interval of audits of a table of which the mirror tells that it has no news; None for other tables.
        """
        found = self
        standing_s, files_s = (LOOK_AT_STANDING_S, LOOK_AT_FILES_S) if quiet_for_s is None else (LOOK_AT_FILES_S, quiet_for_s)
        if now_s - self.refused_at_s >= (standing_s if self.refused is None else LOOK_AGAIN_S):
            found = replace(found, refused=why_refused(table), refused_at_s=now_s)
        if now_s - self.damage_at_s >= (LOOK_AGAIN_S if self.damage else files_s):
            # Damage that was found ends when no file is missing, not when it is the turn of other partitions.
            found = replace(found, damage=damage_of(table, everywhere=bool(self.damage)), damage_at_s=now_s)
        if now_s - self.lost_at_s >= (standing_s if table.capabilities.log_is_truth and not self.lost else LOOK_AT_TIMELINE_S):
            found = replace(found, lost=lost_of(table), lost_at_s=now_s)
        return found


_UNKNOWN = _Standing()


@dataclass(frozen=True, slots=True)
class _Seen:
    table: Table | None
    """None once the table rests."""
    base_path: str
    policy: TablePolicy
    sequence: int
    at_s: float
    since_s: float
    """Since when table, policy and sequence are the same, on the monotonic clock."""
    packed: bytes
    """The document, compressed: most of a fleet's tables are asked for rarely."""
    shown: tuple[str | None, str | None]
    """State and the time since which the table is in it, as the document has them."""
    findings: tuple[Document, ...]
    standing: _Standing

    @property
    def document(self) -> Document:
        """The document of the table."""
        found: Document = json.loads(zlib.decompress(self.packed))
        return found


class FleetWatch:
    """The status of each table of this instance. One thread examines tables; other threads read documents and verdicts."""

    def __init__(
        self, settings: PlannerSettings, context: ServiceContext, tables: OpenTables, publish: Callable[[FindingEvent], None]
    ) -> None:
        self._publish = publish
        self._settings = settings
        self._cleaner = settings.of(CleanerSettings)
        self._context = context
        self._tables = tables
        self._seen: dict[str, _Seen] = {}
        self._failures: dict[str, Document] = {}
        self._observed = ObservedTables(context, tables)
        self._gone: dict[str, tuple[str, float]] = {}
        """Base path → uid of a table that was found before, and the monotonic time since which it is not."""
        self._states: dict[str, tuple[str, str]] = {}
        """Base path → state of the table, and the time (ISO 8601) since which this process has seen it."""
        self._known: dict[tuple[str, str, str], str] = {}
        self._lock = threading.Lock()
        self._locks = LockProbe(settings.locks, context.clock)

    def examine(self, table: Table, policy: TablePolicy) -> None:
        """Examine a refreshed table, unless table and policy are unchanged and the last examination is recent (`LOOK_AGAIN_S`)."""
        now_s, known = self._context.clock.monotonic_s(), self._seen.get(table.uid)
        is_same = known is not None and known.table is table and known.policy == policy and known.sequence == table.state.sequence
        is_told = is_same and self._tables.looks.is_current(table)
        since_s = known.since_s if known is not None and is_same else now_s
        again_s = LOOK_AGAIN_S if table.capabilities.log_is_truth else LOOK_AT_TIMELINE_S
        told_s = min(LOOK_AT_QUIET_S, max(LOOK_AT_TOLD_S, now_s - since_s))
        is_told = is_told and not (known is not None and known.standing.is_wrong)  # no event tells that it is mended
        if known is not None and is_same and now_s - known.at_s < (told_s if is_told else again_s):
            has_pending = now_s - known.at_s >= LOOK_AT_PENDING_S and next(table.state.pending(), None) is not None
            if not has_pending:
                return
        standing = known.standing if known is not None and known.table is table else _Standing()
        # A new state was not looked at: its files are listed as those of a table that is written.
        standing = standing.at(table, now_s, self._settings.audit_interval_s if is_told else None)
        status = examine_beside(table, self._rules(table, policy), standing.refused, (*standing.damage, *standing.lost))
        verdicts = tuple(self._as_services_decide(table, policy, verdict) for verdict in status.verdicts)
        document = status_document(replace(status, verdicts=verdicts))
        with self._lock:
            self._seen[table.uid] = _Seen(
                table,
                table.base_path,
                policy,
                table.state.sequence,
                now_s,
                since_s,
                zlib.compress(json.dumps(document).encode()),
                (document["state"], document["state_since"]),
                tuple(document["findings"]),
                standing,
            )

    def rests_until_s(self, table: Table) -> float:
        """Return until when a table without news need not be examined: the next audit; 0 for one with a finding."""
        seen = self._seen.get(table.uid)
        if seen is None or seen.findings or seen.standing.is_wrong:
            return 0.0
        return self._tables.looks.audit_at_s(table.base_path)

    def finish(self, visited: set[str]) -> None:
        """Forget tables that are gone, add what the service could not open or find, and show all findings.

        A finding about no single table (a pattern, the server of the locks) is shown by the instance that holds the shard of
        its text, so that exactly one instance shows it.
        """
        failures: dict[str, Document] = {}
        for base_path, (why, is_lock) in self._tables.refusals().items():
            kind = FindingKind.LOCKS if is_lock else FindingKind.CANNOT_OPEN
            failures[base_path] = failure_document(base_path, Finding(kind, why))
        for pattern in filter(self._tables.owns, self._tables.registry.unmatched()):
            failures[pattern] = failure_document(pattern, Finding(FindingKind.NO_TABLE, f"no table matches {pattern}"))
        failures |= self._observed.documents(self._rules)
        failures |= self._of_gone(visited, failures)
        policies = self._tables.policies
        if policies is not None and policies.refusal and self._tables.owns(str(policies.path)):
            text = f"the policy file is refused, and the policies read before stay in force: {policies.refusal}"
            failures[str(policies.path)] = failure_document(str(policies.path), Finding(FindingKind.POLICY, text))
        place = self._locks.place
        if self._tables.owns(place) and (failure := self._locks.failure()):
            failures[place] = failure_document(place, Finding(FindingKind.LOCKS, f"the locks cannot be used: {failure}"))
        resting = self._tables.resting()
        with self._lock:
            self._seen = {uid: _at_rest(seen) if uid in resting else seen for uid, seen in self._seen.items() if uid in visited}
            self._failures = failures
        self._note_states()
        self._show()

    def _note_states(self) -> None:
        now, states = self._context.clock.now().isoformat(), Counter[str]()
        seen: dict[str, tuple[str, str]] = {}
        shown = [(each.base_path, each.shown[0]) for each in self._seen.values()]
        for base_path, state in (*shown, *((d["base_path"], d["state"]) for d in self._failures.values())):
            if state is not None:
                before = self._states.get(base_path, ("", ""))
                seen[base_path] = before if before[0] == state else (state, now)
                states[state] += 1
        for every in Standing:
            self._context.metrics.set(STATES, states[every.value], state=every.value)
        with self._lock:
            self._states = seen

    def _dated(self, document: Document) -> Document:
        """Return a document with the time since which its table is in its state, if storage does not say it."""
        state, since = self._states.get(document["base_path"], ("", ""))
        if document["state_since"] is not None or state != document["state"]:
            return document
        return {**document, "state_since": since}

    def _of_gone(self, visited: set[str], failures: Mapping[str, Document]) -> dict[str, Document]:
        """Return a finding for each table that was found before and is not at its place now."""
        now_s, found = self._context.clock.monotonic_s(), {*self._tables.known().values(), *self._tables.left_alone()}
        for uid, seen in self._seen.items():
            base_path = seen.base_path
            if uid not in visited and base_path not in found and self._tables.owns(base_path):
                self._gone.setdefault(base_path, (uid, now_s))
        there = {*found, *failures}
        self._gone = {
            base_path: (uid, since_s)
            for base_path, (uid, since_s) in self._gone.items()
            if base_path not in there and self._tables.owns(base_path) and now_s - since_s < GONE_SHOWN_S
        }
        return {
            base_path: failure_document(base_path, Finding(FindingKind.GONE, _gone_text(base_path, uid), now_s - since_s))
            for base_path, (uid, since_s) in self._gone.items()
        }

    def close(self) -> None:
        """Close the connection to the locks."""
        self._locks.close()

    def documents(self) -> list[Document]:
        """Return the documents of all tables as of the last visit, by base path."""
        with self._lock:
            found = [self._dated(d) for d in (*(seen.document for seen in self._seen.values()), *self._failures.values())]
        return sorted(found, key=lambda document: str(document["base_path"]))

    def document(self, uid: str) -> Document | None:
        """Return the document of a table, None if this instance does not have the table."""
        with self._lock:
            seen, others = self._seen.get(uid), self._failures.values()
            found = next((d for d in others if d["uid"] == uid), None) if seen is None else seen.document
            return None if found is None else self._dated(found)

    def verdicts(self, uid: str, services: list[TableService]) -> tuple[Document, list[Verdict]] | None:
        """Return the document of a table and new verdicts about its services, on its state as of the last visit.

        None if this instance does not have the table.
        """
        with self._lock:
            seen = self._seen.get(uid)
        if seen is None:
            return None
        table = seen.table or self._tables.opened_apart(seen.base_path)
        judged = judge_all(table, services, self._rules(table, seen.policy))
        return seen.document, [self._as_services_decide(table, seen.policy, verdict) for verdict in judged]

    def _rules(self, table: Table, policy: TablePolicy) -> Rules:
        return with_cleaner_options(rules_of(self._settings, policy, table), self._cleaner, policy, table)

    def _as_services_decide(self, table: Table, policy: TablePolicy, verdict: Verdict) -> Verdict:
        return with_cleaner(self._cleaner, policy, table, with_planner(self._settings, policy, table, verdict))

    def _show(self) -> None:
        """Set the gauges; log and publish each finding when it begins and when it ends.

        A finding about a table that another instance holds now did not end, because that instance shows it, too.
        """
        found: dict[tuple[str, str, str], str] = {}
        of_tables = [(seen.base_path, uid, seen.findings) for uid, seen in self._seen.items() if seen.findings]
        of_others = [(document["base_path"], document["uid"], document["findings"]) for document in self._failures.values()]
        for base_path, uid, findings in sorted((*of_tables, *of_others), key=itemgetter(0)):
            for about in findings:
                found[base_path, uid, about["kind"]] = about["text"]
        tables = Counter(kind for _, _, kind in found)
        for every in FindingKind:
            self._context.metrics.set(FINDINGS, tables[every.value], kind=every.value)
        now = self._context.clock.now()
        for (base_path, uid, kind), text in found.items():
            if (base_path, uid, kind) not in self._known:
                _log.warning("finding", base_path=base_path, table=uid, kind=kind, text=text)
                self._publish(FindingEvent(uid, base_path, kind, FOUND, now, text))
        for base_path, uid, kind in sorted(key for key in self._known.keys() - found.keys() if self._tables.owns(key[0])):
            _log.info("finding cleared", base_path=base_path, table=uid, kind=kind)
            self._publish(FindingEvent(uid, base_path, kind, CLEARED, now))
        self._known = found


def _at_rest(seen: _Seen) -> _Seen:
    return seen if seen.table is None else replace(seen, table=None, standing=_UNKNOWN)


def _gone_text(base_path: str, uid: str) -> str:
    return (
        f"table {uid} was at {base_path} and is not: it was dropped or moved, or the credentials do not see it any more; after a "
        "move: tideline adopt NEW_PATH"
    )
