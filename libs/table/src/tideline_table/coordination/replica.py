"""The copy of the table log that one process keeps: the entries that it read, folded to the state of the table.

`LogEnd` follows the end of the log. A missing next entry means that nothing was appended, or that the entry was trimmed already.
The trimming process uses its own options and clock, and this process may be suspended between any two requests. So it relies only
on the minimum of the retention option: reads within a minute of the last proof are valid, later ones need the marker.

`LogMaintenance` keeps checkpoints and trims. `CheckedClock` is this process's clock, checked against the time of the store, which
dates the files of the table: two requests learn it, and the monotonic clock carries it on for `VALID_S` seconds.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import islice

from tideline_table.clock import Clock
from tideline_table.config import CHECKPOINT_INTERVAL, INSTANT_SKEW_S, LOG_RETAINED_ENTRIES, LOG_RETENTION_S, Options
from tideline_table.coordination.heartbeat import store_time
from tideline_table.coordination.reserve import fill_reserve
from tideline_table.errors import ClockSkew, CorruptMetadata, TableIncomplete, TidelineError
from tideline_table.hudi.format import TableFormat
from tideline_table.hudi.instant import State, time_from_instant
from tideline_table.log.checkpoint import (
    POINTER,
    RESTORE_LOG,
    TAIL_BYTES,
    ActionTexts,
    Checkpoint,
    delete_written,
    latest_checkpoint,
    read_opening,
    tail_bytes,
    write_checkpoint,
    write_tail,
)
from tideline_table.log.checkpoint_parts import KEPT_FOR
from tideline_table.log.entry import Entry, entry_path
from tideline_table.log.known_statistics import KnownStatistics
from tideline_table.log.packed import PackedSlices
from tideline_table.log.retention import Mark, Retention, trim, trim_floor
from tideline_table.log.state import TableState
from tideline_table.log.statistics import ReadEntry, keep_statistics
from tideline_table.log.statistics_file import BROKEN
from tideline_table.log.table_log import Draft, TableLog
from tideline_table.storage import Storage

VALID_S = 600.0
"""An oscillator with an error of 100 ppm is off by 60 ms after this time."""
_PATIENCE = timedelta(seconds=5)
"""The longest wait for an instant, however far clocks may differ."""
_TICK = timedelta(milliseconds=20)
"""File systems use the kernel's tick, which lags behind its clock by less than this."""


class CheckedClock:
    """The clock of this process, never behind the known time of the store. Thread-safe."""

    def __init__(self, storage: Storage, clock: Clock, options: Options) -> None:
        self._storage = storage
        self._clock = clock
        self.monotonic_s, self.sleep = clock.monotonic_s, clock.sleep
        self._allowed = timedelta(seconds=options[INSTANT_SKEW_S])
        self.unit = timedelta(seconds=0 if storage.root.startswith(("file:", "memory:")) else 1)
        """The rounding of the store's times: object stores keep whole seconds."""
        self._learned: tuple[datetime, float] | None = None
        """A time of the store, and the monotonic clock at that time or later."""

    def now(self) -> datetime:
        """See `Clock.now`."""
        return max(self._clock.now(), self._least())

    def by_store(self) -> datetime:
        """Return the time that the store gives to a file written now: this clock's, within what is known of the store's time."""
        least = self._least()
        return min(max(self._clock.now(), least), least + self.unit) if self._learned else self._clock.now()

    def check_not_ahead(self) -> None:
        """Raise `ClockSkew` if this machine's clock is further ahead of the store's time than the options allow.

        Asks the store only if no recent answer proves the opposite.
        """
        if (
            self._learned
            and self.monotonic_s() - self._learned[1] <= VALID_S
            and self._clock.now() - self._least() <= self._allowed
        ):
            return
        # Read the clock before the request, so that a slow reply cannot make it look ahead.
        asked = self._clock.now()
        ahead = asked - self._learn()
        if ahead > self._allowed + self.unit + _TICK:
            raise ClockSkew(
                f"this machine's clock lies {ahead.total_seconds():.1f} s ahead of the time of the store; nothing was written",
                expected=f"at most {self._allowed.total_seconds():g} s",
                remedy="set this machine's clock by NTP (where the store's clock is wrong, that one) and retry",
            )

    def ahead(self, instant: str) -> timedelta:
        """Return how far `instant` is ahead of the store's time; zero if it is near enough to wait for: some seconds at most."""
        moment, patience = time_from_instant(instant), min(self._allowed, _PATIENCE) + timedelta(seconds=1)
        if moment - self.by_store() > patience:
            self._learn()
        ahead = moment - self.by_store()
        return ahead if ahead > patience else timedelta(0)

    def check_reached(self, instant: str, what: str) -> None:
        """Raise `ClockSkew` while `instant` is ahead of the store's time: its slice would be dated before its own instant."""
        ahead = self.ahead(instant)
        if ahead:
            raise ClockSkew(
                f"{what} would lie {ahead.total_seconds():.1f} s ahead of the time of the store, because the last instant of the "
                "table does",
                expected="an instant that the store's time has reached: Apache Hudi places log files by file times (instant "
                f"{instant})",
                remedy="writes go on; retry when that time has come. 'tideline show PATH' names the writer whose clock was ahead",
            )

    def _least(self) -> datetime:
        if self._learned is None:
            return datetime.min.replace(tzinfo=self._clock.now().tzinfo)
        stated, at_s = self._learned
        return stated + timedelta(seconds=self._clock.monotonic_s() - at_s)

    def _learn(self) -> datetime:
        stated = store_time(self._storage)
        self._learned = stated, self.monotonic_s()
        return stated


class LogMaintenance:
    """The latest checkpoint and the entries after it, and their maintenance. Used under the mutex of its timeline."""

    def __init__(self, storage: Storage, clock: Clock, options: Options, read_entry: ReadEntry) -> None:
        self._storage = storage
        self._clock = clock
        self._options = options
        self._read_entry = read_entry
        self._checkpoint = Checkpoint()
        self._tail: list[bytes] = []
        self._texts: ActionTexts = {}

    def start(self, checkpoint: Checkpoint) -> None:
        """Record that the table was opened at `checkpoint`."""
        self._checkpoint = checkpoint
        self._tail = []

    def saw(self, entry: Entry) -> None:
        """Record that `entry` was folded."""
        if entry.sequence == self._checkpoint.sequence + len(self._tail) + 1:
            self._tail.append(tail_bytes(entry))

    def keep(self, entry: Entry, state: TableState) -> None:
        """Write a checkpoint and trim the log if due after an append of this process, else store the entries after the checkpoint.

        Raises what storage raises; a failure does no harm.
        """
        interval = self._options[CHECKPOINT_INTERVAL]
        if entry.sequence == 1:
            fill_reserve(self._storage)
        on_turn = entry.sequence % interval == 0
        if len(self._tail) > interval and not on_turn:
            self._adopt(latest_checkpoint(self._storage))
        # The writer of an interval's last entry writes the checkpoint. Later writers do so if it is missing or entries are large.
        overdue = len(self._tail) >= 2 * interval or sum(map(len, self._tail)) > max(TAIL_BYTES, self._checkpoint.size_bytes)
        if on_turn or overdue:
            self._write(entry, state)
        else:
            write_tail(self._storage, self._checkpoint, self._tail)

    def take_back(self, state: TableState) -> None:
        """Delete what the last `keep` wrote, unless another process wrote over it: `tideline leave` removed the log."""
        delete_written(self._storage, state, self._checkpoint, self._tail)

    def _adopt(self, newer: Checkpoint) -> None:
        known = self._checkpoint.sequence
        if known < newer.sequence <= known + len(self._tail):
            self._tail = self._tail[newer.sequence - known :]
            self._checkpoint = newer

    def _write(self, entry: Entry, state: TableState) -> None:
        state.pack()  # first: then the sums that the statistics need decode no part
        self._keep_statistics(state)
        # Not the time in the entry: its put may have been slow, and a process that refreshed meanwhile would miss trimmed entries.
        marks = (*self._checkpoint.marks, Mark(entry.sequence, self._clock.now().isoformat()))
        self._checkpoint, oldest = write_checkpoint(self._storage, state, marks, self._texts)
        self._tail = []
        fill_reserve(self._storage)
        retention = Retention(self._options[LOG_RETAINED_ENTRIES], self._options[LOG_RETENTION_S])
        # A process that opened the oldest checkpoint reads the entries after it; a transaction reads everything since its begin.
        needed = min([oldest + 1, *(action.started_sequence for action in state.pending())])
        floor = trim_floor(marks, retention, state.sequence, needed, self._clock.now())
        if floor:
            trimmed = trim(self._storage, floor)
            self._checkpoint = replace(
                self._checkpoint, marks=tuple(mark for mark in self._checkpoint.marks if mark.sequence > trimmed)
            )
            _LOGGER.debug("table log trimmed up to entry %d", trimmed)

    def _keep_statistics(self, state: TableState) -> None:
        """Write a statistics file before the log is trimmed. Without one, queries read more data files."""
        if state.sharing is not None:
            return
        try:
            keep_statistics(self._storage, self._read_entry, state)
        except BROKEN as error:
            _LOGGER.warning("no statistics file at entry %d: %s (the next checkpoint will write one)", state.sequence, error)


UNPROVEN_S = 60.0
"""Less than the minimum of `tideline.log.retention`: entries appended after a proof younger than this are not trimmed yet."""


class LogEnd:
    """Reader of new entries after a sequence that the caller keeps. Not thread-safe."""

    def __init__(self, log: TableLog, clock: Clock) -> None:
        self._log = log
        self._clock = clock
        self._proven = self._time()

    def start(self) -> None:
        """Set the time of the last proof to now. The caller reads a checkpoint or a trim marker after this call."""
        self._proven = self._time()

    def read_on(self, sequence: int, limit: int) -> list[Entry] | None:
        """Return at most `limit` entries after `sequence`, or None if the log was trimmed past it, which makes entries there void.

        Costs one GET per entry and one for the end, and one listing if the last proof is a minute old after the reads. Raises
        `CorruptMetadata` for an unreadable entry, and the errors of storage.
        """
        asked = self._time()
        try:
            found = list(islice(self._log.after(sequence), limit))
        except CorruptMetadata:
            # Trimming deletes bodies, too, so a void entry that was left behind may lack its body.
            if self._log.trimmed_to() > sequence:
                return None
            raise
        # Check after the reads: a process that was suspended during them may have taken a trimmed place for the end.
        must_prove = self.is_unproven()
        if must_prove and self._log.trimmed_to() > sequence:
            return None
        if must_prove or found:
            self._proven = asked
        return found

    def _time(self) -> tuple[float, datetime]:
        return self._clock.monotonic_s(), self._clock.now()

    def is_unproven(self) -> bool:
        """Return whether the last proof is a minute old."""
        # Use both clocks: the monotonic clock may stop while the machine is suspended, and the wall clock may be set back.
        monotonic_s, wall = self._time()
        return max(monotonic_s - self._proven[0], (wall - self._proven[1]).total_seconds()) >= UNPROVEN_S


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
        self.uid = ""
        """The uid with which the table was opened; empty for a table without an identity."""
        self.head: Entry | None = None
        """The last folded entry; None if the state is that of a checkpoint."""
        self.mutex = threading.RLock()
        self.maintenance = LogMaintenance(storage, clock, options, self.log.read)
        self._statistics: KnownStatistics | None = None
        self._end = LogEnd(self.log, clock)
        self._reached = 0
        self._opened: datetime | None = None
        """When this process first looked for news of a packed state, which it does as soon as it has read a checkpoint."""
        self._held = False
        """Whether all parts of the state were read since."""

    @property
    def statistics(self) -> KnownStatistics:
        """The statistics of the files of the table: kept up with its log from the first query on."""
        if self._statistics is None:  # without the mutex, for which queries must not wait: of two, one is kept
            self._statistics = KnownStatistics(self.storage, self.log.read)
        return self._statistics

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
            if isinstance(self.state.slices, PackedSlices):
                self._hold_parts(self.state.slices)
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

    def refresh_to_append(self) -> None:
        """Refresh before an append. Raises `TableIncomplete` if the log was removed while this process was suspended."""
        was_unproven, sequence = self._end.is_unproven(), self.state.sequence
        fresh = self.refresh()
        if not fresh and was_unproven and sequence and not self.log.holds(sequence) and self.log.trimmed_to() < sequence:
            raise TableIncomplete(
                f"a table log without entry {sequence}, which was there before",
                expected=f"{entry_path(sequence)}: the log says what the table holds",
                remedy=f"if the table was returned to Apache Hudi's writers (tideline leave): open it again; else {RESTORE_LOG}",
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

    def _hold_parts(self, slices: PackedSlices) -> None:
        """Read the file slices that this process has not read yet, before checkpoints that do not name their files delete them."""
        if self._opened is None:
            self._opened = self.clock.now()
        if self._held or self.clock.now() - self._opened < KEPT_FOR / 2:
            return
        try:
            slices.hold()
            self._held = True
        except CorruptMetadata:
            _LOGGER.info("the table was open for so long that its files of parts are gone: reading its newest checkpoint")
            self.start_over()

    def start_over(self) -> None:
        """Return to the latest checkpoint: entries after the state were trimmed."""
        # Start the proof before the read: the log is not trimmed past a checkpoint that exists.
        self._end.start()
        self._opened, self._held = None, False
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
        if self._statistics is not None:
            self._statistics.saw(entry)

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
