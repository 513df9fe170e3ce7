"""The table's log and its fold, kept together: reads the tail, decides on fresh state, appends, materialises."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from datetime import datetime, timedelta

import tenacity

from tideline_table.clock import Clock
from tideline_table.config import INSTANT_SKEW_S, Options
from tideline_table.errors import AppendOutrun, ClockSkew, CorruptMetadata, TableFrozen, TidelineError
from tideline_table.file_group.action import CLUSTER, COMPACT
from tideline_table.file_group.archived import archived_by
from tideline_table.file_group.checkpoint import read_opening
from tideline_table.file_group.state import TableState
from tideline_table.storage import Storage, exists, holds
from tideline_table.timeline.entry import Entry
from tideline_table.timeline.files import timeline_files, timeline_paths
from tideline_table.timeline.instant import Action, State, instant_from_time, next_instant, time_from_instant
from tideline_table.timeline.log import HEAL_DEADLINE_S, Draft, PlaceTrimmed, TableLog
from tideline_table.timeline.log_end import LogEnd
from tideline_table.timeline.write_stats import CommitMetadata
from tideline_table.transaction.adoption import ListedTimeline
from tideline_table.transaction.archive import was_completed
from tideline_table.transaction.conflict import check_not_restoring
from tideline_table.transaction.log_upkeep import LogUpkeep

_LOGGER = logging.getLogger(__name__)

Decide = Callable[[TableState], Draft]
"""A pure decision on fresh state: the transition to append, or an error that says why not."""
_BATCH = 500
_RELOADS = 5
_MOST_LOSSES = 500
_PAUSES = tenacity.wait_chain(*3 * [tenacity.wait_none()], tenacity.wait_random_exponential(multiplier=0.005, max=1.0))
"""In seconds after each lost race for a place in the log: none at first, for the next head is read already; then longer and longer."""


class ActiveTimeline:
    """One table's timeline as this process knows it. Safe to share between threads."""

    def __init__(self, storage: Storage, clock: Clock, writer_id: str, options: Options) -> None:
        self.storage = storage
        self.clock = clock
        self.options = options
        self.log = TableLog(storage, clock, writer_id)
        self.state = TableState()
        self._end = LogEnd(self.log, clock)
        self._head: Entry | None = None
        self._materialised = 0
        self._upkeep = LogUpkeep(storage, clock, options)
        self._mutex = threading.RLock()

    def load(self) -> None:
        """Start from the latest checkpoint and read the tail. Raises `CorruptMetadata` when the log was trimmed and no checkpoint is left."""
        with self._mutex:
            self._start_over()
            self.refresh()

    def refresh(self) -> list[Entry]:
        """Read what was appended since; returns these entries (from the checkpoint on when we slept for so long that older ones are gone)."""
        with self._mutex:
            for _ in range(_RELOADS):
                fresh = self._read_on()
                if fresh is not None:
                    return fresh
                self._start_over()
            raise CorruptMetadata(
                f"the table log begins after entry {self.log.trimmed_to()}, the latest checkpoint ends at {self.state.sequence}",
                expected="a checkpoint that reaches the log",
                remedy="restore the checkpoint folder from a copy; nothing was changed",
            )

    def look(self) -> TableState:
        """See what anybody did; returns the state with it."""
        self.refresh()
        return self.state

    def _read_on(self) -> list[Entry] | None:
        """Fold what follows; None when entries behind our state were deleted: then what stands there says nothing."""
        fresh: list[Entry] = []
        while True:
            batch = self._end.read_on(self.state.sequence, _BATCH)
            if batch is None:
                return None
            for entry in batch:
                self._fold(entry)
            fresh += batch
            if len(batch) < _BATCH:
                return fresh

    def _start_over(self) -> None:
        # A checkpoint that is there was not trimmed past.
        self._end.start()
        opening = read_opening(self.storage)
        self.state = opening.state
        self._head = None
        self._upkeep.start(opening.checkpoint)
        for entry in opening.tail:
            self._fold(self.log.completed(entry))

    def _fold(self, entry: Entry) -> None:
        self.state.apply(entry)
        self._head = entry
        self._upkeep.saw(entry)

    def head_sequence(self) -> int:
        """The head of the log now: the fencing token of whoever asks."""
        self.refresh()
        return self.state.sequence

    def heal(self, min_age_s: float) -> bool:
        """Create the timeline files of a head entry older than `min_age_s` (0: of any age) if its writer did not; True when one was missing."""
        with self._mutex:
            self.refresh()
            head = self._head or self.log.read(self.state.sequence)
            if head is None:
                return False
            # By a clock that is behind the writer's its age would be negative.
            if min_age_s and self.clock.now() - datetime.fromisoformat(head.recorded) < timedelta(seconds=min_age_s):
                return False
            return self._heal_head()

    def append(self, decide: Decide) -> Entry:
        """Append what `decide` wants on the freshest state; decide again whenever somebody else was faster.

        Ends when the entry is in the log (its timeline files follow; failing to write them is a warning, the log is the truth), or
        with the error that `decide` raises. Every lost race means that another append succeeded, so the table always advances; who loses
        several in a row lets the others pass for a while. Raises `AppendOutrun` when it never came to its turn: nothing was appended.
        """
        retrying = tenacity.Retrying(
            stop=tenacity.stop_after_attempt(_MOST_LOSSES),
            wait=_PAUSES,
            retry=tenacity.retry_if_result(lambda entry: entry is None),
            sleep=self.clock.sleep,
        )
        try:
            entry = retrying(self._try_append, decide)
        except tenacity.RetryError:
            raise AppendOutrun(
                f"other writers were faster {_MOST_LOSSES} times in a row",
                expected="a turn in the table log",
                remedy="retry, or let fewer writers commit to the table at once",
            ) from None
        assert entry is not None
        return entry

    def _try_append(self, decide: Decide) -> Entry | None:
        """Append to the log as it stands now; None when somebody else was faster."""
        with self._mutex:
            self.refresh()
            if self.state.sharing is not None:
                raise TableFrozen(
                    "the table was shared with Apache Hudi's writers since it was opened",
                    expected="an exclusive table",
                    remedy="open it again",
                )
            draft = decide(self.state)
            check_not_restoring(self.state, draft.instant, begins=draft.before is State.NONE or draft.action is Action.SAVEPOINT)
            # A step that nobody may fold would lock every reader out of the table for good.
            self.state.check(draft)
            self._heal_head()
            try:
                entry = self.log.append(draft, self.state.sequence + 1)
            except PlaceTrimmed as late:
                self._start_over()
                self.refresh()
                return late.entry if self._has_folded(late.entry) else None
            if entry is not None:
                self._fold(entry)
                self._publish(entry)
            return entry

    def _has_folded(self, entry: Entry) -> bool:
        if entry.action is Action.SAVEPOINT:
            # Of one sequence there is one entry; a deletion shows by what is not there any more.
            saved = self.state.savepoints.get(entry.instant)
            return saved is None if entry.after is State.ROLLED_BACK else saved is not None and saved.sequence == entry.sequence
        known = self.state.actions.get(entry.instant)
        if known is None and entry.after is State.COMPLETED and entry.instant < self.state.archived_before:
            return self._counted(entry)
        return known is not None and (known.sequence, known.state, known.writer_id) == (
            entry.sequence,
            entry.after,
            entry.writer_id,
        )

    def _counted(self, entry: Entry) -> bool:
        """Whether a completion that was archived since is that of `entry`: nobody but its writer completes a write, somebody else may a plan."""
        if entry.operation in (CLUSTER, COMPACT):
            named = {stat.path for stat in CommitMetadata.from_json(entry.body["metadata"]).stats}
            return any(not named.isdisjoint(file_slice.paths) for file_slice in self.state.every_slice())
        return was_completed(self.storage, entry.instant)

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

    def mint_above_files(self, state: TableState) -> str:
        """As `mint`, and above the time of each completed file: for what opens slices behind others, in a decision. Costs a listing.

        Apache Hudi 1.x would place log files of the slice before into the new one, which holds their rows already (format reference 11.3). Raises
        `ClockSkew`, too, when the store's clock lies too far ahead of this one.
        """
        # Who wrote the head may be slower than we are: its file must not get a time behind ours.
        self._heal_head()
        minted = self.mint(state)
        last = ListedTimeline.read(self.storage).last_completion
        above = above_time(minted, last, state)
        if last is None or above == minted:
            return minted
        ahead, allowed = last - self.clock.now(), self.options[INSTANT_SKEW_S]
        if ahead > timedelta(seconds=allowed):
            raise ClockSkew(
                f"the store dates the last completed timeline file {ahead.total_seconds():.1f} s ahead of this machine's clock",
                expected=f"at most {allowed:g} s",
                remedy="set the clocks of all writers and of the store by NTP and retry",
            )
        return above

    def _publish(self, entry: Entry) -> None:
        try:
            self._materialise(entry)
            self._materialised = entry.sequence
        except TidelineError as error:
            _LOGGER.warning(
                "timeline files of entry %d are late: %s (the next writer or the mirror creates them)", entry.sequence, error
            )
        self._keep_up(entry)

    def _keep_up(self, entry: Entry) -> None:
        try:
            self._upkeep.keep(entry, self.state)
        except TidelineError as error:
            _LOGGER.warning("no checkpoint at entry %d: %s (a later writer makes one)", entry.sequence, error)

    def _heal_head(self) -> bool:
        head = self._head
        if self.state.sequence == 0 or self._materialised >= self.state.sequence:
            return False
        if head is None or head.sequence != self.state.sequence:
            head = self.log.read(self.state.sequence)
        was_incomplete = head is not None and self._is_incomplete(head)
        if head is not None and was_incomplete:
            self._materialise(head)
        self._materialised = self.state.sequence
        return was_incomplete

    def _materialise(self, entry: Entry) -> None:
        self.log.materialise(entry)
        if self.clock.now() - datetime.fromisoformat(entry.recorded) <= timedelta(seconds=HEAL_DEADLINE_S):
            return
        # Whoever slept on the way here may have brought back files of an instant that was archived meanwhile.
        if self._was_archived(entry):
            for path in timeline_paths(entry).create:
                self.storage.delete(path)

    def _was_archived(self, entry: Entry) -> bool:
        """What the log says by now; the state stays where it is: whoever appended `entry` goes on from there."""
        read_to = entry.sequence
        if self.log.trimmed_to() > read_to:
            state = read_opening(self.storage).state
            if entry.instant not in state.actions and entry.instant < state.archived_before:
                return True
            read_to = state.sequence
        return any(entry.instant in archived_by(later) for later in self.log.after(read_to))

    def _is_incomplete(self, entry: Entry) -> bool:
        if entry.action is Action.SAVEPOINT and entry.after is State.COMPLETED:
            # Files of an earlier one have the same names.
            return not all(holds(self.storage, path, content) for path, content in timeline_files(entry).create)
        files = timeline_paths(entry)
        if not all(exists(self.storage, path) for path in files.create):
            return True
        # Where something is created it comes last, so the rest is done.
        return not files.create and any(exists(self.storage, path) for path in files.delete)


def above_time(minted: str, last: datetime | None, state: TableState) -> str:
    """The minted instant, or where the time `last` is not before it the next one above both `last` and the table's."""
    if last is None or instant_from_time(last) < minted:
        return minted
    return next_instant(last + timedelta(milliseconds=1), state.last_instant)
