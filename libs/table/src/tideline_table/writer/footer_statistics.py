"""Which columns have statistics in the footer and the page indexes of a base file.

Arrow leaves NaN out of the least and greatest values that it writes there. To Spark, NaN is greater than all numbers and equals
itself: Spark and Apache Hudi on it pass over a row group without opening it, although a NaN in it fits the condition. A column
without statistics is always read.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq


def footer_statistics(rows: pa.Table, *, is_whole: bool) -> bool | list[str]:
    """Return the paths of the leaf columns that have statistics in a file that begins with `rows`; true for all.

    Floating columns have none if they hold a NaN, or if more rows follow (not `is_whole`), of which nothing is known yet.
    """
    without = {name for name in rows.schema.names if _may_hold_nan(rows, name, is_whole=is_whole)}
    if not without:
        return True
    sink = pa.BufferOutputStream()
    pq.write_metadata(rows.schema, sink)
    leaves = pq.read_metadata(pa.BufferReader(sink.getvalue())).schema
    columns = [leaves.column(at) for at in range(len(leaves))]
    return [leaf.path for leaf in columns if leaf.path.partition(".")[0] not in without or not _is_floating(leaf)]


def _may_hold_nan(rows: pa.Table, name: str, *, is_whole: bool) -> bool:
    column = rows.column(name)
    if not _has_floats(column.type):
        return False
    return not is_whole or any(_holds_nan(chunk) for chunk in column.chunks)


def _has_floats(kind: pa.DataType) -> bool:
    if pa.types.is_floating(kind):
        return True
    return any(_has_floats(kind.field(at).type) for at in range(kind.num_fields))


def _holds_nan(values: pa.Array) -> bool:
    """Return whether one of `values`, or of the values in them, is NaN; also if it is behind a null."""
    if pa.types.is_floating(values.type):
        return bool(pc.any(pc.is_nan(values)).as_py())
    if pa.types.is_struct(values.type):
        return any(_holds_nan(values.field(at)) for at in range(values.type.num_fields))
    if pa.types.is_map(values.type):
        return _holds_nan(values.keys) or _holds_nan(values.items)
    return values.type.num_fields > 0 and _holds_nan(values.values)


def _is_floating(leaf: Any) -> bool:
    return leaf.physical_type in ("FLOAT", "DOUBLE") or str(leaf.logical_type) == "Float16"
