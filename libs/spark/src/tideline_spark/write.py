"""Write a DataFrame: one evaluation of the source, one exchange to file groups, one Arrow map that writes them, one commit.

Existing keys are looked up in the JVM: by a broadcast for smaller tables, by one more exchange for larger ones. Small sources go
through the driver instead (`small_source`). With a global index, an exchange by record key precedes (`global_tagging`).
"""

from __future__ import annotations

import tideline_spark.requirement  # noqa: F401 isort: skip - before PySpark

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import pyarrow as pa
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark import SparkConf
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from tideline_locks import open_hudi_lock
from tideline_spark.choices import refuse_look_ups, write_choices
from tideline_spark.deleted_keys import deleted_key_table
from tideline_spark.early_check import ended_when_lost
from tideline_spark.errors import spark_failure, translated
from tideline_spark.global_tagging import GlobalTagging
from tideline_spark.inline import run_inline_on_executors
from tideline_spark.jobs import tagged_jobs
from tideline_spark.keys import NativeKeys, source_type
from tideline_spark.layout import WriteLayout, bucket_layout, decide_layout
from tideline_spark.planning import planning_settings, write_settings
from tideline_spark.report import WriteReport, jobs_with_tag, report_of
from tideline_spark.session import use_this_python
from tideline_spark.small_source import DriverAndTasks, estimated_bytes, goes_through_driver, small_rows
from tideline_spark.tagging import KEY, LogKeys, Routing, arrow_schema, evolved_by, log_key_table, routed_rows, source_columns
from tideline_spark.task import RESULT_SCHEMA, UnitWriter, read_results
from tideline_table.action import (
    Contention,
    LookUp,
    MarkerCheck,
    NewRings,
    OnConflict,
    TargetSchema,
    WriteChoices,
    WriteTransaction,
    check_index_state,
    check_sort_columns,
    closed_to_inserts,
    combines_input,
    hold_back,
    in_buckets,
    in_transaction,
    index_state,
    inserted_hashes,
    overwrite_of,
    write_context,
    write_rows,
    write_with_retries,
)
from tideline_table.config import INSERT_DUP_POLICY, Options, bulk_order
from tideline_table.coordination import Committed
from tideline_table.errors import InvalidOption, ObjectNotFound, WriteConflict
from tideline_table.file_group import FileSlice
from tideline_table.index import KeyScope, key_hashes, moves_rows
from tideline_table.log import ProgressStep
from tideline_table.table import Table
from tideline_table.writer import FileGroupResult, Operation, minds_known_keys, promises_unique_keys

OnReport = Callable[[WriteReport], None]


def write_dataframe(
    table: Table | str,
    df: DataFrame,
    operation: Operation | str,
    *,
    options: Mapping[str, object] | None = None,
    extra: Mapping[str, str] | None = None,
    progress: ProgressStep | None = None,
    on_conflict: OnConflict | None = None,
    on_report: OnReport | None = None,
) -> Committed:
    """Write the rows of `df` as one commit of `table` (open, or its base path) on the executors of its session.

    `operation` is an `Operation` or its name. A deletion whose rows lack partition columns searches all partitions.

    A small source (up to `tideline.spark.collect.bytes`) is evaluated once, a larger one once per attempt: cache it if it is
    expensive or may change. A conflict rolls the attempt back; `on_conflict` is called and the write repeated on fresh state, up to
    `tideline.write.conflict.retries` times. Of rows with one key the largest ordering value wins, on ties the last in the source. A
    worker holds each bucket of an upsert's inserts in memory: raise `tideline.spark.insert.parallelism` for very large inserts.

    Behind the commit, services that the options ask writers for (`hoodie.compact.inline`, `hoodie.clustering.inline`) run on the
    executors, too. `extra` is added to the commit's metadata, `progress` makes the write happen once, and the columns of `df`
    evolve the table's schema if the options allow it: see `tideline_table.action.write_rows`. `on_report` gets plan and counts
    of each attempt.

    Raises, with nothing visible: `WriteConflict` after the last attempt; `ProgressMoved`; `SchemaMismatch` for columns that do not
    fit; `InvalidRecord`, `SchemaMismatch`, `DuplicateKey` for rows that do not (rolled back); `InvalidOption`, `TableFrozen`,
    `UnsupportedTable`; `SparkFailed` when the Spark job fails.
    """
    operation = Operation(operation)
    use_this_python(df.sparkSession)
    if isinstance(table, str):
        table = Table.open(table, hudi_lock=open_hudi_lock)
    table.check_writable(keyed=promises_unique_keys(operation, table.options.merged(options or {})))

    @lru_cache(maxsize=1)
    def choices_on(_kept: tuple[str, bool]) -> WriteChoices:
        return write_choices(table, operation, options, arrow_schema(df.schema))

    first = choices_on(index_state(table.view()))
    contention = Contention(table, first.options)

    @lru_cache(maxsize=1)
    def attempt_on(schema_json: str, kept: tuple[str, bool]) -> _Attempt:
        return _attempt(table, df, schema_json, kept, choices_on(kept), extra or {}, on_report, contention, progress)

    def attempt() -> _Attempt:
        # Since the last attempt another process may have changed the schema, or created a record index.
        view = table.view()
        return attempt_on(view.schema_json, index_state(view))

    def run() -> Committed:
        attempt().refuse()
        return attempt().run()

    # Wrong columns are reported before a transaction begins.
    if attempt().is_small:
        committed = attempt().write_small(options, on_conflict)
    else:
        attempt().refuse()
        hold_back(table, first.operation, first.options)
        committed = write_with_retries(contention, run, on_conflict)
    run_inline_on_executors(df.sparkSession, table, options)
    return committed


def explain_write(
    table: Table, df: DataFrame, operation: Operation | str, *, options: Mapping[str, object] | None = None
) -> WriteReport:
    """Return the plan that `write_dataframe` would run now. Nothing is evaluated or written."""
    operation = Operation(operation)
    table.refresh()
    choices = write_choices(table, operation, options, arrow_schema(df.schema))
    attempt = _attempt(
        table, df, table.schema_json, index_state(table.view()), choices, {}, None, Contention(table, choices.options)
    )
    if attempt.is_small:
        return report_of(df, small_rows(df, attempt.routing.columns), 0)
    attempt.refuse()
    layout = attempt.layout()
    with _translated(layout.looked_up):
        return report_of(df, attempt.plan("", layout), layout.key_scans)


def _attempt(
    table: Table,
    df: DataFrame,
    schema_json: str,
    kept: tuple[str, bool],
    choices: WriteChoices,
    extra: Mapping[str, str],
    on_report: OnReport | None,
    contention: Contention,
    progress: ProgressStep | None = None,
) -> _Attempt:
    operation, options = choices.operation, choices.options
    refuse_speculation(df.sparkSession.sparkContext.getConf())
    target = evolved_by(df, table.definition, schema_json, operation, options)
    routing = _routing(table, df, target, operation, options)
    with _translated(()):
        return _Attempt(table, kept, df, target, routing, options, extra, on_report, estimated_bytes(df), contention, progress)


def refuse_speculation(conf: SparkConf) -> None:
    """Raise `InvalidOption` when Spark may run two attempts of a task at once.

    The slower attempt could leave a second base file in its file group after the commit. Readers that list folders would see it.
    """
    if (conf.get("spark.speculation", "false") or "").lower() == "true":
        raise InvalidOption(
            "spark.speculation=true", expected="false for a session that writes tables", remedy="set it for the cluster"
        )


def _routing(table: Table, df: DataFrame, target: TargetSchema, operation: Operation, options: Options) -> Routing:
    keygen = table.definition.keygen
    columns = source_columns(df, target.schema, keygen, operation)
    minds = minds_known_keys(operation, options) and not operation.looks_up_keys
    keys = NativeKeys(keygen, df.select(*(f"`{n}`" for n in columns)).schema, target.schema)
    keys.check_paths()
    sort_columns: tuple[str, ...] = ()
    if operation is Operation.BULK_INSERT:
        check_sort_columns(target.schema, options)
        # A column that the source lacks is null in every row and does not affect the order.
        chosen = bulk_order(options, tuple(keygen.key_fields) if keys.is_plain else (KEY,))
        sort_columns = tuple(n for n in chosen if n == KEY or source_type(keys.source, n) is not None)
    return Routing(
        operation=operation,
        keys=keys,
        columns=columns,
        sort_columns=sort_columns,
        keeps_position=operation is Operation.UPSERT
        or (operation is not Operation.DELETE and (table.definition.buckets is not None or combines_input(operation, options))),
        drops_known=minds and options[INSERT_DUP_POLICY] == "drop",
        refuses_known=minds and options[INSERT_DUP_POLICY] == "fail",
        is_global=minds_known_keys(operation, options) and KeyScope.of(options) is KeyScope.TABLE,
    )


@dataclass(frozen=True, slots=True)
class _Attempt:
    table: Table
    kept: tuple[str, bool]
    """What `index_state` was when the options were chosen."""
    df: DataFrame
    target: TargetSchema
    routing: Routing
    options: Options
    extra: Mapping[str, str]
    on_report: OnReport | None
    source_bytes: int | None
    contention: Contention
    progress: ProgressStep | None

    @property
    def is_small(self) -> bool:
        """Whether the source goes through the driver."""
        return goes_through_driver(self.df, self.source_bytes, self.routing.operation, self.options)

    @property
    def written_as(self) -> Operation:
        """The operation that decides how rows are written: a bucket of a bucket index holds each key once."""
        operation = self.routing.operation
        return operation if self.table.definition.buckets is None else in_buckets(operation, self.options)

    def refuse(self) -> None:
        """Raise `UnsupportedTable` for look-ups that only the driver can do."""
        refuse_look_ups(self.table, self.routing.operation, self.options)

    def write_small(self, options: Mapping[str, object] | None, on_conflict: OnConflict | None) -> Committed:
        """Write a small source, which is evaluated once. A conflict repeats the write on fresh state."""
        spark, source = self.df.sparkSession, small_rows(self.df, self.routing.columns)
        with tagged_jobs(spark) as tag:

            def report() -> None:
                if self.on_report is not None:
                    self.on_report(report_of(self.df, source, 0, jobs_with_tag(spark, tag)))

            with translated():
                rows = source.toArrow()
            return write_rows(
                self.table,
                rows,
                self.routing.operation,
                options=options,
                extra=self.extra,
                progress=self.progress,
                on_conflict=on_conflict,
                executor=DriverAndTasks(spark, report),
            )

    def run(self) -> Committed:
        made = NewRings(self.table)
        with made.deleted_if_undone():
            return in_transaction(
                self.table, self.routing.operation, self.options, lambda begun: self._stage(begun, made), self.progress
            )

    def layout(self, options: Options | None = None) -> WriteLayout:
        """Return the layout for the table's current state. `options` (default: those of the write) decide where inserts go."""
        index = self.table.definition.buckets
        # Before the slices: of a resize in between, the newer ones show it.
        rings = self.table.rings()
        state = self.table.state
        cores = self.df.sparkSession.sparkContext.defaultParallelism
        has_logs = self.table.definition.writes_logs
        if index is not None:
            return bucket_layout(
                state.latest_slices(),
                closed_to_inserts(state),
                index,
                self.routing.operation,
                options or self.options,
                has_logs=has_logs,
                cores=cores,
                rings=rings,
            )
        return decide_layout(
            state,
            closed_to_inserts(state),
            self.routing.operation,
            options or self.options,
            is_partitioned=bool(self.table.definition.keygen.partition_fields),
            has_logs=has_logs,
            cores=cores,
            source_bytes=self.source_bytes,
        )

    def plan(self, instant: str, layout: WriteLayout, deleted: pa.Table | None = None) -> DataFrame:
        """Return the write, one row per file group, with its physical plan fixed. `deleted` are keys that log files deleted."""
        writer = UnitWriter(
            context=write_context(self.table, instant, self.written_as, self.options, self.target, layout.index),
            keygen=self.table.definition.keygen,
            columns=self.routing.columns,
            fillers=layout.fillers,
            rows_per_file=layout.rows_per_file,
            guess=layout.guess,
            tasks=layout.tasks,
            units=layout.units,
            inserts_to_log=layout.inserts_to_log,
            held=layout.held,
            in_bucket=layout.in_bucket,
            plain_keys=self.table.view().refuses_cut_keys,
            has_record_index=self.table.has_record_index,
            resizes=layout.rings.resizes if layout.rings is not None else None,
        )
        with planning_settings(
            self.df.sparkSession, write_settings(self.table.storage.root, broadcasts_keys=layout.broadcasts_keys)
        ):
            # With a global index, workers return the keys of slices with log files.
            log_keys = LogKeys() if self.routing.is_global else LogKeys(log_key_table(layout, self.table.index), deleted)
            anywhere = None
            if self.routing.is_global:
                operation = self.routing.operation
                combines = operation is Operation.DELETE or combines_input(operation, self.options)
                anywhere = GlobalTagging.of(self.table, layout, moves=moves_rows(self.options), combines=combines).tagged
            rows = routed_rows(self.df, self.routing, layout, self.table.storage.root, log_keys, anywhere)
            written = rows.mapInArrow(writer, RESULT_SCHEMA)
            written._jdf.queryExecution().executedPlan()  # noqa: SLF001 - plans are lazy; the settings hold now
        return written

    def _stage(self, transaction: WriteTransaction, made: NewRings) -> Committed:
        check_index_state(self.table.view(), self.kept)
        # The first attempt does not know its file groups yet. Later attempts reserve those of the attempts before.
        self.contention.take_turn(transaction.instant)
        layout = self.layout(transaction.placing(self.options))
        check = MarkerCheck(transaction, layout.met)
        try:
            with _translated(layout.looked_up):
                rows = self._execute(transaction.instant, layout, check)
        except WriteConflict:
            self.contention.needs((g.file_id for g in check.marked.rewrites), (g.file_id for g in check.marked.appends))
            raise
        results = read_results(rows)
        held = [r.stat for r in results if r.stat is not None and r.read is not None]
        self.contention.needs((s.file_id for s in held if not s.is_log), (s.file_id for s in held if s.is_log))
        # Two writers of one key meet in its bucket, where the rules for file groups decide, if it has one file group.
        unique = not self.table.definition.one_group_per_bucket and promises_unique_keys(self.written_as, self.options)
        look_up = _key_look_up(self.table, results, KeyScope.of(self.options)) if unique else None
        overwrite = overwrite_of(self.routing.operation, results)
        target = self.target
        return made.commit(
            transaction.instant,
            layout.rings,
            {r.stat.partition_path for r in results if r.stat is not None},
            overwrite,
            lambda extra, replaced, rings: transaction.commit(
                results, target.text, {**self.extra, **extra}, look_up, target.based_on, self.progress, replaced, rings=rings
            ),
        )

    def _execute(self, instant: str, layout: WriteLayout, check: MarkerCheck) -> list[bytes]:
        spark = self.df.sparkSession
        with tagged_jobs(spark) as tag:
            deleted = None if self.routing.is_global else deleted_key_table(spark, self.table, layout)
            written = self.plan(instant, layout, deleted)
            # A write with priority runs to its end: only then are all its file groups known for the next attempt to reserve.
            watched = nullcontext() if self.contention.has_priority else ended_when_lost(spark.sparkContext, tag, check)
            with watched:
                rows = [bytes(row[0]) for row in written.collect()]
        if self.on_report is not None:
            key_scans = layout.key_scans + (deleted is not None)
            self.on_report(report_of(self.df, written, key_scans, jobs_with_tag(spark, tag)))
        return rows


@contextmanager
def _translated(looked_up: Sequence[FileSlice]) -> Iterator[None]:
    """Translate Spark's errors into Tideline's; a missing base file among `looked_up` becomes `ObjectNotFound`."""
    try:
        yield
    except (PySparkException, Py4JError) as error:
        text = str(error)
        if "FILE_NOT_EXIST" in text or "FileNotFoundException" in text:
            for file_slice in looked_up:
                if file_slice.base_file and file_slice.base_file in text:
                    raise ObjectNotFound(file_slice.path) from error
        raise spark_failure(error) from error


def _key_look_up(table: Table, results: Sequence[FileGroupResult], scope: KeyScope) -> LookUp:
    """Return the look-up of the keys that this write inserted, by their hashes, in slices that another writer added."""
    inserted = np.unique(inserted_hashes(results, scope))

    def find(written: Sequence[FileSlice]) -> str | None:
        for file_slice in written:
            partition = file_slice.group.partition_path
            found = key_hashes(None if scope is KeyScope.TABLE else partition, table.index.keys(file_slice))
            if np.isin(found, inserted).any():
                return partition
        return None

    return LookUp(scope, find)
