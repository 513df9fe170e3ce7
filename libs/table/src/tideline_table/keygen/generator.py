"""`KeyGenerator`: derivation of record keys and partition paths of the rows of a table, and the texts of their values."""

from __future__ import annotations

import enum
import uuid
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from tideline_table.errors import InvalidRecord, SchemaMismatch, UnsupportedTable
from tideline_table.keygen.timebased import TimeBased
from tideline_table.schema.arrow import field_path, field_values, in_null_struct, named_field


def key_text(column: pa.ChunkedArray, name: str, *, logical_timestamps: bool = False) -> pa.ChunkedArray:
    """Return Java's `toString` of the values, dates as yyyy-MM-dd and timestamps as epoch numbers.

    With `logical_timestamps` (`hoodie.datasource.write.keygenerator.consistent.logical.timestamp.enabled`), timestamps with a zone
    are written as `yyyy-MM-dd HH:mm:ss.S` in UTC, truncated to milliseconds as in Hudi. Raises `SchemaMismatch` for other types.
    """
    kind = column.type
    if pa.types.is_dictionary(kind):
        column, kind = column.cast(kind.value_type), kind.value_type
    if pa.types.is_string(kind):
        return column
    if pa.types.is_timestamp(kind):
        if logical_timestamps and kind.tz is not None:
            return _sql_timestamps(column)
        return column.cast(pa.int64()).cast(pa.string())
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_date(kind) or pa.types.is_decimal(kind):
        # For decimals, Arrow writes the same exponents as Java (0E-12, but 0.000001).
        return column.cast(pa.string())
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind) or pa.types.is_null(kind):
        return column.cast(pa.string())
    raise SchemaMismatch(
        f"column {name!r} of type {kind} as a key or partition column",
        expected="text, a whole number, a boolean, a date, a decimal or a timestamp",
    )


def truncated_division(numbers: pa.ChunkedArray, divisor: int) -> pa.ChunkedArray:
    """Divide whole numbers as Java does, towards zero."""
    return pc.divide(numbers, pa.scalar(divisor, pa.int64()))


def _sql_timestamps(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return the text of `java.sql.Timestamp`: at least one fractional digit, without further trailing zeros."""
    per_milli = {"us": 1000, "ns": 1_000_000}.get(column.type.unit, 1)
    millis = (
        truncated_division(column.cast(pa.int64()), per_milli)
        if per_milli > 1
        else column.cast(pa.timestamp("ms", "UTC")).cast(pa.int64())
    )
    text = millis.cast(pa.timestamp("ms")).cast(pa.string())
    return pc.replace_substring_regex(text, r"(\.\d)(\d*?)0+$", r"\1\2")


DEFAULT_PARTITION = "__HIVE_DEFAULT_PARTITION__"
NULL_KEY = "__null__"
EMPTY_KEY = "__empty__"
ESCAPED = {c: f"%{ord(c):02X}" for c in [*map(chr, range(0x20)), "\x7f", *"\"#%'*/:=?\\{[]^"]}
"""Replacements in URL-encoded partition paths (format reference 3.2)."""


class KeyGeneratorType(enum.StrEnum):
    """Hudi's key generator types. The value is the name in `hoodie.table.keygenerator.type`."""

    SIMPLE = "SIMPLE"
    COMPLEX = "COMPLEX"
    TIMESTAMP = "TIMESTAMP"
    CUSTOM = "CUSTOM"
    NON_PARTITION = "NON_PARTITION"
    GLOBAL_DELETE = "GLOBAL_DELETE"
    OTHER = "OTHER"
    """A class outside Hudi. Its keys cannot be derived here."""

    @classmethod
    def inferred(cls, key_fields: Sequence[str], partition_fields: Sequence[str]) -> KeyGeneratorType:
        """Return the type that Hudi uses for a table that declares none."""
        if not partition_fields:
            return cls.NON_PARTITION
        return cls.SIMPLE if len(key_fields) <= 1 and len(partition_fields) == 1 else cls.COMPLEX


class PartitionType(enum.StrEnum):
    """How a custom key generator derives one level of the partition path."""

    SIMPLE = "SIMPLE"
    TIMESTAMP = "TIMESTAMP"


@dataclass(frozen=True, slots=True)
class KeyGenerator:
    """The derivation of `_hoodie_record_key` and `_hoodie_partition_path` from the columns of a table.

    A field may be one of a struct (`address.city`). Prefixed keys and Hive-style paths then show its whole path. A null struct
    makes all its fields null (`HoodieAvroUtils.getNestedFieldVal`).
    """

    key_fields: tuple[str, ...]
    partition_fields: tuple[str, ...]
    hive_style: bool = False
    url_encode: bool = False
    declared_type: KeyGeneratorType | None = None
    """None: the type that Hudi infers."""
    partition_types: tuple[PartitionType, ...] = ()
    """Types of a custom key generator, one for each partition field."""
    time_based: TimeBased | None = None
    """Conversion of the time-based levels."""
    bare_single_key: bool = False
    """A complex key generator with one key field writes `v`, not `f:v` (3.3; `hoodie.write.complex.keygen.new.encoding`)."""
    logical_timestamps: bool = False
    """Write timestamps as date texts (`hoodie.datasource.write.keygenerator.consistent.logical.timestamp.enabled`)."""
    problem: str = ""
    """Why keys of this table cannot be derived here; empty if they can. Its rows can be read in any case."""

    @property
    def type(self) -> KeyGeneratorType:
        """The declared type, or the inferred type if none is declared."""
        return self.declared_type or KeyGeneratorType.inferred(self.key_fields, self.partition_fields)

    @property
    def class_name(self) -> str:
        """Hudi's class name for this generator."""
        names = {
            KeyGeneratorType.NON_PARTITION: "NonpartitionedKeyGenerator",
            KeyGeneratorType.TIMESTAMP: "TimestampBasedKeyGenerator",
            KeyGeneratorType.GLOBAL_DELETE: "GlobalDeleteKeyGenerator",
        }
        return f"org.apache.hudi.keygen.{names.get(self.type, f'{self.type.capitalize()}KeyGenerator')}"

    @property
    def has_prefixed_keys(self) -> bool:
        """Whether record keys are `f1:v1,f2:v2` instead of the bare value of the single key field."""
        return len(self.key_fields) > 1 or (self.type is KeyGeneratorType.COMPLEX and not self.bare_single_key)

    @property
    def has_plain_paths(self) -> bool:
        """Whether partition paths are the plain values: no level is time-based, and timestamps are epoch numbers."""
        return not self.logical_timestamps and not any(self.is_time_based(name) for name in self.partition_fields)

    def is_time_based(self, name: str) -> bool:
        """Return whether level `name` of the partition path is derived from a time."""
        if self.type is KeyGeneratorType.CUSTOM:
            return dict(zip(self.partition_fields, self.partition_types, strict=False)).get(name) is PartitionType.TIMESTAMP
        return self.type is KeyGeneratorType.TIMESTAMP

    def check_usable(self) -> None:
        """Raise `UnsupportedTable` if this engine cannot derive keys as the other writers of the table do."""
        if self.problem:
            raise UnsupportedTable(
                self.problem, expected="a key generator that this engine supports", remedy="write with Apache Hudi"
            )

    def record_keys(self, rows: pa.Table) -> pa.ChunkedArray:
        """Return one key text per row: without key fields a new one, as Apache Hudi makes them up for such a table.

        Raises `InvalidRecord`, which names the columns, if a key is null or empty.
        """
        if not self.key_fields:
            numbers = pa.chunked_array([pa.array(range(rows.num_rows), pa.int64())]).cast(pa.string())
            return pc.binary_join_element_wise(pa.scalar(uuid.uuid4().hex), numbers, "_")
        if self.has_prefixed_keys:
            return self._prefixed_keys(rows)
        name = self.key_fields[0]
        keys = self._text(rows, name)
        missing = pc.sum(pc.or_kleene(pc.is_null(keys), pc.equal(keys, ""))).as_py() or 0
        if missing:
            raise InvalidRecord(
                f"{missing} row(s) with a null or empty record key in column {name!r}",
                expected="a value in every row",
                remedy="filter these rows out or choose other key columns",
            )
        return keys

    def _prefixed_keys(self, rows: pa.Table) -> pa.ChunkedArray:
        parts: list[pa.ChunkedArray] = []
        usable = None
        for name in self.key_fields:
            _refuse_null_struct(rows, name)
            text = self._text(rows, name)
            present = pc.and_kleene(pc.is_valid(text), pc.fill_null(pc.not_equal(text, ""), fill_value=False))
            usable = present if usable is None else pc.or_(usable, present)
            shown = pc.fill_null(pc.if_else(pc.equal(text, ""), EMPTY_KEY, text), NULL_KEY)
            parts.append(pc.binary_join_element_wise(pa.scalar(f"{name}:"), shown, ""))
        missing = rows.num_rows - (pc.sum(usable).as_py() or 0)
        if missing:
            raise InvalidRecord(
                f"{missing} row(s) in which all key columns ({', '.join(self.key_fields)}) are null or empty",
                expected="a value in at least one of them",
            )
        return pc.binary_join_element_wise(*parts, ",") if len(parts) > 1 else parts[0]

    def written_keys(self, rows: pa.Table) -> pa.ChunkedArray:
        """Return `record_keys` of rows that are to be written or found by key.

        Raises `InvalidRecord` for values that composite keys do not tell apart from others (`a:1,b:2,b:3` could be two rows):
        rows with different values would become one. Rows that another writer stored with such values are read as they are.
        """
        if len(self.key_fields) > 1:
            for name, following in zip(self.key_fields, (*self.key_fields[1:], None), strict=True):
                values = field_values(rows, name)
                if pa.types.is_string(values.type) or pa.types.is_large_string(values.type):
                    _refuse_ambiguous(name, values, following)
        return self.record_keys(rows)

    def partition_paths(self, rows: pa.Table) -> pa.ChunkedArray:
        """Return one partition path per row. Raises `InvalidRecord` for values whose path would leave the table's folder."""
        if not self.partition_fields:
            return pa.chunked_array([pa.repeat(pa.scalar(""), rows.num_rows)])
        levels = []
        for name in self.partition_fields:
            encoded = pc.dictionary_encode(self._partition_text(rows, name))
            chunks = [
                pa.DictionaryArray.from_arrays(
                    c.indices, pa.array([self._level(name, v) for v in c.dictionary.to_pylist()], pa.string())
                ).cast(pa.string())
                for c in encoded.chunks
            ]
            default = f"{name}={DEFAULT_PARTITION}" if self.hive_style else DEFAULT_PARTITION
            levels.append(pc.fill_null(pa.chunked_array(chunks, pa.string()), default))
        return pc.binary_join_element_wise(*levels, "/") if len(levels) > 1 else levels[0]

    def _partition_text(self, rows: pa.Table, name: str) -> pa.ChunkedArray:
        if not self.is_time_based(name):
            return self._text(rows, name)
        assert self.time_based is not None, "check_usable is called first"
        return self.time_based.texts(field_values(rows, name), name)

    def _text(self, rows: pa.Table, name: str) -> pa.ChunkedArray:
        return key_text(field_values(rows, name), name, logical_timestamps=self.logical_timestamps)

    def _level(self, name: str, value: str) -> str:
        text = value or DEFAULT_PARTITION
        if self.url_encode:
            text = "".join(ESCAPED.get(c, c) for c in text)
        if any(part in ("", ".", "..") or part.startswith(".hoodie") or "\x00" in part for part in text.split("/")) or "\\" in text:
            raise InvalidRecord(
                f"partition value {value!r} in column {name!r}",
                expected="a value without empty, '.', '..' or '.hoodie' path parts",
                remedy="fix the value or create the table with URL-encoded partitions",
            )
        return f"{name}={text}" if self.hive_style else text

    def check_columns(self, schema: pa.Schema) -> None:
        """Raise `SchemaMismatch` unless all key and partition columns exist and have supported types."""
        check_key_columns(schema, self.key_fields, "record key")
        check_key_columns(schema, [n for n in self.partition_fields if not self.is_time_based(n)], "partition")
        for name in self.partition_fields:
            if self.is_time_based(name) and self.time_based is not None:
                _check_exists(schema, name, "partition")
                self.time_based.check_column(named_field(schema, name).type, name)


def check_key_columns(schema: pa.Schema, columns: Sequence[str], purpose: str) -> None:
    """Raise `SchemaMismatch` unless every column or field of a struct exists and has a type that keys support."""
    for name in columns:
        _check_exists(schema, name, purpose)
        key_text(pa.chunked_array([pa.array([], named_field(schema, name).type)]), name)


def _refuse_null_struct(rows: pa.Table, name: str) -> None:
    """Raise `InvalidRecord` if a struct above a field of a composite key is null: Apache Hudi cannot write such a row."""
    above = in_null_struct(rows, name)
    if above is not None and (count := pc.sum(above).as_py()):
        raise InvalidRecord(
            f"{count} row(s) with a null struct above the key column {name!r}",
            expected="a struct in every row; the field itself may be null if another key column has a value",
            remedy="filter these rows out or choose other key columns",
        )


def _refuse_ambiguous(name: str, values: pa.ChunkedArray, following: str | None) -> None:
    for text in (NULL_KEY, EMPTY_KEY):
        if pc.any(pc.equal(values, text)).as_py():
            kind = "null" if text == NULL_KEY else "the empty text"
            raise InvalidRecord(
                f"the value {text!r} in key column {name!r}, which stands for {kind} in keys of several columns",
                expected="other values",
                remedy=f"write {kind} if that is meant",
            )
    if following is not None and pc.any(pc.match_substring(values, f",{following}:")).as_py():
        raise InvalidRecord(
            f"a value with ',{following}:' in key column {name!r}, which ends its value in keys of several columns",
            expected="values without this text",
            remedy="encode the value, or create the table with other key columns",
        )


def _check_exists(schema: pa.Schema, name: str, purpose: str) -> None:
    if not field_path(schema, name):
        raise SchemaMismatch(
            f"{purpose} column {name!r} is not in the schema",
            expected=f"one of {', '.join(schema.names)}, or a field of a struct by its dotted path",
        )
