"""The copy of the table log that one process keeps: the entries that it read, folded to the state of the table."""

from __future__ import annotations

import logging
import threading

from tideline_table.clock import Clock
from tideline_table.config import Options
from tideline_table.coordination.checked_clock import CheckedClock
from tideline_table.coordination.log_maintenance import LogMaintenance
from tideline_table.errors import CorruptMetadata, TableIncomplete, TidelineError
from tideline_table.hudi.format import TableFormat
from tideline_table.hudi.instant import State
from tideline_table.log.checkpoint import POINTER, RESTORE_LOG, read_opening
from tideline_table.log.entry import Entry
from tideline_table.log.known_statistics import KnownStatistics
from tideline_table.log.log_end import LogEnd
from tideline_table.log.state import TableState
from tideline_table.log.table_log import Draft, TableLog
from tideline_table.storage import Storage

_LOGGER = logging.getLogger(__name__)
_BATCH = 500
_RELOADS = 5


class LogReplica:
    """The log of one table as this process knows it. It reads, folds and keeps checkpoints; timelines decide and append.

    Thread-safe. A timeline holds `mutex` between a refresh and the append that relies on it.
    """

    def __init__(self, storage: Storage, clock: Clock, writer_id: str, options: Options, form: TableFormat) -> None:
        self.storage = storage
        self.clock = clock
        self.options = options
        self.time = CheckedClock(storage, clock, options)
        self.log = TableLog(storage, self.time, writer_id, form)
        self.state = TableState()
        self.head: Entry | None = None
        """The last folded entry; None if the state is that of a checkpoint."""
        self.mutex = threading.RLock()
        self.maintenance = LogMaintenance(storage, clock, options, self.log.read)
        self.statistics = KnownStatistics(storage, self.log.read)
        self._end = LogEnd(self.log, clock)
        self._reached = 0

    def load(self) -> None:
        """Start from the latest checkpoint and read the tail.

        Raises `CorruptMetadata` if a trimmed log has no checkpoint left, and `TableIncomplete` if entries are missing.
        """
        with self.mutex:
            self.start_over()
            self.refresh()
            if self.state.sequence < self._reached:
                raise TableIncomplete(
                    f"the table log ends at entry {self.state.sequence}",
                    expected=f"entry {self._reached} at least, which {POINTER} saw",
                    remedy=RESTORE_LOG,
                )

    def refresh(self) -> list[Entry]:
        """Read the new entries and return them; from the checkpoint on, if older entries were trimmed since the last refresh."""
        with self.mutex:
            for _ in range(_RELOADS):
                fresh = self._read_on()
                if fresh is not None:
                    return fresh
                self.start_over()
            raise CorruptMetadata(
                f"the table log begins after entry {self.log.trimmed_to()}, the latest checkpoint ends at {self.state.sequence}",
                expected="a checkpoint that reaches the log",
                remedy="restore the checkpoint folder from a copy; nothing was changed",
            )

    def _read_on(self) -> list[Entry] | None:
        """Fold the following entries. Return None if entries after the state were deleted: entries in their place are void."""
        fresh: list[Entry] = []
        while True:
            batch = self._end.read_on(self.state.sequence, _BATCH)
            if batch is None:
                return None
            for entry in batch:
                self.fold(entry)
            fresh += batch
            if len(batch) < _BATCH:
                return fresh

    def start_over(self) -> None:
        """Return to the latest checkpoint: entries after the state were trimmed."""
        # Start the proof before the read: the log is not trimmed past a checkpoint that exists.
        self._end.start()
        opening = read_opening(self.storage)
        self.state = opening.state
        self._reached = opening.end
        self.head = None
        self.maintenance.start(opening.checkpoint)
        for entry in opening.tail:
            self._apply(self.log.completed(entry))  # without statistics: see `tail_bytes`

    def fold(self, entry: Entry) -> None:
        """Apply the next entry to the state."""
        self._apply(entry)
        self.statistics.saw(entry)

    def _apply(self, entry: Entry) -> None:
        self.state.apply(entry)
        self.head = entry
        self.maintenance.saw(entry)

    def keep_up(self, entry: Entry) -> None:
        """Keep checkpoints after an append of this process. A failure is a warning."""
        try:
            self.maintenance.keep(entry, self.state)
        except TidelineError as error:
            _LOGGER.warning("no checkpoint at entry %d: %s (a later writer makes one)", entry.sequence, error)

    def check_clock(self, draft: Draft) -> None:
        """Raise `ClockSkew` if the clock of this process is ahead of the store's, unless `draft` ends an action."""
        # An end may be recorded late or early: its instant exists already, and no process judges by it whether a writer is alive.
        if draft.after in (State.REQUESTED, State.INFLIGHT):
            self.time.check_not_ahead()
