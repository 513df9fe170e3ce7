"""Preparation of a write's input: checked against the schema, keyed and combined before anything is written."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tideline_table.errors import DuplicateKey, InvalidRecord, SchemaMismatch
from tideline_table.index.scope import KeyScope
from tideline_table.keygen import KeyGenerator
from tideline_table.log_format.hfile_writer import MOST_KEY_BYTES
from tideline_table.merge import Merging, combined_input, deleted_mask, with_deletion_marks
from tideline_table.schema.arrow import in_null_struct, named_field, named_values, with_column
from tideline_table.schema.evolution import IS_DELETED, PURGED, fit_rows
from tideline_table.schema.meta_fields import MetaField
from tideline_table.writer.task import Operation


@dataclass(frozen=True, slots=True)
class PreparedInput:
    """Rows in the table's schema with `_hoodie_record_key` (and `_hoodie_is_deleted` if the input had it), and partition paths.

    If keys are purged together with the rows, `PURGED` marks them. The rows of a delete hold the record key only.
    """

    rows: pa.Table
    partition_paths: pa.ChunkedArray
    scope: KeyScope = KeyScope.PARTITION

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
    """Raise `InvalidRecord` if a struct above the ordering field is null in a row that is no deletion."""
    for name in merging.ordering_fields:
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
