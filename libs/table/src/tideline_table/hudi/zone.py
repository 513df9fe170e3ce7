"""The time zone of the instants of a table (format reference 4.1): UTC, or that of the machine, which Hudi calls LOCAL."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta, tzinfo

from tideline_table.errors import UnsupportedTable
from tideline_table.hudi.properties import TIMEZONE

_LOCAL = "LOCAL"


class LocalZone(tzinfo):
    """The zone of this machine with its changes to summer time and back (`TZ`, as for Apache Hudi's readers)."""

    def utcoffset(self, moment: datetime | None) -> timedelta | None:
        """Return the offset of a local time."""
        return None if moment is None else moment.replace(tzinfo=None).astimezone().utcoffset()

    def dst(self, moment: datetime | None) -> None:
        """Return None: the offset holds it already."""

    def tzname(self, moment: datetime | None) -> str:
        """Return the abbreviation of the zone at a local time."""
        local = None if moment is None else moment.replace(tzinfo=None).astimezone()
        return _LOCAL if local is None else str(local.tzname())

    def fromutc(self, moment: datetime) -> datetime:
        """Return the local time of a time in UTC."""
        local = moment.replace(tzinfo=UTC).astimezone()
        # Of the hour that occurs twice when summer time ends, `fold` says which one it is.
        first = local.replace(tzinfo=None, fold=0)
        return first.replace(tzinfo=self, fold=int(first.astimezone().utcoffset() != local.utcoffset()))


LOCAL = LocalZone()


def is_local(properties: Mapping[str, str]) -> bool:
    """Return whether Apache Hudi's writers of a table take instants in the zones of their JVMs, which is Hudi's default.

    Raises `UnsupportedTable` for other values than Hudi's.
    """
    found = properties.get(TIMEZONE, "") or _LOCAL
    if found.upper() not in (_LOCAL, "UTC"):
        raise UnsupportedTable(f"{TIMEZONE}={found}", expected=f"UTC or {_LOCAL}, the values that Apache Hudi knows")
    return found.upper() == _LOCAL


def timeline_zone(properties: Mapping[str, str]) -> tzinfo:
    """Return the zone of the instants of a table that only Apache Hudi writes; errors as `is_local`."""
    return LOCAL if is_local(properties) else UTC
