"""Time to live of partitions: those that no write has changed for long are deleted, as Apache Hudi's partition TTL does.

Apache Hudi takes the newest base instant of a partition's file slices for its last write. Here writes to log files count, too, so
that a partition whose rows are still updated stays.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, tzinfo

from tideline_table.action.write.choices import refuse_replacement
from tideline_table.action.write.partition_deletion import delete_chosen
from tideline_table.config import PARTITION_TTL_DAYS, PARTITION_TTL_MOST, PARTITION_TTL_SELECTED, Options
from tideline_table.coordination.committed import Committed
from tideline_table.errors import WriteConflict
from tideline_table.hudi.instant import time_from_instant
from tideline_table.log.state import TableState
from tideline_table.table.facade import Table
from tideline_table.writer import Operation


@dataclass(slots=True)
class _StillOld:
    """The partitions that one attempt deletes; see `Reads`."""

    table: Table
    options: Options
    now: datetime
    partitions: dict[str, str] = field(default_factory=dict)

    def choose(self) -> frozenset[str]:
        """Return the partitions that are old on the state of the table. Raises `_NothingOld`."""
        self.partitions = expired_partitions(self.table.state, self.options, self.now, self.table.zone)
        if not self.partitions:
            raise _NothingOld
        return frozenset(self.partitions)

    def check(self, state: TableState) -> None:
        """Raise `WriteConflict` if another process has written one of the partitions meanwhile."""
        written = self.partitions.items() - last_writes(state, self.partitions).items()
        if written:
            paths = ", ".join(sorted(path for path, _ in written))
            raise WriteConflict(f"another write changed partitions that are no longer old: {paths}", with_instant="")


class _NothingOld(Exception):
    """Meanwhile no partition is old any more."""


def expired_partitions(state: TableState, options: Options, now: datetime, zone: tzinfo = UTC) -> dict[str, str]:
    """Return the partitions that the options let expire at `now`, each with the instant of its last write, oldest first. Pure.

    `zone` is that of the instants. A partition with a file that does not say when it was written, and the one of a table without
    partitions, never expire.
    """
    days = options[PARTITION_TTL_DAYS]
    if days < 1:
        return {}
    selected = {name for text in options[PARTITION_TTL_SELECTED].split(",") if (name := text.strip())}
    end = now - timedelta(days=days)
    old = [
        (instant, path)
        for path, instant in last_writes(state, selected or None).items()
        if path and instant and time_from_instant(instant, zone) < end
    ]
    return {path: instant for instant, path in sorted(old)[: options[PARTITION_TTL_MOST]]}


def last_writes(state: TableState, partitions: Collection[str] | None = None) -> dict[str, str]:
    """Return the instant of the last write to each of these partitions (None: to all), empty if a file does not say it. Pure."""
    last: dict[str, str] = {}
    undated = set()
    for one in state.latest_slices(partitions=None if partitions is None else frozenset(partitions)):
        path, instants = one.group.partition_path, [one.base_instant, *(log.instant for log in one.log_files)]
        if not all(instants):
            undated.add(path)
        last[path] = max([last.get(path, ""), *instants])
    return last | dict.fromkeys(undated, "")


def expire_partitions(table: Table, options: Mapping[str, object] | None = None) -> tuple[Committed | None, dict[str, str]]:
    """Delete the partitions of the table as it is now that are old, as one commit; return them with their last writes.

    Returns None for the commit if none is old. A partition that another process writes meanwhile stays. Raises as
    `delete_partitions`.
    """
    chosen = table.options.merged(options or {})
    found = expired_partitions(table.refresh(), chosen, table.clock.now(), table.zone)
    if not found:
        return None, {}
    table.check_writable(keyed=False)
    refuse_replacement(table.view(), Operation.DELETE_PARTITION)
    old = _StillOld(table, chosen, table.clock.now())
    try:
        return delete_chosen(table, old.choose, chosen, reads=old), old.partitions
    except _NothingOld:
        return None, {}
