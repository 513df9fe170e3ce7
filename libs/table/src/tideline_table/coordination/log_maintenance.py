"""Maintenance after an append: keep opening the table cheap, and the log no longer than necessary."""

from __future__ import annotations

import logging
from dataclasses import replace

from tideline_table.clock import Clock
from tideline_table.config import CHECKPOINT_INTERVAL, LOG_RETAINED_ENTRIES, LOG_RETENTION_S, Options
from tideline_table.coordination.reserve import fill_reserve
from tideline_table.log.checkpoint import (
    TAIL_BYTES,
    Checkpoint,
    latest_checkpoint,
    tail_bytes,
    write_checkpoint,
    write_tail,
)
from tideline_table.log.entry import Entry
from tideline_table.log.retention import Mark, Retention, trim, trim_floor
from tideline_table.log.state import TableState
from tideline_table.log.statistics import ReadEntry, keep_statistics
from tideline_table.log.statistics_file import BROKEN
from tideline_table.storage import Storage

_LOGGER = logging.getLogger(__name__)


class LogMaintenance:
    """The latest checkpoint and the entries after it, and their maintenance. Used under the mutex of its timeline."""

    def __init__(self, storage: Storage, clock: Clock, options: Options, read_entry: ReadEntry) -> None:
        self._storage = storage
        self._clock = clock
        self._options = options
        self._read_entry = read_entry
        self._checkpoint = Checkpoint()
        self._tail: list[bytes] = []

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

    def _adopt(self, newer: Checkpoint) -> None:
        known = self._checkpoint.sequence
        if known < newer.sequence <= known + len(self._tail):
            self._tail = self._tail[newer.sequence - known :]
            self._checkpoint = newer

    def _write(self, entry: Entry, state: TableState) -> None:
        self._keep_statistics(state)
        # Not the time in the entry: its put may have been slow, and a process that refreshed meanwhile would miss trimmed entries.
        marks = (*self._checkpoint.marks, Mark(entry.sequence, self._clock.now().isoformat()))
        self._checkpoint, oldest = write_checkpoint(self._storage, state, marks)
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
