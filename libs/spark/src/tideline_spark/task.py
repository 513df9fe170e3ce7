"""The Python side of a DataFrame write: each task receives its units one after the other and writes their file groups."""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext

from tideline_spark.layout import Filler, InBucket
from tideline_spark.tagging import KEY, KNOWN, LOCATED, ORDER, OWN, POSITION, PURGES, TWICE
from tideline_spark.unit import Unit, refuse_known, refuse_twice, rows_by_unit
from tideline_table.action import combines_input, write_partition_metafile
from tideline_table.config import Options
from tideline_table.errors import Recovery, TidelineError, VerificationFailed
from tideline_table.file_group import FileSlice, in_bucket, new_file_id
from tideline_table.index import BucketIndex, BucketPlace, HashRing, KeyScope, Location, RingStore, SimpleIndex
from tideline_table.keygen import KeyGenerator
from tideline_table.storage import Storage
from tideline_table.table import TableRings
from tideline_table.writer import (
    SAMPLE_ROWS,
    FileGroupResult,
    FileGroupTask,
    FilePlacement,
    Operation,
    PreparedInput,
    WriteContext,
    measured_row_bytes,
    prepare_input,
    promises_unique_keys,
    refuse_duplicates,
    route_input,
    with_marked_purges,
    write_file_group,
)

RESULT_SCHEMA = "result binary"
_ARROW_RESULT = pa.schema([pa.field("result", pa.binary())])


@dataclass(frozen=True, slots=True)
class UnitWriter:
    """The state that all tasks of one write share. Spark sends it to the workers and calls it there, once per task."""

    context: WriteContext
    keygen: KeyGenerator
    columns: tuple[str, ...]
    fillers: Mapping[tuple[str, int], Filler]
    rows_per_file: int
    tasks: int
    units: Mapping[tuple[str, str], FileSlice] = field(default_factory=dict)
    """As in `WriteLayout`."""
    inserts_to_log: bool = False
    """Whether inserted rows are written to log files."""
    held: Mapping[tuple[str, int], Sequence[FileSlice]] = field(default_factory=dict)
    """With a bucket index (`context.buckets`), the file slices of each bucket that has some."""
    in_bucket: InBucket | None = None
    """As in `WriteLayout`."""
    guess: FilePlacement | None = None
    """As in `WriteLayout`. The first rows of each task tell it how many fill a file."""
    plain_keys: bool = False
    """Whether a key that `BucketIndex.check_plain` refuses is refused."""
    has_record_index: bool = False
    """Whether a key that a record index cannot hold is refused."""
    resizes: Mapping[str, tuple[str, ...]] | None = None
    """With consistent hashing, `TableRings.resizes`."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write all units of this task; yield one pickled `FileGroupResult` or `TidelineError` per row.

        An error that a retry cannot cure is a result, because Spark would repeat a task that raises. Other errors are raised for
        Spark to retry.
        """
        spark_task = TaskContext.get()
        assert spark_task is not None
        running = _RunningTask(self, self.context.open_storage(), spark_task.partitionId(), spark_task.taskAttemptId())
        try:
            for result in running.write(batches):
                yield _row(result)
        except TidelineError as error:
            if error.recovery is Recovery.RETRY:
                raise
            yield _row(error)
            for _ in batches:
                pass  # Spark requires that the input is read to its end.

    @property
    def options(self) -> Options:
        """The options of the write."""
        return Options(self.context.options)


def read_results(rows: list[bytes]) -> list[FileGroupResult]:
    """Return the results of all tasks. Raises the first error among them."""
    results = [pickle.loads(row) for row in rows]  # noqa: S301 - our own workers made them
    for result in results:
        if isinstance(result, TidelineError):
            raise result
    return results


def _row(result: FileGroupResult | TidelineError) -> pa.RecordBatch:
    return pa.record_batch([pa.array([pickle.dumps(result)], pa.binary())], schema=_ARROW_RESULT)


@dataclass(slots=True)
class _RunningTask:
    shared: UnitWriter
    storage: Storage
    number: int
    attempt: int
    groups: int = 0
    partitions: set[str] = field(default_factory=set)
    rings: TableRings | None = None
    guess: FilePlacement | None = field(init=False)
    rows_per_file: int = field(init=False)
    combines: bool = field(init=False)
    unique: bool = field(init=False)

    def __post_init__(self) -> None:
        options, operation = self.shared.options, self.shared.context.operation
        self.guess, self.rows_per_file = self.shared.guess, self.shared.rows_per_file
        self.combines = combines_input(operation, options)
        self.unique = promises_unique_keys(operation, options)
        if self.shared.context.buckets is not None:
            # A bucket holds each key once, whatever the operation.
            self.combines = combines_input(operation if operation is Operation.DELETE else Operation.UPSERT, options)
            self.unique = True
            if self.shared.resizes is not None:
                self.rings = TableRings(RingStore(self.storage), self.shared.context.buckets, self.shared.resizes)

    def write(self, batches: Iterator[pa.RecordBatch]) -> Iterator[FileGroupResult]:
        """Write the units in order of arrival. Memory holds the rows of one unit, or of one file if keys are not compared."""
        units: dict[tuple[str, str], Unit] = {}
        last: int | None = None
        for batch in batches:
            orders = batch.column(ORDER).to_numpy()
            bounds = [0, *(np.flatnonzero(np.diff(orders)) + 1).tolist(), len(orders)]
            for start, end in itertools.pairwise(bounds):
                if start == end:
                    continue
                if orders[start] != last:
                    for unit in units.values():
                        yield from self._finish(unit)
                    units, last = {}, orders[start]
                for partition, name, rows in rows_by_unit(pa.Table.from_batches([batch.slice(start, end - start)])):
                    unit = units.setdefault((partition, name), Unit(partition, name))
                    unit.pieces.append(rows)
                    unit.rows += rows.num_rows
                    if not self.combines and not self.unique:
                        yield from self._write_full_files(unit)
        for unit in units.values():
            yield from self._finish(unit)

    def _write_full_files(self, unit: Unit) -> Iterator[FileGroupResult]:
        if self.guess is not None and unit.rows >= SAMPLE_ROWS:
            self._measure(self._prepared(unit, pa.concat_tables(unit.pieces).slice(0, SAMPLE_ROWS)).rows)
        limit = self._next_rows(unit)
        if unit.rows < limit:
            return
        rows = pa.concat_tables(unit.pieces)
        while rows.num_rows >= limit:
            yield from self._add(unit, self._prepared(unit, rows.slice(0, limit)))
            rows = rows.slice(limit)
            limit = self._next_rows(unit)
        unit.pieces, unit.rows = [rows], rows.num_rows

    def _next_rows(self, unit: Unit) -> int:
        filler = self._filler(unit)
        return filler.free_rows if filler is not None else self.rows_per_file

    def _measure(self, rows: pa.Table) -> None:
        """Let these rows, with record keys, tell how many fill a file."""
        if self.guess is not None and rows.num_rows:
            self.rows_per_file = replace(self.guess, row_bytes=measured_row_bytes(rows, self.shared.options)).rows_per_file
            self.guess = None

    def _filler(self, unit: Unit) -> Filler | None:
        if unit.filled or unit.bucket is None:
            return None
        return self.shared.fillers.get((unit.partition, unit.bucket))

    def _finish(self, unit: Unit) -> Iterator[FileGroupResult]:
        if not unit.rows:
            return
        rows = pa.concat_tables(unit.pieces)
        unit.pieces = []
        located = np.asarray(rows.column(LOCATED)) if LOCATED in rows.column_names else np.zeros(rows.num_rows, dtype=bool)
        if self.shared.context.buckets is not None:
            yield from self._write_bucket(unit, rows, self.shared.context.buckets)
            return
        if self.shared.context.operation is Operation.DELETE:
            yield from self._delete(unit, self._prepared(unit, rows), found=bool(located.any()))
            return
        prepared = self._prepared(unit, rows)
        if KNOWN in rows.column_names:
            refuse_known(prepared, rows.column(KNOWN))
        if TWICE in rows.column_names:
            refuse_twice(prepared, rows.column(TWICE))
        if PURGES in rows.column_names:
            prepared = replace(prepared, rows=with_marked_purges(prepared.rows, rows.column(PURGES)))
        prepared, kept = self._kept(prepared, rows)
        if kept is not None:
            located = located[kept]
        if self.unique and not self.combines:
            refuse_duplicates(prepared)
        if unit.bucket is None:
            yield self._write_group(unit.partition, self._named_slice(unit), prepared)
        else:
            yield from self._add(unit, prepared, located)

    def _write_bucket(self, unit: Unit, rows: pa.Table, index: BucketIndex) -> Iterator[FileGroupResult]:
        """Write the rows of a bucket of the table's bucket index into its file group or file groups, or into new ones."""
        context = self.shared.context
        prepared, _ = self._kept(self._prepared(unit, rows), rows)
        if not self.combines:
            refuse_duplicates(prepared)
        deletes = context.operation is Operation.DELETE
        bucket = int(unit.name)
        held = self.shared.held.get((unit.partition, bucket), ())
        own = index.in_partition(unit.partition, self._ring(unit.partition))
        is_held = all(own.bucket_of(s.group.file_id) == bucket for s in held)
        if not is_held or (own.buckets(prepared.keys) != bucket).any():
            raise VerificationFailed(
                f"rows of partition {unit.partition!r} for which Spark computed another bucket than {index.text} gives",
                expected=f"rows of bucket {bucket}",
                remedy="write the source in parts that go through the driver, and report this",
            )
        if not deletes:
            index.check_values(prepared.keys)
            if self.shared.plain_keys:
                index.check_plain(prepared.keys)
        if self.shared.in_bucket is not None:
            yield from self._write_in_bucket(unit, prepared, held, self.shared.in_bucket)
        elif held:
            yield self._write_group(unit.partition, held[0], prepared, added=0 if context.has_logs else prepared.rows.num_rows)
        elif not deletes:
            file_id = own.new_file_id(context.instant, unit.partition, bucket)
            yield self._write_group(unit.partition, None, prepared, file_id, added=prepared.rows.num_rows)

    def _ring(self, partition: str) -> HashRing | None:
        """Return the ring that a partition has after the write, and create the file of a first one unless rows are only deleted.

        None without consistent hashing.
        """
        if self.rings is None:
            return None
        operation, instant = self.shared.context.operation, self.shared.context.instant
        found = self.rings.of([partition]) if operation is Operation.DELETE else self.rings.for_writing([partition])
        return (self.rings.renewed(found, instant) if operation.overwrites else found)[partition]

    def _write_in_bucket(
        self, unit: Unit, prepared: PreparedInput, held: Sequence[FileSlice], into: InBucket
    ) -> Iterator[FileGroupResult]:
        """Write the rows of a bucket that may have several file groups.

        Updates where the keys are, the rest as `route_input` says.
        """
        context, place = self.shared.context, BucketPlace(unit.partition, int(unit.name))
        located: dict[BucketPlace, Location] = {}
        if context.operation.looks_up_keys:
            index = SimpleIndex(self.storage, cache_bytes=0)  # each file is read once
            located[place] = index.locate(prepared.keys, held, by_filters=True)
        numbers = {place: np.arange(prepared.rows.num_rows)}
        placement = into.placement.measured(prepared.rows, self.shared.options)
        for routed in route_input(context.instant, context.operation, numbers, located, {place: held}, placement, into.closed):
            opens = routed.task.base is None
            file_id = in_bucket(self._new_file_id(unit), place.bucket) if opens else routed.task.file_id
            unit.new_groups += opens
            task = replace(routed.task, file_id=file_id, number=self._next_number(), attempt=self.attempt)
            yield self._write(task, prepared.take(routed.positions))

    def _prepared(self, unit: Unit, rows: pa.Table) -> PreparedInput:
        """Fit and key the rows by the engine. Raises `VerificationFailed` if Spark computed another key or partition path."""
        context = self.shared.context
        source = rows.select(list(self.shared.columns))
        prepared = prepare_input(
            source,
            context.schema,
            self.shared.keygen,
            context.merging,
            context.operation,
            combine=False,
            scope=KeyScope.TABLE if OWN in rows.column_names else KeyScope.PARTITION,
            has_record_index=self.shared.has_record_index,
        )
        native_path = rows.column(OWN) if OWN in rows.column_names else unit.partition
        wrong = pc.any(pc.not_equal(prepared.partition_paths, native_path)).as_py()
        if KEY in rows.column_names:
            native = rows.column(KEY)
            same = pc.equal(prepared.keys, native) if len(native) == len(prepared.keys) else pc.is_in(prepared.keys, native)
            wrong = wrong or not pc.all(same, skip_nulls=False).as_py()
        if wrong:
            raise VerificationFailed(
                f"rows of partition {unit.partition!r} whose key or partition path Spark computed differently",
                expected="equal record keys and partition paths",
                remedy="cast the key and partition columns to the table's types before the write",
            )
        return prepared

    def _kept(self, prepared: PreparedInput, rows: pa.Table) -> tuple[PreparedInput, np.ndarray | None]:
        """Return the rows to write and their numbers (None: all): where the write combines, one per key, on ties the last."""
        if POSITION not in rows.column_names:
            return prepared, None
        positions = rows.column(POSITION).to_numpy()
        # The look-up join repeats a row whose key the table holds twice.
        _, first = np.unique(positions, return_index=True)
        if self.combines and pc.count_distinct(prepared.keys).as_py() < len(positions):
            combined, numbers = prepared.take(first).combined(self.shared.context.merging)
            return combined, first[numbers]
        if self.combines or len(first) == len(positions):
            return prepared, None
        first.sort()
        return prepared.take(first), first

    def _delete(self, unit: Unit, prepared: PreparedInput, *, found: bool) -> Iterator[FileGroupResult]:
        if found:
            yield self._write_group(unit.partition, self._named_slice(unit), prepared)

    def _add(self, unit: Unit, prepared: PreparedInput, located: np.ndarray | None = None) -> Iterator[FileGroupResult]:
        """Write a bucket: its small file takes updates and the inserts that fit, new file groups take the other inserts."""
        mask = np.zeros(prepared.rows.num_rows, dtype=bool) if located is None else located
        fresh = np.flatnonzero(~mask)
        filler = self._filler(unit)
        if filler is not None:
            here = np.concatenate([np.flatnonzero(mask), fresh[: filler.free_rows]])
            added = min(len(fresh), filler.free_rows)
            yield self._write_group(unit.partition, filler.file_slice, prepared.take(here), added=added)
            fresh = fresh[filler.free_rows :]
            unit.filled = True
        if self.guess is not None and self.guess.measured(prepared.rows, self.shared.options) is not self.guess:
            self._measure(prepared.rows)
        per_file = self.rows_per_file
        for start in range(0, len(fresh), per_file):
            part = prepared if len(fresh) == prepared.rows.num_rows <= per_file else prepared.take(fresh[start : start + per_file])
            yield self._write_group(unit.partition, None, part, self._new_file_id(unit), added=part.rows.num_rows)
            unit.new_groups += 1

    def _new_file_id(self, unit: Unit) -> str:
        return new_file_id(self.shared.context.instant, f"{unit.partition}/{unit.name}", unit.new_groups)

    def _write_group(
        self, partition: str, base: FileSlice | None, rows: PreparedInput, file_id: str = "", *, added: int = 0
    ) -> FileGroupResult:
        """Write rows over `base`, or to a new group if it is None. The last `added` rows are new to the group."""
        number = self._next_number()
        in_log = self.shared.inserts_to_log and (self.unique or _has_each_key_once(rows))
        # What a bucket of the bucket index has already gets its rows as updates, in a log file in any case.
        to_log = added if in_log and (base is None or self.shared.context.buckets is None) else 0
        task = FileGroupTask(number, partition, base.group.file_id if base else file_id, base, self.attempt, added > 0, to_log)
        return self._write(task, rows)

    def _next_number(self) -> int:
        """Return a number that is unique in the commit, and equal in every attempt of the task."""
        number = self.groups * self.shared.tasks + self.number
        self.groups += 1
        return number

    def _write(self, task: FileGroupTask, rows: PreparedInput) -> FileGroupResult:
        partition = task.partition_path
        if task.base is None and partition not in self.partitions:
            write_partition_metafile(self.storage, partition, self.shared.context.instant)
            self.partitions.add(partition)
        return write_file_group(self.shared.context, task, rows.rows, self.storage)

    def _named_slice(self, unit: Unit) -> FileSlice:
        known = self.shared.units.get((unit.partition, unit.name))
        if known is None:
            raise VerificationFailed(
                f"rows of {unit.name!r} in {unit.partition!r}", expected="a file slice whose keys were looked up"
            )
        return known


def _has_each_key_once(rows: PreparedInput) -> bool:
    """Return whether no key repeats. Merging a log file would treat two rows of one key as one."""
    return bool(pc.count_distinct(rows.keys).as_py() == rows.rows.num_rows)
