"""The input of a write: checked against the schema, keyed and combined before anything is written; then routed to file groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tideline_table.config import INSERT_TO_LOG, MAX_FILE_SIZE, RECORD_SIZE_ESTIMATE, SMALL_FILE_LIMIT, Options
from tideline_table.errors import DuplicateKey, InvalidRecord, SchemaMismatch
from tideline_table.file_group.slice import FileGroupId, FileSlice
from tideline_table.hudi.file_names import FIXED_ID, new_file_id
from tideline_table.index.bucket import BucketIndex, rows_by_bucket
from tideline_table.index.hash_ring import HashRing
from tideline_table.index.scope import KeyScope
from tideline_table.index.simple import Location, PlaceT, file_id_in, partition_of
from tideline_table.keygen import KeyGenerator
from tideline_table.log_format.hfile_writer import MOST_KEY_BYTES
from tideline_table.merge import Merging, combined_input, deleted_mask, with_deletion_marks
from tideline_table.schema.arrow import field_values, in_null_struct, named_field, named_values, with_column
from tideline_table.schema.evolution import IS_DELETED, PURGED, fit_rows
from tideline_table.schema.meta_fields import MetaField
from tideline_table.storage import MemoryStorage
from tideline_table.writer.base_file import write_base_file
from tideline_table.writer.task import FileGroupTask, Operation, promises_unique_keys


@dataclass(frozen=True, slots=True)
class PreparedInput:
    """Rows in the table's schema with `_hoodie_record_key` (and `_hoodie_is_deleted` if the input had it), and partition paths.

    If keys are purged together with the rows, `PURGED` marks them. The rows of a delete hold the record key only.
    """

    rows: pa.Table
    partition_paths: pa.ChunkedArray
    scope: KeyScope = KeyScope.PARTITION
    parts: frozenset[str] = frozenset()
    """The columns of the rows that `PARTIAL` marks: those that a log file needs, as the others keep their values."""

    @property
    def keys(self) -> pa.ChunkedArray:
        """Record keys, one per row."""
        return self.rows.column(MetaField.RECORD_KEY)

    @property
    def identities(self) -> pa.ChunkedArray:
        """What is unique in a table: partition path and record key joined, or the key alone if its scope is the table."""
        if self.scope is KeyScope.TABLE:
            return self.keys
        return pc.binary_join_element_wise(self.partition_paths, self.keys, "\x00")

    def take(self, positions: np.ndarray) -> PreparedInput:
        """Return the rows at `positions`."""
        chosen = pa.array(positions)
        return replace(self, rows=self.rows.take(chosen), partition_paths=self.partition_paths.take(chosen))

    def combined(self, merging: Merging) -> tuple[PreparedInput, np.ndarray]:
        """Return one row for each of `identities`, and the numbers of the rows that lie on top."""
        found = combined_input(self.rows, self.identities, merging)
        if found is None:
            return self, np.arange(self.rows.num_rows)
        numbers, rows = found
        return replace(self, rows=rows, partition_paths=self.partition_paths.take(pa.array(numbers))), numbers


def prepare_input(
    rows: pa.Table,
    schema: pa.Schema,
    keygen: KeyGenerator,
    merging: Merging,
    operation: Operation,
    *,
    combine: bool,
    scope: KeyScope = KeyScope.PARTITION,
    has_record_index: bool = False,
) -> PreparedInput:
    """Fit, key and combine `rows`: rows with one key in `scope` become one. Rows that `merging` treats as deletions are marked.

    Raises `SchemaMismatch` and `InvalidRecord` for rows that cannot be written; with a record index, for keys that it cannot
    hold, too.
    """
    if operation is Operation.DELETE:
        fitted = key_rows(rows, schema, keygen)
    else:
        fitted = fit_rows(rows, schema)
    keys, paths = keygen.written_keys(fitted), keygen.partition_paths(fitted)
    if operation is Operation.DELETE:
        keyed = pa.table({MetaField.RECORD_KEY.value: keys})
        merging = Merging()
    else:
        if has_record_index:
            check_indexed_keys(keys)
        keyed = fitted.append_column(MetaField.RECORD_KEY.value, keys)
        if IS_DELETED in rows.column_names and IS_DELETED not in keyed.column_names:
            keyed = keyed.append_column(IS_DELETED, _deletion_marks(rows.column(IS_DELETED)))
        keyed = with_deletion_marks(keyed, merging)
        _refuse_unordered(keyed, merging)
    prepared = PreparedInput(keyed, paths, scope)
    return prepared.combined(merging)[0] if combine or operation is Operation.DELETE else prepared


def check_indexed_keys(keys: pa.ChunkedArray | pa.Array) -> None:
    """Raise `InvalidRecord` for a key that is longer than a record index can hold.

    Its records are made after the commit, when the rows can be refused no more.
    """
    longest = pc.max(pc.binary_length(keys)).as_py() or 0
    if longest > MOST_KEY_BYTES:
        raise InvalidRecord(
            f"a record key of {longest} bytes for a record index",
            expected=f"at most {MOST_KEY_BYTES} bytes",
            remedy="shorten the key, or drop the index: tideline metadata drop PATH --type record_index",
        )


def key_rows(rows: pa.Table, schema: pa.Schema, keygen: KeyGenerator) -> pa.Table:
    """Return the key and partition fields of `rows` in the types of `schema`, null where `rows` lack one.

    A field of a struct is a column of its dotted name, whether `rows` have such a column or the struct. Raises `SchemaMismatch`.
    """
    names = list(dict.fromkeys((*keygen.key_fields, *keygen.partition_fields)))
    wanted = pa.schema([named_field(schema, name).with_nullable(nullable=True) for name in names])
    return fit_rows(named_values(rows, names), wanted)


def with_purged(prepared: PreparedInput, keys: pa.Table, schema: pa.Schema, keygen: KeyGenerator) -> PreparedInput:
    """Return an upsert that also removes `keys` (key and partition columns), regardless of ordering values.

    Raises `DuplicateKey` if a key is among the rows too, because their order is undefined.
    """
    removed = prepare_input(keys, schema, keygen, Merging(), Operation.DELETE, combine=True, scope=prepared.scope)
    both = pc.is_in(removed.identities, value_set=prepared.identities)
    if pc.any(both).as_py():
        raise DuplicateKey(
            f"record key {removed.keys.filter(both)[0].as_py()!r} is both written and removed by one write",
            expected="either of them in one write",
        )
    paths = pa.chunked_array([*prepared.partition_paths.chunks, *removed.partition_paths.chunks], pa.string())
    return replace(prepared, rows=with_purges(prepared.rows, removed.keys), partition_paths=paths)


def with_marked_purges(rows: pa.Table, purges: pa.ChunkedArray) -> pa.Table:
    """Return prepared `rows` with those that `purges` marks as deletions that win regardless of ordering values."""
    deleted = pa.array(deleted_mask(rows) | np.asarray(purges))
    return with_column(rows, IS_DELETED, deleted).append_column(PURGED, purges)


def with_purges(rows: pa.Table, keys: pa.ChunkedArray) -> pa.Table:
    """Return prepared `rows` followed by one deletion for each of `keys`, which wins regardless of ordering values."""
    marks = pa.repeat(pa.scalar(value=True), len(keys))
    purges = pa.table({MetaField.RECORD_KEY.value: keys, IS_DELETED: marks, PURGED: marks})
    nullable = pa.schema([field.with_nullable(nullable=True) for field in rows.schema])
    return pa.concat_tables([rows.cast(nullable), purges], promote_options="default")


def _refuse_unordered(keyed: pa.Table, merging: Merging) -> None:
    """Raise `InvalidRecord` for ordering values that Apache Hudi cannot compare, in rows that are no deletions.

    These are fields of a null struct, and nulls among several ordering fields.
    """
    names = merging.ordering_fields
    for name in names:
        if len(names) > 1:
            nulls = np.asarray(pc.is_null(field_values(keyed, name))) & ~deleted_mask(keyed)
            if nulls.any():
                raise InvalidRecord(
                    f"{int(nulls.sum())} row(s) with null in the ordering column {name!r}, one of several",
                    expected="a value: Apache Hudi cannot compare lists of values with null",
                    remedy="fill the column, or filter these rows out",
                )
        above = in_null_struct(keyed, name)
        if above is not None and (count := int((np.asarray(above) & ~deleted_mask(keyed)).sum())):
            raise InvalidRecord(
                f"{count} row(s) with a null struct above the ordering column {name!r}",
                expected="a struct in every row: Apache Hudi cannot merge such a row",
                remedy="fill the struct, with a null ordering value if there is none, or filter these rows out",
            )


def _deletion_marks(column: pa.ChunkedArray) -> pa.ChunkedArray:
    if not (pa.types.is_boolean(column.type) or pa.types.is_null(column.type)):
        raise SchemaMismatch(f"column {IS_DELETED!r} of type {column.type}", expected="type bool")
    return column.cast(pa.bool_())


def refuse_duplicates(prepared: PreparedInput) -> None:
    """Raise `DuplicateKey` if a key is in the input twice, or twice in one partition if that is the scope of keys."""
    identities = prepared.identities
    if len(pc.unique(identities)) == len(identities):  # twice as fast as `count_distinct`
        return
    grouped = (
        pa.table({"identity": identities, "key": prepared.keys}).group_by("identity").aggregate([("key", "count"), ("key", "min")])
    )
    twice = grouped.filter(pc.greater(grouped.column("key_count"), 1)).column("key_min")
    raise DuplicateKey(
        f"record key(s) {', '.join(map(repr, twice[:3].to_pylist()))} occur more than once in the input", expected="each key once"
    )


SIZE_SAMPLE = 16
"""The most file slices from which a write learns the size of a row."""


@dataclass(frozen=True, slots=True)
class RoutedTask:
    """A file group to write, and the numbers of its input rows."""

    task: FileGroupTask
    positions: np.ndarray


@dataclass(frozen=True, slots=True)
class FilePlacement:
    """Sizes that decide which file groups take inserts."""

    max_file_bytes: int
    small_file_bytes: int
    row_bytes: float
    inserts_to_log: bool = False
    """Inserts are appended to log files, also in small groups that already have some."""
    fills_groups: bool = True
    """Whether small groups take inserts at all."""
    is_guess: bool = False
    """Whether neither a file of the table nor an option tells `row_bytes`."""

    def for_inserts(self, operation: Operation, options: Options, *, has_logs: bool) -> FilePlacement:
        """Return the placement, with inserts in log files if the options say so.

        Inserts without look-up then open new groups only: in an existing group, the log merge would fold equal keys into one row.
        """
        if not options[INSERT_TO_LOG] or not has_logs or operation.opens_groups_only:
            return self
        return replace(self, inserts_to_log=True, fills_groups=promises_unique_keys(operation, options))

    @classmethod
    def of(cls, options: Options, slices: Sequence[FileSlice]) -> FilePlacement:
        """Return the placement from the options and the mean row size of a sample of the existing files."""
        sample = [s for s in slices[-SIZE_SAMPLE:] if s.rows > 0]
        rows = sum(s.rows for s in sample)
        mean = sum(s.size_bytes for s in sample) / rows if rows else float(options[RECORD_SIZE_ESTIMATE])
        is_guess = not rows and RECORD_SIZE_ESTIMATE.key not in options.given()
        return cls(options[MAX_FILE_SIZE], options[SMALL_FILE_LIMIT], max(mean, 1.0), is_guess=is_guess)

    def measured(self, rows: pa.Table, options: Options) -> FilePlacement:
        """Return the placement with the size that these rows, which have record keys, have in a base file.

        The same if that is no guess.

        Rows that fill no file by either size are not measured.
        """
        if not self.is_guess or 2 * max(rows.num_rows * self.row_bytes, rows.nbytes) <= self.max_file_bytes:
            return self
        return replace(self, row_bytes=measured_row_bytes(rows, options), is_guess=False)

    def free_rows(self, file_slice: FileSlice) -> int:
        """Return how many rows still fit into a file group.

        0 if it is not small, or has log files that would have to be merged first.
        """
        size_bytes = file_slice.total_bytes
        if not self.fills_groups or size_bytes >= self.small_file_bytes or (file_slice.log_files and not self.inserts_to_log):
            return 0
        return max(0, int((self.max_file_bytes - size_bytes) / self.row_bytes))

    @property
    def rows_per_file(self) -> int:
        """The number of rows of a full file."""
        return max(1, int(self.max_file_bytes / self.row_bytes))


def route_input(
    instant: str,
    operation: Operation,
    by_place: Mapping[PlaceT, np.ndarray],
    locations: Mapping[PlaceT, Location],
    slices: Mapping[PlaceT, Sequence[FileSlice]],
    placement: FilePlacement,
    closed: frozenset[FileGroupId] = frozenset(),
) -> list[RoutedTask]:
    """Return one task per file group that the input touches.

    `by_place` numbers the input rows of each partition, or of each bucket; `locations` says where their keys are (no entry:
    nowhere); `slices` are the visible slices of these places; groups in `closed` (under a pending plan) take no inserts. A
    delete ignores unknown keys.
    """
    tasks: list[RoutedTask] = []

    def add(place: PlaceT, file_slice: FileSlice | None, positions: np.ndarray, added: int) -> None:
        number = len(tasks)
        file_id = file_slice.group.file_id if file_slice else file_id_in(place, new_file_id(instant, str(number)))
        to_log = added if placement.inserts_to_log else 0
        task = FileGroupTask(number, partition_of(place), file_id, file_slice, adds=added > 0, log_inserts=to_log)
        tasks.append(RoutedTask(task, positions))

    for place in sorted(by_place):
        rows = by_place[place]
        location = locations.get(place)
        updates: dict[FileGroupId, np.ndarray] = {}
        filled: dict[FileGroupId, int] = {}
        inserts = rows
        if location is not None:
            for file_slice, positions in zip(location.slices, location.hits, strict=True):
                updates[file_slice.group] = rows[positions]
            inserts = rows[location.absent]
        if operation is Operation.DELETE:
            inserts = inserts[:0]
        open_slices = [] if operation.opens_groups_only else [s for s in slices.get(place, ()) if s.group not in closed]
        for file_slice in sorted(open_slices, key=lambda s: (s.total_bytes, s.group)):
            room = placement.free_rows(file_slice)
            if not len(inserts) or not room:
                break
            updates[file_slice.group] = np.concatenate([updates.get(file_slice.group, rows[:0]), inserts[:room]])
            filled[file_slice.group] = min(room, len(inserts))
            inserts = inserts[room:]
        by_group = {s.group: s for s in slices.get(place, ())}
        for group, positions in updates.items():
            add(place, by_group[group], positions, filled.get(group, 0))
        per_file = placement.rows_per_file
        for start in range(0, len(inserts), per_file):
            part = inserts[start : start + per_file]
            add(place, None, part, len(part))
    return tasks


def route_to_buckets(
    instant: str,
    operation: Operation,
    index: BucketIndex,
    by_partition: Mapping[str, np.ndarray],
    codes: np.ndarray,
    slices: Mapping[str, Sequence[FileSlice]],
    rings: Mapping[str, HashRing],
    *,
    has_logs: bool,
    inserts_to_log: bool,
    fixed_ids: bool = False,
) -> list[RoutedTask]:
    """Return one task per bucket that the input touches: of its file group, or of a new one if the bucket is empty.

    `fixed_ids`: it gets the file id that Apache Hudi's writers give the bucket that look for no conflicts.

    `codes` holds the hash of each input row (`BucketIndex.hash_codes`), `rings` the ring of each partition if there is
    consistent hashing; the other arguments are those of `route_input`. The writer does not look up whether a file group holds a
    key: a copy-on-write task merges the rows with the base file, and a merge-on-read task appends all of them. Raises
    `UnsupportedTable` for file groups that the index does not allow, except where an overwrite replaces them.
    """
    tasks: list[RoutedTask] = []
    for partition in sorted(by_partition):
        rows = by_partition[partition]
        if not len(rows):
            continue
        own = index.in_partition(partition, rings.get(partition))
        held = {} if operation.overwrites else own.group_of_each(slices.get(partition, ()))
        for bucket, members in rows_by_bucket(own.buckets_of(codes[rows])):
            positions = rows[members]
            base = held.get(bucket)
            if base is None and operation is Operation.DELETE:
                continue
            if base is not None:
                file_id = base.group.file_id
            else:
                file_id = f"{bucket:08}{FIXED_ID}" if fixed_ids else own.new_file_id(instant, partition, bucket)
            task = FileGroupTask(
                number=len(tasks),
                partition_path=partition,
                file_id=file_id,
                base=base,
                adds=base is None or not has_logs,
                log_inserts=len(positions) if base is None and inserts_to_log else 0,
            )
            tasks.append(RoutedTask(task, positions))
    return tasks


SAMPLE_ROWS = 8192
_BLOCKS = 4


def measured_row_bytes(rows: pa.Table, options: Options) -> float:
    """Return the mean number of bytes of these rows in a base file: a sample of them, with their record keys, is encoded as one."""
    sample = rows
    if rows.num_rows > SAMPLE_ROWS:
        size = SAMPLE_ROWS // _BLOCKS
        starts = [number * (rows.num_rows - size) // (_BLOCKS - 1) for number in range(_BLOCKS)]
        sample = pa.concat_tables([rows.slice(start, size) for start in starts])
    # Of the meta fields, only these two have another value in every row.
    numbers = pa.array([f"00000000000000000_0_{number}" for number in range(sample.num_rows)], pa.string())
    sample = sample.append_column(MetaField.COMMIT_SEQNO.value, numbers).combine_chunks()
    size_bytes: int = write_base_file(MemoryStorage(), "sample.parquet", sample, "", options).size_bytes
    return max(1.0, size_bytes / max(1, int(sample.num_rows)))
