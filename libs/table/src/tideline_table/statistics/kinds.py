"""Types of columns with statistics: their names in documents, and the values that statistics hold.

A *stored value* is what a statistic holds: the number behind a date, a time or a timestamp, else the value itself.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from decimal import Decimal
from typing import TypeAlias

import pyarrow as pa

Stored: TypeAlias = bool | int | float | str | bytes | Decimal

_FIXED: dict[str, pa.DataType] = {
    str(kind): kind
    for kind in (
        pa.bool_(),
        *(pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
        *(pa.float32(), pa.float64()),
        *(pa.string(), pa.large_string(), pa.binary(), pa.large_binary()),
        *(pa.date32(), pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns")),
    )
}
_SIZED = re.compile(
    r"fixed_size_binary\[(\d{1,9})\]|decimal(128|256)\((\d{1,2}), (-?\d{1,2})\)|timestamp\[(s|ms|us|ns)(?:, tz=(.+))?\]"
)


@functools.lru_cache(maxsize=1024)
def is_supported(kind: pa.DataType) -> bool:
    """Return whether columns of this type have statistics: all types without parts but null, half floats and durations.

    Dictionaries of such values have those of the values.
    """
    if pa.types.is_dictionary(kind):
        return is_supported(kind.value_type)
    return str(kind) in _FIXED or _SIZED.fullmatch(str(kind)) is not None


@functools.cache
def type_of(name: str) -> pa.DataType:
    """Return the type with this name. Raises `ValueError` for any other text."""
    if name in _FIXED:
        return _FIXED[name]
    found = _SIZED.fullmatch(name)
    if found is None:
        raise ValueError(f"a column type {name!r}")
    width, bits, precision, scale, unit, zone = found.groups()
    if width is not None:
        return pa.binary(int(width))
    if unit is not None:
        return pa.timestamp(unit, zone)
    return (pa.decimal128 if bits == "128" else pa.decimal256)(int(precision), int(scale))


def stored_value(value: pa.Scalar) -> Stored | None:
    """Return the stored value of a scalar of a supported type, None for a null.

    The two zeros are equal in comparisons; which of them `min_max` returns is left open, so both are stored as one.
    """
    if not value.is_valid:
        return None
    found: Stored = value.value if pa.types.is_temporal(value.type) else value.as_py()
    return 0.0 if isinstance(found, float) and found == 0 else found


def array_of(values: Sequence[Stored | None], kind: pa.DataType) -> pa.Array:
    """Return stored values as an array of the type.

    Raises `ValueError`, `TypeError` or `OverflowError` for values it cannot hold.
    """
    if not pa.types.is_temporal(kind):
        return pa.array(values, kind)
    return pa.array(values, pa.int32() if kind.bit_width == 32 else pa.int64()).view(kind)
