"""Follows a shared table's timeline: there a step of either side is taken when its file appears, and the log comes behind.

What the timeline makes visible is compared with the model at each completed write, whichever process wrote it. The log has only
to tell the same in the end, and never to hold what cannot be folded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tests.simulation.disk import LOG, Disk
from tests.simulation.file_contents import wrong_rows
from tests.simulation.oracle import OP_KEY, Model, Oracle, changed
from tests.simulation.scheduler import Process, Scheduler
from tests.simulation.shared_world import UNLOCKED, completion_of, instant_of
from tests.simulation.visible_files import VisibleFiles

from tideline_table.errors import TidelineError
from tideline_table.hudi.avro_container import decode_document
from tideline_table.hudi.instant import CLUSTER, WRITE_ACTIONS, Action, Instant, State
from tideline_table.hudi.write_stats import CommitMetadata
from tideline_table.log.entry import Entry
from tideline_table.log.sharing import HUDI_WRITER
from tideline_table.log.state import TableState


@dataclass(frozen=True, slots=True)
class Moment:
    """The table behind one completed write."""

    path: str
    instant: str
    model: Model = field(default_factory=dict)
    files: VisibleFiles = field(default_factory=VisibleFiles)
    op: str = ""
    wrote: frozenset[str] = frozenset()


class SharedOracle(Oracle):
    """Watches a disk on which both sides write."""

    def __init__(self, disk: Disk, scheduler: Scheduler) -> None:
        super().__init__(disk, scheduler)
        self.moments: list[Moment] = [Moment("", "")]
        self.rolled_back: dict[str, str] = {}
        self._log: list[Entry] = []
        self._data_files: set[str] = set()
        self._last_time = ""
        """Of all instants and completion times in names."""
        self._is_disturbed = False
        """By a writer without the lock."""

    # --- questions ---------------------------------------------------------------------------------------------------

    @property
    def entries(self) -> list[Entry]:
        """The log."""
        return self._log

    @property
    def model(self) -> Model:
        """What the table has to hold."""
        return self.moments[-1].model

    def committed(self, op: str) -> int:
        """The place of `op` among the completed writes, 0 if it did not complete."""
        return next((place for place, moment in enumerate(self.moments) if moment.op == op), 0)

    # --- what happens ------------------------------------------------------------------------------------------------

    def written(self, path: str, process: Process) -> None:
        if path.startswith(LOG):
            self._fold(Entry.from_bytes(self._disk._objects[path][0], path), process)
            return
        self._check_times(path, process)
        instant = _completed(path)
        if instant is None:
            return
        content = self._disk._objects[path][0]
        if instant.action is Action.ROLLBACK:
            for target in decode_document(content, path)["commitsRollback"]:
                self.rolled_back[target] = instant.time
                if any(moment.instant == target for moment in self.moments):
                    self.report(f"{process.name} rolled {target} back, which had completed")
        elif instant.action in WRITE_ACTIONS:
            self._follow_write(instant, path, CommitMetadata.from_bytes(content, path), process)

    def deleted(self, path: str, process: Process) -> None:
        if _completed(path) is not None:
            self.report(f"{process.name} deleted {path}")
        if path in self._data_files and any(path in paths for paths in self.moments[-1].files.slices.values()):
            self.report(f"{process.name} deleted the committed file {path}, which is visible")
        elif path in self._data_files and not self._is_planned(path):
            self.report(f"{process.name} deleted the committed file {path}, which no clean plan names")

    def lost(self, path: str) -> None:
        """A change that never became durable, and that nobody saw, is forgotten."""
        if path.startswith(LOG):
            gone = self._log.pop()
            assert gone.path == path
            self.state = self._folded(self._log)
        if path == self.moments[-1].path:
            gone_write = self.moments.pop()
            self._data_files -= gone_write.wrote
            self._done.pop(gone_write.op, None)

    def reverted(self, path: str) -> None:
        """An object is again what it was: nothing that is followed here is ever overwritten."""

    def _check_times(self, path: str, process: Process) -> None:
        """Where names say completion times, each is later than every time before it. Who takes no lock knows none of them."""
        named = instant_of(path)
        ended = completion_of(path)
        if ended and ended <= self._last_time and not self._is_disturbed:
            self.report(f"{process.name} completed {path} at or before {self._last_time}")
        self._is_disturbed = self._is_disturbed or (named is not None and process.name.startswith(UNLOCKED))
        self._last_time = max(self._last_time, named.time if named is not None else "", ended)

    def _fold(self, entry: Entry, process: Process) -> None:
        self._check_plan(entry, process)
        try:
            self.state.apply(entry)
        except TidelineError as error:
            self.report(f"entry {entry.sequence} of {process.name} cannot be folded: {error}")
        self._log.append(entry)

    def _check_plan(self, entry: Entry, process: Process) -> None:
        """No rewrite is planned over a write of Apache Hudi: its job would fail at its commit, or its rows lie below the plan.

        Nothing is planned on probation.
        """
        begins = entry.before is State.NONE and entry.writer_id != HUDI_WRITER
        if begins and (entry.operation == CLUSTER or entry.action is Action.CLEAN) and self.state.probation:
            self.report(f"{process.name} planned {entry.action} {entry.instant} on {self.state.probation}")
        is_plan = entry.operation == CLUSTER and begins
        over = next((a for a in self.state.pending() if a.is_by_hudi and a.action in WRITE_ACTIONS and not a.is_clustering), None)
        if is_plan and over is not None:
            self.report(f"{process.name} planned clustering {entry.instant} over {over.action} {over.instant} of Hudi")

    def _folded(self, entries: list[Entry]) -> TableState:
        state = TableState()
        for entry in entries:
            state.apply(entry)
        return state

    def _follow_write(self, instant: Instant, path: str, metadata: CommitMetadata, process: Process) -> None:
        before = self.moments[-1]
        what = f"{instant.time} ({metadata.operation} of {process.name})"
        if instant.time in self.rolled_back:
            self.report(f"{what} completes behind its rollback {self.rolled_back[instant.time]}")
        changes, op = self._changes_of(metadata, before.model, instant, what)
        wrote = frozenset(stat.path for stat in metadata.stats if stat.path)
        files = before.files.after(instant.time, metadata)
        after = Moment(path, instant.time, changed(before.model, changes), files, op, wrote)
        self.moments.append(after)
        self._data_files |= wrote
        self._compare_rows(what, before, after, moves_rows=metadata.operation == CLUSTER)

    def _changes_of(
        self, metadata: CommitMetadata, model: Model, instant: Instant, what: str
    ) -> tuple[Mapping[str, str | None], str]:
        op = self.ops.get(metadata.extra.get(OP_KEY, ""))
        if op is None:
            return {}, ""
        if op.id in self._done:
            self.report(f"operation {op.id} completed twice, by {self._done[op.id]} and {what}")
        if op.status == "failed":
            self.report(f"operation {op.id} was reported as failed and completes by {what}")
        self._done[op.id] = len(self.moments)
        op.instant = instant.time
        if op.kind == "delete":
            return (dict.fromkeys(op.keys) if any(s.num_deletes for s in metadata.stats) else {}), op.id
        if op.kind == "insert" and not any(s.num_inserts or s.num_updates for s in metadata.stats):
            return {}, op.id
        return {key: op.value(key, model.get(key)) for key in op.keys}, op.id

    def _compare_rows(self, what: str, before: Moment, after: Moment, *, moves_rows: bool) -> None:
        slices, were = after.files.slices, before.files.slices
        missing = [path for paths in slices.values() for path in paths if path not in self._disk._objects]
        if missing:
            self.report(f"{what} makes {missing[0]} visible, which is not there")
            return
        rows = [row for paths in slices.values() for row in self.rows(paths)]
        if wrong := wrong_rows(rows, after.model):
            self.report(f"{what} leaves {wrong}")
        if moves_rows:
            taken = sorted(row for group, paths in were.items() if slices.get(group) != paths for row in self.rows(paths))
            given = sorted(row for group, paths in slices.items() if were.get(group) != paths for row in self.rows(paths))
            if taken != given:
                self.report(f"{what}: the table service changed rows: {sorted(set(taken) ^ set(given))[:4]}")

    def _is_planned(self, path: str) -> bool:
        named = ((instant_of(found), content) for found, (content, _) in self._disk._objects.items())
        cleans = (content for i, content in named if i is not None and (i.action, i.state) == (Action.CLEAN, State.REQUESTED))
        return any(path.encode() in content for content in cleans)


def _completed(path: str) -> Instant | None:
    instant = instant_of(path)
    return instant if instant is not None and instant.state is State.COMPLETED else None
