"""The end of a table's log, as one process follows it: where no next entry stands nothing came, or it came and was trimmed already.

Who trims goes by its own options and clock, and whoever follows may be stopped between any two requests. So nothing is believed of how long
entries stay but the least that the option allows: what was read within a minute of the last proof is proof, the rest needs a look at the marker.
"""

from __future__ import annotations

from datetime import datetime
from itertools import islice

from tideline_table.clock import Clock
from tideline_table.errors import CorruptMetadata
from tideline_table.timeline.entry import Entry
from tideline_table.timeline.log import TableLog

UNPROVEN_S = 60.0
"""Below the least of `tideline.log.retention`: entries that came behind a proof this young are there."""


class LogEnd:
    """Reads on behind a place that its caller keeps. For one thread at a time."""

    def __init__(self, log: TableLog, clock: Clock) -> None:
        self._log = log
        self._clock = clock
        self._proven = self._time()

    def start(self) -> None:
        """What is proven from now on: a checkpoint that is read, or a marker that is looked at, behind this call."""
        self._proven = self._time()

    def read_on(self, sequence: int, limit: int) -> list[Entry] | None:
        """At most `limit` entries behind `sequence`, fewer at the end; None when the log was trimmed past it: what stands there then is void.

        A GET for each and one for the end; once a minute without entries, or when that took longer, one listing. Raises `CorruptMetadata` for an
        entry that cannot be read, and what storage raises.
        """
        asked = self._time()
        try:
            found = list(islice(self._log.after(sequence), limit))
        except CorruptMetadata:
            # Bodies go with their entries, also that of a void one which stayed.
            if self._log.trimmed_to() > sequence:
                return None
            raise
        # Behind the reads: whoever was stopped inside of them may have read a hole as the end.
        looks = self._is_unproven()
        if looks and self._log.trimmed_to() > sequence:
            return None
        if looks or found:
            self._proven = asked
        return found

    def _time(self) -> tuple[float, datetime]:
        return self._clock.monotonic_s(), self._clock.now()

    def _is_unproven(self) -> bool:
        # A machine that is suspended may stop the one clock, and a correction sets the other one back.
        monotonic_s, wall = self._time()
        return max(monotonic_s - self._proven[0], (wall - self._proven[1]).total_seconds()) >= UNPROVEN_S
