"""The timeline of a table that Apache Hudi's writers share (docs/design/shared-tables.md).

Every step is taken under the lock that both engines honour: list the timeline, append to the log what Apache Hudi did, decide on
that, create the timeline files (the commit point), then append the mirror entry. If a writer dies before its mirror entry, the next
process adopts the step like one of Apache Hudi's. So the log follows the timeline, never the other way round.
"""

# ruff: noqa: D102 - the port documents these methods

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import timedelta

from tideline_table.config import LOCK_WAIT_S
from tideline_table.coordination.capabilities import SHARED, Capabilities
from tideline_table.coordination.completion import completion_after, wait_past
from tideline_table.coordination.file_times import above_time
from tideline_table.coordination.heartbeat import beats, forget_silent, heartbeat_path, is_dead
from tideline_table.coordination.lock import HeldHudiTableLock, HudiTableLock
from tideline_table.coordination.replica import LogReplica
from tideline_table.coordination.shared.adoption import has_completed, needless_rollbacks, seen_through
from tideline_table.coordination.shared.follower import LogFollower
from tideline_table.coordination.shared.hudi_rules import (
    check_buckets,
    check_lazy,
    check_not_ahead,
    check_version,
    hold_to_rules,
)
from tideline_table.coordination.shared.leaving import check_nothing_begun, check_still_shared, remove_tideline
from tideline_table.coordination.shared.lock_witness import may_be_watched, new_completions
from tideline_table.coordination.shared.metadata import check_kept, follow_step, turn_off_if_known
from tideline_table.coordination.shared.partition_numbers import check_numbers
from tideline_table.coordination.shared.timeline_file import create_file
from tideline_table.coordination.timeline import ActiveTimeline, Decide, kept_partitions
from tideline_table.errors import (
    ObjectNotFound,
    StorageError,
    TableFrozen,
    TidelineError,
    TransactionRolledBack,
    UnsupportedTable,
    WriteConflict,
)
from tideline_table.hudi.instant import WRITE_ACTIONS, Action, State, next_instant
from tideline_table.hudi.listing import ListedTimeline
from tideline_table.hudi.properties import read_properties
from tideline_table.log.action import ActionRecord
from tideline_table.log.entry import LOCK_GUARD_PATH, LOCK_MARK_PATH, TIDELINE_FOLDER, Entry
from tideline_table.log.plan import RollbackStep
from tideline_table.log.state import TableState
from tideline_table.log.table_log import Draft
from tideline_table.log.timeline_files import TimelineFiles, timeline_files
from tideline_table.storage import Folder
from tideline_table.writer.marker import forget_markers

_LOGGER = logging.getLogger(__name__)

_LOCK_ATTEMPTS = 20
_STARTING_S = 0.05
_BACK = timedelta(seconds=0.5)
"""How far back a plan of a compaction is dated at most: jobs need this long from their instant to their requested file."""
_WITH_BASE_FILES = WRITE_ACTIONS | {Action.COMPACTION}


class _LockLost(Exception):
    """Another process may hold the lock now; nothing was decided for good yet."""


class _HudiWriteStarting(Exception):
    """A write of Apache Hudi has its instant but has not read the table yet."""

    def __init__(self, instant: str) -> None:
        super().__init__(instant)
        self.instant = instant


class SharedTimeline(ActiveTimeline):
    """The timeline of a table that Apache Hudi writes, too: its files are the truth, the log follows. Read-only without a lock."""

    def __init__(self, replica: LogReplica, lock: HudiTableLock | None) -> None:
        super().__init__(replica)
        self._lock = lock
        self.follower = LogFollower(replica)
        self._view: tuple[int, TableState] | None = None
        self._given_up: set[str] = set()
        """Tideline writes that failed before they began: on the timeline they look like Apache Hudi's."""
        self._late: set[str] = set()
        """Instants whose delta commit in the metadata table may have come after the loss of the lock."""

    # --- reading -------------------------------------------------------------------------------------------------------------

    @property
    def capabilities(self) -> Capabilities:
        return SHARED

    @property
    def can_write(self) -> bool:
        """Whether it was opened with the lock that Apache Hudi takes."""
        return self._lock is not None

    def view(self) -> TableState:
        """See `ActiveTimeline.view`; includes steps of the timeline that the log lacks."""
        with self.replica.mutex:
            if self._view is not None and self._view[0] == self.state.sequence:
                return self._view[1]
            return self.state

    def refresh_view(self) -> TableState:
        """See `ActiveTimeline.refresh_view`; includes steps that are not adopted yet."""
        with self.replica.mutex:
            self.refresh()
            self._view = (
                self.state.sequence,
                seen_through(self.storage, self.format, self.state, self.clock.now(), self.follower.check_archive),
            )
            return self._view[1]

    def heal(self, min_age_s: float) -> bool:  # noqa: ARG002 - steps are never late here: the timeline has them at once
        """See `ActiveTimeline.heal`; adopts what the log lacks, because it follows the timeline here, and creates no file.

        Takes the lock only if there is a step to append.
        """
        with self.replica.mutex:
            if self._lock is None or not self.follower.is_behind(self._lock):
                return False
        check_still_shared(self.storage, self.replica.uid)  # also before the lock: no process would remove its files
        before = self.state.sequence
        with self._held() as held:
            self.follower.adopt()
            self._watch_lock(held)
        return self.state.sequence > before

    def check_writable(self, table: str, check_definition: Callable[[Folder], None]) -> None:  # noqa: ARG002 - the port's
        """See `ActiveTimeline.check_writable`. Raises `UnsupportedTable` without a lock or for a broken rule (`hudi_rules`)."""
        properties = read_properties(self.storage)
        check_version(properties, self.format)
        check_numbers(self.storage, properties)
        check_kept(properties, self.format, self.replica.options)
        if not self.can_write:
            raise UnsupportedTable(
                f"table {table!r} is shared with Apache Hudi's writers and was opened without their lock",
                expected="the lock that both sides take",
                remedy="Table.open(path, hudi_lock=tideline_locks.open_hudi_lock)",
            )
        state = self.refresh_view()
        check_lazy(state, self.clock, self.options)
        check_buckets(state, properties)

    def check_sole_writer(self, table: str, remedy: str) -> None:
        raise UnsupportedTable(
            f"table {table!r} is shared with Apache Hudi's writers", expected="an exclusive table", remedy=remedy
        )

    def catch_up(self) -> None:
        self.heal(0.0)

    def tidy_up(self) -> None:
        """See `ActiveTimeline.tidy_up`; removes needless rollbacks and expired heartbeats."""
        self._take_back_needless_rollbacks()
        forget_silent(self.storage, {a.instant for a in self.state.pending()}, self.clock, self.options)

    def _take_back_needless_rollbacks(self) -> None:
        """Remove rollbacks whose process died and that no action waits for: no other process would end them."""
        with self.replica.mutex:
            try:
                needless = needless_rollbacks(self.storage, ListedTimeline.read(self.storage, self.format), self.state)
            except ObjectNotFound:
                return  # another process ends one right now
            dead = [a for a in needless if is_dead(self.storage, a, self.clock, self.options)]
        if dead:
            self._take_back(dead)

    def give_up(self, plan: ActionRecord) -> None:
        """See `ActiveTimeline.give_up`: Hudi restored the table since, and either engine would delete visible files."""
        self._take_back([plan])

    def _take_back(self, begun: Sequence[ActionRecord]) -> None:
        """Remove actions that will never complete, and log them as rolled back. Hudi's rollback undoes no clean and no rollback."""
        with self._held():
            turn_off_if_known(self.storage, self.format, (a.instant for a in begun))
            for path in (self.format.timeline_path(a.at(s)) for a in begun for s in (State.INFLIGHT, State.REQUESTED)):
                self.storage.delete(path)
            self.follower.adopt()

    def leave(self) -> None:
        """See `ActiveTimeline.leave`. Writers that have the table open miss its identity at their next step."""
        with self._held() as held:
            self.follower.adopt()
            check_nothing_begun(self.state)
            if not held.is_held():
                raise StorageError("the lock of the table was taken away before the first step of leaving", remedy="retry")
            remove_tideline(self.storage)
        self._forget_lock_files()

    def forget_markers(self, target: str, found: Iterable[str]) -> None:  # noqa: ARG002 - the port's
        """See `ActiveTimeline.forget_markers`; deletes all, because Apache Hudi archives without an orphan-file cleanup."""
        forget_markers(self.storage, target)

    # --- writing -------------------------------------------------------------------------------------------------------------

    def _append(self, decide: Decide) -> Entry:
        """Take the step under the lock: it is taken when its timeline files exist.

        Raises `UnsupportedTable` without a lock or for a broken rule (`hudi_rules`), `WriteConflict` if a new Hudi write hangs.
        """
        lost = 0
        deadline_s = self.clock.monotonic_s() + self.options[LOCK_WAIT_S]
        while lost < _LOCK_ATTEMPTS:
            with self._held() as held:  # it is still shared: nothing of another table is mended here
                try:
                    return self._append_under(held, decide)
                except _LockLost:
                    lost += 1
                    _LOGGER.warning("the table's lock was taken away while it was held; taking it again")
                    continue
                except _HudiWriteStarting as starting:
                    if self.clock.monotonic_s() >= deadline_s:
                        raise WriteConflict(
                            f"write {starting.instant} of Apache Hudi has been starting for {self.options[LOCK_WAIT_S]:g} s",
                            with_instant=starting.instant,
                            remedy="retry; when its writer is dead, its heartbeat says so soon",
                        ) from None
            self.clock.sleep(_STARTING_S)
        raise StorageError(
            f"the lock of the table was taken away {_LOCK_ATTEMPTS} times while it was held",
            remedy="look for a writer that deletes .hoodie/lock, then retry",
        )

    def mint(self, state: TableState) -> str:
        """Return the present, above the last time of the table and, where names say no completion times, those of completed files.

        By these, Hudi 1.x places log files then (11.3).

        Raises `ClockSkew` if the last instant is too far ahead of this machine's clock: Hudi's writers take instants from the clock
        alone, so a base file with an instant ahead of it would hide what they write next.
        """
        return self._minted(state, timedelta())

    def _minted(self, state: TableState, back: timedelta) -> str:
        check_not_ahead(state, self.clock, self.options)
        minted = next_instant(self.clock.now() - back, state.last_instant)
        if self.format.has_completion_times:
            return minted
        last = self.follower.listed.last_completion if self.follower.listed is not None else None
        return above_time(minted, last, state)

    def mint_above_files(self, state: TableState) -> str:
        """See `ActiveTimeline.mint_above_files`. Where names say no completion times, it lies a moment back, between the writes.

        A job of Apache Hudi whose instant is below that of a plan which it did not know fails. With one above, it appends to the
        slice that the plan begins. Not where jobs run compactions themselves: they would not wait for a write that missed the plan.
        """
        jobs_compact = any(a.is_by_hudi and a.action is Action.COMPACTION for a in state.actions.values())
        return self._minted(state, timedelta() if self.format.has_completion_times or jobs_compact else _BACK)

    @contextmanager
    def _held(self) -> Iterator[HeldHudiTableLock]:
        """Hold the lock of the table. Raises `TableFrozen` for one that was left, and removes what the lock left there."""
        try:
            with self._checked_lock().hold() as held, self.replica.mutex:
                check_still_shared(self.storage, self.replica.uid)
                yield held
        except TableFrozen:
            with suppress(StorageError):
                left = self.storage.list_folder(TIDELINE_FOLDER)
                if not left.folders and all(found.path == LOCK_GUARD_PATH for found in left.objects):
                    self._forget_lock_files()
            raise

    def _forget_lock_files(self) -> None:
        """Delete what the release of a file lock needed. Who shares the table again needs all else."""
        for path in (LOCK_GUARD_PATH, LOCK_MARK_PATH):
            self.storage.delete(path)

    def _checked_lock(self) -> HudiTableLock:
        if self._lock is None:
            raise UnsupportedTable(
                "a table shared with Apache Hudi's writers, opened without their lock",
                expected="the lock that both sides take",
                remedy="open it with tideline_locks.open_hudi_lock: Table.open(path, hudi_lock=open_hudi_lock)",
            )
        return self._lock

    def _append_under(self, held: HeldHudiTableLock, decide: Decide) -> Entry:
        hold_to_rules(self.storage, self.format, kept_partitions(self.replica.options))
        turn_off_if_known(self.storage, self.format, self._late)
        self._late.clear()
        self.follower.adopt()
        draft = self._timed(decide(self.state))
        self.state.check(draft)
        self.follower.check_target(draft)
        if draft.before is State.NONE and draft.action is not Action.ROLLBACK:
            # Also for a write that was just undone and begins again.
            check_lazy(self.state, self.clock, self.options)
        self.replica.check_clock(draft)
        self._let_hudi_writes_start(draft)
        if self.format.has_completion_times and (new := draft.completion or (draft.before is State.NONE and draft.instant)):
            wait_past(self.clock, new)
        if not held.is_held():
            raise _LockLost
        self._take_step(draft, held)
        if isinstance(draft.body, RollbackStep) and draft.before is State.NONE and not held.is_held():
            self._look_behind_fence(draft, draft.body.target)
        entry = self._mirror(draft)
        self._watch_lock(held, draft.instant)
        self._check_not_undone(draft)
        return entry

    def _timed(self, draft: Draft) -> Draft:
        """Return the draft with its completion time, if names of timeline files have one: later than every time on the timeline."""
        if not self.format.has_completion_times or draft.after is not State.COMPLETED:
            return draft
        return replace(draft, completion=completion_after(self.state, draft, self.clock.now()))

    def _watch_lock(self, held: HeldHudiTableLock, own: str = "") -> None:
        """Adopt writes that completed while this process held the lock: they prove a writer that does not take it.

        The step of this process, of the instant `own`, is taken, although its entry may be late, so an error of the storage is
        only a warning. One listing while a write of Apache Hudi is pending, no request otherwise.
        """
        if not may_be_watched(self.state):
            return
        try:
            # A file that was empty before it took the lock is a job's that died there, or had the lock then.
            empty = self.follower.listed.unwritten if self.follower.listed else frozenset()
            found = new_completions(ListedTimeline.read(self.storage, self.format), self.state) - {own} - empty
            if found and held.is_held():  # asked behind the listing: so it was held all the time
                self.follower.adopt_unlocked(found, self.clock)
        except TidelineError as error:
            _LOGGER.warning("it is not known whether a write completed without the lock of the table: %s", error)

    def _look_behind_fence(self, draft: Draft, target: str) -> None:
        """Remove a late rollback's own files if its target completed meanwhile, because no file of the target may be deleted."""
        if not has_completed(ListedTimeline.read(self.storage, self.format), target):
            return  # from here on, the target's writer sees the rollback
        for path in reversed([path for path, _ in self._files_of(draft).create]):
            self.storage.delete(path)
        raise _LockLost

    def _check_not_undone(self, draft: Draft) -> None:
        """Raise `TransactionRolledBack` for a write that stopped between its first files for so long that it counted as dead."""
        known = self.state.actions.get(draft.instant)
        if draft.after is State.INFLIGHT and known is not None and known.state is State.ROLLED_BACK:
            for path, _ in self._files_of(draft).create:
                self.storage.delete(path)
            raise TransactionRolledBack(
                f"instant {draft.instant} was rolled back while it began", expected="the lock until then", remedy="begin again"
            )

    def _let_hudi_writes_start(self, draft: Draft) -> None:
        """Raise `_HudiWriteStarting` while completing `draft` could lose an update of Apache Hudi.

        Hudi takes its instant first and reads the table later, not under one lock. It would merge into base files that complete in
        between with a later instant, and its own base file, with the earlier instant, would never be read. Once its inflight file
        exists, Hudi has read the table and detects the conflict itself. It detects none with a compaction whose instant is the
        earlier one: what a write that may not know the plan appends to the slice before, the executor reads once it has completed.
        Raises `WriteConflict` for such a write at once, also before the compaction begins: it may last for hours, needs the lock to
        complete, and each attempt beside it would merge for nothing.
        """
        begins = draft.action is Action.COMPACTION and draft.after is State.INFLIGHT
        if not begins and (draft.after is not State.COMPLETED or draft.action not in _WITH_BASE_FILES):
            return
        for record in self.state.pending():
            if not record.is_by_hudi or record.action not in WRITE_ACTIONS or record.is_clustering:
                continue
            earlier = not begins and record.state is State.REQUESTED and record.instant < draft.instant
            missed = self._may_miss(draft, record)
            waits = (earlier or missed) and record.instant not in self._given_up
            if not waits or record.fenced_by or not beats(self.storage, record.instant, self.clock, self.options):
                continue
            if missed:
                raise WriteConflict(
                    f"write {record.instant} of Apache Hudi may not know compaction {draft.instant}, and is not completed",
                    with_instant=record.instant,
                    remedy="run the compaction once the write has ended: it then reads the write's rows, too",
                )
            raise _HudiWriteStarting(record.instant)

    def _may_miss(self, plan: Draft, write: ActionRecord) -> bool:
        """Return whether a write may have read the table before a compaction with an earlier instant was planned.

        The times of their requested files tell, which are the storage's.
        """
        listed = self.follower.listed
        if plan.action is not Action.COMPACTION or self.format.has_completion_times or listed is None:
            return False
        planned, began = (listed.modified.get(self.format.timeline_path(of.at(State.REQUESTED))) for of in (plan, write))
        return planned is not None and began is not None and plan.instant < write.instant and began <= planned

    def _take_step(self, draft: Draft, held: HeldHudiTableLock) -> None:
        """Create the timeline files, after the deletions of the step; the last file makes the step visible to other processes."""
        files = self._files_of(draft)
        if draft.after is State.COMPLETED:
            self._check_begun(draft)
        files = self._with_inflight(draft, files)
        step = draft.entry(self.state.sequence + 1, self.clock.now())
        options = self.replica.options
        follows = kept_partitions(options) and follow_step(self.storage, self.format, self.state, step, options, self.rule)
        if follows and not held.is_held():
            self._late.add(draft.instant)
            raise _LockLost
        for path in files.delete:
            self.storage.delete(path)
        if draft.before is not State.NONE or draft.after is not State.INFLIGHT or draft.action not in WRITE_ACTIONS:
            self._create_all(files, draft, held)
            return
        try:
            # As Hudi does: its lazy cleaning takes a write without a heartbeat for dead.
            self.storage.put(heartbeat_path(draft.instant), b"")
            self._create_all(files, draft, held)
        except TidelineError:
            self._given_up.add(draft.instant)
            with suppress(TidelineError):
                self.storage.delete(heartbeat_path(draft.instant))
            raise

    def _create_all(self, files: TimelineFiles, draft: Draft, held: HeldHudiTableLock) -> None:
        for path, content in files.create:
            create_file(self.storage, path, content, draft, held)

    def _files_of(self, draft: Draft) -> TimelineFiles:
        return timeline_files(draft.entry(self.state.sequence + 1, self.clock.now()), self.format)

    def _with_inflight(self, draft: Draft, files: TimelineFiles) -> TimelineFiles:
        # A new attempt at a plan whose last attempt Hudi rolled back, which removed the inflight file.
        inflight = draft.at(State.INFLIGHT)
        assert self.follower.listed is not None
        if draft.before is State.INFLIGHT and draft.after is State.INFLIGHT and inflight not in self.follower.listed.timeline.paths:
            return TimelineFiles(((self.format.timeline_path(inflight), b""), *files.create), files.delete)
        return files

    def _check_begun(self, draft: Draft) -> None:
        # Check both files: a writer stopped between the two creates the second after a rollback has removed the first.
        begun = (State.REQUESTED, State.INFLIGHT) if draft.action in _WITH_BASE_FILES else (State.INFLIGHT,)
        assert self.follower.listed is not None
        gone = [state for state in begun if draft.at(state) not in self.follower.listed.timeline.paths]
        if gone:
            raise TransactionRolledBack(
                f"instant {draft.instant} is not {gone[0]} on the timeline any more",
                expected=f"its {gone[0]} file",
                remedy="Apache Hudi took it back; begin again",
            )

    def _mirror(self, draft: Draft) -> Entry:
        """Append the mirror entry of a step. The step is taken already, so a failed append is only a warning."""
        try:
            entry = self.follower.append(draft)
        except TidelineError as error:
            _LOGGER.warning(
                "the log entry of %s %s is late: %s (the next writer or the mirror adopts it)", draft.action, draft.instant, error
            )
            return draft.entry(self.state.sequence + 1, self.clock.now())
        known = self.state.actions.get(draft.instant)
        return entry or draft.entry(known.sequence if known is not None else self.state.sequence, self.clock.now())
