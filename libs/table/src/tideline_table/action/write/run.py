"""Writing rows from this process: prepare, begin, tag, route, write, commit; and repeat on fresh state after a conflict."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tideline_table.action.new_rings import NewRings
from tideline_table.action.write.attempt import OnConflict, in_transaction, write_with_retries
from tideline_table.action.write.backlog import hold_back
from tideline_table.action.write.choices import WriteChoices, check_index_state, combines_input, index_state, meets_record_index
from tideline_table.action.write.contention import Contention
from tideline_table.action.write.executor import RoutedWrite, ThisProcess, WriteExecutor, check_written
from tideline_table.action.write.key_look_up import key_look_up
from tideline_table.action.write.partition import create_partition
from tideline_table.action.write.schema_change import TargetSchema, check_sort_columns, target_schema
from tideline_table.action.write.tagging import tag_for_buckets, tag_in_buckets, tag_input
from tideline_table.action.write.transaction import LookUp, WriteTransaction
from tideline_table.config import INSERT_TO_LOG, Options
from tideline_table.coordination.committed import Committed
from tideline_table.coordination.reservations import Turn
from tideline_table.coordination.write_set import Overwrite
from tideline_table.errors import (
    InvalidOption,
    MetadataDamaged,
    UnsupportedTable,
)
from tideline_table.file_group.slice import FileGroupId, FileSlice
from tideline_table.index import Location, PlaceT
from tideline_table.index.bucket import BucketIndex
from tideline_table.index.scope import KeyScope
from tideline_table.log.progress import ProgressStep
from tideline_table.log.state import TableState
from tideline_table.schema.avro import avro_with_meta_fields
from tideline_table.table.definition import TableType
from tideline_table.table.facade import Table
from tideline_table.table.rings import TableRings
from tideline_table.writer import (
    FileGroupResult,
    Operation,
    PreparedInput,
    RoutedTask,
    WriteContext,
    prepare_input,
    route_input,
    route_to_buckets,
)
from tideline_table.writer.input import refuse_duplicates, with_purged
from tideline_table.writer.operation import promises_unique_keys
from tideline_table.writer.routing import FilePlacement

_ROUTES = 3
"""How often rows are routed again because other writers committed first. Then the write continues beside the other writers."""


def write_rows(
    table: Table,
    rows: pa.Table,
    operation: Operation | str,
    *,
    options: Mapping[str, object] | None = None,
    extra: Mapping[str, str] | None = None,
    removed: pa.Table | None = None,
    progress: ProgressStep | None = None,
    on_conflict: OnConflict | None = None,
    parallelism: int = 0,
    executor: WriteExecutor | None = None,
) -> Committed:
    """Write `rows` as one commit.

    `removed` (key and partition columns): keys that an upsert deletes, too, whatever the ordering values; none may be in `rows`.

    `executor` looks up keys and writes files; without one, `parallelism` threads do (0: as many as there are processors).

    `extra` is added to the metadata of the commit. `progress` moves with the commit, so that the write takes effect once: raises
    `ProgressMoved`, with nothing written, if another writer moved it first. After `CommitUnknown` a refresh shows it.

    After a conflict the attempt is rolled back and repeated on fresh state, up to `tideline.write.conflict.retries` times (each
    calls `on_conflict`); then raises `WriteConflict`. Before it repeats, it waits for a clustering with priority, over all attempts
    at most `tideline.write.priority.wait` seconds; then raises `ClusteringFirst`. A write that names no index and meets the
    creation of a record index is repeated by this index. Raises before anything is written: `SchemaMismatch`, `InvalidRecord`,
    `InvalidOption`, `TableFrozen`, `UnsupportedTable`, and `DuplicateKey` if the input repeats a key that must be unique and is
    not combined. After a rollback: `DuplicateKey` if the duplicate policy refuses keys of the table.
    """
    operation = Operation(operation)
    table.check_writable(keyed=promises_unique_keys(operation, table.options.merged(options or {})))
    if operation is Operation.DELETE_PARTITION:
        raise InvalidOption(
            f"rows for {operation}",
            expected="the names of partitions",
            remedy="delete_partitions in Python; tideline delete-partition PATH PARTITION",
        )
    where = executor or ThisProcess(parallelism or os.cpu_count() or 1)

    @lru_cache(maxsize=1)
    def choices_on(_kept: tuple[str, bool]) -> WriteChoices:
        return WriteChoices.of(table, operation, options, rows.schema)

    first = choices_on(index_state(table))
    contention = Contention(table, first.options)

    @lru_cache(maxsize=1)
    def attempt_on(schema_json: str, kept: tuple[str, bool]) -> _Attempt:
        choices = choices_on(kept)
        target, prepared = _prepared(table, rows, removed, schema_json, choices)
        named, own = choices.named, choices.operation
        return _Attempt(
            table,
            kept,
            target,
            prepared,
            named,
            own,
            choices.options,
            dict(extra or {}),
            where,
            contention,
            progress,
            NewRings(table),
        )

    def attempt() -> _Attempt:
        # Since the last attempt another process may have changed the schema, or created a record index.
        return attempt_on(table.schema_json, index_state(table))

    # Step 1 of a commit (docs/architecture.md, "A commit"): prepare. Schema, keys and partition paths, one row per key.
    # Reject invalid input before anything is written.
    checked = attempt().prepared
    # While compaction has not kept up, a writer is warned, waits or stops here, as options say: before it holds anything.
    hold_back(table, first.operation, first.options, set(pc.unique(checked.partition_paths).to_pylist()))
    # Steps 2 to 8, one attempt: repeated on fresh state if another writer went first.
    return write_with_retries(contention, lambda: attempt().run(), on_conflict)


def _prepared(
    table: Table, rows: pa.Table, removed: pa.Table | None, schema_json: str, choices: WriteChoices
) -> tuple[TargetSchema, PreparedInput]:
    """Return the schema of a write and its input, checked against it. Raises as `write_rows`, with nothing written."""
    definition, operation, options = table.definition, choices.operation, choices.options
    index = definition.buckets
    if removed is not None and operation is not Operation.UPSERT:
        raise InvalidOption(f"keys to remove beside an {operation}", expected=f"the operation {Operation.UPSERT}")
    combine = combines_input(Operation.UPSERT if index is not None and operation is not Operation.DELETE else operation, options)
    target = target_schema(definition, schema_json, rows.schema, operation, options)
    prepared = prepare_input(
        rows,
        target.schema,
        definition.keygen,
        definition.merging,
        operation,
        combine=combine,
        scope=KeyScope.of(options),
        has_record_index=choices.indexes_keys,
    )
    if choices.named is Operation.BULK_INSERT:
        check_sort_columns(target.schema, options)
    if not combine and (choices.holds_once or promises_unique_keys(operation, options)):
        refuse_duplicates(prepared)
    if index is not None and operation is not Operation.DELETE:
        index.check_values(prepared.keys)
        if table.is_exclusive and definition.has_plain_keys:
            index.check_plain(prepared.keys)
    if removed is not None and removed.num_rows:
        prepared = with_purged(prepared, removed, target.schema, definition.keygen)
    return target, prepared


@dataclass(frozen=True, slots=True)
class _Routed:
    tasks: Sequence[RoutedTask]
    rows: pa.Table
    """The rows that the tasks refer to by position."""
    index: BucketIndex | None = None
    """The bucket index by which they were routed."""
    rings: TableRings | None = None
    """The hash rings by which they were routed, with a bucket index."""
    partitions: Collection[str] = ()
    """The partitions that they were routed to, with a bucket index."""


@dataclass(frozen=True, slots=True)
class _Attempt:
    table: Table
    kept: tuple[str, bool]
    """What `index_state` was when the options were chosen."""
    target: TargetSchema
    prepared: PreparedInput
    named: Operation
    """The operation that the commit names."""
    operation: Operation
    """The operation that decides how rows are written; see `choices.in_buckets`."""
    options: Options
    extra: Mapping[str, str]
    executor: WriteExecutor
    contention: Contention
    progress: ProgressStep | None
    made: NewRings

    def run(self) -> Committed:
        with self.made.deleted_if_undone():
            # Step 2: begin. The first entry of the log mints the instant; on any error the transaction is rolled back.
            return in_transaction(self.table, self.named, self.options, self._stage, self.progress)

    def _stage(self, transaction: WriteTransaction) -> Committed:
        check_index_state(self.table, self.kept)
        # Steps 3 and 4: find the file group of each row, and reserve those that the write changes.
        routed = self._route_in_turn(transaction)
        # Step 5: write the files. Nothing is visible yet.
        results = self._write(transaction, routed)
        target, replaced = self.target, overwrite_of(self.operation, results)
        look_up = self._look_up()
        # Steps 6 and 7: check for conflicts and create the next entry of the log. This is the commit.
        return self.made.commit(
            transaction.instant,
            routed.rings,
            routed.partitions,
            replaced,
            lambda extra, overwrite, rings: transaction.commit(
                results, target.text, {**self.extra, **extra}, look_up, target.based_on, self.progress, overwrite, rings=rings
            ),
        )

    def _route_in_turn(self, transaction: WriteTransaction) -> _Routed:
        # Each time another writer went first, the rows may belong to other file groups.
        for _ in range(_ROUTES):
            routed = self._route(transaction)
            held = {t.task.file_id for t in routed.tasks if t.task.base is not None}
            appends = {t.task.file_id for t in routed.tasks if self._appends(t)}
            self.contention.needs(held - appends, appends)
            # Step 4: reservations only order the writers. A write that does not get its turn may still go on: the log decides.
            turn = self.contention.take_turn(transaction.instant)
            if turn is Turn.AT_ONCE:
                return routed
            if turn is Turn.BESIDE:
                break
        return self._route(transaction)

    def _appends(self, routed: RoutedTask) -> bool:
        task = routed.task
        return self.table.definition.type is TableType.MOR and task.base is not None and (not task.adds or task.log_inserts > 0)

    def _route(self, transaction: WriteTransaction) -> _Routed:
        # Step 3: a bucket index computes the file group from the key; otherwise the keys are looked up (tagged).
        index = self.table.definition.buckets
        if index is not None:
            return (self._route_in_buckets if index.has_several else self._route_to_buckets)(transaction, index)
        try:
            tagged = tag_input(self.table, self.prepared, self.operation, self.options, self.executor)
        except MetadataDamaged as error:
            check_index_state(self.table, self.kept, error)
            raise
        return _Routed(self._placed(transaction, tagged.by_partition, tagged.locations, tagged.slices), tagged.rows)

    def _route_to_buckets(self, transaction: WriteTransaction, index: BucketIndex) -> _Routed:
        found = self.table.rings(index)  # before the slices: of a resize in between, the newer ones show it
        tagged = tag_for_buckets(self.table, self.prepared, self.named, self.operation, self.options, self.executor)
        is_merge_on_read = self.table.definition.type is TableType.MOR
        opens_groups = self.operation is not Operation.DELETE
        try:
            rings = found.for_writing(tagged.by_partition) if opens_groups else found.of(tagged.by_partition)
            tasks = route_to_buckets(
                transaction.instant,
                self.operation,
                index,
                tagged.by_partition,
                index.hash_codes(self.prepared.keys),
                tagged.slices,
                found.renewed(rings, transaction.instant) if self.operation.overwrites else rings,
                is_merge_on_read=is_merge_on_read,
                inserts_to_log=self.options[INSERT_TO_LOG] and is_merge_on_read and not self.named.opens_groups_only,
            )
        except UnsupportedTable:
            found.check_unchanged(self.table.state)
            raise
        return _Routed(tasks, tagged.rows, index, found, tagged.by_partition)

    def _route_in_buckets(self, transaction: WriteTransaction, index: BucketIndex) -> _Routed:
        """Route the rows of each bucket to its file groups, as those of a partition without buckets."""
        tagged = tag_in_buckets(self.table, self.prepared, self.named, self.operation, self.options, self.executor, index)
        return _Routed(self._placed(transaction, tagged.by_place, tagged.locations, tagged.slices), self.prepared.rows, index)

    def _placed(
        self,
        transaction: WriteTransaction,
        by_place: Mapping[PlaceT, np.ndarray],
        locations: Mapping[PlaceT, Location],
        slices: Mapping[PlaceT, Sequence[FileSlice]],
    ) -> list[RoutedTask]:
        """Return the tasks of rows that were looked up, as `route_input` does."""
        state = self.table.state
        placement = self._placement(FilePlacement.of(transaction.placing(self.options), state.latest_slices()))
        placement = placement.measured(self.prepared.rows, self.options)
        closed = closed_to_inserts(state)
        return route_input(transaction.instant, self.operation, by_place, locations, slices, placement, closed)

    def _placement(self, placement: FilePlacement) -> FilePlacement:
        """Return the placement of inserts: to log files if the options say so and merging a log cannot mistake two rows for one."""
        is_merge_on_read = self.table.definition.type is TableType.MOR
        chosen = placement.for_inserts(self.operation, self.options, is_merge_on_read=is_merge_on_read)
        if not chosen.inserts_to_log or promises_unique_keys(self.operation, self.options):
            return chosen
        return chosen if pa.compute.count_distinct(self.prepared.identities).as_py() == self.prepared.rows.num_rows else placement

    def _write(self, transaction: WriteTransaction, routed: _Routed) -> list[FileGroupResult]:
        tasks = routed.tasks
        context = write_context(self.table, transaction.instant, self.operation, self.options, self.target, routed.index)
        # A partition begins with its metadata file, so that readers that list folders find it.
        for partition in sorted({t.task.partition_path for t in tasks}):
            create_partition(self.table, partition, transaction.instant)

        read = {FileGroupId(t.task.partition_path, t.task.file_id): t.task.base.version for t in tasks if t.task.base is not None}
        appends = frozenset(FileGroupId(t.task.partition_path, t.task.file_id) for t in tasks if self._appends(t))

        # Between two files `check` looks at the log, so that a write that is lost stops early.
        results = self.executor.write(
            RoutedWrite(
                table=self.table,
                context=context,
                tasks=tasks,
                rows=routed.rows,
                appends=appends,
                check=lambda: transaction.check_early(read, appends),
                written=transaction.staged,
            )
        )
        check_written(tasks, results)
        return results

    def _look_up(self) -> LookUp | None:
        # Two writers of one key write to the same bucket; if it has one file group, the rules for file groups decide.
        # An overwrite must not add a key that another writer has put into a partition that stays: the record index has one place
        # for it.
        meets_others = self.operation is Operation.INSERT_OVERWRITE and meets_record_index(self.table, self.options)
        is_unique = promises_unique_keys(self.operation, self.options)
        index = self.table.definition.buckets
        if (index is not None and not index.has_several) or not (is_unique or meets_others):
            return None
        if not is_unique:
            return replace(key_look_up(self.table, self.prepared), by_hash=False)
        return key_look_up(self.table, self.prepared)


def overwrite_of(operation: Operation, results: Sequence[FileGroupResult]) -> Overwrite | None:
    """Return what a write with these results replaces."""
    if operation is Operation.INSERT_OVERWRITE_TABLE:
        return Overwrite()
    if operation is Operation.INSERT_OVERWRITE:
        return Overwrite(frozenset(r.stat.partition_path for r in results if r.stat is not None))
    return None


def closed_to_inserts(state: TableState) -> frozenset[FileGroupId]:
    """Return the file groups that a write must not add rows to, because a pending plan rewrites them."""
    return frozenset(state.groups_under_clustering()) | frozenset(state.groups_under_compaction())


def write_context(
    table: Table,
    instant: str,
    operation: Operation,
    options: Options,
    target: TargetSchema | None = None,
    buckets: BucketIndex | None = None,
) -> WriteContext:
    """Return what the tasks of a write need, ready to ship. Without `target` the table keeps its schema.

    `buckets` is the index by which rows were routed, by default that of the table.
    """
    return WriteContext(
        format=table.timeline.format,
        base_path=table.storage.root,
        instant=instant,
        operation=operation,
        schema=target.schema if target else table.schema,
        avro_schema=avro_with_meta_fields(target.text) if target else table.footer_schema(),
        merging=table.definition.merging,
        log_rule=table.log_rule(),
        options=options.given(),
        is_merge_on_read=table.definition.type is TableType.MOR,
        has_meta_fields=table.definition.has_meta_fields,
        buckets=buckets if buckets is not None else table.definition.buckets,
    )
