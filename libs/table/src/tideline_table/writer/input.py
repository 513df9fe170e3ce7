"""Input of a write: checked against the schema, keyed, combined. Nothing is written before this succeeded."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from tideline_table.errors import DuplicateKey, SchemaMismatch
from tideline_table.index.scope import KeyScope
from tideline_table.keygen import KeyGenerator
from tideline_table.merge import combine_input
from tideline_table.schema.fit import IS_DELETED, PURGED, fit_rows
from tideline_table.schema.meta_fields import MetaField
from tideline_table.writer.operation import Operation


@dataclass(frozen=True, slots=True)
class PreparedInput:
    """Rows in the table's schema plus `_hoodie_record_key` (and `_hoodie_is_deleted` where the input had it), with their partition paths.

    Where keys are purged beside the rows, `PURGED` says which.

    A delete's rows hold the record key only.
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
        """What is unique in a table: partition path and record key, joined, or by its scope the key alone."""
        if self.scope is KeyScope.TABLE:
            return self.keys
        return pa.compute.binary_join_element_wise(self.partition_paths, self.keys, "\x00")

    def take(self, positions: np.ndarray) -> PreparedInput:
        """The rows at `positions`."""
        chosen = pa.array(positions)
        return replace(self, rows=self.rows.take(chosen), partition_paths=self.partition_paths.take(chosen))


def prepare_input(
    rows: pa.Table,
    schema: pa.Schema,
    keygen: KeyGenerator,
    ordering_field: str,
    operation: Operation,
    *,
    combine: bool,
    scope: KeyScope = KeyScope.PARTITION,
) -> PreparedInput:
    """Fit, key and combine `rows`: of those that share what is unique in `scope` one stays.

    Raises `SchemaMismatch` and `InvalidRecord` for rows that cannot be written.
    """
    if operation is Operation.DELETE:
        needed = [f for f in schema if f.name in (*keygen.key_fields, *keygen.partition_fields)]
        present = [n for n in rows.column_names if n in {f.name for f in needed}]
        fitted = fit_rows(rows.select(present), pa.schema([f.with_nullable(nullable=True) for f in needed]))
    else:
        fitted = fit_rows(rows, schema)
    keys, paths = keygen.record_keys(fitted), keygen.partition_paths(fitted)
    if operation is Operation.DELETE:
        keyed = pa.table({MetaField.RECORD_KEY.value: keys})
        ordering_field = ""
    else:
        keyed = fitted.append_column(MetaField.RECORD_KEY.value, keys)
        if IS_DELETED in rows.column_names and IS_DELETED not in keyed.column_names:
            keyed = keyed.append_column(IS_DELETED, _deletion_marks(rows.column(IS_DELETED)))
    prepared = PreparedInput(keyed, paths, scope)
    if not combine and operation is not Operation.DELETE:
        return prepared
    winners = combine_input(keyed, prepared.identities, ordering_field)
    return prepared if winners is None else prepared.take(winners)


def with_purged(prepared: PreparedInput, keys: pa.Table, schema: pa.Schema, keygen: KeyGenerator) -> PreparedInput:
    """An upsert that also removes `keys` (key and partition columns), whatever the ordering values of the table say.

    Raises `DuplicateKey` when a key is among the rows too: nobody could tell which comes first.
    """
    gone = prepare_input(keys, schema, keygen, "", Operation.DELETE, combine=True, scope=prepared.scope)
    both = pa.compute.is_in(gone.identities, value_set=prepared.identities)
    if pa.compute.any(both).as_py():
        raise DuplicateKey(
            f"record key {gone.keys.filter(both)[0].as_py()!r} is written and removed at once", expected="one of them in one write"
        )
    paths = pa.chunked_array([*prepared.partition_paths.chunks, *gone.partition_paths.chunks], pa.string())
    return replace(prepared, rows=with_purges(prepared.rows, gone.keys), partition_paths=paths)


def with_marked_purges(rows: pa.Table, purges: pa.ChunkedArray) -> pa.Table:
    """Prepared `rows` of which those that `purges` marks are deletions that win whatever ordering values say."""
    if IS_DELETED in rows.column_names:
        position = rows.schema.get_field_index(IS_DELETED)
        marks = pa.compute.or_(pa.compute.fill_null(rows.column(IS_DELETED).cast(pa.bool_()), fill_value=False), purges)
        return rows.set_column(position, IS_DELETED, marks).append_column(PURGED, purges)
    return rows.append_column(IS_DELETED, purges).append_column(PURGED, purges)


def with_purges(rows: pa.Table, keys: pa.ChunkedArray) -> pa.Table:
    """Prepared `rows` and behind them a row for each of `keys` that is a deletion which wins whatever ordering values say."""
    if IS_DELETED not in rows.column_names:
        rows = rows.append_column(IS_DELETED, pa.repeat(pa.scalar(value=False), rows.num_rows))
    if PURGED not in rows.column_names:
        rows = rows.append_column(PURGED, pa.repeat(pa.scalar(value=False), rows.num_rows))
    count = len(keys)
    marks = {MetaField.RECORD_KEY.value: keys, **{name: pa.repeat(pa.scalar(value=True), count) for name in (IS_DELETED, PURGED)}}
    purges = pa.table([marks[f.name] if f.name in marks else pa.nulls(count, f.type) for f in rows.schema], rows.column_names)
    return pa.concat_tables([rows.cast(purges.schema), purges])


def _deletion_marks(column: pa.ChunkedArray) -> pa.ChunkedArray:
    if not (pa.types.is_boolean(column.type) or pa.types.is_null(column.type)):
        raise SchemaMismatch(f"column {IS_DELETED!r} of type {column.type}", expected="type bool")
    return column.cast(pa.bool_())


def refuse_duplicates(prepared: PreparedInput) -> None:
    """Raise `DuplicateKey` when a key stands twice in the input, in one partition of it where that is the scope of keys."""
    identities = prepared.identities
    if pa.compute.count_distinct(identities).as_py() == len(identities):
        return
    grouped = (
        pa.table({"identity": identities, "key": prepared.keys}).group_by("identity").aggregate([("key", "count"), ("key", "min")])
    )
    twice = grouped.filter(pa.compute.greater(grouped.column("key_count"), 1)).column("key_min")
    raise DuplicateKey(
        f"record key(s) {', '.join(map(repr, twice[:3].to_pylist()))} stand more than once in the input", expected="each key once"
    )
