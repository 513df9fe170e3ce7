"""The node of a record key in the hash ring of its partition as a native expression of Spark, for the exchange of a write.

The rule is that of `tideline_table.index.hash_ring`; the task compares what both computed. A first ring follows from the number
of buckets, so that only the rings of partitions that were resized are sent to the executors. Nothing here calls Python or
reflection.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from tideline_spark.buckets import hash_values, plain_values
from tideline_table.index import BucketIndex, HashRing
from tideline_table.keygen import EMPTY_KEY, NULL_KEY

_VALUES = "_tideline_node_values"
_WORD = 0xFFFFFFFF
_P1, _P2, _P3, _P4, _P5 = 2654435761, 2246822519, 3266489917, 668265263, 374761393
"""The primes of xxHash32."""
_START = ((_P1 + _P2) & _WORD, _P2, 0, -_P1 & _WORD)
"""The sums of the four lanes before the first stripe."""
_LARGEST_VALUE = 2**31 - 1


def with_nodes(
    keyed: DataFrame, key: str, partition: str, name: str, index: BucketIndex, resized: Mapping[str, HashRing]
) -> DataFrame:
    """Add the column `name`: the position of each row's node in its partition's ring, 0 for a null key (the task refuses it).

    `resized` holds the rings of partitions that have another one than the first. The rows keep their order.
    """
    code = f.coalesce(ring_hash(f.col(key), index), f.lit(0).cast("bigint"))
    if not resized:
        return keyed.withColumn(name, _in_first_ring(code, index.number))
    values = pa.array([[node.value for node in ring.nodes] for ring in resized.values()], pa.list_(pa.int64()))
    rings = keyed.sparkSession.createDataFrame(pa.table({partition: pa.array(list(resized), pa.string()), _VALUES: values}))
    most = max(len(ring.nodes) for ring in resized.values())
    node = _let(
        code,
        lambda own: f.when(f.isnull(_VALUES), _in_first_ring(own, index.number)).otherwise(_in_values(own, f.col(_VALUES), most)),
    )
    return keyed.join(f.broadcast(rings), partition, "left").withColumn(name, node).drop(_VALUES)


def ring_hash(key: Column, index: BucketIndex) -> Column:
    """Return the hash of each record key that a ring divides, 0 to 2^31 - 1."""
    joined = f.array_join(f.transform(hash_values(key, index), _text_of), "")
    is_pairs = f.contains(key, f.lit(",")) & f.contains(key, f.lit(":"))
    is_plain, values = plain_values(key, index.key_fields)
    own = f.concat(*(_text_of(values[at]) for at, name in enumerate(index.key_fields) if name in index.fields))
    text = f.when(is_pairs & is_plain, own).when(is_pairs & (f.size(hash_values(key, index)) > 0), joined).otherwise(key)
    return text_hash(text).bitwiseAND(f.lit(_LARGEST_VALUE).cast("bigint"))


def _text_of(value: Column) -> Column:
    return f.when(value == NULL_KEY, "null").when(value == EMPTY_KEY, "").otherwise(value)


def text_hash(text: Column) -> Column:
    """Return xxHash32 with seed 0 of the UTF-8 bytes of a text, as a number from 0 to 2^32 - 1."""

    def hashed(own: Column) -> Column:
        # Each byte is one character of ISO-8859-1, whose code is the byte.
        data = f.transform(f.split(f.decode(f.encode(own, "UTF-8"), "ISO-8859-1"), ""), f.ascii)
        return _let(f.octet_length(own), lambda size: _let(data, lambda numbers: _bytes_hash(numbers, size)))

    return _let(text, hashed)


def _bytes_hash(data: Column, size: Column) -> Column:
    """Return the hash of the first `size` numbers in an array of bytes. It has one too many for an empty text."""
    stripes, words = f.shiftright(size, 4), f.shiftright(size, 2)
    start = f.struct(*(f.lit(value).cast("bigint").alias(f"s{lane}") for lane, value in enumerate(_START)))
    sums = f.aggregate(_numbers(f.lit(0), stripes), start, lambda total, at: _with_stripe(total, data, at), _sum_of_lanes)
    begun = f.when(size >= 16, sums).otherwise(f.lit(_P5).cast("bigint"))
    code = f.aggregate(
        _numbers(stripes * 4, words), (begun + size).bitwiseAND(_lit(_WORD)), lambda total, at: _with_word(total, data, at)
    )
    rest = f.slice(data, words * 4 + 1, size - words * 4)
    code = _times(_shifted(f.aggregate(rest, code, _with_byte), 15), _P2)
    return _shifted(_times(_shifted(code, 13), _P3), 16)


def _with_stripe(total: Column, data: Column, at: Column) -> Column:
    lanes = []
    for lane in range(4):
        added = _product(_word(data, at * 16 + 4 * lane), _P2) + total[f"s{lane}"]
        lanes.append(_times(_rotated(added.bitwiseAND(_lit(_WORD)), 13), _P1).alias(f"s{lane}"))
    return f.struct(*lanes)


def _sum_of_lanes(total: Column) -> Column:
    turned = [_rotated(total[f"s{lane}"], bits) for lane, bits in enumerate((1, 7, 12, 18))]
    return (turned[0] + turned[1] + turned[2] + turned[3]).bitwiseAND(_lit(_WORD))


def _with_word(total: Column, data: Column, at: Column) -> Column:
    return _times(_rotated((total + _product(_word(data, at * 4), _P3)).bitwiseAND(_lit(_WORD)), 17), _P4)


def _with_byte(total: Column, own: Column) -> Column:
    return _times(_rotated((total + _product(own, _P5)).bitwiseAND(_lit(_WORD)), 11), _P1)


def _word(data: Column, at: Column) -> Column:
    """Return the little-endian number in the four bytes from the position `at` (0: the first) on."""
    first, second, third, fourth = (f.get(data, at + byte) for byte in range(4))
    return fourth.cast("bigint") * 0x1000000 + third * 0x10000 + second * 0x100 + first


def _numbers(start: Column, end: Column) -> Column:
    """Return the whole numbers from `start` to `end` (out), none if they are equal."""
    return f.slice(f.sequence(f.lit(0), end), start + 1, end - start)


def _times(code: Column, prime: int) -> Column:
    return _product(code, prime).bitwiseAND(_lit(_WORD))


def _product(code: Column, prime: int) -> Column:
    """Return a number that equals the product modulo 2^32.

    A prime above 2^31 counts as negative: the product fits 64 bits with sign.
    """
    return code * _lit(prime - 2**32 if prime >= 2**31 else prime)


def _rotated(code: Column, bits: int) -> Column:
    return _let(code, lambda own: (f.shiftleft(own, bits) + f.shiftright(own, 32 - bits)).bitwiseAND(_lit(_WORD)))


def _shifted(code: Column, bits: int) -> Column:
    return _let(code, lambda own: own.bitwiseXOR(f.shiftright(own, bits)))


def _quotient(number: Column, by: int) -> Column:
    """Return the whole quotient of a number that is not negative."""
    return ((number - f.pmod(number, f.lit(by))) / f.lit(by)).cast("int")


def _in_first_ring(code: Column, number: int) -> Column:
    """Return the position of the node in a ring of `number` nodes as `HashRing.first` makes it."""
    step = (_LARGEST_VALUE + number - 1) // number
    return _let(code, lambda own: f.when(own == 0, f.lit(0)).otherwise(_quotient(own - 1, step)))


def _in_values(code: Column, values: Column, most: int) -> Column:
    """Return how many of up to `most` ascending values are less than the hash, modulo their number: by halving."""
    steps = f.array(*(f.lit(1 << bit) for bit in reversed(range(most.bit_length()))))

    def stepped(total: Column, step: Column) -> Column:
        return f.when((total + step <= f.size(values)) & (f.get(values, total + step - 1) < code), total + step).otherwise(total)

    return f.pmod(f.aggregate(steps, f.lit(0), stepped), f.size(values))


def _let(value: Column, body: Callable[[Column], Column]) -> Column:
    """Return `body` of a value that is computed once, though `body` names it more than once."""
    return f.transform(f.array(value), body)[0]


def _lit(number: int) -> Column:
    return f.lit(number).cast("bigint")
