"""A write transaction: begin, then commit or roll back."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow.compute as pc

from tideline_table.config import Options
from tideline_table.errors import WriteConflict
from tideline_table.file_group.action import CLUSTER
from tideline_table.file_group.slice import FileGroupId, FileSlice, LogFile, SliceVersion, join_path
from tideline_table.file_group.state import TableState
from tideline_table.index.key_hash import MAX_CARRIED_HASHES
from tideline_table.index.scope import KeyScope
from tideline_table.log_format.key_index import forget_index
from tideline_table.reader.log_keys import log_keys
from tideline_table.timeline.entry import Entry
from tideline_table.timeline.instant import WRITE_ACTIONS, Action, State
from tideline_table.timeline.log import Draft
from tideline_table.timeline.progress import ProgressStep
from tideline_table.timeline.write_stats import SCHEMA_KEY, CommitMetadata, WriteStat
from tideline_table.transaction.active_timeline import ActiveTimeline
from tideline_table.transaction.conflict import (
    InsertedKeys,
    Overwrite,
    SchemaStep,
    SliceGrew,
    UpdateStrategy,
    WriteSet,
    check_progress,
    check_still_own,
    find_conflict,
)
from tideline_table.transaction.file_times import pass_second
from tideline_table.transaction.heartbeat import Heartbeat
from tideline_table.transaction.lock import TableLock
from tideline_table.transaction.priority import update_strategy
from tideline_table.transaction.rollback import forget_late_files, roll_back
from tideline_table.writer.file_group import FileGroupResult
from tideline_table.writer.log_file import move_behind
from tideline_table.writer.marker import forget_markers, marked_files

HASHES_KEYS = {KeyScope.PARTITION: "inserted_key_hashes", KeyScope.TABLE: "inserted_key_hashes_of_table"}
"""Where a commit carries the hashes of the keys that it added: all by partition, those of a global index as keys of the table, too."""
EARLY_CHECK_S = 1.0
"""While files are written, conflicts are looked for at most this often."""
_MOVES = 10
"""How often log files move behind those of others before the write counts as lost."""


@dataclass(frozen=True, slots=True)
class LookUp:
    """A look-up of our keys in slices that another write added, among all that are unique with ours by `scope`."""

    scope: KeyScope
    find: Callable[[Sequence[FileSlice]], str | None]
    """The partition in which they hold a key of ours, None when there is none."""


@dataclass(frozen=True, slots=True)
class Committed:
    """A transaction that is in the log. `sequence` is its place in the completion order of the table."""

    instant: str
    sequence: int
    stats: tuple[WriteStat, ...] = ()
    attempts: int = 1

    @property
    def rows_inserted(self) -> int:
        """Rows that were not there before."""
        return sum(s.num_inserts for s in self.stats)

    @property
    def rows_updated(self) -> int:
        """Rows that replaced an older version."""
        return sum(s.num_updates for s in self.stats)

    @property
    def rows_deleted(self) -> int:
        """Rows removed."""
        return sum(s.num_deletes for s in self.stats)


@dataclass(slots=True)
class WriteTransaction:
    """One inflight write. Use `begin`; then exactly one of `commit` and `roll_back`."""

    timeline: ActiveTimeline
    lock: TableLock
    instant: str
    operation: str
    begin_sequence: int
    action: Action
    update_strategy: UpdateStrategy
    _heartbeat: Heartbeat = field(repr=False)
    _check_again_s: float = field(default=float("-inf"), repr=False)
    _staged: set[str] = field(default_factory=set, repr=False)

    @classmethod
    def begin(
        cls,
        timeline: ActiveTimeline,
        lock: TableLock,
        operation: str,
        action: Action = Action.COMMIT,
        options: Options | None = None,
        progress: ProgressStep | None = None,
    ) -> WriteTransaction:
        """Mint the instant by appending its requested + inflight entry, and start its heartbeat. `options` default to those of the table.

        Raises `ProgressMoved`, with nothing begun, where a commit that moves `progress` would be refused already.
        """
        strategy = update_strategy(timeline, options or timeline.options)

        def decide(state: TableState) -> Draft:
            check_progress(progress, state)
            return Draft(timeline.mint(state), action, State.NONE, State.INFLIGHT, operation, {})

        entry = timeline.append(decide)
        heartbeat = Heartbeat(timeline.storage, entry.instant, timeline.options)
        heartbeat.__enter__()
        return cls(timeline, lock, entry.instant, operation, entry.sequence, action, strategy, heartbeat)

    def commit(
        self,
        results: Sequence[FileGroupResult],
        schema_json: str,
        extra: Mapping[str, str],
        look_up: LookUp | None,
        schema_based_on: str | None = None,
        progress: ProgressStep | None = None,
        overwrites: Overwrite | None = None,
    ) -> Committed:
        """Check for conflicts against everything since the begin and publish.

        `look_up` is None when the operation does not promise unique keys; `schema_based_on` is the schema that `schema_json` evolved from,
        None when it did not. `progress` moves with the commit, or there is none. `overwrites` goes with a replace commit. Raises `WriteConflict`, `ProgressMoved` or
        `TransactionRolledBack` (nothing became visible; call `roll_back`), `CommitUnknown` when the log did not answer.
        """
        written = list(results)
        schema = SchemaStep(schema_json if schema_based_on is None else schema_based_on, schema_json)
        named = {**extra, **(progress.metadata if progress else {}), SCHEMA_KEY: schema_json}
        self._delete_unnamed_files(written)
        if self.action is Action.DELTA_COMMIT:
            pass_second(self.timeline, max((s.prev_commit if s.is_log else self.instant for s in _stats(written)), default=""))
        inserted_in = {s.partition_path for s in _stats(written) if s.num_inserts}
        checked = _InsertsSince(self.timeline, self.begin_sequence, inserted_in, look_up)
        scope = look_up.scope if look_up is not None else None
        with self.lock.hold(self.timeline.head_sequence):
            for move in range(_MOVES + 1):
                own = self._write_set(written, scope, schema)
                own = replace(own, progress=progress, overwrites=overwrites)
                try:
                    entry = self._append(own, checked, written, named)
                    break
                except SliceGrew as grown:
                    if move == _MOVES:
                        raise
                    written = self._moved_behind(written, grown.groups)
                    self._delete_unnamed_files(written)
        self._heartbeat.stop()
        forget_markers(self.timeline.storage, self.instant)
        return Committed(self.instant, entry.sequence, _stats(written))

    def staged(self, result: FileGroupResult) -> None:
        """Note what was written: should somebody else roll this transaction back meanwhile, only we know of it. For several threads."""
        if result.stat is not None:
            self._staged.add(result.stat.path)

    def check_early(self, based_on: Mapping[FileGroupId, SliceVersion], appends: frozenset[FileGroupId]) -> None:
        """Raise the conflict that a commit over `based_on` would end with by now.

        Looks at the table at most every `EARLY_CHECK_S`, and for a tenth of the time at most: a shared one may have much to show that nobody adopted yet.
        For writers between two files: what is lost already is not worth finishing. Safe to call from several threads.
        """
        clock = self.timeline.clock
        asked_s = clock.monotonic_s()
        if asked_s < self._check_again_s:
            return
        self._check_again_s = asked_s + EARLY_CHECK_S
        state = self.timeline.look()
        self._check_again_s = asked_s + max(EARLY_CHECK_S, 10 * (clock.monotonic_s() - asked_s))
        own = WriteSet(self.instant, dict(based_on), appends=appends, update_strategy=self.update_strategy)
        conflict = find_conflict(own, state, ())
        if conflict is not None and not isinstance(conflict, SliceGrew):
            raise conflict

    def _write_set(self, results: Sequence[FileGroupResult], scope: KeyScope | None, schema: SchemaStep) -> WriteSet:
        """`scope` is None for a write that does not promise unique keys."""
        read = {_group(r.stat): (r.read, r.stat.is_log) for r in results if r.stat is not None and r.read is not None}
        return WriteSet(
            self.instant,
            {group: version for group, (version, _) in read.items()},
            inserted_hashes(results, scope) if scope is not None else np.empty(0, dtype=np.uint64),
            frozenset(group for group, (_, is_log) in read.items() if is_log),
            self.update_strategy,
            schema,
        )

    def _body(
        self, results: Sequence[FileGroupResult], extra: Mapping[str, str], replaced: Sequence[FileGroupId] | None
    ) -> dict[str, object]:
        retired: dict[str, list[str]] | None = None if replaced is None else {}
        for group in replaced or ():
            assert retired is not None
            retired.setdefault(group.partition_path, []).append(group.file_id)
        body: dict[str, object] = {"metadata": CommitMetadata(self.operation, _stats(results), extra, retired).to_json()}
        hashes = inserted_hashes(results, KeyScope.PARTITION)
        if len(hashes) <= MAX_CARRIED_HASHES and all(r.inserted_hashes is not None for r in results):
            body[HASHES_KEYS[KeyScope.PARTITION]] = _as_text(hashes)
            of_table = inserted_hashes(results, KeyScope.TABLE)
            # Only a write that promises keys unique in the table tells them so.
            if 0 < len(of_table) == len(hashes):
                body[HASHES_KEYS[KeyScope.TABLE]] = _as_text(of_table)
        return body

    def _append(self, own: WriteSet, checked: _InsertsSince, results: Sequence[FileGroupResult], extra: Mapping[str, str]) -> Entry:
        def decide(state: TableState) -> Draft:
            check_still_own(state, self.instant)
            conflict = find_conflict(own, state, checked.up_to(state))
            if conflict is not None:
                raise conflict
            replaced = own.overwrites.replaced(state) if own.overwrites is not None else None
            body = self._body(results, extra, replaced)
            return Draft(self.instant, self.action, State.INFLIGHT, State.COMPLETED, self.operation, body)

        return self.timeline.append(decide)

    def _moved_behind(self, results: Sequence[FileGroupResult], grown: frozenset[FileGroupId]) -> list[FileGroupResult]:
        storage, state = self.timeline.storage, self.timeline.state
        moved = []
        for result in results:
            latest = state.latest_slice(_group(result.stat)) if result.stat is not None and _group(result.stat) in grown else None
            if latest is None or result.stat is None:
                moved.append(result)
                continue
            self._check_rows(result.stat, latest)
            moved.append(move_behind(result, latest, self.instant, storage, self.timeline.options))
        return moved

    def _check_rows(self, own: WriteStat, latest: FileSlice) -> None:
        # The same row written twice is a conflict, as between writes of base files: who read it before it wrote it must read it again.
        known = {join_path(own.partition_path, name) for name in own.log_files}
        others = [path for path in latest.log_paths if path not in known]
        storage = self.timeline.storage
        if pc.any(pc.is_in(log_keys(storage, [own.path]), value_set=log_keys(storage, others))).as_py():
            by = latest.log_files[-1].instant
            raise WriteConflict(
                f"rows of file group {latest.group.file_id} in {own.partition_path!r} were written by others, at the latest by {by}",
                with_instant=by,
            )

    def roll_back(self) -> None:
        """Undo everything that this transaction wrote; one that is in the log already stays, and its timeline files are completed.

        When that fails the heartbeat ends all the same: a living one would keep recovery away from the instant.
        """
        if self.timeline.state.sharing is not None:
            # Whoever adopts the rollback must not take it for that of a writer who undoes the living (`peer_rules`).
            self._heartbeat.stop()
        try:
            # An interrupt may come between the commit point and what follows from it.
            if self._is_committed():
                self.timeline.heal(0.0)
            elif roll_back(self.timeline, self.instant, force=True) is None:
                forget_late_files(self.timeline, self.instant, self._staged)
        finally:
            self._heartbeat.stop()

    def _is_committed(self) -> bool:
        self.timeline.refresh()
        record = self.timeline.state.actions.get(self.instant)
        return record is not None and record.state is State.COMPLETED

    def abandon(self) -> None:
        """Stop the heartbeat and leave the instant to recovery: for callers that cannot roll back now."""
        self._heartbeat.stop()

    def _delete_unnamed_files(self, results: Sequence[FileGroupResult]) -> None:
        # Files of attempts that lost (retried tasks): they carry this instant and would count as committed.
        named = {s.path for s in _stats(results)}
        self._staged |= named
        for path in marked_files(self.timeline.storage, self.instant):
            if path not in named:
                forget_index(self.timeline.storage, path)
                self.timeline.storage.delete(path)


def _stats(results: Sequence[FileGroupResult]) -> tuple[WriteStat, ...]:
    return tuple(r.stat for r in results if r.stat is not None)


def _group(stat: WriteStat) -> FileGroupId:
    return FileGroupId(stat.partition_path, stat.file_id)


def inserted_hashes(results: Sequence[FileGroupResult], scope: KeyScope) -> np.ndarray:
    """Hashes of the keys that these results added, as unique in `scope`, as far as their tasks told."""
    told = (r.table_hashes if scope is KeyScope.TABLE else r.inserted_hashes or b"" for r in results)
    return np.frombuffer(b"".join(told), dtype="<u8")


def _as_text(hashes: np.ndarray) -> str:
    return base64.b64encode(np.sort(hashes).tobytes()).decode()


class _InsertsSince:
    """Completed writes after a begin that added keys in the same partitions, or in any where keys are unique in the table; read once each."""

    def __init__(self, timeline: ActiveTimeline, sequence: int, partitions: set[str], look_up: LookUp | None) -> None:
        self._timeline = timeline
        self._sequence = sequence
        self._partitions = partitions
        self._look_up = look_up
        self._found: list[InsertedKeys] = []

    def up_to(self, state: TableState) -> list[InsertedKeys]:
        if self._look_up is None or not self._partitions:
            return []
        for sequence in range(self._sequence + 1, state.sequence + 1):
            entry = self._timeline.log.read(sequence)
            if entry is not None and entry.after is State.COMPLETED and entry.action in WRITE_ACTIONS:
                self._add(entry)
        self._sequence = state.sequence
        return self._found

    def _add(self, entry: Entry) -> None:
        assert self._look_up is not None
        scope = self._look_up.scope
        metadata = CommitMetadata.from_json(entry.body["metadata"])
        anywhere = scope is KeyScope.TABLE
        shared = [s for s in metadata.stats if s.num_inserts and (anywhere or s.partition_path in self._partitions)]
        if entry.operation == CLUSTER or not shared:
            return
        carried = entry.body.get(HASHES_KEYS[scope])
        if carried is not None:
            hashes = np.frombuffer(base64.b64decode(carried), dtype="<u8")
            self._found.append(InsertedKeys(entry.instant, hashes, frozenset(s.partition_path for s in shared)))
            return
        # Too many to carry, or told as unique in partitions only.
        hit = self._look_up.find([_written_slice(s, entry.instant) for s in shared])
        if hit is not None:
            raise WriteConflict(
                f"record keys of partition {hit!r} were inserted by {entry.instant} at the same time", with_instant=entry.instant
            )


def _written_slice(stat: WriteStat, instant: str) -> FileSlice:
    """A slice of only the file that a write made."""
    group, name = FileGroupId(stat.partition_path, stat.file_id), stat.path.rsplit("/", 1)[-1]
    if stat.is_log:
        return FileSlice(group, stat.prev_commit, "", 0, -1, (LogFile(name, stat.file_size_bytes, instant, stat.log_version),))
    return FileSlice(group, instant, name, stat.file_size_bytes, stat.num_writes)
