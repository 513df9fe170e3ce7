"""Mapping of Arrow types to the types that tables store: one encoding per value type, and no units finer than Avro's."""

from __future__ import annotations

import pyarrow as pa

_NEAREST: dict[pa.DataType, pa.DataType] = {
    pa.date64(): pa.date32(),
    pa.time32("s"): pa.time32("ms"),
    pa.time64("ns"): pa.time64("us"),
    pa.float16(): pa.float32(),
    pa.large_string(): pa.string(),
    pa.string_view(): pa.string(),
    pa.large_binary(): pa.binary(),
    pa.binary_view(): pa.binary(),
    pa.bool8(): pa.bool_(),
}
_LISTS = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list, pa.types.is_list_view, pa.types.is_large_list_view)


def storable_field(field: pa.Field, empty: pa.DataType | None = None) -> pa.Field:
    """Return `field` with the nearest type that tables store. A type without one is kept, and the engine rejects it by name.

    Timestamps become milliseconds or microseconds, in UTC if they have a zone. Columns of type null become `empty`, if given.
    """
    return pa.field(field.name, _storable(field.type, empty), nullable=field.nullable)


def _storable(kind: pa.DataType, empty: pa.DataType | None) -> pa.DataType:
    if pa.types.is_timestamp(kind):
        return pa.timestamp("ms" if kind.unit == "ms" else "us", "UTC" if kind.tz is not None else None)
    if pa.types.is_decimal(kind) and kind.precision <= 38:
        return pa.decimal128(kind.precision, kind.scale)
    if pa.types.is_dictionary(kind):
        return _storable(kind.value_type, empty)
    if pa.types.is_struct(kind):
        return pa.struct([storable_field(kind.field(i), empty) for i in range(kind.num_fields)])
    if pa.types.is_map(kind):
        return pa.map_(_storable(kind.key_type, empty), storable_field(kind.item_field, empty))
    if any(is_list(kind) for is_list in _LISTS):
        return pa.list_(storable_field(kind.value_field, empty))
    if pa.types.is_null(kind):
        return kind if empty is None else empty
    if kind in _NEAREST:
        return _NEAREST[kind]
    return _storable(kind.storage_type, empty) if isinstance(kind, pa.BaseExtensionType) else kind
