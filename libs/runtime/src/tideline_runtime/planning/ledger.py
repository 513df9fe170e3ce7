"""The bytes that clustering, compaction and log compaction wrote in the last day.

Every process gets the same sum from the table logs.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from tideline_table.action import REWRITES, action_name
from tideline_table.hudi import State
from tideline_table.log import Entry, Published, TableState
from tideline_table.table import Table

DAY = timedelta(days=1)
_START_WITHIN = 200
"""Log entries of others in which the start of a rewrite is searched."""


@dataclass(frozen=True, slots=True)
class Ledger:
    """Completed rewrites: when each was committed (UTC), and the bytes that it wrote."""

    rewrites: tuple[tuple[datetime, int], ...] = ()

    def spent(self, now: datetime) -> int:
        """Return the bytes written in the 24 hours before `now`."""
        return sum(size for at, size in self.rewrites if at > now - DAY)

    def frees_at(self, now: datetime) -> datetime | None:
        """Return when the oldest rewrite of the 24 hours before `now` is a day old; None without one."""
        return min((at + DAY for at, _ in self.rewrites if at > now - DAY), default=None)

    def with_entries(self, entries: Iterable[Entry], now: datetime) -> Ledger:
        """Return the ledger with the rewrites that these log entries complete, without those that are older than a day."""
        found = [rewrite for entry in entries if (rewrite := rewrite_in(entry)) is not None]
        return Ledger(tuple(sorted((at, size) for at, size in (*self.rewrites, *found) if at > now - DAY)))


def rewrite_in(entry: Entry) -> tuple[datetime, int] | None:
    """Return the time and the written bytes of the rewrite that this entry completes; None for another entry."""
    is_rewrite = action_name(entry.action, entry.operation) in REWRITES
    if not is_rewrite or entry.after is not State.COMPLETED or not isinstance(entry.body, Published):
        return None
    return datetime.fromisoformat(entry.recorded), sum(stat.file_size_bytes for stat in entry.body.metadata.stats)


def rewriting_of(table: Table, now: datetime) -> tuple[int, float]:
    """Return the bytes that rewrites of the 24 hours before `now` wrote, and the seconds that they ran, each from its last start.

    Costs a request for each rewrite and for each of the few log entries between its start and its end. The start of a rewrite
    that lies further back is not searched. Raises `StorageError` if the log cannot be read.
    """
    size, seconds = 0, 0.0
    for entry in _entries_since(table, 0, now):
        rewrite = rewrite_in(entry)
        if rewrite is not None and rewrite[0] > now - DAY:
            size += rewrite[1]
            seconds += _run_s(table, entry)
    return size, seconds


def _run_s(table: Table, completed: Entry) -> float:
    for sequence in range(completed.sequence - 1, max(0, completed.sequence - 1 - _START_WITHIN), -1):
        entry = table.timeline.log.read(sequence)
        if entry is None:
            return 0.0
        if entry.instant == completed.instant and entry.after is State.INFLIGHT:
            return (datetime.fromisoformat(completed.recorded) - datetime.fromisoformat(entry.recorded)).total_seconds()
    return 0.0


@dataclass(slots=True)
class Ledgers:
    """Ledgers of the tables of a service, kept up to date from their logs. Used by one thread.

    An update reads only the log entries that completed a rewrite since the last update. If archival may have removed instants
    of the last day from the timeline meanwhile, it reads all entries of that day. Rewrites that did not complete (a failed
    attempt, a clustering that lost to a writer) are not counted.
    """

    _known: dict[str, tuple[int, Ledger]] = field(default_factory=dict)

    def of(self, table: Table, now: datetime) -> Ledger:
        """Return the ledger of a refreshed table. Raises `StorageError` if the log cannot be read."""
        cursor, ledger = self._known.get(table.uid, (0, Ledger()))
        head = table.state.sequence
        if cursor != head:
            ledger = ledger.with_entries(_entries_since(table, cursor, now), now)
            self._known[table.uid] = head, ledger
        return ledger

    def total(self, now: datetime) -> int:
        """Return the bytes that table services of all tables wrote in the last day, as of the last `of` of each table."""
        return sum(ledger.spent(now) for _, ledger in self._known.values())

    def frees_at(self, now: datetime) -> datetime | None:
        """Return when the oldest rewrite of the tables in the last day is a day old; None without one."""
        times = (ledger.frees_at(now) for _, ledger in self._known.values())
        return min((at for at in times if at is not None), default=None)

    def keep(self, *tables: Container[str]) -> None:
        """Forget all tables that none of the arguments contains, by uid."""
        self._known = {uid: known for uid, known in self._known.items() if any(uid in some for some in tables)}


def _entries_since(table: Table, cursor: int, now: datetime) -> Iterable[Entry]:
    state, log = table.state, table.timeline.log
    if state.archived_sequence > cursor and _archived_recently(state, now):
        for sequence in range(state.sequence, max(cursor, log.trimmed_to()), -1):
            entry = log.read(sequence)
            if entry is None or datetime.fromisoformat(entry.recorded) <= now - DAY:
                return
            yield entry
        return
    done = [
        a.sequence
        for a in state.actions.values()
        if a.state is State.COMPLETED and a.sequence > cursor and action_name(a.action, a.operation) in REWRITES
    ]
    for sequence in sorted(done):
        entry = log.read(sequence)
        if entry is not None:
            yield entry


def _archived_recently(state: TableState, now: datetime) -> bool:
    """Return whether archival may have removed rewrites of the last day from the active timeline."""
    kept = [a.since for a in state.actions.values() if a.since and a.state is State.COMPLETED]
    return not kept or datetime.fromisoformat(min(kept)) > now - DAY
