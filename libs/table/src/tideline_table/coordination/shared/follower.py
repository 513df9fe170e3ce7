"""The log of a shared table follows the timeline: what the log lacks is appended under the lock of the table."""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta

from tideline_table.clock import Clock
from tideline_table.config import Options
from tideline_table.coordination.heartbeat import allowed_silence, heartbeat_path
from tideline_table.coordination.lock import HudiTableLock
from tideline_table.coordination.replica import LogReplica
from tideline_table.coordination.shared.adoption import (
    LISTINGS,
    check_followed,
    late_files,
    may_be_archived,
    missed_writes,
    missing_steps,
    read_step,
    vanished,
)
from tideline_table.coordination.shared.hudi_rules import check_version
from tideline_table.coordination.shared.leaving import check_still_shared
from tideline_table.coordination.shared.lock_witness import locked_completions, untraced_completions
from tideline_table.coordination.unscheduling import NothingToDo
from tideline_table.errors import (
    IllegalTransition,
    ObjectExists,
    ObjectNotFound,
    StorageError,
    TableFrozen,
    TidelineError,
    WritesMissed,
)
from tideline_table.hudi.instant import State, time_from_instant
from tideline_table.hudi.listing import ListedTimeline
from tideline_table.hudi.properties import read_properties
from tideline_table.hudi.writer_traces import name_of
from tideline_table.log.body import Published
from tideline_table.log.entry import Entry
from tideline_table.log.plan import RollbackStep
from tideline_table.log.state import TableState
from tideline_table.log.table_log import Draft, PlaceTrimmed
from tideline_table.log.timeline_files import timeline_files
from tideline_table.storage import Storage, continues_log_only

_LOGGER = logging.getLogger(__name__)


def judged(draft: Draft, state: TableState, listed: ListedTimeline, storage: Storage, options: Options) -> Draft:
    """Return an adopted step, marked if it is a rollback by which Hudi undid a live Tideline write (`hudi_rules.check_lazy`)."""
    if not isinstance(draft.body, RollbackStep) or draft.before is not State.NONE:
        return draft
    target = state.actions.get(draft.body.target)
    if target is None or target.is_by_hudi or not target.is_pending or target.is_clustering:
        return draft  # Tideline rolls back its own clusterings while their heartbeats are fresh
    if not _was_certainly_alive(target.instant, draft.instant, listed, storage, options):
        return draft
    _LOGGER.error(
        "rollback %s of Apache Hudi undoes %s, whose heartbeat was fresh: its writer has to clean failed writes lazily",
        draft.instant,
        target.instant,
    )
    return replace(draft, body=replace(draft.body, eager=True))


def _was_certainly_alive(instant: str, rollback: str, listed: ListedTimeline, storage: Storage, options: Options) -> bool:
    """Return whether the heartbeat of an instant certainly was not missing for long when its rollback began.

    An instant begun longer ago than the allowed silence may have been silent in between: Hudi reads all heartbeats first and then
    rolls back one write after the other. A heartbeat after the rollback proves nothing: a writer resumes it after a long silence.
    """
    allowed = allowed_silence(options)
    begun = min(listed.modified[path] for step, path in listed.timeline.paths.items() if step.time == rollback)
    if begun - time_from_instant(instant) > allowed:
        return False
    try:
        beat = storage.stat(heartbeat_path(instant)).modified
    except ObjectNotFound:
        return False
    return timedelta(0) <= begun - beat <= allowed


_APPENDS = 100
_LOOKS, _LOOK_S = 20, 0.05


class LogFollower:
    """Appends to the log what the timeline of a shared table shows. Used under the mutex of the replica."""

    def __init__(self, replica: LogReplica) -> None:
        self.replica = replica
        self.listed: ListedTimeline | None = None
        """The timeline as of the last adoption."""
        self.unlocked: set[str] = set()
        """Writes of Apache Hudi that are known to have completed without the lock and are not adopted yet."""
        self.locked: frozenset[str] = frozenset()
        """Likewise, of the one writer that the lock's trace shows."""
        self._archive_read: str | None = None

    def is_behind(self, lock: HudiTableLock) -> bool:
        """Refresh, and return whether the timeline shows a step that the log lacks, or files to delete.

        Notes what the traces of `lock` say about new writes. The caller must not hold it.
        """
        self.replica.refresh()
        listed, state = ListedTimeline.read(self.replica.storage, self.replica.log.format), self.replica.state
        self.check_archive(listed)
        late = missing_steps(listed, state) or vanished(listed, state)
        self.unlocked |= untraced_completions(self.replica.storage, listed, state)
        self.locked = self._locked(lock, listed)
        if continues_log_only(self.replica.storage):
            return bool(late)
        return bool(late or late_files(listed, state)) or self._unfinished_sharing(listed) is not None

    def _locked(self, lock: HudiTableLock, listed: ListedTimeline) -> frozenset[str]:
        """Return the writes of `locked`. If the lock does not answer, no writer counts as seen until its next commit."""
        try:
            return locked_completions(lock, self.replica.storage, listed, self.replica.state)
        except (ObjectNotFound, TidelineError) as error:
            _LOGGER.warning("it is not known whether the last writes completed with the lock of the table: %s", error)
            return frozenset()

    def adopt(self) -> None:
        """List the timeline and append the steps that the log lacks.

        The caller holds the lock of the table and has called `check_still_shared` under it.
        """
        for _ in range(LISTINGS):
            try:
                self._adopt_listed()
            except ObjectNotFound:
                continue  # another process removes files: Hudi's rollback or archival, or one whose lock expired
            return
        raise StorageError("timeline files kept disappearing while they were adopted", remedy="retry")

    def adopt_unlocked(self, found: frozenset[str], clock: Clock) -> None:
        """Adopt the writes `found`, which completed without the lock.

        Waits a moment for a completed file that has no content yet: only memory keeps the mark of its write.
        """
        self.unlocked |= found
        for _ in range(_LOOKS):
            self.adopt()
            if not found & self.unlocked:
                return
            clock.sleep(_LOOK_S)

    def check_target(self, draft: Draft) -> None:
        """Raise `NothingToDo` for a new rollback of a write whose completed file is there without content.

        Apache Hudi's readers count such a write as completed and see its rows.
        """
        body = draft.body
        if not isinstance(body, RollbackStep) or draft.before is not State.NONE:
            return
        if self.listed is not None and body.target in self.listed.unwritten:
            _LOGGER.error("the completed file of %s is empty; it is not rolled back: restore the file, or remove it", body.target)
            raise NothingToDo

    def _adopt_listed(self) -> None:
        self.replica.refresh()
        listed = ListedTimeline.read(self.replica.storage, self.replica.log.format)
        mends = not continues_log_only(self.replica.storage)  # who only continues the log leaves timeline files to others
        if mends and (entry := self._unfinished_sharing(listed)) is not None:
            for path, content in timeline_files(entry, self.replica.log.format).create:
                with suppress(ObjectExists):
                    self.replica.storage.put_if_absent(path, content)
            listed = ListedTimeline.read(self.replica.storage, self.replica.log.format)
        self.listed = listed
        self.check_archive(listed)
        for path in late_files(listed, self.replica.state) if mends else ():
            self.replica.storage.delete(path)
        # Only actions pending before the listing: meanwhile other processes may append instants that the listing does not show.
        gone = vanished(listed, self.replica.state)
        for step in missing_steps(listed, self.replica.state):
            self.append(
                judged(
                    self._told(read_step(self.replica.storage, step, listed.timeline, self.replica.state), listed),
                    self.replica.state,
                    listed,
                    self.replica.storage,
                    self.replica.options,
                )
            )
        self.unlocked &= listed.unwritten
        self.locked = frozenset()
        for step in vanished(listed, self.replica.state):
            if step in gone:
                self.append(read_step(self.replica.storage, step, listed.timeline, self.replica.state))

    def _told(self, draft: Draft, listed: ListedTimeline) -> Draft:
        """Return an adopted step, with what is known of its writer and the lock."""
        if not isinstance(draft.body, Published):
            return draft
        if draft.instant not in self.unlocked:
            is_seen = bool(draft.body.writer) and draft.instant in self.locked
            return replace(draft, body=replace(draft.body, locked=True)) if is_seen else draft
        path = listed.timeline.path(draft.at(State.COMPLETED))
        writer = name_of(draft.body.metadata.extra, self.replica.storage.read(path))
        _LOGGER.error("write %s of Apache Hudi (%s) completed without the lock of the table", draft.instant, writer)
        return replace(draft, body=replace(draft.body, unlocked=writer))

    def _unfinished_sharing(self, listed: ListedTimeline) -> Entry | None:
        """Return the entry that made the table shared if its timeline files are missing: the only step that the log has first."""
        head = next((a for a in self.replica.state.actions.values() if a.sequence == self.replica.state.sequence), None)
        if head is None or head.is_by_hudi or head.state is not State.COMPLETED:
            return None
        begun, ended = map(head.at, (State.INFLIGHT, State.COMPLETED))
        if begun not in listed.timeline.paths or ended in listed.timeline.paths:
            return None
        entry = self.replica.log.read(head.sequence)
        return entry if entry is not None and isinstance(entry.body, Published) and entry.body.sharing is not None else None

    def check_archive(self, listed: ListedTimeline) -> None:
        """Raise `WritesMissed` if Hudi archived writes that the log lacks. Reads the archive only when the timeline's begin moved.

        Raises `UnsupportedTable` if the timeline is gone because the table was upgraded, and for what is not followed.
        """
        check_followed(listed)
        first = listed.first_completed
        if first == self._archive_read or not may_be_archived(listed, self.replica.state):
            return
        properties = read_properties(self.replica.storage)
        check_version(properties, self.replica.log.format)
        missed = missed_writes(self.replica.log.format.archived_instants(self.replica.storage), self.replica.state)
        if missed:
            raise WritesMissed(
                f"{len(missed)} write(s) of Apache Hudi, the first {missed[0]}, were archived before a Tideline process adopted "
                "them",
                expected="a mirror or writer of Tideline that reads the table at least once in hoodie.keep.min.commits of "
                "Apache Hudi's commits",
                remedy="with all writers stopped, remove .hoodie/.tideline and share the table again (tideline share PATH)",
            )
        self._archive_read = first

    def append(self, draft: Draft, only_at: int = 0) -> Entry | None:
        """Append to the log alone. Return None if the log has the step already, or another outcome of its instant.

        Also if the entry would not be number `only_at` (0: any). Raises `TableFrozen`, and leaves no entry, if the table was
        returned to the writers of Apache Hudi meanwhile.
        """
        for _ in range(_APPENDS):
            try:
                # After a pause longer than the lock lasts, another process may have adopted this step and gone on.
                self.replica.state.check(draft)
            except IllegalTransition:
                return None
            if only_at not in (0, self.replica.state.sequence + 1):
                return None
            try:
                entry = self.replica.log.append(draft, self.replica.state.sequence + 1)
            except PlaceTrimmed:
                self.replica.start_over()
                entry = None
            if entry is not None:
                self._check_not_left(entry)
                self.replica.fold(entry)
                self.replica.keep_up(entry)
                self._check_not_left(entry, has_kept=True)
                return entry
            self.replica.refresh()
        raise StorageError(f"the table log moved on {_APPENDS} times while {draft.instant} was appended", remedy="retry")

    def _check_not_left(self, entry: Entry, *, has_kept: bool = False) -> None:
        """Delete an entry that came after the log was removed, and raise `TableFrozen`: this process lost the lock unnoticed.

        Who leaves deletes the identity first and lists the log then, so either that listing shows the entry or this check. What
        `keep_up` wrote (`has_kept`) goes likewise. Nothing is deleted that others wrote: the table may be shared again.
        """
        try:
            check_still_shared(self.replica.storage, self.replica.uid)
        except TableFrozen:
            if has_kept:
                self.replica.maintenance.take_back(self.replica.state)
            self.replica.log.forget_late(entry)
            raise
        except TidelineError as error:
            if not has_kept:
                raise
            # The entry counts: the first check was behind it.
            _LOGGER.warning("it is not known whether the table was left after entry %d: %s", entry.sequence, error)
