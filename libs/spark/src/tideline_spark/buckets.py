"""The bucket of a record key as a native expression of Spark, for the exchange of a write into a table with a bucket index.

The rule is that of `tideline_table.index.bucket`; the task compares what both computed. Nothing here calls Python for a row. Spark
interprets functions over arrays, so they only serve keys that the compiled expressions cannot divide or hash.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

from pyspark.sql import Column
from pyspark.sql import functions as f
from pyspark.sql.classic.column import Column as ClassicColumn
from pyspark.sql.utils import get_active_spark_context

from tideline_table.index import BucketIndex
from tideline_table.keygen import EMPTY_KEY, NULL_KEY

_WORD = 0xFFFFFFFF
_PAIR = r"(?s)\G([^:]*):(.*?)(?:,(?=[^,:]*:)|\z)"
"""A name and its value: the value ends at the last ',' before the ':' of the next name, or at the end of the key."""


def bucket_number(key: Column, index: BucketIndex, partition: Column) -> Column:
    """Return the bucket of each record key in its partition; 0 for a null key, which the task refuses."""
    whole = _step(f.lit(1).cast("bigint"), string_hash(key))
    is_pairs = f.contains(key, f.lit(",")) & f.contains(key, f.lit(":"))
    code = f.when(is_pairs, _pairs_hash(key, index, whole)).otherwise(whole)
    return f.coalesce(f.pmod(code.bitwiseAND(f.lit(0x7FFFFFFF).cast("bigint")), _number(index, partition)), f.lit(0))


def _number(index: BucketIndex, partition: Column) -> Column:
    """Return the number of buckets of a partition path. Spark searches by Java's regular expressions, as Apache Hudi does."""
    found = f.lit(index.number)
    for rule in reversed(index.rules.rules):
        found = f.when(partition.rlike(rule.expression), f.lit(rule.number)).otherwise(found)
    return found


def string_hash(text: Column) -> Column:
    """Return Java's `String.hashCode` as a number from 0 to 2^32 - 1."""
    codes = f.transform(f.split(text, ""), f.ascii)
    by_code_points = f.aggregate(codes, f.lit(0).cast("bigint"), _with_code_point)
    return f.when(_is_ascii(text), _ascii_hash(text)).otherwise(by_code_points)


def _is_ascii(text: Column) -> Column:
    return f.octet_length(text) == f.length(text)


def _ascii_hash(text: Column) -> Column:
    """Return `string_hash` of a text without other characters.

    It is Hive's hash, which folds the bytes of the UTF-8 as Java's `String.hashCode` folds characters. Spark has it for Hive's
    buckets, but under no name for DataFrames.
    """
    jvm: Any = get_active_spark_context()._jvm  # noqa: SLF001 - expressions without a name are reached through the JVM only
    columns = jvm.org.apache.spark.sql.classic.ExpressionUtils
    own: Any = text
    children = jvm.org.apache.spark.api.python.PythonUtils.toSeq([columns.expression(own._jc)])  # noqa: SLF001 - as above
    found: Column = ClassicColumn(columns.column(jvm.org.apache.spark.sql.catalyst.expressions.HiveHash(children)))
    return found.bitwiseAND(f.lit(_WORD).cast("bigint"))


def _with_code_point(total: Column, code: Column) -> Column:
    above = code - f.lit(0x10000)
    high = f.lit(0xD800) + f.shiftright(above, 10)
    low = f.lit(0xDC00) + above.bitwiseAND(f.lit(0x3FF))
    return f.when(code < 0x10000, _step(total, code)).otherwise(_step(_step(total, high), low))


def _step(total: Column, own: Column) -> Column:
    """Return 31 times `total` plus `own`, wrapped to 32 bits."""
    return (total * f.lit(31) + own).bitwiseAND(f.lit(_WORD).cast("bigint"))


def hash_values(key: Column, index: BucketIndex) -> Column:
    """Return the texts of the hash fields in a composite key, in the order of the key, with the texts for null and empty values."""
    names, values = (f.regexp_extract_all(key, f.lit(_PAIR), f.lit(group)) for group in (1, 2))
    pairs = f.zip_with(names, values, lambda name, value: f.struct(name.alias("name"), value.alias("value")))
    return f.transform(f.filter(pairs, lambda pair: pair["name"].isin(list(index.fields))), lambda pair: pair["value"])


def _pairs_hash(key: Column, index: BucketIndex, whole: Column) -> Column:
    kept = hash_values(key, index)
    code = f.aggregate(kept, f.lit(1).cast("bigint"), lambda total, value: _step(total, _value_hash(value, string_hash)))
    found = f.when(f.size(kept) == 0, whole).otherwise(code)
    is_plain, values = plain_values(key, index.key_fields)
    own = [_value_hash(values[at], _ascii_hash) for at, name in enumerate(index.key_fields) if name in index.fields]
    return f.when(is_plain & _is_ascii(key), reduce(_step, own, f.lit(1).cast("bigint"))).otherwise(found)


def _value_hash(value: Column, hash_of: Callable[[Column], Column]) -> Column:
    return f.when(value.isin([NULL_KEY, EMPTY_KEY]), f.lit(0).cast("bigint")).otherwise(hash_of(value))


def plain_values(key: Column, names: Sequence[str]) -> tuple[Column, list[Column]]:
    """Return whether a composite key can be cut at its separators alone, and then the texts of these key fields.

    The values before the last one end at the first ',' and hold no ':'. The key must be what names and values make up again, so a
    value with a separator, or a key with other names, is not plain.
    """
    if any("," in name or ":" in name for name in names):
        return f.lit(False), [key for _ in names]
    until = [f.substring_index(key, ",", number) for number in range(1, len(names))]
    values = [f.substring_index(text, ":", -1) for text in (*until, key)]
    parts = [part for name, value in zip(names, values, strict=True) for part in (f.lit(f",{name}:"), value)]
    made = f.concat(f.lit(f"{names[0]}:"), *parts[1:])
    return key == made, values
