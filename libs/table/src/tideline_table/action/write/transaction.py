"""A write transaction: begin, then commit or roll back."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow.compute as pc

from tideline_table.action.write.row_source import Reads
from tideline_table.config import SMALL_FILE_LIMIT, Options
from tideline_table.coordination.committed import Committed
from tideline_table.coordination.conflict import (
    SliceGrew,
    check_progress,
    check_still_own,
    clusterings_met,
    find_conflict,
)
from tideline_table.coordination.file_times import pass_instant
from tideline_table.coordination.heartbeat import Heartbeat
from tideline_table.coordination.lock import TableLock
from tideline_table.coordination.priority import update_strategy
from tideline_table.coordination.rollback import forget_late_files, roll_back
from tideline_table.coordination.timeline import ActiveTimeline, holds_keys_once
from tideline_table.coordination.write_set import InsertedKeys, Overwrite, SchemaStep, UpdateStrategy, WriteSet
from tideline_table.errors import WriteConflict
from tideline_table.file_group.slice import FileGroupId, FileSlice, LogFile, SliceVersion, join_path
from tideline_table.hudi.instant import CLUSTER, WRITE_ACTIONS, Action, State
from tideline_table.hudi.write_stats import REPLACED_ROWS_KEY, SCHEMA_KEY, CommitMetadata, WriteStat
from tideline_table.index.scope import MAX_CARRIED_HASHES, KeyScope
from tideline_table.log.body import Bare, Published
from tideline_table.log.entry import Entry
from tideline_table.log.progress import ProgressStep
from tideline_table.log.state import TableState
from tideline_table.log.table_log import Draft
from tideline_table.log_format.key_index import forget_index
from tideline_table.reader.log_keys import log_keys
from tideline_table.writer.log_file import move_behind
from tideline_table.writer.marker import forget_markers, marked_files
from tideline_table.writer.task import FileGroupResult

EARLY_CHECK_S = 1.0
"""Minimum interval between conflict checks while files are written."""
_MOVES = 10
"""How often log files move behind those of other writers before the write counts as lost."""
_BY_THE_INDEX = "write again: by the record index, unless the options name another index"


@dataclass(frozen=True, slots=True)
class LookUp:
    """A look-up of the write's keys in slices that another write added. `scope`: where keys must be unique."""

    scope: KeyScope
    find: Callable[[Sequence[FileSlice]], str | None]
    """Return the partition in which the slices hold a key of the write, None if they hold none."""
    by_hash: bool = True
    """Whether the results of the write carry hashes of its keys, so that most commits of other writers need no look-up."""


@dataclass(slots=True)
class WriteTransaction:
    """One inflight write. Begin it with `begin`, then call exactly one of `commit` and `roll_back`."""

    timeline: ActiveTimeline
    lock: TableLock
    instant: str
    operation: str
    begin_sequence: int
    action: Action
    update_strategy: UpdateStrategy
    one_group_per_bucket: bool
    """Whether the table has a bucket index."""
    resized_by: str
    """The instant of the last resize of buckets at the begin, empty for none."""
    one_place_per_key: bool
    """Whether the table had a record index at the begin, and keys are unique in the table for this write: overwrites look them
    up."""
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
        *,
        one_group_per_bucket: bool = False,
    ) -> WriteTransaction:
        """Mint the instant by appending its requested + inflight entry, and start its heartbeat. `options`: by default the table's.

        Raises `ProgressMoved`, with nothing begun, if a commit that moves `progress` would be refused already.
        """
        strategy = update_strategy(timeline, options or timeline.options)

        def decide(state: TableState) -> Draft:
            check_progress(progress, state)
            return Draft(timeline.mint(state), action, State.NONE, State.INFLIGHT, operation, Bare())

        # The log decides which instant is next; from here on others see the write as in progress, as long as its heartbeat goes on.
        entry = timeline.append(decide)
        heartbeat = Heartbeat(timeline.storage, entry.instant, timeline.options)
        heartbeat.__enter__()
        resize = timeline.state.bucket_resize()
        once = holds_keys_once(timeline.state, timeline.options) and KeyScope.of(options or timeline.options) is KeyScope.TABLE
        return cls(
            timeline,
            lock,
            entry.instant,
            operation,
            entry.sequence,
            action,
            strategy,
            one_group_per_bucket,
            resize.instant if resize is not None else "",
            once,
            heartbeat,
        )

    def commit(
        self,
        results: Sequence[FileGroupResult],
        schema_json: str,
        extra: Mapping[str, str],
        look_up: LookUp | None,
        schema_based_on: str | None = None,
        progress: ProgressStep | None = None,
        overwrites: Overwrite | None = None,
        splits: Mapping[FileGroupId, SliceVersion] | None = None,
        splits_in: Callable[[FileGroupId], bool] | None = None,
        rings: Mapping[str, str] | None = None,
        reads: Reads | None = None,
    ) -> Committed:
        """Check for conflicts with everything since the begin, and publish.

        `look_up` is None if the operation does not promise unique keys. `schema_based_on` is the schema that `schema_json` evolved
        from, if it did. `progress` moves with the commit. `overwrites` belongs to a replace commit, and so does `splits`: file
        groups that the results replace if none of them changed, and none was added for which `splits_in` is true. `rings` is as
        in `WriteSet`. `reads` is what the rows were computed from. Raises `WriteConflict`, `ProgressMoved` or
        `TransactionRolledBack` (nothing became visible; call `roll_back`), `CommitUnknown` without an answer.
        """
        written, stats = list(results), _stats(results)
        schema = SchemaStep(schema_json if schema_based_on is None else schema_based_on, schema_json)
        named = {**extra, **(progress.metadata if progress else {}), SCHEMA_KEY: schema_json}
        # Records of a write that replaces file groups also depend on what it replaces.
        kept = () if overwrites is not None or splits is not None else stats
        # Step 6: prepare the records of the metadata table beside what follows, so that the append need not wait for them.
        with self.timeline.preparing(self.action, self.instant, kept):
            self._delete_unnamed_files(written)
            if self.action is Action.DELTA_COMMIT:
                rewrites = any(r.read is not None and r.stat is not None and not r.stat.is_log for r in written)
                base = max((s.prev_commit if s.is_log else self.instant for s in stats), default="")
                pass_instant(self.timeline, base, opens=rewrites)
            inserted_in = {s.partition_path for s in stats if s.num_inserts}
            checked = _InsertsSince(self.timeline, self.begin_sequence, inserted_in, look_up)
            scope = look_up.scope if look_up is not None else None
            # Step 7: under the lock (which only makes writers queue) check what the log got since the begin, then append. The
            # append is the commit point: a put-if-absent of the next entry. The timeline file follows from it.
            with self.lock.hold(self.timeline.head_sequence):
                for move in range(_MOVES + 1):
                    own = self._write_set(written, scope, schema)
                    own = replace(own, progress=progress, overwrites=overwrites, rings=rings or {})
                    if splits is not None:
                        own = replace(own, splits=splits, splits_in=splits_in or splits.__contains__, opens=frozenset())
                    try:
                        entry = self._append(own, checked, written, named, reads)
                        break
                    except SliceGrew as grown:
                        if move == _MOVES:
                            raise
                        written = self._moved_behind(written, grown.groups)
                        self._delete_unnamed_files(written)
        # Step 8: the write is committed. What follows only tidies up, and the next writer does it for one that died.
        self._heartbeat.stop()
        forget_markers(self.timeline.storage, self.instant)
        # The keys were for the metadata table. The caller may keep what it gets.
        stats = tuple(replace(stat, keys=None) for stat in _stats(written))
        return Committed(self.instant, entry.sequence, stats, rows_replaced=_rows_replaced(entry))

    def placing(self, options: Options) -> Options:
        """Return `options` for placing inserts: without small file groups if their new slices would be ahead of the store's time.

        Apache Hudi 1.x would assign log files of such a slice to the one before it (`file_times`). New file groups have none.
        """
        fills = self.action is not Action.DELTA_COMMIT or not self.timeline.time.ahead(self.instant)
        return options if fills else options.merged({SMALL_FILE_LIMIT.key: 0})

    def staged(self, result: FileGroupResult) -> None:
        """Record a written file: if another process rolls the transaction back, only this process can delete the file.

        Thread-safe.
        """
        if result.stat is not None:
            self._staged.update((result.stat.path, *(result.stat.changes or ())))

    def check_early(self, based_on: Mapping[FileGroupId, SliceVersion], appends: frozenset[FileGroupId]) -> None:
        """Raise the conflict that a commit over `based_on` would have now, so that a lost write stops between two files.

        Refreshes the table at most every `EARLY_CHECK_S`, and spends at most a tenth of the time on it: a shared table may show
        many steps that are not adopted yet. Thread-safe.
        """
        clock = self.timeline.clock
        asked_s = clock.monotonic_s()
        if asked_s < self._check_again_s:
            return
        self._check_again_s = asked_s + EARLY_CHECK_S
        state = self.timeline.refresh_view()
        self._check_again_s = asked_s + max(EARLY_CHECK_S, 10 * (clock.monotonic_s() - asked_s))
        own = WriteSet(
            self.instant,
            dict(based_on),
            appends=appends,
            update_strategy=self.update_strategy,
            resized_by=self.resized_by if self.one_group_per_bucket else None,
        )
        conflict = find_conflict(own, state, ())
        if conflict is not None and not isinstance(conflict, SliceGrew):
            raise conflict

    def _write_set(self, results: Sequence[FileGroupResult], scope: KeyScope | None, schema: SchemaStep) -> WriteSet:
        """`scope` is None for a write that does not promise unique keys."""
        read = {_group(r.stat): (r.read, r.stat.is_log) for r in results if r.stat is not None and r.read is not None}
        opened = (_group(r.stat) for r in results if r.stat is not None and r.read is None)
        return WriteSet(
            self.instant,
            {group: version for group, (version, _) in read.items()},
            inserted_hashes(results, scope) if scope is not None else np.empty(0, dtype=np.uint64),
            frozenset(group for group, (_, is_log) in read.items() if is_log),
            self.update_strategy,
            schema,
            opens=frozenset(opened) if self.one_group_per_bucket else frozenset(),
            resized_by=self.resized_by if self.one_group_per_bucket else None,
        )

    def _body(
        self, results: Sequence[FileGroupResult], extra: Mapping[str, str], replaced: Sequence[FileGroupId] | None, operation: str
    ) -> Published:
        retired: dict[str, list[str]] | None = None if replaced is None else {}
        for group in replaced or ():
            assert retired is not None
            retired.setdefault(group.partition_path, []).append(group.file_id)
        metadata = CommitMetadata(operation, _stats(results), extra, retired)
        hashes = inserted_hashes(results, KeyScope.PARTITION)
        if len(hashes) > MAX_CARRIED_HASHES or any(r.inserted_hashes is None for r in results):
            return Published(metadata)
        of_table = inserted_hashes(results, KeyScope.TABLE)
        # Only a write that promises keys unique in the whole table carries their table-wide hashes.
        is_unique_in_table = 0 < len(of_table) == len(hashes)
        return Published(metadata, _as_text(hashes), _as_text(of_table) if is_unique_in_table else None)

    def _append(
        self,
        own: WriteSet,
        checked: _InsertsSince,
        results: Sequence[FileGroupResult],
        extra: Mapping[str, str],
        reads: Reads | None,
    ) -> Entry:
        def since_begin(state: TableState) -> tuple[list[InsertedKeys], frozenset[str]]:
            """Return the keys that other writes inserted, and the clusterings that go first."""
            check_still_own(state, self.instant)
            if reads is not None:
                reads.check(state)
            inserted = checked.up_to(state)
            return inserted, frozenset(c for c in clusterings_met(own, state) if self.update_strategy(state, c))

        def decide(state: TableState, since_begin: tuple[list[InsertedKeys], frozenset[str]]) -> Draft:
            inserted, going_first = since_begin
            conflict = find_conflict(replace(own, update_strategy=lambda _, at: at in going_first), state, inserted)
            if conflict is not None:
                raise conflict
            knows_all = checked.covers_table or (own.overwrites is not None and self.one_place_per_key)
            if holds_keys_once(state, self.timeline.options) and not knows_all and any(s.num_inserts for s in _stats(results)):
                raise WriteConflict("a record index was created while this write ran", with_instant="", remedy=_BY_THE_INDEX)
            replaced = own.overwrites.replaced(state) if own.overwrites is not None else None
            # A resize changes no row, as a clustering: queries of changes show none.
            replaced, operation = (replaced, self.operation) if own.splits is None else (list(own.splits), CLUSTER)
            named = extra if own.overwrites is None else {**extra, REPLACED_ROWS_KEY: str(own.overwrites.rows_replaced(state))}
            body = self._body(results, named, replaced, operation)
            return Draft(self.instant, self.action, State.INFLIGHT, State.COMPLETED, operation, body)

        return self.timeline.append(decide, since_begin)

    def _moved_behind(self, results: Sequence[FileGroupResult], grown: frozenset[FileGroupId]) -> list[FileGroupResult]:
        storage, state = self.timeline.storage, self.timeline.state
        moved = []
        for result in results:
            latest = state.latest_slice(_group(result.stat)) if result.stat is not None and _group(result.stat) in grown else None
            if latest is None or result.stat is None:
                moved.append(result)
                continue
            self._check_rows(result.stat, latest)
            moved.append(move_behind(result, latest, self.instant, storage, self.timeline.options, self.timeline.format))
        return moved

    def _check_rows(self, own: WriteStat, latest: FileSlice) -> None:
        # The same row written twice is a conflict, as with base files: the write must read the row again before it writes it.
        known = {join_path(own.partition_path, name) for name in own.log_files}
        written = zip(latest.log_paths, latest.log_files, strict=True)
        others = [path for path, log in written if path not in known and not log.merges_earlier]
        storage = self.timeline.storage
        if pc.any(pc.is_in(log_keys(storage, [own.path]), value_set=log_keys(storage, others))).as_py():
            by = latest.log_files[-1].instant
            raise WriteConflict(
                f"other writers changed rows of file group {latest.group.file_id} in {own.partition_path!r} since this write "
                f"read them, last write {by}",
                with_instant=by,
            )

    def roll_back(self) -> None:
        """Undo everything that this transaction wrote. If it is in the log already, keep it and complete its timeline files.

        The heartbeat ends even if that fails: a fresh one would keep recovery away from the instant.
        """
        if not self.timeline.beats_through_rollback:
            self._heartbeat.stop()
        try:
            # An interrupt may arrive between the commit point and the steps after it.
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
        """Stop the heartbeat and leave the instant to recovery. For callers that cannot roll back now."""
        self._heartbeat.stop()

    def _delete_unnamed_files(self, results: Sequence[FileGroupResult]) -> None:
        # Files of failed task attempts carry this instant and would count as committed.
        named = {path for s in _stats(results) for path in (s.path, *(s.changes or ()))}
        self._staged |= named
        for path in marked_files(self.timeline.storage, self.instant):
            if path not in named:
                forget_index(self.timeline.storage, path)
                self.timeline.storage.delete(path)


def _stats(results: Sequence[FileGroupResult]) -> tuple[WriteStat, ...]:
    return tuple([r.stat for r in results if r.stat is not None])


def _rows_replaced(entry: Entry) -> int:
    return int(entry.body.metadata.extra.get(REPLACED_ROWS_KEY, 0)) if isinstance(entry.body, Published) else 0


def _group(stat: WriteStat) -> FileGroupId:
    return FileGroupId(stat.partition_path, stat.file_id)


def inserted_hashes(results: Sequence[FileGroupResult], scope: KeyScope) -> np.ndarray:
    """Return hashes of the keys that these results added, as unique in `scope`, as far as their tasks reported them."""
    told = [r.table_hashes if scope is KeyScope.TABLE else r.inserted_hashes or b"" for r in results]
    return np.frombuffer(b"".join(told), dtype="<u8")


def _as_text(hashes: np.ndarray) -> str:
    return base64.b64encode(np.sort(hashes).tobytes()).decode()


class _InsertsSince:
    """Keys of completed writes since a begin, in the same partitions or, if unique in the table, in any. Reads each entry once."""

    def __init__(self, timeline: ActiveTimeline, sequence: int, partitions: set[str], look_up: LookUp | None) -> None:
        self._timeline = timeline
        self._sequence = sequence
        self._partitions = partitions
        self._look_up = look_up
        self._found: list[InsertedKeys] = []

    @property
    def covers_table(self) -> bool:
        """Whether the keys of the write are compared with those of the whole table."""
        return self._look_up is not None and self._look_up.scope is KeyScope.TABLE

    def up_to(self, state: TableState) -> list[InsertedKeys]:
        if self._look_up is None or not self._partitions:
            return []
        for sequence in range(self._sequence + 1, state.sequence + 1):
            entry = self._timeline.log.read(sequence)
            if entry is not None and isinstance(entry.body, Published) and entry.action in WRITE_ACTIONS:
                self._add(entry, entry.body)
        self._sequence = state.sequence
        return self._found

    def _add(self, entry: Entry, body: Published) -> None:
        assert self._look_up is not None
        scope = self._look_up.scope
        anywhere = scope is KeyScope.TABLE
        shared = [s for s in body.metadata.stats if s.num_inserts and (anywhere or s.partition_path in self._partitions)]
        if entry.operation == CLUSTER or not shared:
            return
        carried = body.inserted_key_hashes_of_table if anywhere else body.inserted_key_hashes
        if carried is not None and self._look_up.by_hash:
            hashes = np.frombuffer(base64.b64decode(carried), dtype="<u8")
            self._found.append(InsertedKeys(entry.instant, hashes))
            return
        # The commit does not carry these hashes: too many keys, or keys unique in partitions only.
        hit = self._look_up.find([_written_slice(s, entry.instant) for s in shared])
        self._found.append(InsertedKeys(entry.instant, None, hit))


def _written_slice(stat: WriteStat, instant: str) -> FileSlice:
    """Return a slice that holds only the file of this write stat."""
    group, name = FileGroupId(stat.partition_path, stat.file_id), stat.path.rsplit("/", 1)[-1]
    if stat.is_log:
        log = LogFile(name, stat.end_bytes, instant, stat.log_version, record=stat.record)
        return FileSlice(group, stat.prev_commit, "", 0, -1, (log,))
    return FileSlice(group, instant, name, stat.file_size_bytes, stat.num_writes, record=stat.record)
