"""Input of a write: checked against the schema, keyed, combined. Nothing is written before this succeeded."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tideline_table.errors import DuplicateKey
from tideline_table.keygen import KeyGenerator
from tideline_table.merge import combine_input
from tideline_table.schema.fit import IS_DELETED, fit_rows
from tideline_table.schema.meta_fields import MetaField
from tideline_table.writer.operation import Operation


@dataclass(frozen=True, slots=True)
class PreparedInput:
    """Rows in the table's schema plus `_hoodie_record_key` (and `_hoodie_is_deleted` where the input had it), with their partition paths.

    A delete's rows hold the record key only.
    """

    rows: pa.Table
    partition_paths: pa.ChunkedArray

    @property
    def keys(self) -> pa.ChunkedArray:
        """Record keys, one per row."""
        return self.rows.column(MetaField.RECORD_KEY)

    def take(self, positions: np.ndarray) -> PreparedInput:
        """The rows at `positions`."""
        chosen = pa.array(positions)
        return PreparedInput(self.rows.take(chosen), self.partition_paths.take(chosen))


def prepare_input(
    rows: pa.Table, schema: pa.Schema, keygen: KeyGenerator, ordering_field: str, operation: Operation, *, combine: bool
) -> PreparedInput:
    """Fit, key and combine `rows`.

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
            keyed = keyed.append_column(IS_DELETED, rows.column(IS_DELETED))
    prepared = PreparedInput(keyed, paths)
    if not combine and operation is not Operation.DELETE:
        return prepared
    identity = pa.compute.binary_join_element_wise(paths, keys, "\x00") if keygen.partition_fields else keys
    winners = combine_input(keyed, identity, ordering_field)
    return prepared if winners is None else prepared.take(winners)


def refuse_duplicates(keys: pa.ChunkedArray) -> None:
    """Raise `DuplicateKey` when a key stands twice in the input."""
    counts = keys.value_counts()
    twice = [v["values"].as_py() for v in counts.filter(pa.compute.greater(counts.field("counts"), 1))[:3]]
    if twice:
        raise DuplicateKey(
            f"record key(s) {', '.join(map(repr, twice))} stand more than once in the input", expected="each key once"
        )
