"""Java's date patterns, as far as partition paths use them: `yyyy MM dd HH mm ss SSS`, literals, and `Z` in input patterns."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tideline_table.errors import InvalidOption

_FIELDS = {"yyyy": 4, "MM": 2, "dd": 2, "HH": 2, "mm": 2, "ss": 2, "SSS": 3}
"""Digits of each field."""
_TIMES = {"HH": (3_600_000, 23), "mm": (60_000, 59), "ss": (1000, 59), "SSS": (1, 999)}
"""Milliseconds in one unit of each field within a day, and its largest value."""
_DAY_MS = 86_400_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
FIRST_MS = int((datetime(1, 1, 1, tzinfo=UTC) - _EPOCH) / timedelta(milliseconds=1))
END_MS = int((datetime(9999, 12, 31, tzinfo=UTC) - _EPOCH) / timedelta(milliseconds=1)) + _DAY_MS
_ZONE = "Z"


@dataclass(frozen=True, slots=True)
class DatePattern:
    """A date pattern. `parts` are its literals and fields in order, each with whether it is a field."""

    text: str
    parts: tuple[tuple[bool, str], ...]

    @classmethod
    def parse(cls, text: str) -> DatePattern:
        """Parse a pattern. Raises `InvalidOption`, which names a letter or count that is not supported."""
        parts: list[tuple[bool, str]] = []
        for match in re.finditer(r"'((?:[^']|'')*)'|(([A-Za-z])\3*)|([^A-Za-z']+)|(')", text):
            quoted, letters, _, plain, stray = match.groups()
            if quoted is not None:
                parts.append((False, quoted.replace("''", "'") or "'"))
            elif letters is not None:
                if letters not in _FIELDS and letters != _ZONE:
                    raise _refusal(text, letters)
                parts.append((True, letters))
            elif stray:
                raise _refusal(text, "an unclosed quote")
            else:
                parts.append((False, plain))
        names = [name for is_field, name in parts if is_field]
        if "yyyy" not in names or len(set(names)) < len(names):
            raise _refusal(text, "no yyyy, or with a field twice")
        return cls(text, tuple(parts))

    @property
    def fields(self) -> frozenset[str]:
        """The names of the fields."""
        return frozenset(name for is_field, name in self.parts if is_field)

    @property
    def has_zone(self) -> bool:
        """Whether text in this pattern contains its zone."""
        return _ZONE in self.fields

    @property
    def grain_ms(self) -> int:
        """The shortest time that one text of this pattern covers, in milliseconds, capped at a day."""
        return min((size_ms for name, (size_ms, _) in _TIMES.items() if name in self.fields), default=_DAY_MS)

    def format(self, local_ms: np.ndarray) -> pa.Array:
        """Format local times, in milliseconds since 1970, from `FIRST_MS` (inclusive) to `END_MS` (exclusive)."""
        coarse, inverse = np.unique(np.floor_divide(local_ms, self.grain_ms), return_inverse=True)
        texts = [self._format_one(_EPOCH + timedelta(milliseconds=int(v) * self.grain_ms)) for v in coarse]
        return pa.array(texts, pa.string()).take(pa.array(inverse))

    def _format_one(self, at: datetime) -> str:
        values = (at.year, at.month, at.day, at.hour, at.minute, at.second, at.microsecond // 1000)
        shown = {name: f"{value:0{width}}" for (name, width), value in zip(_FIELDS.items(), values, strict=True)}
        return "".join(shown[part] if is_field else part for is_field, part in self.parts)

    def parse_texts(self, texts: pa.Array) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return local time and zone offset (0 if the pattern has no zone) in milliseconds, and whether the text matches."""
        found = pc.extract_regex(texts, pattern=self._expression())
        fits = np.asarray(pc.is_valid(found))

        def part(name: str, absent: int) -> np.ndarray:
            if name not in self.fields:
                return np.full(len(texts), absent, dtype=np.int64)
            digits = pc.fill_null(pc.struct_field(found, name), "1")
            if name == "SSS":
                digits = pc.utf8_rpad(digits, 3, "0")
            return np.asarray(digits.cast(pa.int64()))

        year, month, day = part("yyyy", 1970), part("MM", 1), part("dd", 1)
        fits &= (month >= 1) & (month <= 12) & (day >= 1) & (day <= 31) & (year >= 1)
        months = ((year - 1970) * 12 + np.clip(month, 1, 12) - 1).astype("datetime64[M]")
        days = months.astype("datetime64[D]") + (np.clip(day, 1, 31) - 1)
        fits &= days.astype("datetime64[M]") == months
        local_ms = days.astype(np.int64) * _DAY_MS
        for name, (size_ms, most) in _TIMES.items():
            value = part(name, 0)
            fits &= value <= most
            local_ms += value * size_ms
        return local_ms, self._offsets(found, len(texts)), fits

    def _offsets(self, found: pa.Array, count: int) -> np.ndarray:
        if not self.has_zone:
            return np.zeros(count, dtype=np.int64)
        zone = pc.fill_null(pc.struct_field(found, _ZONE), "Z")
        parts = pc.extract_regex(zone, pattern=r"^(?P<sign>[+-])(?P<hours>\d{2}):?(?P<minutes>\d{2})$")
        hours, rest = (pc.struct_field(parts, name).cast(pa.int64()) for name in ("hours", "minutes"))
        minutes = pc.add(pc.multiply(hours, 60), rest)
        signed = pc.if_else(pc.equal(pc.struct_field(parts, "sign"), "-"), pc.negate(minutes), minutes)
        return np.asarray(pc.fill_null(signed, 0)) * 60_000

    def _expression(self) -> str:
        out = []
        for at, (is_field, part) in enumerate(self.parts):
            if not is_field:
                out.append(re.escape(part).replace("'", r"\x27"))
                continue
            width = _FIELDS.get(part)
            if width is None:
                out.append(r"(?P<Z>Z|[+-]\d{2}:?\d{2})")
                continue
            followed = at + 1 < len(self.parts) and self.parts[at + 1][0] and self.parts[at + 1][1] != _ZONE
            # Accept fewer digits, except in years and where no literal separates a field from the next number.
            out.append(f"(?P<{part}>\\d{{{width if part == 'yyyy' or followed else 1},{width}}})")
        return "^" + "".join(out) + "$"


def _refusal(text: str, found: str) -> InvalidOption:
    return InvalidOption(
        f"date pattern {text!r} with {found}",
        expected=f"{', '.join(_FIELDS)}, each at most once and always yyyy; literals; Z in input patterns only",
    )
