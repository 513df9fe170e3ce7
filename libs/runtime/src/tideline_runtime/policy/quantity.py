"""Types of a policy file for sizes, durations, times of day and zones. Each type checks its text and says what it expects."""

from __future__ import annotations

import re
from datetime import UTC, datetime, time
from typing import Annotated, Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import AfterValidator, BeforeValidator, WithJsonSchema

_SIZES = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40, "PiB": 1 << 50}
_SIZE = re.compile(rf"([0-9]+(?:\.[0-9]+)?) ?({'|'.join(_SIZES)})")
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?([smhd])")
_TIME = re.compile(r"([01][0-9]|2[0-3]):([0-5][0-9])")


def _size(value: Any) -> Any:
    if isinstance(value, str):
        found = _SIZE.fullmatch(value)
        if found is None:
            raise ValueError("a number of bytes, or text such as 200 GiB (B, KiB, MiB, GiB, TiB, PiB)")
        return int(float(found[1]) * _SIZES[found[2]])
    return value


def _duration(value: Any) -> Any:
    found = _DURATION.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        raise ValueError("a duration with its unit: 90s, 30m, 6h or 2d")
    return float(found[1]) * _UNITS[found[2]]


def _time_of_day(value: Any) -> str:
    if not isinstance(value, str) or not _TIME.fullmatch(value):
        raise ValueError("a time of day from 00:00 to 23:59")
    return value


def _zone(value: Any) -> str:
    try:
        ZoneInfo(str(value))
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ValueError("a time zone by its IANA name, such as Europe/Berlin or UTC") from None
    return str(value)


def _moment(value: Any) -> str:
    try:
        found = datetime.fromisoformat(value)
    except (TypeError, ValueError):
        found = None
    if found is None or found.tzinfo is None:
        raise ValueError("a time with its zone, such as 2026-12-24T18:00:00+01:00")
    return found.astimezone(UTC).isoformat()


Bytes = Annotated[
    int,
    BeforeValidator(_size),
    WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 0}, {"type": "string", "pattern": f"^{_SIZE.pattern}$"}]}),
]
Seconds = Annotated[float, BeforeValidator(_duration), WithJsonSchema({"type": "string", "pattern": f"^{_DURATION.pattern}$"})]
TimeOfDay = Annotated[str, AfterValidator(_time_of_day), WithJsonSchema({"type": "string", "pattern": f"^({_TIME.pattern})$"})]
Zone = Annotated[str, AfterValidator(_zone)]
Moment = Annotated[str, BeforeValidator(_moment), WithJsonSchema({"type": "string", "format": "date-time"})]


def time_of_day(text: str) -> time:
    """Return the local time that a checked `TimeOfDay` names."""
    return time.fromisoformat(text)
