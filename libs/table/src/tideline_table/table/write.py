"""Writing rows from this process: prepare, begin, tag, route, write, commit; again on fresh state after a conflict."""

from __future__ import annotations

import difflib
import logging
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import pyarrow as pa
import tenacity

from tideline_table.config import (
    COMBINE_BEFORE_INSERT,
    COMBINE_BEFORE_UPSERT,
    INSERT_DUP_POLICY,
    Options,
)
from tideline_table.errors import (
    CommitUnknown,
    InvalidOption,
    ObjectNotFound,
    RestoredMeanwhile,
    TransactionRolledBack,
    WriteConflict,
)
from tideline_table.file_group.slice import FileGroupId, FileSlice
from tideline_table.file_group.state import TableState
from tideline_table.index.scope import KeyScope
from tideline_table.index.simple import partition_rows
from tideline_table.schema.avro import avro_with_meta_fields
from tideline_table.table.contention import Contention
from tideline_table.table.definition import TableType
from tideline_table.table.evolution import TargetSchema, check_sort_columns, target_schema
from tideline_table.table.executor import RoutedWrite, ThisProcess, WriteExecutor, check_written
from tideline_table.table.facade import Table
from tideline_table.table.partition import create_partition
from tideline_table.table.tagging import tag_input
from tideline_table.timeline.progress import ProgressStep
from tideline_table.transaction import Committed, WriteTransaction
from tideline_table.transaction.conflict import Overwrite
from tideline_table.transaction.intents import Turn
from tideline_table.transaction.write import LookUp
from tideline_table.writer import (
    FileGroupResult,
    Operation,
    PreparedInput,
    RoutedTask,
    WriteContext,
    prepare_input,
    route_input,
)
from tideline_table.writer.input import refuse_duplicates, with_purged
from tideline_table.writer.operation import minds_known_keys, promises_unique_keys
from tideline_table.writer.routing import FilePlacement

_LOGGER = logging.getLogger(__name__)
_ROUTES = 3
"""How often rows are routed anew because others went first; then the write goes ahead beside them."""
OnConflict = Callable[[WriteConflict, int], None]


def write_rows(
    table: Table,
    rows: pa.Table,
    operation: Operation,
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

    `removed` (key and partition columns) are keys that an upsert deletes in the same commit, whatever ordering value their rows have; none
    of them may be among the rows.

    Keys are looked up and files written by `executor`, without one by `parallelism` threads (0: as many as there are processors).

    `extra` goes into the metadata of the commit. `progress` makes the write happen once: it moves with the commit or, where somebody moved it
    first, `ProgressMoved` is raised and nothing is written. After `CommitUnknown` the progress of the refreshed table tells what happened.

    A conflict rolls the attempt back and does it again on fresh state, up to `tideline.write.conflict.retries` times (`on_conflict` hears of
    each), then raises `WriteConflict`. For a clustering with priority it waits first, in all as long as `tideline.write.priority.wait` says, then
    raises `ClusteringFirst`. Raises before anything is written: `SchemaMismatch`, `InvalidRecord`, `InvalidOption`, `TableFrozen`,
    `UnsupportedTable`, and `DuplicateKey` for an input that holds a key twice where keys have to be unique and the input is not combined;
    `DuplicateKey` also (rolled back) where the duplicate policy says so about keys of the table.
    """
    chosen = table.options.merged(options or {})
    table.check_writable(keyed=promises_unique_keys(operation, chosen))
    if operation is Operation.DELETE_PARTITION:
        raise InvalidOption(
            f"rows for {operation}",
            expected="the names of partitions",
            remedy="delete_partitions in Python; tideline delete-partition PATH PARTITION",
        )
    combine = combines_input(operation, chosen)
    if removed is not None and operation is not Operation.UPSERT:
        raise InvalidOption(f"keys to remove beside an {operation}", expected=f"the operation {Operation.UPSERT}")
    definition, contention = table.definition, Contention(table, chosen)
    where = executor or ThisProcess(parallelism or os.cpu_count() or 1)

    @lru_cache(maxsize=1)
    def attempt_on(schema_json: str) -> _Attempt:
        target = target_schema(definition, schema_json, rows.schema, operation, chosen)
        prepared = prepare_input(
            rows, target.schema, definition.keygen, definition.ordering_field, operation, combine=combine, scope=KeyScope.of(chosen)
        )
        if operation is Operation.BULK_INSERT:
            check_sort_columns(target.schema, chosen)
        if not combine and promises_unique_keys(operation, chosen):
            refuse_duplicates(prepared)
        if removed is not None and removed.num_rows:
            prepared = with_purged(prepared, removed, target.schema, definition.keygen)
        return _Attempt(table, target, prepared, operation, chosen, dict(extra or {}), where, contention, progress)

    # What is wrong with the input is told before anything is written.
    attempt_on(table.schema_json)
    return write_with_retries(contention, lambda: attempt_on(table.schema_json).run(), on_conflict)


def write_with_retries(contention: Contention, run: Callable[[], Committed], on_conflict: OnConflict | None) -> Committed:
    """Call `run` (one attempt on fresh state) until it does not lose against another writer, at most as often as the options say."""

    def attempt() -> Committed:
        try:
            return run()
        except WriteConflict as conflict:
            contention.lost(conflict)
            raise
        finally:
            contention.end_turn()

    retrying = tenacity.Retrying(
        stop=lambda call: call.attempt_number >= contention.attempts,
        wait=tenacity.wait_random_exponential(multiplier=0.05, max=3.0),
        retry=tenacity.retry_if_exception_type((WriteConflict, TransactionRolledBack))
        & tenacity.retry_if_not_exception_type(RestoredMeanwhile),
        sleep=contention.table.clock.sleep,
        before_sleep=lambda call: _settle(call, contention, on_conflict),
        reraise=True,
    )
    committed = retrying(attempt)
    return replace(committed, attempts=int(retrying.statistics["attempt_number"]))


def in_transaction(
    table: Table,
    operation: Operation,
    options: Options,
    stage: Callable[[WriteTransaction], Committed],
    progress: ProgressStep | None = None,
) -> Committed:
    """Begin a transaction and let `stage` write and commit it; roll back whatever ends it otherwise.

    Only an unknown outcome is left alone: the log decides it, and recovery follows the log.
    """
    action = table.write_action(replaces=operation.overwrites)
    transaction = WriteTransaction.begin(table.timeline, table.lock, operation.hudi_name, action, options, progress)
    try:
        return stage(transaction)
    except ObjectNotFound as error:
        # A base file that was visible at the begin is gone: somebody wrote over it and cleaned since.
        transaction.roll_back()
        raise WriteConflict(f"base file {error.path} was cleaned while this write ran", with_instant="") from error
    except CommitUnknown:
        transaction.abandon()
        raise
    except BaseException:
        transaction.roll_back()
        raise


def _settle(call: tenacity.RetryCallState, contention: Contention, on_conflict: OnConflict | None) -> None:
    error = call.outcome.exception() if call.outcome else None
    _LOGGER.info("write attempt %d lost: %s", call.attempt_number, error)
    if not isinstance(error, WriteConflict):
        return
    if on_conflict is not None:
        on_conflict(error, call.attempt_number)
    contention.give_way(error)


@dataclass(frozen=True, slots=True)
class _Routed:
    tasks: Sequence[RoutedTask]
    rows: pa.Table
    """What the tasks take theirs from."""


@dataclass(frozen=True, slots=True)
class _Attempt:
    table: Table
    target: TargetSchema
    prepared: PreparedInput
    operation: Operation
    options: Options
    extra: Mapping[str, str]
    executor: WriteExecutor
    contention: Contention
    progress: ProgressStep | None

    def run(self) -> Committed:
        return in_transaction(self.table, self.operation, self.options, self._stage, self.progress)

    def _stage(self, transaction: WriteTransaction) -> Committed:
        results = self._write(transaction, self._route_in_turn(transaction))
        target = self.target
        return transaction.commit(
            results, target.text, self.extra, self._look_up(), target.based_on, self.progress, overwrite_of(self.operation, results)
        )

    def _route_in_turn(self, transaction: WriteTransaction) -> _Routed:
        # Each time that others went first, the rows may belong elsewhere.
        for _ in range(_ROUTES):
            routed = self._route(transaction)
            held = {t.task.file_id for t in routed.tasks if t.task.base is not None}
            appends = {t.task.file_id for t in routed.tasks if self._appends(t)}
            self.contention.needs(held - appends, appends)
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
        state = self.table.state
        tagged = tag_input(self.table, self.prepared, self.operation, self.options, self.executor)
        placement = self._placement(FilePlacement.of(self.options, state.latest_slices()))
        closed = closed_to_inserts(state)
        by_partition, locations, slices = tagged.by_partition, tagged.locations, tagged.slices
        return _Routed(
            route_input(transaction.instant, self.operation, by_partition, locations, slices, placement, closed), tagged.rows
        )

    def _placement(self, placement: FilePlacement) -> FilePlacement:
        """With where inserts go: to log files if the options say so, as long as merging a log cannot take one row for two."""
        is_merge_on_read = self.table.definition.type is TableType.MOR
        chosen = placement.for_inserts(self.operation, self.options, is_merge_on_read=is_merge_on_read)
        if not chosen.inserts_to_log or promises_unique_keys(self.operation, self.options):
            return chosen
        return chosen if pa.compute.count_distinct(self.prepared.identities).as_py() == self.prepared.rows.num_rows else placement

    def _write(self, transaction: WriteTransaction, routed: _Routed) -> list[FileGroupResult]:
        tasks = routed.tasks
        context = write_context(self.table, transaction.instant, self.operation, self.options, self.target)
        for partition in sorted({t.task.partition_path for t in tasks}):
            create_partition(self.table, partition, transaction.instant)

        read = {FileGroupId(t.task.partition_path, t.task.file_id): t.task.base.version for t in tasks if t.task.base is not None}
        appends = frozenset(FileGroupId(t.task.partition_path, t.task.file_id) for t in tasks if self._appends(t))

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
        if not promises_unique_keys(self.operation, self.options):
            return None
        return key_look_up(self.table, self.prepared)


def overwrite_of(operation: Operation, results: Sequence[FileGroupResult]) -> Overwrite | None:
    """What a write with these results replaces."""
    if operation is Operation.INSERT_OVERWRITE_TABLE:
        return Overwrite()
    if operation is Operation.INSERT_OVERWRITE:
        return Overwrite(frozenset(r.stat.partition_path for r in results if r.stat is not None))
    return None


def delete_partitions(
    table: Table,
    partitions: Collection[str],
    *,
    options: Mapping[str, object] | None = None,
    extra: Mapping[str, str] | None = None,
    on_conflict: OnConflict | None = None,
) -> Committed:
    """Remove everything that these partitions hold, as one commit; cleaning deletes the files later.

    Partition paths are as they stand in `_hoodie_partition_path`. Raises `InvalidOption` for a partition that the table does not have, before
    anything is written, and otherwise what `write_rows` raises.
    """
    chosen = table.options.merged(options or {})
    table.check_writable(keyed=False)
    known = {s.group.partition_path for s in table.state.latest_slices()}
    for partition in partitions:
        if partition not in known:
            near = ", ".join(difflib.get_close_matches(partition, known, n=3)) or f"one of {len(known)} partitions"
            raise InvalidOption(f"partition {partition!r}, which table {table.definition.name!r} does not have", expected=near)
    contention = Contention(table, chosen)

    def attempt() -> Committed:
        return in_transaction(
            table,
            Operation.DELETE_PARTITION,
            chosen,
            lambda begun: begun.commit([], table.schema_json, dict(extra or {}), None, overwrites=Overwrite(frozenset(partitions))),
        )

    return write_with_retries(contention, attempt, on_conflict)


def closed_to_inserts(state: TableState) -> frozenset[FileGroupId]:
    """File groups that a write must not add rows to: a pending plan rewrites them."""
    return frozenset(state.groups_under_clustering()) | frozenset(state.groups_under_compaction())


def write_context(
    table: Table, instant: str, operation: Operation, options: Options, target: TargetSchema | None = None
) -> WriteContext:
    """What tasks of a write need, ready to ship. Without `target` the schema of the table stays as it is."""
    return WriteContext(
        base_path=table.storage.root,
        instant=instant,
        operation=operation,
        schema=target.schema if target else table.schema,
        avro_schema=avro_with_meta_fields(target.text) if target else table.footer_schema(),
        merge_mode=table.definition.merge_mode,
        ordering_field=table.definition.ordering_field,
        options=options.given(),
        is_merge_on_read=table.definition.type is TableType.MOR,
        has_meta_fields=table.definition.has_meta_fields,
    )


def combines_input(operation: Operation, options: Options) -> bool:
    """Whether rows of the input that share a key become one before they are written."""
    if operation.looks_up_keys:
        return options[COMBINE_BEFORE_UPSERT]
    # Dropping what the table holds already cannot leave two rows of one new key either.
    return options[COMBINE_BEFORE_INSERT] or (minds_known_keys(operation, options) and options[INSERT_DUP_POLICY] == "drop")


def key_look_up(table: Table, prepared: PreparedInput) -> LookUp:
    """A look-up of our keys in slices that somebody else added."""

    def find(written: Sequence[FileSlice]) -> str | None:
        rows = partition_rows(prepared.partition_paths)
        for file_slice in written:
            partition = file_slice.group.partition_path
            if prepared.scope is KeyScope.TABLE:
                keys = prepared.keys
            elif partition in rows:
                keys = prepared.keys.take(pa.array(rows[partition]))
            else:
                continue
            if table.index.locate(keys, [file_slice]).slices:
                return partition
        return None

    return LookUp(prepared.scope, find)
