"""Sees every entry and every deletion at the moment at which it happens and compares the table with what its operations say.

The model is a dictionary; the log gives the order. `TableState` is used to learn which files are visible, rows are read from the disk.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.parquet as pq
from tests.simulation.disk import LOG, Disk
from tests.simulation.scheduler import Process, Scheduler

from tideline_table.errors import TidelineError
from tideline_table.file_group.state import TableState
from tideline_table.timeline.entry import Entry
from tideline_table.timeline.instant import WRITE_ACTIONS, Action, State
from tideline_table.timeline.write_stats import CommitMetadata

OP_KEY = "simulation.operation"
"""Extra metadata of a commit: which operation it is."""
_COLUMNS = ["id", "part", "v", "_hoodie_commit_time", "_hoodie_commit_seqno"]

Row = tuple[str, str, str, str, str]
Model = Mapping[str, str]


@dataclass(slots=True)
class Op:
    """One operation of an actor, and what came of it."""

    id: str
    kind: str
    keys: tuple[str, ...]
    began_step: int
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
    visible: frozenset[str]
    writes: int


class Oracle:
    """Watches a disk. `problems` say what must never happen and did."""

    def __init__(self, disk: Disk, scheduler: Scheduler) -> None:
        self.problems: list[str] = []
        self.ops: dict[str, Op] = {}
        self.state = TableState()
        self._disk = disk
        self._scheduler = scheduler
        self._history: list[_After] = []
        self._rows: dict[str, tuple[Row, ...]] = {}
        self._done: dict[str, int] = {}
        self._trimmed: set[int] = set()

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

    def deleted(self, path: str, process: Process) -> None:
        if path.startswith(LOG):
            self._trim(path, process)
        if not path.endswith(".parquet"):
            return
        if self._history and path in self._history[-1].visible:
            self.report(f"{process.name} deleted {path}, which is visible after entry {self.state.sequence}")
        elif any(s.path == path for s in self.state.every_slice()) and not self._is_planned(path):
            self.report(f"{process.name} deleted the committed file {path}, which no clean plan names")

    def _trim(self, path: str, process: Process) -> None:
        sequence = int(path[len(LOG) : -5])
        self._trimmed.add(sequence)
        if sequence >= min((a.started_sequence for a in self.state.pending()), default=self.state.sequence):
            self.report(f"{process.name} deleted entry {sequence} of the log, which somebody may still have to read")

    def _is_planned(self, path: str) -> bool:
        cleans = [self.state.plans[a.instant] for a in self.state.pending() if a.action is Action.CLEAN]
        return any(path in json.dumps(plan["plan"]["filePathsToBeDeletedPerPartition"]) for plan in cleans)

    def lost(self, path: str) -> None:
        """A change that never became durable, and that nobody saw, is forgotten."""
        if not path.startswith(LOG):
            return
        lost = self._history.pop()
        assert lost.entry.path == path
        self._done = {op: sequence for op, sequence in self._done.items() if sequence < lost.entry.sequence}
        self.state = TableState()
        for after in self._history:
            self.state.apply(after.entry)

    def _follow(self, entry: Entry, process: Process) -> None:
        if entry.body_reference is not None:
            entry = entry.with_body(json.loads(self._disk.read(entry.body_reference.path)))
        if entry.sequence in self._trimmed:
            return  # a writer that slept: it has to find out that its place is no longer the head
        if entry.sequence <= self.state.sequence:
            self.report(f"{process.name} overwrote entry {entry.sequence}")
            return
        known = self.state.actions.get(entry.instant)
        if entry.after is State.COMPLETED and known is not None and (known.fenced_by or not known.is_pending):
            by = f", which rollback {known.fenced_by} had fenced" if known.fenced_by else ""
            self.report(f"entry {entry.sequence} of {process.name} completes the {known.state} {entry.instant}{by}")
        try:
            self.state.apply(entry)
        except TidelineError as error:
            self.report(f"entry {entry.sequence} of {process.name} cannot be folded: {error}")
            return
        before = self._history[-1] if self._history else _After(entry, {}, frozenset(), 0)
        if entry.after is not State.COMPLETED or entry.action not in WRITE_ACTIONS:
            self._history.append(_After(entry, before.model, before.visible, before.writes))
            return
        model = self._applied(entry, before.model)
        visible = frozenset(s.path for s in self.state.latest_slices())
        self._history.append(_After(entry, model, visible, before.writes + 1))
        self._compare(entry, model, before.visible, visible)

    def _applied(self, entry: Entry, model: Model) -> Model:
        metadata = CommitMetadata.from_json(entry.body["metadata"])
        op = self.ops.get(metadata.extra.get(OP_KEY, ""))
        if op is None:
            return model
        if op.id in self._done:
            self.report(f"operation {op.id} completed twice, at {self._done[op.id]} and {entry.sequence}")
        if op.status == "failed":
            self.report(f"operation {op.id} was reported as failed and completes at {entry.sequence}")
        self._done[op.id] = entry.sequence
        op.instant = entry.instant
        changed = dict(model)
        for key in op.keys:
            if op.kind == "delete":
                # A delete that did not see the key changes nothing.
                if any(s.num_deletes for s in metadata.stats):
                    changed.pop(key, None)
            elif op.kind != "insert" or key not in changed:
                changed[key] = op.value(key, changed.get(key))
        return changed

    def _compare(self, entry: Entry, model: Model, were: frozenset[str], are: frozenset[str]) -> None:
        what = f"entry {entry.sequence} ({entry.operation} {entry.instant})"
        missing = [p for p in sorted(are) if p not in self._disk._objects]
        if missing:
            self.report(f"{what} makes {missing[0]} visible, which is not there")
            return
        rows = [row for path in sorted(are) for row in self.rows(path)]
        found = {row[0]: row[2] for row in rows}
        if len(found) < len(rows):
            keys = [row[0] for row in rows]
            self.report(f"{what} leaves keys that stand twice: {sorted({k for k in keys if keys.count(k) > 1})}")
        elif found != model:
            odd = sorted(k for k in found.keys() | model.keys() if found.get(k) != model.get(k))
            told = ", ".join(f"{k}: {found.get(k)!r} instead of {model.get(k)!r}" for k in odd[:3])
            self.report(f"{what} leaves other rows than its operations say: {told}")
        if entry.action is Action.REPLACE_COMMIT:
            taken = sorted(row for path in were - are for row in self.rows(path))
            given = sorted(row for path in are - were for row in self.rows(path))
            if taken != given:
                self.report(f"{what}: the table service changed rows: {sorted(set(taken) ^ set(given))[:4]}")

    def rows(self, path: str) -> tuple[Row, ...]:
        """Rows of a base file."""
        if path not in self._rows:
            content = self._disk._objects[path][0]
            table = pq.ParquetFile(pa.BufferReader(content)).read(columns=_COLUMNS, use_threads=False)
            self._rows[path] = tuple(zip(*(table.column(c).to_pylist() for c in _COLUMNS), strict=True))
        return self._rows[path]
