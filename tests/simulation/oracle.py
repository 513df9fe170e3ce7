"""Sees every entry and every deletion at the moment at which it happens and compares the table with what its operations say.

The model is a dictionary; the log gives the order. Which files are visible follows from the commits (`visible_files`) and has
to be what the engine's `TableState` says; their rows are read from the disk by other code than the engine's (`file_contents`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Protocol

from tests.simulation.disk import LOG, Disk
from tests.simulation.file_contents import Row, base_rows, log_changes, merged, wrong_rows
from tests.simulation.scheduler import Process, Scheduler
from tests.simulation.signs_of_life import HEARTBEATS, SignsOfLife
from tests.simulation.strangers import Objects, replaced_and_back, taken_for_committed
from tests.simulation.visible_files import Paths, VisibleFiles, is_data_file

from tideline_table.errors import TidelineError
from tideline_table.hudi.instant import CLUSTER, WRITE_ACTIONS, Action, State
from tideline_table.hudi.write_stats import CommitMetadata
from tideline_table.log.body import RestoreBegun
from tideline_table.log.entry import Entry
from tideline_table.log.state import TableState

OP_KEY = "simulation.operation"
"""Extra metadata of a commit: which operation it is."""
_COMPLETED = (".commit", ".deltacommit", ".replacecommit")
"""How timeline files of completed writes end."""
_PUBLISHING = WRITE_ACTIONS | {Action.COMPACTION, Action.LOG_COMPACTION}

Model = Mapping[str, str]


@dataclass(slots=True)
class Op:
    """One operation of an actor, and what came of it."""

    id: str
    kind: str
    keys: tuple[str, ...]
    began_step: int
    clears: tuple[str, ...] = ()
    """Keys that it takes away first: all of a partition that it overwrites or drops."""
    status: str = "running"
    """`committed`, `failed` (certainly without effect), or `running` (nobody was told: it may have happened)."""
    ended_step: int = 0
    sequence: int = 0
    instant: str = ""
    reads: dict[str, dict[str, str]] = field(default_factory=dict)
    """By instant of the attempt (empty for a mere reader): the values of the keys that it read."""

    def value(self, key: str, before: str | None) -> str:
        """What the operation makes of a key."""
        if self.kind == "append":
            return f"{before} {self.id}" if before else self.id
        return self.id


@dataclass(frozen=True, slots=True)
class _After:
    """The table after one entry."""

    entry: Entry
    model: Model
    files: VisibleFiles
    writes: int
    changes: Mapping[str, str | None] = field(default_factory=dict)
    """What a commit made of keys; None: nothing is left of them."""

    @property
    def visible(self) -> frozenset[str]:
        return frozenset(path for paths in self.files.slices.values() for path in paths)


class Feeding(Protocol):
    """What takes rows into the table beside the operations."""

    def changes(self, entry: Entry, metadata: CommitMetadata) -> dict[str, str | None]:
        """What a commit that is no operation's makes of keys."""
        ...

    def settled(self, entry: Entry) -> None:
        """`entry` published something, or took it back."""
        ...


class Oracle:
    """Watches a disk. `problems` say what must never happen and did."""

    def __init__(self, disk: Disk, scheduler: Scheduler) -> None:
        self.problems: list[str] = []
        self.ops: dict[str, Op] = {}
        self.state = TableState()
        self._disk = disk
        self._scheduler = scheduler
        self.judges_the_living: Callable[[], bool] = lambda: True
        """Whether what lies on the disk tells who is alive."""
        self.lock_holder: Callable[[], str | None] = lambda: None
        """Who holds the table lock, None where nobody can tell."""
        self.feed: Feeding | None = None
        self._history: list[_After] = []
        self._living = SignsOfLife()
        self._base_rows: dict[str, tuple[Row, ...]] = {}
        self._log_changes: dict[str, tuple[tuple[str, Row | None], ...]] = {}
        self._done: dict[str, int] = {}
        self._trimmed: set[int] = set()
        self._saved: dict[str, int] = {}
        self._undone: set[int] = set()

    # --- questions ---------------------------------------------------------------------------------------------------

    def model_at(self, sequence: int) -> Model:
        """What the table has to hold after entry `sequence`."""
        return self._history[sequence - 1].model if sequence else {}

    def committed_writes_since(self, sequence: int) -> int:
        """Completed writes after entry `sequence`."""
        return self._history[-1].writes - (self._history[sequence - 1].writes if sequence else 0)

    def state_at(self, sequence: int) -> TableState:
        """The fold of the whole log up to `sequence`."""
        state = TableState()
        for after in self._history[:sequence]:
            state.apply(after.entry)
        return state

    @property
    def entries(self) -> list[Entry]:
        """The log."""
        return [after.entry for after in self._history]

    @property
    def committed_instants(self) -> set[str]:
        """Instants that published something, archived ones too, and that no restore took back."""
        done = (a.entry for a in self._history if a.entry.after is State.COMPLETED and a.entry.sequence not in self._undone)
        return {entry.instant for entry in done if entry.action in _PUBLISHING}

    @property
    def loses_writes(self) -> bool:
        """Whether acknowledged writes were taken away on purpose: by a restore, or with their partition."""
        return bool(self._undone) or any(op.clears for op in self.ops.values())

    @property
    def undone(self) -> AbstractSet[int]:
        """Sequences of what restores took back."""
        return self._undone

    @property
    def trimmed(self) -> int:
        """Up to where entries were deleted."""
        return max(self._trimmed, default=0)

    def committed(self, op: str) -> int:
        """The sequence at which `op` completed, 0 if it did not."""
        return self._done.get(op, 0)

    def report(self, problem: str) -> None:
        """Something that must never happen."""
        self.problems.append(f"step {self._scheduler.steps}: {problem}")

    # --- what happens ------------------------------------------------------------------------------------------------

    def written(self, path: str, process: Process) -> None:
        if path.startswith(LOG):
            self._follow(Entry.from_bytes(self._disk._objects[path][0], path), process)
        elif path.startswith(HEARTBEATS):
            self._living.beat(path, self._scheduler.now_us)
        elif is_data_file(path):
            self._look_as_strangers({p: o for p, o in self._disk._objects.items() if p == path or p.endswith(_COMPLETED)})

    def _look_as_strangers(self, objects: Objects) -> None:
        """What others take for committed once archival moves the timeline's beginning: only what is."""
        if not any(a.entry.action is Action.ARCHIVAL for a in self._history):
            return
        for path, instant in taken_for_committed(objects, self.committed_instants):
            self.report(f"{path} lies in front of the timeline: others take {instant} for committed")
        # Files of the newest entry may not be there yet: whichever process comes next makes them first.
        newest = {a.instant for a in self.state.actions.values() if a.sequence == self.state.sequence}
        replaced = {(g.partition_path, g.file_id): at for g, at in self.state.replaced.items() if at not in newest}
        for path, instant in replaced_and_back(objects, replaced):
            self.report(f"{path} was replaced by {instant}, of which the timeline does not tell any more")

    def deleted(self, path: str, process: Process) -> None:
        if path.startswith(LOG):
            self._trim(path, process)
        if path.startswith(HEARTBEATS):
            self._living.ended(path)
        if path.endswith(_COMPLETED):
            self._look_as_strangers(self._disk._objects)
        if not is_data_file(path):
            return
        if self._history and path in self._history[-1].visible:
            self.report(f"{process.name} deleted {path}, which is visible after entry {self.state.sequence}")
        elif any(path in s.paths for s in self.state.every_slice()) and not self._is_planned(path):
            self.report(f"{process.name} deleted the committed file {path}, which no clean plan names")

    def _trim(self, path: str, process: Process) -> None:
        sequence = int(path[len(LOG) : -5])
        self._trimmed.add(sequence)
        if sequence >= min((a.started_sequence for a in self.state.pending()), default=self.state.sequence):
            self.report(f"{process.name} deleted entry {sequence} of the log, which somebody may still have to read")

    def _is_planned(self, path: str) -> bool:
        cleans = [self.state.plans[a.instant] for a in self.state.pending() if a.action is Action.CLEAN]
        return any(path in json.dumps(plan.plan["filePathsToBeDeletedPerPartition"]) for plan in cleans)

    def lost(self, path: str) -> None:
        """A change that never became durable, and that nobody saw, is forgotten."""
        if path.startswith(HEARTBEATS):
            self._living.ended(path)
        if not path.startswith(LOG) or int(path[len(LOG) : -5]) in self._trimmed:
            return  # of a sleeper, where the log was trimmed: it never counted
        lost = self._history.pop()
        assert lost.entry.path == path
        self._living.forget(lost.entry)
        self._undone = {sequence for sequence in self._undone if sequence < lost.entry.sequence}
        self._done = {op: sequence for op, sequence in self._done.items() if sequence < lost.entry.sequence}
        self.state = TableState()
        for after in self._history:
            self.state.apply(after.entry)

    def reverted(self, path: str) -> None:
        """An object is again what it was before a change that never became durable."""
        if path.startswith(HEARTBEATS):
            self._living.ended(path)

    def _follow(self, entry: Entry, process: Process) -> None:
        if entry.body_reference is not None:
            entry = entry.with_body(json.loads(self._disk.read(entry.body_reference.path)))
        if entry.sequence in self._trimmed:
            return  # a writer that slept: it has to find out that its place is no longer the head
        if entry.sequence <= self.state.sequence:
            self.report(f"{process.name} overwrote entry {entry.sequence}")
            return
        # A savepoint goes by the instant of the write that it protects.
        known = self.state.actions.get(entry.instant) if entry.action is not Action.SAVEPOINT else None
        if entry.after is State.COMPLETED and known is not None and (known.fenced_by or not known.is_pending):
            by = f", which rollback {known.fenced_by} had fenced" if known.fenced_by else ""
            self.report(f"entry {entry.sequence} of {process.name} completes the {known.state} {entry.instant}{by}")
        try:
            self.state.apply(entry)
        except TidelineError as error:
            self.report(f"entry {entry.sequence} of {process.name} cannot be folded: {error}")
            return
        wrong = self._living.transition(entry, self._scheduler.now_us)
        if wrong and self.judges_the_living():
            self.report(wrong[0])
        before = self._history[-1] if self._history else _After(entry, {}, VisibleFiles(), 0)
        if entry.action is Action.SAVEPOINT:
            self._saved[entry.instant] = entry.sequence
        if isinstance(entry.body, RestoreBegun):
            self._rewind(entry, before)
            return
        if entry.after is not State.COMPLETED or entry.action not in _PUBLISHING:
            self._history.append(_After(entry, before.model, before.files, before.writes))
            return
        holder = self.lock_holder()
        if holder is not None and holder != entry.writer_id:
            self.report(f"entry {entry.sequence} of {entry.writer_id} publishes while {holder or 'nobody'} holds the table lock")
        metadata = entry.body.metadata
        changes = self._changes(entry, metadata, before.model)
        files = before.files.after(entry.instant, metadata)
        after = _After(entry, changed(before.model, changes), files, before.writes + 1, changes)
        self._history.append(after)
        self._compare(before, after)
        if entry.action is Action.COMPACTION:
            self._check_whole(entry, metadata)

    def _check_whole(self, entry: Entry, metadata: CommitMetadata) -> None:
        """A compaction leaves a base file in each file group of its plan: writers append to it.

        Our readers would not miss it, others do.
        """
        requested = next(
            a.entry for a in reversed(self._history) if a.entry.instant == entry.instant and a.entry.after is State.REQUESTED
        )
        planned = sorted((o["partitionPath"], o["fileId"]) for o in requested.body.plan["operations"])
        written = sorted((stat.partition_path, stat.file_id) for stat in metadata.stats)
        if written != planned:
            self.report(f"entry {entry.sequence} completes a compaction of {planned} with base files of {written}")

    def _rewind(self, entry: Entry, before: _After) -> None:
        """A restore takes back what is newer than its savepoint; table services of before that ended since hold the same rows."""
        requested = next(a.entry for a in reversed(self._history) if a.entry.instant == entry.instant)
        instant = requested.body.plan["savepointToRestoreTimestamp"]
        model: Model = {}
        files = VisibleFiles()
        for after in self._history:
            found = after.entry
            if found.after is not State.COMPLETED or found.action not in _PUBLISHING or found.sequence in self._undone:
                continue
            if found.instant <= instant and (found.sequence < self._saved[instant] or _moves_rows(found)):
                model = changed(model, after.changes)
                files = files.after(found.instant, found.body.metadata)
            else:
                self._undone.add(found.sequence)
        after = _After(entry, model, files, before.writes)
        self._history.append(after)
        self._compare(before, after)

    def _changes(self, entry: Entry, metadata: CommitMetadata, model: Model) -> dict[str, str | None]:
        op = self.ops.get(metadata.extra.get(OP_KEY, ""))
        if op is None:
            return self.feed.changes(entry, metadata) if self.feed is not None else {}
        if op.id in self._done:
            self.report(f"operation {op.id} completed twice, at {self._done[op.id]} and {entry.sequence}")
        if op.status == "failed":
            self.report(f"operation {op.id} was reported as failed and completes at {entry.sequence}")
        self._done[op.id] = entry.sequence
        op.instant = entry.instant
        changes: dict[str, str | None] = dict.fromkeys(op.clears)
        for key in op.keys:
            if op.kind == "delete":
                # A delete that did not see the key changes nothing.
                if any(s.num_deletes for s in metadata.stats):
                    changes[key] = None
            elif op.kind != "insert" or self._inserts(entry, metadata, key):
                changes[key] = op.value(key, model.get(key))
        return changes

    def _inserts(self, entry: Entry, metadata: CommitMetadata, key: str) -> bool:
        """Whether an insert that keeps what the table holds wrote its key: never beside a living one, always where there was
        none."""
        since = self._history[self.state.actions[entry.instant].started_sequence - 1 :]
        is_written = any(s.num_inserts or s.num_updates for s in metadata.stats)
        if is_written and key in since[-1].model:
            self.report(f"entry {entry.sequence} inserts {key}, which the table holds")
        if not is_written and not any(key in after.model for after in since):
            self.report(f"entry {entry.sequence} leaves {key} out, which the table did not hold while it ran")
        return is_written

    def _compare(self, before: _After, after: _After) -> None:
        entry, slices = after.entry, after.files.slices
        what = f"entry {entry.sequence} ({entry.operation} {entry.instant})"
        told = {(s.group.partition_path, s.group.file_id): s.paths for s in self.state.latest_slices()}
        if told != slices:
            group = min(g for g in told.keys() | slices.keys() if told.get(g) != slices.get(g))
            self.report(f"{what}: the engine sees {told.get(group)} of file group {group}, its commits say {slices.get(group)}")
        twice = after.files.twice()
        if twice:
            self.report(f"{what}: {twice[0]} shares its version with another log file")
        missing = [p for p in sorted(after.visible) if p not in self._disk._objects]
        if missing:
            self.report(f"{what} makes {missing[0]} visible, which is not there")
            return
        rows = [row for paths in slices.values() for row in self.rows(paths)]
        if wrong := wrong_rows(rows, after.model):
            self.report(f"{what} leaves {wrong}")
        fewer = [row for paths in after.files.read.values() for row in self.rows(paths)]
        if sorted(fewer) != sorted(rows):
            self.report(f"{what}: who skips merged log files reads other rows: {sorted(set(fewer) ^ set(rows))[:4]}")
        if self.feed is not None:
            self.feed.settled(entry)
        if _moves_rows(entry):
            were = before.files.slices
            taken = sorted(row for group, paths in were.items() if slices.get(group) != paths for row in self.rows(paths))
            given = sorted(row for group, paths in slices.items() if were.get(group) != paths for row in self.rows(paths))
            if taken != given:
                self.report(f"{what}: the table service changed rows: {sorted(set(taken) ^ set(given))[:4]}")

    def rows(self, paths: Paths) -> list[Row]:
        """Rows of a file slice: of its base file, if any, with its log files merged."""
        base = [path for path in paths if path.endswith(".parquet")]
        logs = paths[len(base) :]
        for path in base:
            if path not in self._base_rows:
                self._base_rows[path] = base_rows(self._disk._objects[path][0])
        for path in logs:
            if path not in self._log_changes:
                self._log_changes[path] = log_changes(self._disk._objects[path][0])
        return merged(self._base_rows[base[0]] if base else (), [self._log_changes[path] for path in logs])


def _moves_rows(entry: Entry) -> bool:
    """Whether a table service published it: the rows are the same."""
    return entry.action in (Action.COMPACTION, Action.LOG_COMPACTION) or entry.operation == CLUSTER


def changed(model: Model, changes: Mapping[str, str | None]) -> Model:
    return {key: value for key, value in {**model, **changes}.items() if value is not None}
