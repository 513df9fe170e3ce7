"""Derivation of partition paths from times, as in Hudi's timestamp-based key generator (format reference 2.1)."""

from __future__ import annotations

import enum
import re
import zoneinfo
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tideline_table.errors import InvalidOption, InvalidRecord, SchemaMismatch
from tideline_table.keygen.pattern import END_MS, FIRST_MS, DatePattern
from tideline_table.schema.arrow import is_numeric, is_text

PREFIX = "hoodie.keygen.timebased."
OLD_PREFIX = "hoodie.deltastreamer.keygen.timebased."
PARSER_CLASS = "hoodie.keygen.datetime.parser.class"
_OWN_PARSERS = ("org.apache.hudi.keygen.parser.HoodieDateTimeParser", "org.apache.hudi.keygen.parser.HoodieDateTimeParserImpl")
_UNITS = {"MICROSECONDS": -1000, "MILLISECONDS": 1, "SECONDS": 1000, "MINUTES": 60_000, "HOURS": 3_600_000, "DAYS": 86_400_000}
"""Milliseconds per unit. A negative number -n means n units per millisecond."""
_NAMES = ("timestamp.type", "input.dateformat", "output.dateformat", "timezone", "input.timezone", "output.timezone")
SETTINGS = (*_NAMES, "timestamp.scalar.time.unit", "input.dateformat.list.delimiter.regex")


class TimestampType(enum.StrEnum):
    """The kind of values in the partition column."""

    UNIX_TIMESTAMP = "UNIX_TIMESTAMP"
    DATE_STRING = "DATE_STRING"
    MIXED = "MIXED"
    EPOCHMILLISECONDS = "EPOCHMILLISECONDS"
    EPOCHMICROSECONDS = "EPOCHMICROSECONDS"
    SCALAR = "SCALAR"


_UNIT_OF_TYPE = {
    TimestampType.UNIX_TIMESTAMP: "SECONDS",
    TimestampType.EPOCHMILLISECONDS: "MILLISECONDS",
    TimestampType.EPOCHMICROSECONDS: "MICROSECONDS",
}


@dataclass(frozen=True, slots=True)
class TimeBased:
    """The conversion of times to partition texts. `settings` are its properties, without their prefix."""

    type: TimestampType
    output: DatePattern
    inputs: tuple[DatePattern, ...]
    output_zone: str
    input_zone: str
    unit: str
    """Unit of numbers, by Java's name. Empty if numbers are not accepted."""
    settings: tuple[tuple[str, str], ...]

    @classmethod
    def from_settings(cls, properties: Mapping[str, str]) -> TimeBased:
        """Read `hoodie.keygen.timebased.*`, also by its old prefix. Raises `InvalidOption` for missing or unsupported settings."""
        found = {n: v for n in SETTINGS if (v := properties.get(PREFIX + n, properties.get(OLD_PREFIX + n)))}
        parser = properties.get(PARSER_CLASS, _OWN_PARSERS[0])
        if parser not in _OWN_PARSERS:
            raise InvalidOption(
                f"{PARSER_CLASS}={parser}", expected=_OWN_PARSERS[0], remedy="this engine cannot run custom parsers"
            )
        kind = found.get("timestamp.type", "")
        if kind not in set(TimestampType):
            raise InvalidOption(f"{PREFIX}timestamp.type={kind!r}", expected=" or ".join(TimestampType))
        if "output.dateformat" not in found:
            raise InvalidOption(f"no {PREFIX}output.dateformat", expected="the pattern of partition paths")
        output = DatePattern.parse(found["output.dateformat"])
        if output.has_zone:
            raise InvalidOption(f"date pattern {output.text!r} with a zone", expected="an output pattern without one")
        inputs = _inputs(found)
        if not inputs and kind in (TimestampType.DATE_STRING, TimestampType.MIXED):
            raise InvalidOption(f"no {PREFIX}input.dateformat", expected=f"the pattern of the texts ({kind})")
        unit = _UNIT_OF_TYPE.get(TimestampType(kind), "")
        if kind == TimestampType.SCALAR:
            unit = found.get("timestamp.scalar.time.unit", "SECONDS").upper()
            if unit not in _UNITS:
                raise InvalidOption(f"{PREFIX}timestamp.scalar.time.unit={unit}", expected=" or ".join(_UNITS))
        zone = found.get("timezone", "")
        return cls(
            type=TimestampType(kind),
            output=output,
            inputs=inputs,
            output_zone=_zone(zone or found.get("output.timezone", "UTC")),
            input_zone=_zone(zone or found.get("input.timezone", "UTC")),
            unit=unit,
            settings=tuple(sorted(found.items())),
        )

    def check_column(self, kind: pa.DataType, name: str) -> None:
        """Raise `SchemaMismatch` unless a column of type `kind` can be the partition column."""
        if pa.types.is_dictionary(kind):
            kind = kind.value_type
        expected = ""
        if is_text(kind):
            expected = "" if self.inputs else f"numbers, or {PREFIX}input.dateformat for texts"
        elif not self.unit:
            expected = f"texts ({self.type})"
        elif pa.types.is_timestamp(kind):
            expected = _unit_mismatch(
                {"ms": "MILLISECONDS", "us": "MICROSECONDS", "s": "SECONDS"}.get(kind.unit, "another unit"), self.unit
            )
        elif pa.types.is_date(kind):
            expected = _unit_mismatch("DAYS", self.unit)
        elif not is_numeric(kind):
            expected = "numbers, timestamps, dates or texts"
        if expected:
            raise SchemaMismatch(f"column {name!r} of type {kind} as a time-based partition column", expected=expected)

    def texts(self, column: pa.ChunkedArray, name: str) -> pa.ChunkedArray:
        """Return the partition text of each row. Nulls become Hudi's default time.

        Raises `SchemaMismatch` for an unsupported column type, and `InvalidRecord` for a text that does not match the input
        patterns or a time outside of the years 1 to 9999.
        """
        self.check_column(column.type, name)
        if pa.types.is_dictionary(column.type):
            column = column.cast(column.type.value_type)
        values = pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
        millis = self._from_texts(values, name) if is_text(values.type) else self._from_numbers(values, name)
        _check_range(millis, name)
        local = _local_ms(millis, self.output_zone)
        _check_range(local, name)
        return pa.chunked_array([self.output.format(local)], pa.string())

    def _from_numbers(self, values: pa.Array, name: str) -> np.ndarray:
        if pa.types.is_floating(values.type) or pa.types.is_decimal(values.type):
            values = pc.trunc(values)
        try:
            whole = values.cast(pa.int32()) if pa.types.is_date32(values.type) else values
            numbers = np.asarray(pc.fill_null(whole.cast(pa.int64()), 1))
            size = _UNITS[self.unit]
            if size < 0:
                return np.asarray(pc.divide(pa.array(numbers), -size))
            return np.asarray(pc.multiply_checked(pa.array(numbers), size))
        except pa.ArrowInvalid as error:
            raise InvalidRecord(
                f"column {name!r} with a number that is not a valid time ({error})", expected=self.unit.lower()
            ) from None

    def _from_texts(self, values: pa.Array, name: str) -> np.ndarray:
        encoded = pc.dictionary_encode(values.cast(pa.string()))
        texts = encoded.dictionary
        millis = np.zeros(len(texts), dtype=np.int64)
        pending = np.ones(len(texts), dtype=bool)
        for pattern in self.inputs:
            local, offsets, fits = pattern.parse_texts(texts)
            fresh = pending & fits
            if fresh.any():
                found = local - offsets if pattern.has_zone else _utc_ms(np.where(fresh, local, 0), self.input_zone, fresh, name)
                millis[fresh] = found[fresh]
            pending &= ~fits
        if pending.any():
            shown = ", ".join(map(repr, texts.filter(pa.array(pending)).slice(0, 3).to_pylist()))
            raise InvalidRecord(
                f"column {name!r} with {shown}", expected=f"times written as {' or '.join(p.text for p in self.inputs)}"
            )
        rows = pa.array(millis).take(encoded.indices)
        return np.asarray(pc.fill_null(rows, self._default_of_text()))

    def _default_of_text(self) -> int:
        """Return the value of a null: the start of 1970, formatted in the input pattern and parsed again."""
        first = self.inputs[0]
        if first.has_zone:
            return 0
        start = _local_ms(np.zeros(1, dtype=np.int64), self.input_zone)
        kept, _, _ = first.parse_texts(first.format(start))
        return int(_utc_ms(kept, self.input_zone, np.ones(1, dtype=bool), "default")[0])


def _inputs(found: Mapping[str, str]) -> tuple[DatePattern, ...]:
    text = found.get("input.dateformat", "")
    delimiter = found.get("input.dateformat.list.delimiter.regex", ",")
    try:
        parts = re.split(delimiter, text)
    except re.error as error:
        raise InvalidOption(
            f"{PREFIX}input.dateformat.list.delimiter.regex={delimiter!r} ({error})", expected="a regular expression"
        ) from None
    return tuple(DatePattern.parse(part.strip()) for part in parts if part and part.strip())


def _unit_mismatch(stored: str, wanted: str) -> str:
    return "" if stored == wanted else f"a timestamp.type for {stored.lower()} (the table declares {wanted.lower()})"


def _check_range(millis: np.ndarray, name: str) -> None:
    outside = (millis < FIRST_MS) | (millis >= END_MS)
    if outside.any():
        raise InvalidRecord(
            f"{int(outside.sum())} row(s) with a time in column {name!r} outside of the years 1 to 9999",
            expected="times within these years",
        )


# --- zones -----------------------------------------------------------------------------------------------------------------------


def _zone(name: str) -> str:
    """Return the zone of a Java name as Arrow names it or, for a fixed offset, as `+HH:MM`."""
    fixed = re.fullmatch(r"GMT([+-])(\d{1,2})(?::?(\d{2}))?", name.strip())
    if fixed:
        sign, hours, minutes = fixed.groups()
        if int(hours) <= 23 and int(minutes or 0) <= 59:
            return f"{sign}{int(hours):02}:{int(minutes or 0):02}"
    try:
        return zoneinfo.ZoneInfo(name.strip()).key
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        # Java silently uses GMT for an unknown zone.
        raise InvalidOption(f"time zone {name!r}", expected="a zone such as UTC, GMT+8:00 or Europe/Paris") from None


def _fixed_ms(zone: str) -> int | None:
    if zone == "UTC":
        return 0
    if zone[0] not in "+-":
        return None
    minutes = int(zone[1:3]) * 60 + int(zone[4:6])
    return (-minutes if zone[0] == "-" else minutes) * 60_000


def _local_ms(utc_ms: np.ndarray, zone: str) -> np.ndarray:
    fixed = _fixed_ms(zone)
    if fixed is not None:
        return utc_ms + fixed
    moments = pa.array(utc_ms, pa.timestamp("ms", zone))
    return np.asarray(pc.local_timestamp(moments).cast(pa.int64()))


def _utc_ms(local_ms: np.ndarray, zone: str, wanted: np.ndarray, name: str) -> np.ndarray:
    """Return the UTC times of local times, the earlier one where a clock was set back."""
    fixed = _fixed_ms(zone)
    if fixed is not None:
        return local_ms - fixed
    chosen = pa.array(local_ms, pa.timestamp("ms"), mask=~wanted)
    try:
        moments = pc.assume_timezone(chosen, zone, ambiguous="earliest", nonexistent="raise")
    except pa.ArrowInvalid as error:
        raise InvalidRecord(
            f"column {name!r} with a time that zone {zone} does not have ({error})", expected="local times that exist in the zone"
        ) from None
    return np.asarray(pc.fill_null(moments.cast(pa.int64()), 0))
