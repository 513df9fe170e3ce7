"""Record keys and partition paths as native Spark expressions, equal to `tideline_table.keygen` on Arrow.

They only route rows. The worker writes what `keygen` returns, compares it with the routed values and refuses a difference.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as f
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import DataType, IntegralType, StringType, StructType, TimestampNTZType, TimestampType

from tideline_table.errors import UnsupportedTable
from tideline_table.keygen import DEFAULT_PARTITION, EMPTY_KEY, ESCAPED, NULL_KEY, KeyGenerator
from tideline_table.schema import named_field

_EPOCH = "TIMESTAMP_NTZ '1970-01-01 00:00:00'"
_PLAIN_SCALE = 6
"""At a larger scale, small decimals are written with an exponent."""


def source_type(source: StructType, name: str) -> DataType | None:
    """Return the type of a column of `source`, or of a field of a struct in it by its dotted path; None if there is none."""
    if name in source.names:
        return source[name].dataType
    kind: DataType = source
    for part in name.split("."):
        if not isinstance(kind, StructType) or part not in kind.names:
            return None
        kind = kind[part].dataType
    return kind


def source_column(source: StructType, name: str) -> Column:
    """Return the column or the field of a struct of which `source_type` gives the type; null where a struct above it is."""
    first, *inner = [name] if name in source.names else name.split(".")
    column = f.col(f"`{first}`")
    for part in inner:
        column = column.getField(part)
    return column


@dataclass(frozen=True, slots=True)
class NativeKeys:
    """Key expressions for a write of a source with the schema `source` into a table with the schema `table`."""

    keygen: KeyGenerator
    source: StructType
    table: pa.Schema

    @property
    def is_plain(self) -> bool:
        """Whether the record key is an unchanged text column, or made up, so that Spark and the engine cannot differ."""
        if not self.keygen.key_fields:
            return True
        name = self.keygen.key_fields[0]
        return (
            not self.keygen.has_prefixed_keys
            and isinstance(self._source_type(name), StringType)
            and pa.types.is_string(named_field(self.table, name).type)
        )

    def record_key(self) -> Column:
        """Return the record key, or, where the worker makes it up, a hash of the row: a stage that runs again routes each alike."""
        if not self.keygen.key_fields:
            hashed = [f.col(f"`{field.name}`") for field in self.source if "map<" not in field.dataType.simpleString()]
            return f.xxhash64(*hashed or [f.lit(0)]).cast("string")
        if not self.keygen.has_prefixed_keys:
            return self._text(self.keygen.key_fields[0])
        parts = []
        for name in self.keygen.key_fields:
            text = self._text(name)
            shown = f.coalesce(f.when(text == "", f.lit(EMPTY_KEY)).otherwise(text), f.lit(NULL_KEY))
            parts.append(f.concat(f.lit(f"{name}:"), shown))
        return f.concat_ws(",", *parts)

    def check_paths(self) -> None:
        """Raise `UnsupportedTable` if partition paths are derived from times."""
        if not self.keygen.has_plain_paths:
            raise UnsupportedTable(
                f"a DataFrame write into a table whose {self.keygen.type} key generator formats times as dates",
                expected="partition columns with unchanged values",
                remedy="write with tideline_table's write_rows",
            )

    def partition_path(self) -> Column:
        """Return the partition path, which is never null. Raises as `check_paths`."""
        self.check_paths()
        levels = [self._level(name) for name in self.keygen.partition_fields]
        if not levels:
            return f.lit("")
        return f.concat_ws("/", *levels)

    def _level(self, name: str) -> Column:
        text = self._text(name)
        value = f.coalesce(f.when(text == "", f.lit(None)).otherwise(text), f.lit(DEFAULT_PARTITION))
        if self.keygen.url_encode:
            value = _url_encoded(value)
        return f.concat(f.lit(f"{name}="), value) if self.keygen.hive_style else value

    def _source_type(self, name: str) -> DataType | None:
        return source_type(self.source, name)

    def _text(self, name: str) -> Column:
        kind, target = self._source_type(name), named_field(self.table, name).type
        if kind is None:
            return f.lit(None).cast("string")
        column = source_column(self.source, name)
        if pa.types.is_timestamp(target):
            micros = _epoch_micros(column, kind)
            return (micros if target.unit == "us" else f.floor(micros / f.lit(1000))).cast("bigint").cast("string")
        if pa.types.is_integer(target) and isinstance(kind, IntegralType):
            return column.cast("string")
        fitted = column if kind == from_arrow_type(target) else column.try_cast(from_arrow_type(target))
        if pa.types.is_decimal(target):
            return _decimal_text(fitted, target.scale)
        if pa.types.is_date(target):
            # Java writes a sign for years beyond 9999, Arrow does not.
            return f.ltrim(fitted.cast("string"), f.lit("+"))
        return fitted.cast("string")


def _epoch_micros(column: Column, kind: DataType) -> Column:
    if isinstance(kind, TimestampNTZType):
        # As a difference, because every cast of a local timestamp applies the session's time zone.
        return (column - f.expr(_EPOCH)).cast("interval second").cast("decimal(20, 6)") * f.lit(1_000_000)
    return f.unix_micros(column if isinstance(kind, TimestampType) else column.try_cast("timestamp"))


def _decimal_text(value: Column, scale: int) -> Column:
    """Format as Java's `BigDecimal.toString`: small values of a large scale have an exponent, which Spark omits if ANSI is on."""
    text = value.cast("string")
    if scale <= _PLAIN_SCALE:
        return text
    digits = f.regexp_replace(text, r"^-?0\.0*", "")
    exponent = (f.length(digits) - f.lit(scale + 1)).cast("string")
    rest = f.substring(digits, 2, scale)
    shown = f.concat(
        f.substring(digits, 1, 1), f.when(rest == "", f.lit("")).otherwise(f.concat(f.lit("."), rest)), f.lit("E"), exponent
    )
    sign = f.when(text.startswith("-"), f.lit("-")).otherwise(f.lit(""))
    small = text.rlike(r"^-?0\.000000") & (digits != "") & ~text.contains("E")
    zero = text.rlike(r"^0\.0*$")
    return f.when(zero, f.lit(f"0E-{scale}")).when(small, f.concat(sign, shown)).otherwise(text)


def _url_encoded(value: Column) -> Column:
    encoded = value
    # Replace the percent sign first, because the other replacements insert new ones.
    for character in sorted(ESCAPED, key=lambda c: c != "%"):
        encoded = f.replace(encoded, f.lit(character), f.lit(ESCAPED[character]))
    special = "[" + "".join(f"\\x{ord(c):02x}" for c in ESCAPED) + "]"
    return f.when(value.rlike(special), encoded).otherwise(value)
