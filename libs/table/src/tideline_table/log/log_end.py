"""Follow the end of the table log. A missing next entry means that nothing was appended, or that the entry was trimmed already.

The trimming process uses its own options and clock, and this process may be suspended between any two requests. So this module
relies only on the minimum of the retention option: reads within a minute of the last proof are valid, later ones need the marker.
"""

from __future__ import annotations

from datetime import datetime
from itertools import islice

from tideline_table.clock import Clock
from tideline_table.errors import CorruptMetadata
from tideline_table.log.entry import Entry
from tideline_table.log.table_log import TableLog

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
        must_prove = self._is_unproven()
        if must_prove and self._log.trimmed_to() > sequence:
            return None
        if must_prove or found:
            self._proven = asked
        return found

    def _time(self) -> tuple[float, datetime]:
        return self._clock.monotonic_s(), self._clock.now()

    def _is_unproven(self) -> bool:
        # Use both clocks: the monotonic clock may stop while the machine is suspended, and the wall clock may be set back.
        monotonic_s, wall = self._time()
        return max(monotonic_s - self._proven[0], (wall - self._proven[1]).total_seconds()) >= UNPROVEN_S
