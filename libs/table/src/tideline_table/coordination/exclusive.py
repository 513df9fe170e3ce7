"""The timeline of an exclusive table: decide on fresh state, append to the table log, create timeline files."""

# ruff: noqa: D102 - the port documents these methods

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timedelta

import tenacity

from tideline_table.coordination import leftovers
from tideline_table.coordination.capabilities import EXCLUSIVE, SHARED, Capabilities
from tideline_table.coordination.completion import completion_after
from tideline_table.coordination.conflict import check_not_restoring
from tideline_table.coordination.file_times import above_time
from tideline_table.coordination.heartbeat import forget_silent
from tideline_table.coordination.other_writers import check_no_other_writer, list_hoodie
from tideline_table.coordination.replica import LogReplica
from tideline_table.coordination.timeline import ActiveTimeline, Decide
from tideline_table.errors import AppendOutrun, TableFrozen, TidelineError
from tideline_table.hudi.instant import CLUSTER, Action, State, next_instant
from tideline_table.hudi.listing import ListedTimeline
from tideline_table.hudi.write_stats import WriteStat
from tideline_table.log.action import COMPACT, LOG_COMPACT
from tideline_table.log.body import Archived, Published, RestoreBegun
from tideline_table.log.checkpoint import read_opening
from tideline_table.log.entry import Entry
from tideline_table.log.metadata import two_times
from tideline_table.log.savepoint import Saved, Savepoint
from tideline_table.log.state import TableState
from tideline_table.log.table_log import HEAL_DEADLINE_S, Draft, PlaceTrimmed
from tideline_table.log.timeline_files import ENCODABLE, check_encodable, timeline_files, timeline_paths
from tideline_table.metadata_table import (
    LogRecords,
    PreparedDelta,
    hide_records,
    prepared_delta,
    publish_metadata,
    unpublish_metadata,
)
from tideline_table.metadata_table.instant_files import UNREADABLE
from tideline_table.reader.read_plan import LogRule
from tideline_table.storage import Folder, exists, holds
from tideline_table.writer.marker import forget_markers

_LOGGER = logging.getLogger(__name__)

MOST_LOSSES = 500
"""Lost races for a log position after which an append gives up."""
_PAUSES = tenacity.wait_chain(*3 * [tenacity.wait_none()], tenacity.wait_random_exponential(multiplier=0.005, max=1.0))
"""Seconds to wait after each lost race for a log position: none at first, as the next head is read already; then ever longer."""


class ExclusiveTimeline(ActiveTimeline):
    """The timeline of a table that only Tideline writes: the log is the truth, timeline files follow its entries."""

    beats_through_rollback = True

    def __init__(self, replica: LogReplica, rule: LogRule | None = None) -> None:
        """`rule` merges the log files of the table: partitions of the metadata table depend on its rows."""
        super().__init__(replica)
        self.rule = rule or LogRule()
        self.records = LogRecords(replica.storage, replica.log.format)
        self._materialised = 0
        self._prepared: dict[str, PreparedDelta] = {}

    @property
    def capabilities(self) -> Capabilities:
        return SHARED if self.is_outdated else EXCLUSIVE

    @property
    def is_outdated(self) -> bool:
        return self.state.sharing is not None

    def savepoints(self) -> Mapping[str, Savepoint]:
        return self.state.savepoints

    def saved(self) -> Saved:
        return self.state.saved()

    def check_writable(self, table: str, check_definition: Callable[[Folder], None]) -> None:  # noqa: ARG002 - the port's
        """See `ActiveTimeline.check_writable`. Raises `TableFrozen` for an instant on the timeline that is not in the log."""
        folder, since = list_hoodie(self)
        check_definition(folder)
        check_no_other_writer(self, folder, since)

    def heal(self, min_age_s: float) -> bool:
        """See `ActiveTimeline.heal`; creates the missing timeline files of the head entry."""
        with self.replica.mutex:
            self.refresh()
            head = self.replica.head or self.log.read(self.state.sequence)
            if head is None:
                return False
            # If this clock is behind the writer's, the age is negative and means nothing.
            if min_age_s and abs(self.time.now() - datetime.fromisoformat(head.recorded)) < timedelta(seconds=min_age_s):
                return False
            return self._heal_head()

    def _append(self, decide: Decide) -> Entry:
        """Append to the log, which takes the step. The timeline files follow; if that fails, it is a warning.

        Every lost race means that another append succeeded, so the table always advances. After several losses in a row the writer
        pauses.
        """
        retrying = tenacity.Retrying(
            stop=tenacity.stop_after_attempt(MOST_LOSSES),
            wait=_PAUSES,
            retry=tenacity.retry_if_result(lambda entry: entry is None),
            sleep=self.clock.sleep,
        )
        try:
            entry = retrying(self._try_append, decide)
        except tenacity.RetryError:
            raise AppendOutrun(
                f"other writers were faster {MOST_LOSSES} times in a row",
                expected="a turn in the table log",
                remedy="retry, or let fewer writers commit to the table at once",
            ) from None
        assert entry is not None
        return entry

    def _try_append(self, decide: Decide) -> Entry | None:
        """Append to the log as it is now; return None if another writer appended first."""
        with self.replica.mutex:
            self.replica.refresh_to_append()
            if self.is_outdated:
                raise TableFrozen(
                    "the table was shared with Apache Hudi's writers since it was opened",
                    expected="an exclusive table",
                    remedy="open it again",
                )
            state = self.state
            draft = self._timed(decide(state), state)
            check_not_restoring(state, draft.instant, begins=draft.before is State.NONE or draft.action is Action.SAVEPOINT)
            # An entry that no reader can fold would lock every reader out of the table for good.
            state.check(draft)
            self.replica.check_clock(draft)
            self._heal_head()
            if not isinstance(draft.body, ENCODABLE):
                check_encodable(draft.entry(state.sequence + 1, self.time.now()), self.format)
            try:
                entry = self.log.append(draft, state.sequence + 1)
            except PlaceTrimmed as late:
                self.replica.start_over()
                self.refresh()
                return late.entry if self._has_folded(late.entry) else None
            if entry is not None:
                self.replica.fold(entry)
                self._publish(entry)
            return entry

    def _timed(self, draft: Draft, state: TableState) -> Draft:
        """Return the draft with its completion time, if names of timeline files have one: later than every time in the log.

        One logical clock gives instants and completion times. The log decides their order, however clocks jump.
        """
        if not self.format.has_completion_times or draft.action is Action.ARCHIVAL:
            return draft
        if draft.after is State.COMPLETED or isinstance(draft.body, RestoreBegun):
            minted = completion_after(state, draft, self.time.now())
            return replace(draft, completion=minted if draft.after is State.COMPLETED else two_times(minted))
        held = state.savepoints.get(draft.instant) if draft.action is Action.SAVEPOINT else None
        return replace(draft, completion=held.completion) if held is not None else draft

    def _has_folded(self, entry: Entry) -> bool:
        if entry.action is Action.SAVEPOINT:
            # A sequence has one entry. A deletion shows by the missing savepoint.
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
        """Return whether an archived completion is that of `entry`: writes are completed by their writer, plans by any process."""
        if entry.operation in (CLUSTER, COMPACT, LOG_COMPACT) and isinstance(entry.body, Published):
            named = {stat.path for stat in entry.body.metadata.stats}
            return any(not named.isdisjoint(file_slice.paths) for file_slice in self.state.every_slice())
        return self.format.was_completed(self.storage, entry.instant)

    @contextmanager
    def preparing(self, action: Action, instant: str, stats: Sequence[WriteStat]) -> Iterator[None]:
        if self.state.metadata is None:
            yield
            return
        with prepared_delta(self.storage, self.format, self.state.metadata, action, instant, stats) as prepared:
            if prepared is not None:
                self._prepared[instant] = prepared
            try:
                yield
            finally:
                self._prepared.pop(instant, None)

    def mint(self, state: TableState) -> str:
        """See `ActiveTimeline.mint`: the present, or the last instant + 1 ms if later (a hybrid logical clock)."""
        return next_instant(self.time.now(), state.last_instant)

    def mint_above_files(self, state: TableState) -> str:
        if self.format.has_completion_times:
            return self.mint(state)
        # Create the head's files first: its slow writer would date them after the minted instant.
        self._heal_head()
        minted = above_time(self.mint(state), ListedTimeline.read(self.storage, self.format).last_completion, state)
        self.time.check_reached(minted, "a compaction")
        return minted

    def _publish(self, entry: Entry) -> None:
        try:
            self._materialise(entry)
            self._materialised = entry.sequence
        except (TidelineError, *UNREADABLE) as error:  # the entry stands: whatever follows must not look as if it did not
            _LOGGER.warning(
                "timeline files of entry %d are late: %s (the next writer or the mirror creates them)", entry.sequence, error
            )
        self.replica.keep_up(entry)

    def _heal_head(self) -> bool:
        head = self.replica.head
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
        if entry.action is Action.INDEXING and entry.after is State.ROLLED_BACK:
            # Its timeline files are deleted last: as long as they exist, the next writer takes this entry for incomplete.
            unpublish_metadata(self.storage, self.log, self.time, entry, self.state)
        if entry.begins_restore:
            hide_records(self.storage, self.state)
        # Only for the writer: a process that heals the entry later may find it half used.
        prepared = self._prepared.pop(entry.instant, None) if entry.after is State.COMPLETED else None

        def publish() -> None:
            if self.state.metadata is not None:
                publish_metadata(self.storage, self.log, self.time, entry, self.state, self.rule, self.records, prepared)

        self.log.materialise(entry, publish)
        if abs(self.time.now() - datetime.fromisoformat(entry.recorded)) <= timedelta(seconds=HEAL_DEADLINE_S):
            return
        # If this process was slow, it may have created files of an instant that was archived meanwhile.
        if self._was_archived(entry):
            for path in timeline_paths(entry, self.format).create:
                self.storage.delete(path)

    def _was_archived(self, entry: Entry) -> bool:
        """Return whether the log archived the instant since. The state does not move: the append of `entry` goes on from there."""
        read_to = entry.sequence
        if self.log.trimmed_to() > read_to:
            state = read_opening(self.storage).state
            if entry.instant not in state.actions and entry.instant < state.archived_before:
                return True
            read_to = state.sequence
        later = (found.body for found in self.log.after(read_to))
        return any(isinstance(body, Archived) and entry.instant in body.archived.instants for body in later)

    def _is_incomplete(self, entry: Entry) -> bool:
        if entry.action is Action.SAVEPOINT and entry.after is State.COMPLETED:
            # Files of an earlier savepoint have the same names.
            return not all(holds(self.storage, path, content) for path, content in timeline_files(entry, self.format).create)
        files = timeline_paths(entry, self.format)
        if not all(exists(self.storage, path) for path in files.create):
            return True
        # Files are deleted before others are created, so if all created files exist, the deletions are done.
        return not files.create and any(exists(self.storage, path) for path in files.delete)

    def tidy_up(self) -> None:
        """See `ActiveTimeline.tidy_up`.

        Removes expired heartbeats, markers of completed actions and late files of rolled-back ones.
        """
        forget_silent(self.storage, {a.instant for a in self.state.pending()}, self.clock, self.options)
        leftovers.tidy_up(self.storage, self.log, self.state, self.clock, self.options)

    def forget_markers(self, target: str, found: Iterable[str]) -> None:
        """See `ActiveTimeline.forget_markers`. Markers added later stay until the orphan-file cleanup before archival."""
        forget_markers(self.storage, target, found)
