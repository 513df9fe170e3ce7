"""Statistics of the columns of one data file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from tideline_table.statistics.kinds import Stored

_LONGEST = 64
"""Characters, or bytes, of a bound: longer ones are cut, as their use is to compare files, not rows."""
_LAST, _SURROGATES = 0x10FFFF, range(0xD800, 0xE000)


@dataclass(frozen=True, slots=True)
class ColumnStatistics:
    """What is known of one column in one file. Every value that is neither null nor NaN lies between the bounds (both inclusive).

    `kind` names the type (`type_of`). The bounds are stored values, both None if the column has no such value. They are values of
    the column, but for long texts and bytes: `minimum` is then a prefix, `maximum` is above all values with the prefix.
    `nans` is -1 if unknown. Sizes are those of the column in a base file, 0 in a log file.
    """

    kind: str
    minimum: Stored | None
    maximum: Stored | None
    nulls: int
    nans: int = 0
    size_bytes: int = 0
    uncompressed_bytes: int = 0

    def union(self, other: ColumnStatistics) -> ColumnStatistics:
        """Return the statistics of both parts of a column together. Both have the same kind."""
        assert self.kind == other.kind
        nans = -1 if self.nans < 0 or other.nans < 0 else self.nans + other.nans
        return replace(
            self,
            minimum=_least(self.minimum, other.minimum),
            maximum=_greatest(self.maximum, other.maximum),
            nulls=self.nulls + other.nulls,
            nans=nans,
            size_bytes=self.size_bytes + other.size_bytes,
            uncompressed_bytes=self.uncompressed_bytes + other.uncompressed_bytes,
        )

    def shortened(self) -> ColumnStatistics:
        """Return the statistics with bounds of at most `_LONGEST` characters or bytes."""
        low, high = self.minimum, self.maximum
        if isinstance(low, str | bytes) and len(low) > _LONGEST:
            low = low[:_LONGEST]
        if isinstance(high, str | bytes) and len(high) > _LONGEST:
            high = _above(high[:_LONGEST]) or high
        return self if (low, high) == (self.minimum, self.maximum) else replace(self, minimum=low, maximum=high)


@dataclass(frozen=True, slots=True)
class FileStatistics:
    """Statistics of one data file. A column that is not in `columns` is not known, unless the file has no rows."""

    rows: int
    columns: Mapping[str, ColumnStatistics] = field(default_factory=dict)

    def union(self, other: FileStatistics) -> FileStatistics:
        """Return the statistics of the rows of both; of columns that only one of them knows, nothing is known."""
        if not self.rows or not other.rows:
            return self if self.rows else other
        shared = {
            name: held.union(other.columns[name])
            for name, held in self.columns.items()
            if name in other.columns and other.columns[name].kind == held.kind
        }
        return FileStatistics(self.rows + other.rows, shared)


def _least(one: Stored | None, other: Stored | None) -> Stored | None:
    if one is None or other is None:
        return other if one is None else one
    return min(one, other)


def _greatest(one: Stored | None, other: Stored | None) -> Stored | None:
    if one is None or other is None:
        return other if one is None else one
    return max(one, other)


def _above(prefix: str | bytes) -> str | bytes | None:
    """Return the least text (by code points) or bytes above everything with this prefix, None if there is none."""
    if isinstance(prefix, bytes):
        kept = prefix.rstrip(b"\xff")
        return kept[:-1] + bytes([kept[-1] + 1]) if kept else None
    kept_text = prefix.rstrip(chr(_LAST))
    if not kept_text:
        return None
    following = ord(kept_text[-1]) + 1
    return kept_text[:-1] + chr(_SURROGATES.stop if following in _SURROGATES else following)
