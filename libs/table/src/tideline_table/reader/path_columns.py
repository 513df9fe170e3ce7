"""Rows with column values from the path of their file slice."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from tideline_table.keygen import PathColumns
from tideline_table.reader.base_file import referenced_columns
from tideline_table.schema.evolution import conform

Scan = Callable[[pa.Schema, Sequence[str], pc.Expression | None], Iterator[pa.RecordBatch]]
"""Yields rows with these columns of a schema, filtered."""


def scan_with_path(
    path_columns: PathColumns,
    partition_path: str,
    schema: pa.Schema,
    names: Sequence[str],
    where: pc.Expression | None,
    scan: Scan,
) -> Iterator[pa.RecordBatch]:
    """Yield what `scan` reads of a slice, with values of its partition path: for nulls only, or in place of stored columns."""
    needed = set(names) | (referenced_columns(where, schema) if where is not None else frozenset())
    values = {name: value for name, value in path_columns.values(partition_path, schema).items() if name in needed}
    if not values:
        yield from scan(schema, names, where)
        return
    only_fill = path_columns.only_fill
    stored = schema if only_fill else pa.schema([field for field in schema if field.name not in values])
    # A filter on a value of the path is applied after the value is added.
    pushed = where if where is not None and values.keys().isdisjoint(referenced_columns(where, schema)) else None
    inner = [name for name in stored.names if name in needed] or stored.names[:1]
    output = pa.schema([schema.field(name) for name in names])
    for batch in scan(stored, inner, pushed):
        rows = pa.Table.from_batches([batch])
        for name, value in values.items():
            if only_fill:
                rows = rows.set_column(rows.column_names.index(name), name, pc.fill_null(rows.column(name), value))
            else:
                rows = rows.append_column(schema.field(name), pa.repeat(value, batch.num_rows))
        kept = rows if where is None or pushed is not None else rows.filter(where)
        yield from (found for found in conform(kept, output).to_batches() if found.num_rows)
