"""Key generators: from columns to record keys and partition paths, vectorised (format reference 3.2, 3.3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from tideline_table.errors import InvalidRecord, SchemaMismatch

DEFAULT_PARTITION = "__HIVE_DEFAULT_PARTITION__"
NULL_KEY = "__null__"
EMPTY_KEY = "__empty__"
ESCAPED = {c: f"%{ord(c):02X}" for c in [*map(chr, range(0x20)), "\x7f", *"\"#%'*/:=?\\{[]^"]}
"""What URL-encoded partition paths replace (format reference 3.3)."""


@dataclass(frozen=True, slots=True)
class KeyGenerator:
    """How a table derives `_hoodie_record_key` and `_hoodie_partition_path` from its columns."""

    key_fields: tuple[str, ...]
    partition_fields: tuple[str, ...]
    hive_style: bool = False
    url_encode: bool = False

    @property
    def class_name(self) -> str:
        """Hudi's class for this generator: simple keys stay simple, everything else is complex."""
        package = "org.apache.hudi.keygen"
        if not self.partition_fields:
            return f"{package}.NonpartitionedKeyGenerator"
        if len(self.key_fields) == 1 and len(self.partition_fields) == 1:
            return f"{package}.SimpleKeyGenerator"
        return f"{package}.ComplexKeyGenerator"

    def record_keys(self, rows: pa.Table) -> pa.ChunkedArray:
        """One key text per row; `InvalidRecord` names the column when a key is null or empty."""
        if len(self.key_fields) == 1 and (len(self.partition_fields) < 2):
            name = self.key_fields[0]
            keys = key_text(rows.column(name), name)
            missing = pc.sum(pc.or_kleene(pc.is_null(keys), pc.equal(keys, ""))).as_py() or 0
            if missing:
                raise InvalidRecord(
                    f"{missing} row(s) with a null or empty record key in column {name!r}",
                    expected="a value in every row",
                    remedy="filter these rows out or choose other key columns",
                )
            return keys
        return self._complex_keys(rows)

    def _complex_keys(self, rows: pa.Table) -> pa.ChunkedArray:
        parts: list[pa.ChunkedArray] = []
        usable = None
        for name in self.key_fields:
            text = key_text(rows.column(name), name)
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

    def partition_paths(self, rows: pa.Table) -> pa.ChunkedArray:
        """One partition path per row; `InvalidRecord` for values that would leave the table's folder."""
        if not self.partition_fields:
            return pa.chunked_array([pa.repeat(pa.scalar(""), rows.num_rows)])
        levels = []
        for name in self.partition_fields:
            text = key_text(rows.column(name), name)
            encoded = pc.dictionary_encode(text)
            chunks = [
                pa.DictionaryArray.from_arrays(
                    c.indices, pa.array([self._level(name, v) for v in c.dictionary.to_pylist()], pa.string())
                ).cast(pa.string())
                for c in encoded.chunks
            ]
            default = f"{name}={DEFAULT_PARTITION}" if self.hive_style else DEFAULT_PARTITION
            levels.append(pc.fill_null(pa.chunked_array(chunks, pa.string()), default))
        return pc.binary_join_element_wise(*levels, "/") if len(levels) > 1 else levels[0]

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


def key_text(column: pa.ChunkedArray, name: str) -> pa.ChunkedArray:
    """Values as Hudi writes them into keys and paths: Java's `toString`, dates as yyyy-MM-dd, timestamps as epoch numbers."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        column, kind = column.cast(kind.value_type), kind.value_type
    if pa.types.is_string(kind):
        return column
    if pa.types.is_timestamp(kind):
        return column.cast(pa.int64()).cast(pa.string())
    if pa.types.is_decimal(kind):
        return _plain_decimals(column)
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_date(kind):
        return column.cast(pa.string())
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind) or pa.types.is_null(kind):
        return column.cast(pa.string())
    raise SchemaMismatch(
        f"column {name!r} of type {kind} as a key or partition column",
        expected="text, a whole number, a boolean, a date, a decimal or a timestamp",
    )


def _plain_decimals(column: pa.ChunkedArray) -> pa.ChunkedArray:
    text = column.cast(pa.string())
    if not pc.any(pc.match_substring(text, "E")).as_py():
        return text
    # Arrow turns to scientific notation where the scale is large (1E-8), as Java's toString does; paths and keys hold plain text.
    return pa.chunked_array(
        [pa.array([None if v is None else f"{v:f}" for v in c.to_pylist()], pa.string()) for c in column.chunks]
    )


def check_key_columns(schema: pa.Schema, columns: Sequence[str], purpose: str) -> None:
    """Raise `SchemaMismatch` unless every column exists and can serve as a key."""
    for name in columns:
        if name not in schema.names:
            raise SchemaMismatch(f"{purpose} column {name!r} is not in the schema", expected=f"one of {', '.join(schema.names)}")
        key_text(pa.chunked_array([pa.array([], schema.field(name).type)]), name)
