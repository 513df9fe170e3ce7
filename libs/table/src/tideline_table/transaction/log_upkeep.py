"""What an appender does for those who come after: keep opening the table cheap, and the log no longer than it has to be."""

from __future__ import annotations

import logging
from dataclasses import replace

from tideline_table.clock import Clock
from tideline_table.config import CHECKPOINT_INTERVAL, LOG_RETAINED_ENTRIES, LOG_RETENTION_S, Options
from tideline_table.file_group.checkpoint import (
    TAIL_BYTES,
    Checkpoint,
    latest_checkpoint,
    tail_bytes,
    write_checkpoint,
    write_tail,
)
from tideline_table.file_group.state import TableState
from tideline_table.storage import Storage
from tideline_table.timeline.entry import Entry
from tideline_table.timeline.retention import Mark, Retention, trim, trim_floor

_LOGGER = logging.getLogger(__name__)


class LogUpkeep:
    """Knows the latest checkpoint and the entries behind it. Used under the mutex of its timeline."""

    def __init__(self, storage: Storage, clock: Clock, options: Options) -> None:
        self._storage = storage
        self._clock = clock
        self._options = options
        self._checkpoint = Checkpoint()
        self._tail: list[bytes] = []

    def start(self, checkpoint: Checkpoint) -> None:
        """The table was opened at `checkpoint`."""
        self._checkpoint = checkpoint
        self._tail = []

    def saw(self, entry: Entry) -> None:
        """`entry` was folded."""
        if entry.sequence == self._checkpoint.sequence + len(self._tail) + 1:
            self._tail.append(tail_bytes(entry))

    def keep(self, entry: Entry, state: TableState) -> None:
        """After an append of ours: a checkpoint when it is time, and then a trim; otherwise the entries behind the checkpoint.

        Raises what storage raises; nothing depends on any of it.
        """
        interval = self._options[CHECKPOINT_INTERVAL]
        on_turn = entry.sequence % interval == 0
        if len(self._tail) > interval and not on_turn:
            self._adopt(latest_checkpoint(self._storage))
        # Whoever appends the last entry of an interval writes; others step in when that was left undone or entries are large.
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
        # Not when the entry was recorded: its put may have taken long, and who looked at the log before that would miss what is trimmed.
        marks = (*self._checkpoint.marks, Mark(entry.sequence, self._clock.now().isoformat()))
        self._checkpoint, oldest = write_checkpoint(self._storage, state, marks)
        self._tail = []
        retention = Retention(self._options[LOG_RETAINED_ENTRIES], self._options[LOG_RETENTION_S])
        # Who opened the oldest checkpoint reads on behind it; a transaction looks at everything since its begin.
        needed = min([oldest + 1, *(action.started_sequence for action in state.pending())])
        floor = trim_floor(marks, retention, state.sequence, needed, self._clock.now())
        if floor:
            trimmed = trim(self._storage, floor)
            self._checkpoint = replace(
                self._checkpoint, marks=tuple(mark for mark in self._checkpoint.marks if mark.sequence > trimmed)
            )
            _LOGGER.debug("table log trimmed up to entry %d", trimmed)
