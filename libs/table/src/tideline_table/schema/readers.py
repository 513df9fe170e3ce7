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


def nested_limits(schema: pa.Schema, partition_fields: Sequence[str], ordering_field: str, *, has_logs: bool) -> list[str]:
    """Return one sentence for each use of a field of a struct that a known reader does not know (docs/peer-differences.md)."""
    found = [
        f"partition column {name!r} is a field of a struct: hudi-rs 0.5.0 fails on any query of the table"
        for name in partition_fields
        if name not in schema.names
    ]
    inside = [name for name in ordering_field.split(",") if name and name not in schema.names]
    if has_logs and inside:
        found.append(f"ordering column {inside[0]!r} is a field of a struct: hudi-rs 0.5.0 ignores it and returns late updates")
    return found


def _inside(kind: pa.DataType) -> Iterator[pa.DataType]:
    """Yield the types that have a limit in `kind`, itself included."""
    if (pa.types.is_timestamp(kind) and kind.tz is None) or pa.types.is_time(kind):
        yield kind
    for number in range(kind.num_fields):
        yield from _inside(kind.field(number).type)
