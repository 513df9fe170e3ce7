"""Writing rows from this process: prepare, begin, tag, route, write, commit; and repeat on fresh state after a conflict."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import pyarrow as pa
import pyarrow.compute as pc

from tideline_table.action.new_rings import NewRings
from tideline_table.action.write.attempt import Contention, OnConflict, hold_back, in_transaction, write_with_retries
from tideline_table.action.write.choices import (
    TargetSchema,
    WriteChoices,
    check_index_state,
    check_sort_columns,
    combines_input,
    index_state,
    meets_record_index,
    target_schema,
)
from tideline_table.action.write.executor import RoutedWrite, ThisProcess, WriteExecutor, check_written
from tideline_table.action.write.live_keys import key_look_up
from tideline_table.action.write.row_source import Reads, RowSource, WriteInput
from tideline_table.action.write.tagging import TaggedInput, tag_for_buckets, tag_in_buckets, tag_input
from tideline_table.action.write.transaction import LookUp, WriteTransaction
from tideline_table.config import INSERT_TO_LOG, Options
from tideline_table.coordination.committed import Committed
from tideline_table.coordination.reservations import Turn
from tideline_table.coordination.write_set import Overwrite
from tideline_table.errors import (
    InvalidOption,
    MetadataDamaged,
    ObjectExists,
    UnsupportedTable,
)
from tideline_table.file_group.partition_listing import PARTITION_METAFILE
from tideline_table.file_group.slice import FileGroupId, join_path
from tideline_table.hudi.properties import format_properties
from tideline_table.index import PlaceT
from tideline_table.index.bucket import BucketIndex
from tideline_table.index.hash_ring import HashRing
from tideline_table.index.scope import KeyScope
from tideline_table.log.progress import ProgressStep
from tideline_table.log.state import TableState
from tideline_table.schema.avro import avro_with_meta_fields
from tideline_table.schema.evolution import PARTIAL
from tideline_table.storage import Storage
from tideline_table.table.definition import TableView
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
from tideline_table.writer.input import SIZE_SAMPLE, FilePlacement, refuse_duplicates, with_purged
from tideline_table.writer.task import promises_unique_keys

_ROUTES = 3
"""How often rows are routed again because other writers committed first. Then the write continues beside the other writers."""


def write_rows(
    table: Table,
    rows: pa.Table | RowSource,
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
    """Write `rows` as one commit. A `RowSource` makes them, and the keys to remove, from the state of the table, for each attempt.

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

    given = WriteInput(rows, removed) if isinstance(rows, pa.Table) else None
    columns = rows.schema if isinstance(rows, pa.Table) else table.schema

    @lru_cache(maxsize=1)
    def choices_on(_kept: tuple[str, bool]) -> WriteChoices:
        return WriteChoices.of(table, operation, options, columns)

    first = choices_on(index_state(table.view()))
    contention = Contention(table, first.options)

    @lru_cache(maxsize=1)
    def attempt_on(schema_json: str, kept: tuple[str, bool], made: WriteInput) -> _Attempt:
        choices = choices_on(kept)
        target, prepared = _prepared(made, schema_json, choices)
        added = dict(extra or {})
        rings = NewRings(table) if choices.view.definition.ring_index is not None else None
        return _Attempt(table, kept, target, prepared, choices, added, where, contention, progress, rings, made.reads)

    def attempt() -> _Attempt:
        # Since the last attempt another process may have changed the schema or what a source reads, or created a record index.
        view = table.view()
        return attempt_on(view.schema_json, index_state(view), given or rows(choices_on(index_state(view))))

    # Step 1 of a commit (docs/architecture.md, "A commit"): prepare. Schema, keys and partition paths, one row per key.
    # Reject invalid input before anything is written.
    checked = attempt().prepared
    # While compaction has not kept up, a writer is warned, waits or stops here, as options say: before it holds anything.
    hold_back(table, first.operation, first.options, set(pc.unique(checked.partition_paths).to_pylist()))
    # Steps 2 to 8, one attempt: repeated on fresh state if another writer went first.
    return write_with_retries(contention, lambda: attempt().run(), on_conflict)


def _prepared(made: WriteInput, schema_json: str, choices: WriteChoices) -> tuple[TargetSchema, PreparedInput]:
    """Return the schema of a write and its input, checked against it. Raises as `write_rows`, with nothing written."""
    rows, removed, parts = made.rows, made.removed, made.parts
    definition, operation, options = choices.view.definition, choices.operation, choices.options
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
        has_record_index=choices.view.holds_keys_once,
    )
    if choices.named is Operation.BULK_INSERT:
        check_sort_columns(target.schema, options)
    if not combine and (choices.holds_once or promises_unique_keys(operation, options)):
        refuse_duplicates(prepared)
    if index is not None and operation is not Operation.DELETE:
        index.check_values(prepared.keys)
        if choices.view.refuses_cut_keys:
            index.check_plain(prepared.keys)
    if parts is not None and prepared.rows.num_rows == rows.num_rows:  # else two rows had one key
        prepared = replace(prepared, rows=prepared.rows.append_column(PARTIAL, pa.array(parts[1])), parts=parts[0])
    if removed is not None and removed.num_rows:
        prepared = with_purged(prepared, removed, target.schema, definition.keygen)
    return target, prepared


@dataclass(frozen=True, slots=True)
class _Routed:
    view: TableView
    """The table as it was when the rows were routed."""
    tasks: Sequence[RoutedTask]
    rows: pa.Table
    """The rows that the tasks refer to by position."""
    rings: TableRings | None = None
    """The hash rings by which they were routed, with consistent hashing."""
    partitions: Collection[str] = ()
    """The partitions that they were routed to, with consistent hashing."""


@dataclass(frozen=True, slots=True)
class _Attempt:
    table: Table
    kept: tuple[str, bool]
    """What `index_state` was when the options were chosen."""
    target: TargetSchema
    prepared: PreparedInput
    choices: WriteChoices
    extra: Mapping[str, str]
    executor: WriteExecutor
    contention: Contention
    progress: ProgressStep | None
    made: NewRings | None
    """What makes the rings of a table with consistent hashing."""
    reads: Reads | None

    def run(self) -> Committed:
        with self.made.deleted_if_undone() if self.made is not None else contextlib.nullcontext():
            # Step 2: begin. The first entry of the log mints the instant; on any error the transaction is rolled back.
            return in_transaction(self.table, self.choices.named, self.choices.options, self._stage, self.progress)

    def _stage(self, transaction: WriteTransaction) -> Committed:
        check_index_state(self.table.view(), self.kept)
        if self.reads is not None:
            self.reads.check(self.table.state)
        # Steps 3 and 4: find the file group of each row, and reserve those that the write changes.
        routed = self._route_in_turn(transaction)
        # Step 5: write the files. Nothing is visible yet.
        results = self._write(transaction, routed)
        target, replaced = self.target, overwrite_of(self.choices.operation, results)
        look_up = self._look_up(routed.view)

        def commit(named: Mapping[str, str], overwrite: Overwrite | None, rings: Mapping[str, str]) -> Committed:
            added = {**self.extra, **named}
            return transaction.commit(
                results,
                target.text,
                added,
                look_up,
                target.based_on,
                self.progress,
                overwrite,
                rings=rings,
                reads=self.reads,
            )

        # Steps 6 and 7: check for conflicts and create the next entry of the log. This is the commit.
        if self.made is None:
            return commit({}, replaced, {})
        return self.made.commit(transaction.instant, routed.rings, routed.partitions, replaced, commit)

    def _route_in_turn(self, transaction: WriteTransaction) -> _Routed:
        # Each time another writer went first, the rows may belong to other file groups.
        for _ in range(_ROUTES):
            routed = self._route(transaction)
            held = {t.task.file_id for t in routed.tasks if t.task.base is not None}
            appends = {t.task.file_id for t in routed.tasks if _appends(routed.view, t)}
            self.contention.needs(held - appends, appends)
            # Step 4: reservations only order the writers. A write that does not get its turn may still go on: the log decides.
            turn = self.contention.take_turn(transaction.instant)
            if turn is Turn.AT_ONCE:
                return routed
            if turn is Turn.BESIDE:
                break
        return self._route(transaction)

    def _route(self, transaction: WriteTransaction) -> _Routed:
        # Step 3: a bucket index computes the file group from the key; otherwise the keys are looked up (tagged).
        view = self.table.view(self.choices.options)
        index = view.definition.buckets
        if index is not None:
            return (self._route_to_buckets if index.one_group_per_bucket else self._route_in_buckets)(transaction, view, index)
        try:
            return self._placed(
                transaction, view, tag_input(self.table, view, self.prepared, self.choices.operation, self.executor)
            )
        except MetadataDamaged as error:
            check_index_state(self.table.view(), self.kept, error)
            raise

    def _route_to_buckets(self, transaction: WriteTransaction, view: TableView, index: BucketIndex) -> _Routed:
        found = self.table.rings()  # before the slices: of a resize in between, the newer ones show it
        named, operation, options = self.choices.named, self.choices.operation, view.options
        tagged = tag_for_buckets(self.table, self.prepared, named, operation, options, self.executor)
        has_logs = view.definition.writes_logs
        opens, overwrites, rings = operation is not Operation.DELETE, operation.overwrites, dict[str, HashRing]()
        try:
            if found is not None:
                rings = found.routing(tagged.by_place, transaction.instant, opens_groups=opens, overwrites=overwrites)
            tasks = route_to_buckets(
                transaction.instant,
                operation,
                index,
                tagged.by_place,
                index.hash_codes(self.prepared.keys),
                tagged.slices,
                rings,
                has_logs=has_logs,
                inserts_to_log=options[INSERT_TO_LOG] and has_logs and not named.opens_groups_only,
                # Not for an overwrite: the file groups that it replaces have these ids.
                fixed_ids=not overwrites and self.table.opens_fixed_ids,
            )
        except UnsupportedTable:
            if found is not None:
                found.check_unchanged(self.table.state)
            raise
        return _Routed(view, tasks, tagged.rows, found, tagged.by_place)

    def _route_in_buckets(self, transaction: WriteTransaction, view: TableView, index: BucketIndex) -> _Routed:
        """Route the rows of each bucket to its file groups, as those of a partition without buckets."""
        named, operation = self.choices.named, self.choices.operation
        tagged = tag_in_buckets(self.table, self.prepared, named, operation, view.options, self.executor, index)
        return self._placed(transaction, view, tagged)

    def _placed(self, transaction: WriteTransaction, view: TableView, tagged: TaggedInput[PlaceT]) -> _Routed:
        """Route rows that were looked up, as `route_input` does."""
        state, operation = view.state, self.choices.operation
        placement = self._placement(view, FilePlacement.of(transaction.placing(view.options), state.sample(SIZE_SAMPLE)))
        placement = placement.measured(self.prepared.rows, view.options)
        closed = closed_to_inserts(state)
        instant, places = transaction.instant, (tagged.by_place, tagged.locations, tagged.slices)
        return _Routed(view, route_input(instant, operation, *places, placement, closed), tagged.rows)

    def _placement(self, view: TableView, placement: FilePlacement) -> FilePlacement:
        """Return the placement of inserts: to log files if the options say so and merging a log cannot mistake two rows for one."""
        operation, options = self.choices.operation, view.options
        chosen = placement.for_inserts(operation, options, has_logs=view.definition.writes_logs)
        if not chosen.inserts_to_log or promises_unique_keys(operation, options):
            return chosen
        return chosen if pa.compute.count_distinct(self.prepared.identities).as_py() == self.prepared.rows.num_rows else placement

    def _write(self, transaction: WriteTransaction, routed: _Routed) -> list[FileGroupResult]:
        tasks, choices = routed.tasks, self.choices
        index = routed.view.definition.buckets
        context = write_context(self.table, transaction.instant, choices.operation, choices.options, self.target, index)
        if sum(len(task.positions) for task in tasks) <= routed.rows.num_rows:  # else a key is in several file groups
            context = replace(context, parts=self.prepared.parts)
        # A partition begins with its metadata file, so that readers that list folders find it.
        for partition in sorted({t.task.partition_path for t in tasks}):
            create_partition(self.table, partition, transaction.instant)

        read = {FileGroupId(t.task.partition_path, t.task.file_id): t.task.base.version for t in tasks if t.task.base is not None}
        appends = frozenset(FileGroupId(t.task.partition_path, t.task.file_id) for t in tasks if _appends(routed.view, t))

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

    def _look_up(self, view: TableView) -> LookUp | None:
        # Two writers of one key write to the same bucket; if it has one file group, the rules for file groups decide.
        # An overwrite must not add a key that another writer has put into a partition that stays: the record index has one place
        # for it.
        meets_others = self.choices.operation is Operation.INSERT_OVERWRITE and meets_record_index(view)
        is_unique = promises_unique_keys(self.choices.operation, view.options)
        if view.definition.one_group_per_bucket or not (is_unique or meets_others):
            return None
        if not is_unique:
            return replace(key_look_up(self.table, self.prepared), by_hash=False)
        return key_look_up(self.table, self.prepared)


def _appends(view: TableView, routed: RoutedTask) -> bool:
    task = routed.task
    return view.definition.writes_logs and task.base is not None and (not task.adds or task.log_inserts > 0)


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
    definition = table.definition
    return WriteContext(
        format=table.timeline.format,
        base_path=table.storage.root,
        instant=instant,
        operation=operation,
        schema=target.schema if target else table.schema,
        avro_schema=avro_with_meta_fields(target.text) if target else table.footer_schema(),
        merging=definition.merging,
        log_rule=table.log_rule(),
        options=options.given(),
        has_logs=definition.writes_logs,
        has_meta_fields=definition.has_meta_fields,
        changes=definition.changes,
        buckets=buckets if buckets is not None else definition.buckets,
    )


def create_partition(table: Table, partition: str, instant: str) -> None:
    """Write the metafile of the partition unless this process knows that it exists."""
    if partition not in table.partitions_made:
        write_partition_metafile(table.storage, partition, instant)
        table.partitions_made.add(partition)


def write_partition_metafile(storage: Storage, partition: str, instant: str) -> None:
    """Write the metafile if it is absent. For tasks without an open table."""
    depth = partition.count("/") + 1 if partition else 0
    content = format_properties({"commitTime": instant, "partitionDepth": str(depth)}, "partition metadata")
    with contextlib.suppress(ObjectExists):
        storage.put_if_absent(join_path(partition, PARTITION_METAFILE), content)
