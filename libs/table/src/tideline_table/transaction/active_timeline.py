"""The table's log and its fold, kept together: reads the tail, decides on fresh state, appends, materialises."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from datetime import datetime, timedelta

from tideline_table.clock import Clock
from tideline_table.config import CHECKPOINT_INTERVAL, INSTANT_SKEW_S, Options
from tideline_table.errors import ClockSkew, ObjectNotFound, TidelineError
from tideline_table.file_group.checkpoint import read_checkpoint, write_checkpoint
from tideline_table.file_group.state import TableState
from tideline_table.storage import Storage
from tideline_table.timeline.entry import Entry
from tideline_table.timeline.files import timeline_files
from tideline_table.timeline.instant import next_instant, time_from_instant
from tideline_table.timeline.log import Draft, TableLog

_LOGGER = logging.getLogger(__name__)

Decide = Callable[[TableState], Draft]
"""A pure decision on fresh state: the transition to append, or an error that says why not."""


class ActiveTimeline:
    """One table's timeline as this process knows it. Safe to share between threads."""

    def __init__(self, storage: Storage, clock: Clock, writer_id: str, options: Options) -> None:
        self.storage = storage
        self.clock = clock
        self.options = options
        self.log = TableLog(storage, clock, writer_id)
        self.state = TableState()
        self._head: Entry | None = None
        self._materialised = 0
        self._mutex = threading.RLock()

    def load(self) -> None:
        """Start from the latest checkpoint and read the tail."""
        with self._mutex:
            self.state = read_checkpoint(self.storage)
            self.refresh()

    def refresh(self) -> list[Entry]:
        """Read what was appended since; returns these entries."""
        with self._mutex:
            fresh: list[Entry] = []
            for entry in self.log.after(self.state.sequence):
                self.state.apply(entry)
                self._head = entry
                fresh.append(entry)
            return fresh

    def head_sequence(self) -> int:
        """The head of the log now: the fencing token of whoever asks."""
        self.refresh()
        return self.state.sequence

    def heal(self, min_age_s: float) -> bool:
        """Create the timeline files of a head entry older than `min_age_s` if its writer did not; True when something was missing."""
        with self._mutex:
            self.refresh()
            head = self._head or self.log.read(self.state.sequence)
            if head is None or self.clock.now() - datetime.fromisoformat(head.recorded) < timedelta(seconds=min_age_s):
                return False
            return self._heal_head()

    def append(self, decide: Decide) -> Entry:
        """Append what `decide` wants on the freshest state; decide again whenever somebody else was faster.

        Ends when the entry is in the log (its timeline files follow; failing to write them is a warning, the log is the truth), or
        with the error that `decide` raises. Every lost race means that another append succeeded, so the table always advances.
        """
        with self._mutex:
            while True:
                self.refresh()
                draft = decide(self.state)
                # A step that nobody may fold would lock every reader out of the table for good.
                self.state.check(draft)
                self._heal_head()
                entry = self.log.append(draft, self.state.sequence + 1)
                if entry is None:
                    continue
                self.state.apply(entry)
                self._head = entry
                self._publish(entry)
                return entry

    def mint(self, state: TableState) -> str:
        """The next instant of the table. Raises `ClockSkew` when its last one lies too far ahead of the clock."""
        now = self.clock.now()
        if state.last_instant:
            ahead = time_from_instant(state.last_instant) - now
            allowed = self.options[INSTANT_SKEW_S]
            if ahead > timedelta(seconds=allowed):
                raise ClockSkew(
                    f"the table's last instant {state.last_instant} lies {ahead.total_seconds():.1f} s ahead of this machine's clock",
                    expected=f"at most {allowed:g} s",
                    remedy="set the clocks of all writers by NTP and retry",
                )
        return next_instant(now, state.last_instant)

    def _publish(self, entry: Entry) -> None:
        try:
            self.log.materialise(entry)
            self._materialised = entry.sequence
            if entry.sequence % self.options[CHECKPOINT_INTERVAL] == 0:
                write_checkpoint(self.storage, self.state)
        except TidelineError as error:
            _LOGGER.warning(
                "timeline files of entry %d are late: %s (the next writer or the mirror creates them)", entry.sequence, error
            )

    def _heal_head(self) -> bool:
        head = self._head
        if self.state.sequence == 0 or self._materialised >= self.state.sequence:
            return False
        if head is None or head.sequence != self.state.sequence:
            head = self.log.read(self.state.sequence)
        was_incomplete = head is not None and self._is_incomplete(head)
        if head is not None and was_incomplete:
            self.log.materialise(head)
        self._materialised = self.state.sequence
        return was_incomplete

    def _is_incomplete(self, entry: Entry) -> bool:
        files = timeline_files(entry)
        try:
            for path, _ in files.create:
                self.storage.stat(path)
        except ObjectNotFound:
            return True
        return False
