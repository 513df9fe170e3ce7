"""Which rows of tables with a bucket index are in the same buckets, for joins, aggregations and samples without a shuffle (RFC-29).

The bucket of a row is the hash code of its hash values modulo the number of buckets. For a common divisor n of two numbers of
buckets, rows with equal hash codes are in buckets that are equal modulo n. Rows with equal values in the hash fields have equal
hash codes where the text of their record keys is cut in the same way; `KeyCheck` refuses rows for which that is not certain.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from tideline_table.errors import InvalidOption, InvalidRecord, SchemaMismatch, UnsupportedTable
from tideline_table.file_group.slice import FileSlice
from tideline_table.hudi.file_names import bucket_of_file_id
from tideline_table.index.bucket import BucketIndex
from tideline_table.index.bucket_pruning import BucketPruning, keeps_text
from tideline_table.keygen import EMPTY_KEY, NULL_KEY, KeyGeneratorType

_SHUFFLE = "read the table and let Spark shuffle it: tideline_spark.read.read"


@dataclass(frozen=True, slots=True)
class KeyCheck:
    """The texts in key columns of a table with which it is uncertain in which bucket a row is."""

    columns: tuple[str, ...] = ()
    """Text columns to check."""
    any_separator: bool = False
    """Whether `:` or `,` alone is refused, because Apache Hudi 0.15 may have written the table; else both in one value."""
    values: tuple[str, ...] = ()
    """Columns that must not hold the texts for null and empty values: alone in a key, they are values."""

    def check(self, rows: pa.RecordBatch | pa.Table) -> None:
        """Raise `InvalidRecord` for rows with such a text in one of the columns."""
        for name in self.columns:
            column = rows.column(name)
            found = [pc.match_substring(column, mark) for mark in (":", ",")]
            wrong = pc.or_(*found) if self.any_separator else pc.and_(*found)
            if name in self.values:
                wrong = pc.or_(wrong, pc.is_in(column, value_set=pa.array([NULL_KEY, EMPTY_KEY])))
            bad = column.filter(wrong)
            if len(bad):
                either = "':' or ','" if self.any_separator else "':' and ','"
                raise InvalidRecord(
                    f"the value {bad[0].as_py()!r} in key column {name!r}: its bucket is not certain",
                    expected=f"no value with {either} and none of {NULL_KEY}, {EMPTY_KEY} in a query by buckets",
                    remedy=_SHUFFLE,
                )


@dataclass(frozen=True, slots=True)
class BucketTable:
    """A snapshot of a table with a bucket index, as far as its buckets depend on it."""

    name: str
    pruning: BucketPruning
    schema: pa.Schema
    partitions: frozenset[str] = frozenset()
    """The partition paths with file groups: they count if rules give partitions numbers of their own."""

    @property
    def number(self) -> int:
        """The number modulo which equal keys of all partitions have equal bucket numbers. Raises as `BucketIndex.common_number`."""
        return self.index.common_number(self.partitions)

    @property
    def index(self) -> BucketIndex:
        """The index, with the number of buckets of the snapshot."""
        return self.pruning.index

    @property
    def has_prefixed_value(self) -> bool:
        """Whether the name of the one key column is part of the text that is hashed."""
        return self.pruning.keygen.has_prefixed_keys and len(self.index.key_fields) == 1

    def type_of(self, name: str) -> pa.DataType:
        """Return the type of a column. Raises `SchemaMismatch` if there is none."""
        if name not in self.schema.names:
            raise SchemaMismatch(
                f"column {name!r} is not in table {self.name!r}", expected=f"one of {', '.join(self.schema.names)}"
            )
        return self.schema.field(name).type

    def check_texts(self) -> None:
        """Raise `UnsupportedTable` if the values of the hash fields do not say with which text they were written."""
        if self.pruning.keygen.problem or self.pruning.keygen.type is KeyGeneratorType.OTHER:
            raise UnsupportedTable(
                f"the key generator of table {self.name!r}", expected="one that this engine supports", remedy=_SHUFFLE
            )
        for name in self.index.fields:
            created, now = self.pruning.created_types.get(name), self.type_of(name)
            # Nothing but narrower whole numbers is widened into these types.
            is_sure = created is None and _kind(now) in ("whole number", "boolean", "date")
            if not (is_sure or keeps_text(created, now)):
                raise UnsupportedTable(
                    f"hash field {name!r} of table {self.name!r} is {now}, and {created or 'of an unknown type'} when the table "
                    "was created",
                    expected="the type of the creation: record keys keep the texts of earlier types",
                    remedy=_SHUFFLE,
                )

    def others(self) -> tuple[str, ...]:
        """Return the key columns that are no hash fields."""
        return tuple(name for name in self.index.key_fields if name not in self.index.fields)

    def doubtful_others(self) -> tuple[str, ...]:
        """Return the text columns of the key that may hold what is cut like the pair of a hash field.

        Raises `UnsupportedTable` for a shared table with a key column of another type whose texts may hold a separator.
        """
        if self.pruning.has_plain_values:
            return ()
        if not self.pruning.cuts_alike:
            for name in self.others():
                if not _kind(self.type_of(name)):
                    raise UnsupportedTable(
                        f"key column {name!r} of shared table {self.name!r} is {self.type_of(name)}",
                        expected="a text, a whole number, a boolean or a date: releases of Apache Hudi cut other keys differently",
                        remedy=_SHUFFLE,
                    )
        return self._texts(self.others())

    def _texts(self, names: Iterable[str]) -> tuple[str, ...]:
        return tuple(name for name in names if _kind(self.type_of(name)) == "text")

    def check_of(self, *, whole_key: bool, across: bool) -> KeyCheck:
        """Return what to check in rows whose hash values (or whole keys) are compared, with another table if `across`."""
        self.check_texts()
        shared = not self.pruning.cuts_alike
        if whole_key and not shared:
            return KeyCheck()
        hashed = self._texts(self.index.fields) if across or shared else ()
        return KeyCheck((*hashed, *self.doubtful_others()), any_separator=shared, values=hashed if across else ())


@dataclass(frozen=True, slots=True)
class Colocation:
    """How two tables are joined by buckets: `parts` independent parts, by the bucket number modulo `parts`."""

    parts: int
    left: KeyCheck
    right: KeyCheck


def colocated_join(left: BucketTable, right: BucketTable, on: Sequence[tuple[str, str]]) -> Colocation:
    """Return how rows that are equal in the pairs of columns `on` (left, right) are found in the same buckets.

    Raises `InvalidOption` if `on` does not name the hash fields of both tables in their order, or the numbers of buckets have
    no common divisor; `SchemaMismatch` for columns of different kinds; `UnsupportedTable` as `BucketTable.check_texts`.
    """
    pairs = dict(on)
    if len(pairs) < len(on) or len(set(pairs.values())) < len(on):
        raise InvalidOption(f"a column twice in the join columns {_shown(on)}", expected="each column once")
    for own, other in on:
        _check_kinds(left, own, right, other)
    wanted = tuple(pairs.get(name, "") for name in left.index.fields)
    if wanted != right.index.fields:
        raise InvalidOption(
            f"a join on {_shown(on)}: {left.name!r} is hashed by {','.join(left.index.fields)}, {right.name!r} by "
            f"{','.join(right.index.fields)}",
            expected="join columns that pair all hash fields of both tables, in the same order",
            remedy=_SHUFFLE,
        )
    numbers = (left.number, right.number)
    parts = math.gcd(*numbers)
    if parts == 1 < min(numbers):
        raise InvalidOption(
            f"{numbers[0]} and {numbers[1]} buckets",
            expected="numbers with a common divisor, such as N and a multiple of N",
            remedy=_SHUFFLE,
        )
    keys = (left.index.key_fields, right.index.key_fields)
    same_text = keys[0] == keys[1] and all(pairs.get(name) == name for name in keys[0])
    if left.has_prefixed_value != right.has_prefixed_value or (left.has_prefixed_value and not same_text):
        raise UnsupportedTable(
            f"record keys of {left.name!r} and {right.name!r}, of which one holds the name of its only column",
            expected="key generators that write the same text for the same value",
            remedy=_SHUFFLE,
        )
    checks = [table.check_of(whole_key=same_text, across=not same_text) for table in (left, right)]
    return Colocation(parts, checks[0], checks[1])


def colocated_groups(table: BucketTable, by: Collection[str]) -> KeyCheck:
    """Return what to check so that rows with equal values in `by` are certainly in buckets of one number.

    Raises `InvalidOption` if `by` leaves out a hash field: then rows of one group are in several buckets; `UnsupportedTable` as
    `BucketTable.check_texts`.
    """
    for name in by:
        table.type_of(name)
    missing = [name for name in table.index.fields if name not in by]
    if missing:
        raise InvalidOption(
            f"groups by {', '.join(by)}, without hash field(s) {', '.join(missing)} of table {table.name!r}",
            expected=f"all of {', '.join(table.index.fields)} among the columns: other groups have rows in several buckets",
            remedy=_SHUFFLE,
        )
    return table.check_of(whole_key=set(table.index.key_fields) <= set(by), across=False)


def slices_by_part(index: BucketIndex, slices: Iterable[FileSlice], parts: int) -> list[tuple[FileSlice, ...]]:
    """Return the slices of each part: those whose bucket number modulo `parts` is 0, 1, and so on.

    `parts` divides the number of buckets of each partition.

    Raises `UnsupportedTable` as `BucketIndex.groups` if a file group does not fit the index, because its rows may be in any bucket.
    """
    given = tuple(slices)
    partitions: dict[str, list[FileSlice]] = {}
    for file_slice in given:
        partitions.setdefault(file_slice.group.partition_path, []).append(file_slice)
    for found in partitions.values():
        index.groups(found)
    chosen: list[list[FileSlice]] = [[] for _ in range(parts)]
    for file_slice in given:
        bucket = bucket_of_file_id(file_slice.group.file_id)
        assert bucket is not None, "checked by BucketIndex.groups"
        chosen[bucket % parts].append(file_slice)
    return [tuple(part) for part in chosen]


def sampled_slices(
    index: BucketIndex, slices: Iterable[FileSlice], buckets: Collection[int], out_of: int | None = None
) -> tuple[FileSlice, ...]:
    """Return the slices of a sample.

    Those whose bucket number modulo `out_of` (default: the number of buckets) is one of `buckets`.

    With rules, the number of buckets is the greatest common divisor of those of all partitions that have slices. Raises
    `InvalidOption` unless `out_of` divides it and `buckets` are from 0 to `out_of` - 1, and as `BucketIndex.common_number`;
    errors as `slices_by_part`.
    """
    given = tuple(slices)
    number = index.common_number({s.group.partition_path for s in given})
    parts = number if out_of is None else out_of
    if parts < 1 or number % parts:
        raise InvalidOption(f"a sample of buckets out of {parts}", expected=f"a divisor of the number of buckets, {number}")
    wrong = sorted(number for number in set(buckets) if not 0 <= number < parts)
    if wrong or not buckets:
        raise InvalidOption(
            f"a sample of bucket {wrong[0]} out of {parts}" if wrong else "a sample of no buckets",
            expected=f"numbers from 0 to {parts - 1}",
        )
    found = slices_by_part(index, given, parts)
    return tuple(file_slice for number in sorted(set(buckets)) for file_slice in found[number])


def _check_kinds(left: BucketTable, own: str, right: BucketTable, other: str) -> None:
    types = (left.type_of(own), right.type_of(other))
    kinds = [_kind(found) for found in types]
    if not kinds[0] or kinds[0] != kinds[1]:
        raise SchemaMismatch(
            f"join column {own!r} of {left.name!r} is {types[0]}, {other!r} of {right.name!r} is {types[1]}",
            expected="texts, whole numbers, booleans or dates on both sides: equal values of other types may have different texts",
            remedy=_SHUFFLE,
        )


def _kind(found: pa.DataType) -> str:
    """Return the kind of a type of which equal values have equal texts in record keys, empty for other types."""
    if pa.types.is_string(found):
        return "text"
    if pa.types.is_integer(found):
        return "whole number"
    if pa.types.is_boolean(found):
        return "boolean"
    return "date" if pa.types.is_date32(found) else ""


def _shown(on: Sequence[tuple[str, str]]) -> str:
    return ", ".join(own if own == other else f"{own} = {other}" for own, other in on)
