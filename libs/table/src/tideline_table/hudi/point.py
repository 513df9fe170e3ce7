"""Points in the history of a table, as callers name them. Every entrance parses them here, most of them through `table.Table`."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, tzinfo

from tideline_table.errors import CorruptMetadata, InvalidOption
from tideline_table.hudi.instant import instant_from_time, time_from_instant

Point = str | int | date | datetime
"""A point in the history of a table: an instant, a date, a time (UTC if it has no zone; the instants of the table may be in
another zone, `Table.zone`), or a sequence of the table log."""

TIME_FORMS = "an instant (17 digits), yyyy-MM-dd, or yyyy-MM-dd HH:mm:ss[.SSS] (UTC unless a zone is given)"
_SEQUENCE = re.compile(r"\d{1,13}", re.ASCII)
_INSTANT = re.compile(r"\d{17}|\d{14}", re.ASCII)
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)


def is_sequence(point: str) -> bool:
    """Return whether the text of a point is a sequence of the table log. Instants have more digits."""
    return _SEQUENCE.fullmatch(point) is not None


def parse_as_of(point: Point, zone: tzinfo = UTC) -> str:
    """Return the instant that a point in time names: 17 digits, of a table whose instants are times in `zone`.

    An instant stays as it is; one of 14 digits ends with its second. A date is its first millisecond. Raises `InvalidOption`.
    """
    text = _text(point)
    if _INSTANT.fullmatch(text):
        instant = text if len(text) == 17 else text + "999"
        try:
            time_from_instant(instant)
        except CorruptMetadata:
            raise _refusal(text) from None
        return instant
    try:
        moment = datetime.fromisoformat(text) if _DATE.match(text) else None
        if moment is not None:
            return instant_from_time(moment if moment.tzinfo else moment.replace(tzinfo=UTC), zone)
    except (ValueError, OverflowError):
        pass
    raise _refusal(text)


def parse_point(point: Point, zone: tzinfo = UTC) -> str:
    """Return a point of an incremental query: a sequence of the table log as it is, a time as `parse_as_of` reads it."""
    text = _text(point)
    if is_sequence(text):
        return text
    try:
        return parse_as_of(text, zone)
    except InvalidOption:
        raise _refusal(text, "a sequence of the table log, ") from None


def _text(point: Point) -> str:
    return point.isoformat() if isinstance(point, date) else str(point)


def _refusal(text: str, others: str = "") -> InvalidOption:
    return InvalidOption(f"point in time {text!r}", expected=others + TIME_FORMS)
