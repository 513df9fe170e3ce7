"""Date patterns of Java as far as partition paths use them: `yyyy MM dd HH mm ss SSS`, quoted and plain literals, `Z` in input patterns."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tideline_table.errors import InvalidOption

_FIELDS = {"yyyy": 4, "MM": 2, "dd": 2, "HH": 2, "mm": 2, "ss": 2, "SSS": 3}
_GRAIN_MS = {"SSS": 1, "ss": 1000, "mm": 60_000, "HH": 3_600_000}
_DAY_MS = 86_400_000
_SMALLER = {"HH": 3_600_000, "mm": 60_000, "ss": 1000}
_LIMITS = {"HH": 23, "mm": 59, "ss": 59}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
FIRST_MS = int((datetime(1, 1, 1, tzinfo=UTC) - _EPOCH) / timedelta(milliseconds=1))
END_MS = int((datetime(9999, 12, 31, tzinfo=UTC) - _EPOCH) / timedelta(milliseconds=1)) + _DAY_MS
_ZONE = "Z"


@dataclass(frozen=True, slots=True)
class DatePattern:
    """One pattern. `parts` are literals and fields in order; a field is told by its first element being True."""

    text: str
    parts: tuple[tuple[bool, str], ...]

    @classmethod
    def parse(cls, text: str) -> DatePattern:
        """Read a pattern; `InvalidOption` names a letter or a count that is not supported."""
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
                raise _refusal(text, "an open quote")
            else:
                parts.append((False, plain))
        names = [name for is_field, name in parts if is_field]
        if "yyyy" not in names or len(set(names)) < len(names):
            raise _refusal(text, "a pattern without its year, or with a field twice")
        return cls(text, tuple(parts))

    @property
    def fields(self) -> frozenset[str]:
        """Names of the fields."""
        return frozenset(name for is_field, name in self.parts if is_field)

    @property
    def has_zone(self) -> bool:
        """Whether text of this pattern tells its own zone."""
        return _ZONE in self.fields

    @property
    def grain_ms(self) -> int:
        """What every text of this pattern spans at least, capped at a day."""
        return min((_GRAIN_MS[name] for name in self.fields if name in _GRAIN_MS), default=_DAY_MS)

    def format(self, local_ms: np.ndarray) -> pa.Array:
        """Texts of local times, in milliseconds since 1970; all between `FIRST_MS` (in) and `END_MS` (out)."""
        coarse, inverse = np.unique(np.floor_divide(local_ms, self.grain_ms), return_inverse=True)
        texts = [self._format_one(_EPOCH + timedelta(milliseconds=int(v) * self.grain_ms)) for v in coarse]
        return pa.array(texts, pa.string()).take(pa.array(inverse))

    def _format_one(self, at: datetime) -> str:
        shown = {
            "yyyy": f"{at.year:04}",
            "MM": f"{at.month:02}",
            "dd": f"{at.day:02}",
            "HH": f"{at.hour:02}",
            "mm": f"{at.minute:02}",
            "ss": f"{at.second:02}",
            "SSS": f"{at.microsecond // 1000:03}",
        }
        return "".join(shown[part] if is_field else part for is_field, part in self.parts)

    def truncated(self, local_ms: int) -> int:
        """The local time that is left of one when it is written in this pattern and read again."""
        at = _EPOCH + timedelta(milliseconds=local_ms)
        kept = self.fields
        months = at.month if "MM" in kept else 1
        days = at.day if "dd" in kept else 1
        start = datetime(at.year, months, days, tzinfo=UTC)
        within = {"HH": at.hour, "mm": at.minute, "ss": at.second}
        rest = sum(within[name] * _SMALLER[name] for name in within if name in kept) + (
            at.microsecond // 1000 if "SSS" in kept else 0
        )
        return int((start - _EPOCH) / timedelta(milliseconds=1)) + rest

    def parse_texts(self, texts: pa.Array) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Local time in milliseconds, zone offset in milliseconds (0 without a zone in the pattern), and whether the text fits."""
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
        local_ms = days.astype(np.int64) * _DAY_MS + part("SSS", 0)
        for name, size_ms in _SMALLER.items():
            value = part(name, 0)
            fits &= value <= _LIMITS[name]
            local_ms += value * size_ms
        return local_ms, self._offsets(found, len(texts)), fits

    def _offsets(self, found: pa.Array, count: int) -> np.ndarray:
        if not self.has_zone:
            return np.zeros(count, dtype=np.int64)
        zone = pc.fill_null(pc.struct_field(found, _ZONE), "Z")
        parts = pc.extract_regex(zone, pattern=r"^(?P<sign>[+-])(?P<hours>\d{2}):?(?P<minutes>\d{2})$")
        minutes = pc.add(
            pc.multiply(pc.struct_field(parts, "hours").cast(pa.int64()), 60), pc.struct_field(parts, "minutes").cast(pa.int64())
        )
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
            # Fewer digits are read where nothing but the count of digits tells fields apart.
            out.append(f"(?P<{part}>\\d{{{width if part == 'yyyy' or followed else 1},{width}}})")
        return "^" + "".join(out) + "$"


def _refusal(text: str, found: str) -> InvalidOption:
    return InvalidOption(
        f"date pattern {text!r} with {found}",
        expected=f"{', '.join(_FIELDS)}, each once and the year among them, literals, and Z in input patterns",
    )
