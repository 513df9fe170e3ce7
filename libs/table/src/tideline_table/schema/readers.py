"""Which column types other readers of Hudi tables cannot read (docs/types.md, measured)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

_LOCAL = "hudi-rs 0.5.0 panics on any query of the table; a timestamp in UTC has no such limit"
_TIME = "Apache Hudi 1.2.0 on Spark 3.5 fails on any query that reads it; a whole number has no such limit"


def reader_limits(schema: pa.Schema) -> list[str]:
    """Return one sentence for each column that a known reader cannot read, also for fields inside of it."""
    found = ((field.name, next(_inside(field.type), None)) for field in schema)
    return [
        f"column {name!r} has the type {kind}: {_LOCAL if pa.types.is_timestamp(kind) else _TIME}"
        for name, kind in found
        if kind is not None
    ]


def partition_limits(schema: pa.Schema, fields: Sequence[str]) -> list[str]:
    """Return one sentence for each partition field inside of a struct, which a known reader cannot read."""
    return [
        f"partition column {name!r} is a field of a struct: hudi-rs 0.5.0 fails on any query of the table; a column of its own has no such limit"
        for name in fields
        if name not in schema.names
    ]


def _inside(kind: pa.DataType) -> Iterator[pa.DataType]:
    """Yield the types that have a limit in `kind`, itself included."""
    if (pa.types.is_timestamp(kind) and kind.tz is None) or pa.types.is_time(kind):
        yield kind
    for number in range(kind.num_fields):
        yield from _inside(kind.field(number).type)
