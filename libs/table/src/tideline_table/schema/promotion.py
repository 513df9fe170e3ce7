"""Conversion of values to the newer type of their column, by Apache Hudi's rules of schema evolution."""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Context, Decimal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tideline_table.schema.arrow import is_bytes, is_number, is_numeric, is_text

_EVERY_DIGIT = Context(prec=400)
"""Room for the digits of any finite double at any scale; Arrow refuses what the target type has no room for."""


def can_become(source: pa.DataType, target: pa.DataType) -> bool:
    """Return whether every value of the plain type `source` can be converted to `target`.

    Whole numbers may lose digits in a floating type, as in Hudi.
    """
    if source == target:
        return True
    if pa.types.is_list(target):
        return bool(pa.types.is_fixed_size_binary(source) and source.byte_width * 8 % _bits_of_item(target) == 0)
    if pa.types.is_string(target) or pa.types.is_large_string(target):
        return is_text(source) or is_bytes(source) or is_numeric(source) or bool(pa.types.is_date(source))
    if pa.types.is_binary(target):
        return is_text(source) or is_bytes(source)
    if pa.types.is_integer(target):
        return bool(pa.types.is_integer(source) and _bits(source) <= _bits(target)) or is_relabelled(source, target)
    if pa.types.is_floating(target):
        return bool(pa.types.is_integer(source) or (pa.types.is_floating(source) and source.bit_width <= target.bit_width))
    if pa.types.is_decimal(target):
        if pa.types.is_decimal(source):
            return bool(source.scale <= target.scale and source.precision - source.scale <= target.precision - target.scale)
        return is_number(source)
    if is_relabelled(source, target):
        return True
    # Units and zones of a file may differ from the schema. Values that a conversion would truncate are rejected when they are read.
    return bool(
        (pa.types.is_timestamp(source) and pa.types.is_timestamp(target)) or (pa.types.is_time(source) and pa.types.is_time(target))
    )


def is_relabelled(source: pa.DataType, target: pa.DataType) -> bool:
    """Return whether stored numbers of type `source` are numbers of type `target` under another label.

    Apache Hudi before 1.1 labelled milliseconds as microseconds, and local timestamps as whole numbers, whatever they were. The
    table schema says later what the numbers are, and Apache Hudi keeps them. Other units of a file are its own: milliseconds in
    a column of microseconds are converted, as there.
    """
    if pa.types.is_int64(source) or pa.types.is_int64(target):
        return bool(pa.types.is_timestamp(target) or pa.types.is_timestamp(source))
    both = pa.types.is_timestamp(source) and pa.types.is_timestamp(target)
    return bool(both and (source.unit == target.unit or (source.unit == "us" and target.unit == "ms")))


def promoted(values: pa.Array, target: pa.DataType) -> pa.Array:
    """Convert values to `target`, which their type `can_become`. Raises `ValueError` (also `ArrowInvalid`) if one does not fit."""
    source = values.type
    if pa.types.is_list(target):
        return vectors(values, target)
    if is_relabelled(source, target):
        return values.view(target)
    if pa.types.is_floating(source):
        single = source.bit_width <= 32
        if pa.types.is_floating(target):
            return _widened_float(values, target)
        if pa.types.is_decimal(target):
            return _by_unique(values, lambda v: _decimal_of(v, target, single=single), target)
        return _float_texts(values, target)
    if pa.types.is_integer(source) and pa.types.is_floating(target):
        return values.cast(target, safe=False)
    if pa.types.is_fixed_size_binary(source) and pa.types.is_string(target):
        return values.cast(pa.binary()).cast(target)
    return values.cast(target)


def vectors(values: pa.FixedSizeBinaryArray, target: pa.ListType) -> pa.ListArray:
    """Return vectors of Apache Hudi: the numbers of each lie one after the other, little-endian, in its bytes."""
    number = values.type.byte_width * 8 // _bits_of_item(target)
    there = values.is_valid()
    held = values.drop_null()
    octets = b"" if not len(held) else held.buffers()[1].slice(held.offset * held.type.byte_width, len(held) * held.type.byte_width)
    numbers = pa.Array.from_buffers(target.value_type, len(held) * number, [None, pa.py_buffer(octets)])
    offsets = np.concatenate([[0], np.cumsum(np.asarray(there) * number)]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), numbers, type=target, mask=pc.invert(there))


def _bits_of_item(target: pa.ListType) -> int:
    """Return the bits of a number; of other items, so many that no bytes are such a vector."""
    item = target.value_type
    return int(item.bit_width) if pa.types.is_floating(item) or pa.types.is_int8(item) else 2**62


def java_float_text(value: float, *, single: bool) -> str:
    """Return the text of Java's `Float.toString` (`single`) or `Double.toString` for a floating number."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    sign, digits, exponent = Decimal(_digits_of(value, single=single)).as_tuple()
    assert isinstance(exponent, int)
    text = "".join(map(str, digits)).rstrip("0") or "0"
    leading = exponent + len(digits) if text != "0" else 1
    if text != "0" and not 1e-3 <= abs(value) < 1e7:
        shown = f"{text[0]}.{text[1:] or '0'}E{leading - 1}"
    elif leading > 0:
        shown = f"{text[:leading].ljust(leading, '0')}.{text[leading:] or '0'}"
    else:
        shown = f"0.{'0' * -leading}{text}"
    return f"-{shown}" if sign else shown


def _digits_of(value: float, *, single: bool) -> str:
    """Return the shortest digits that identify this number among those of its width."""
    return str(np.float32(value)) if single else repr(value)


def _float_texts(values: pa.Array, target: pa.DataType) -> pa.Array:
    """Return `java_float_text` of every value. From 0.001 up to 10 million Arrow writes the same digits, but may omit `.0`."""
    size = pc.abs(values)
    plain = pc.or_(pc.equal(size, 0.0), pc.and_(pc.greater_equal(size, 1e-3), pc.less(size, 1e7)))
    text = values.cast(pa.string())
    text = pc.if_else(pc.match_substring(text, "."), text, pc.binary_join_element_wise(text, ".0", ""))
    others = pc.fill_null(pc.invert(plain), fill_value=False)
    single = values.type.bit_width <= 32
    shown = _by_unique(values.filter(others), lambda v: java_float_text(v, single=single), pa.string())
    return pc.replace_with_mask(text, others, shown).cast(target)


def _by_unique(values: pa.Array, convert: Callable[[float], object], target: pa.DataType) -> pa.Array:
    encoded = pc.dictionary_encode(values)
    found = pa.array([convert(v) for v in encoded.dictionary.to_pylist()], target)
    return found.take(encoded.indices)


def _widened_float(values: pa.Array, target: pa.DataType) -> pa.Array:
    if values.type.bit_width == 16:
        return values.cast(target)
    # Convert through text, as Hudi does: the float 0.1 becomes the double 0.1, not 0.10000000149011612.
    return values.cast(pa.string()).cast(target)


def _decimal_of(value: float, target: pa.DataType, *, single: bool) -> Decimal:
    if not math.isfinite(value):
        raise ValueError(f"{value} is not a decimal")
    return Decimal(_digits_of(value, single=single)).quantize(Decimal(1).scaleb(-target.scale), context=_EVERY_DIGIT)


def _bits(kind: pa.DataType) -> int:
    """Return the bits that a whole number needs in a signed type."""
    return int(kind.bit_width) + (1 if pa.types.is_unsigned_integer(kind) else 0)
