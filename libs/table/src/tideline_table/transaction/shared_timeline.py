"""The timeline of a table that Apache Hudi's writers share (design: "A commit", shared mode).

Every step is taken under the lock that both sides honour: list the timeline, append to the log what the other side did, decide on that, create
the timeline files (the commit point), then append the mirror entry. An entry that is missing because its writer died is adopted like anybody
else's step, so the log heals by the timeline, never the other way round.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress

from tideline_table.clock import Clock
from tideline_table.config import LOCK_WAIT_S, Options
from tideline_table.errors import (
    IllegalTransition,
    ObjectExists,
    ObjectNotFound,
    StorageError,
    TidelineError,
    TransactionRolledBack,
    UnsupportedTable,
    WriteConflict,
    WritesMissed,
)
from tideline_table.file_group.action import ActionRecord
from tideline_table.file_group.state import TableState
from tideline_table.storage import Storage
from tideline_table.timeline.entry import Entry
from tideline_table.timeline.files import TimelineFiles, timeline_files, timeline_path
from tideline_table.timeline.instant import WRITE_ACTIONS, Action, Instant, State
from tideline_table.timeline.log import Draft, PlaceTrimmed
from tideline_table.timeline.sharing import SHARING_KEY
from tideline_table.transaction.active_timeline import ActiveTimeline, Decide, above_time
from tideline_table.transaction.adoption import (
    LISTINGS,
    ListedTimeline,
    draft_entry,
    has_completed,
    late_files,
    may_be_archived,
    missed_writes,
    missing_steps,
    needless_rollbacks,
    read_step,
    seen_through,
    vanished,
)
from tideline_table.transaction.archive import read_archived_instants
from tideline_table.transaction.eager_rollback import judged
from tideline_table.transaction.heartbeat import beats, heartbeat_path, is_dead
from tideline_table.transaction.lock import HeldPeerLock, PeerLock
from tideline_table.transaction.peer_rules import check_lazy, check_version, hold_to_rules, read_properties
from tideline_table.transaction.shared_file import create_file

_LOGGER = logging.getLogger(__name__)

_LOCK_ATTEMPTS = 20
_STARTING_S = 0.05
_WITH_BASE_FILES = WRITE_ACTIONS | {Action.COMPACTION}
_APPENDS = 100


class _LockLost(Exception):
    """Somebody else may hold the lock: nothing was decided for good yet."""


class _PeerStarting(Exception):
    """A write of the other side has its instant and not yet its view of the table."""

    def __init__(self, instant: str) -> None:
        super().__init__(instant)
        self.instant = instant


class SharedTimeline(ActiveTimeline):
    """One shared table's timeline as this process knows it. Without a lock it can be read only."""

    def __init__(self, storage: Storage, clock: Clock, writer_id: str, options: Options, lock: PeerLock | None) -> None:
        super().__init__(storage, clock, writer_id, options)
        self._lock = lock
        self._listed: ListedTimeline | None = None
        self._view: tuple[int, TableState] | None = None
        self._archive_read: str | None = None
        self._given_up: set[str] = set()
        """Writes of ours that failed before they had begun: on the timeline they look like the other side's."""

    # --- reading -------------------------------------------------------------------------------------------------------------

    @property
    def can_write(self) -> bool:
        """Whether it was opened with the lock that the other side takes."""
        return self._lock is not None

    def view(self) -> TableState:
        """The state with what the timeline shows beyond the log, as of the last `look`."""
        with self._mutex:
            if self._view is not None and self._view[0] == self.state.sequence:
                return self._view[1]
            return self.state

    def look(self) -> TableState:
        """See `ActiveTimeline.look`; what nobody adopted yet is in it, too."""
        with self._mutex:
            self.refresh()
            self._view = (self.state.sequence, seen_through(self.storage, self.state, self.clock.now(), self._check_archive))
            return self._view[1]

    def adopt(self) -> int:
        """Append what the other side did; returns the number of entries. Takes the lock only when there is something."""
        with self._mutex:
            self.refresh()
            listed = ListedTimeline.read(self.storage)
            self._check_archive(listed)
            if (
                not missing_steps(listed, self.state)
                and not vanished(listed, self.state)
                and not late_files(listed, self.state)
                and self._unfinished_sharing(listed) is None
            ):
                return 0
        before = self.state.sequence
        with self._checked_lock().hold(), self._mutex:
            self._adopt()
        return self.state.sequence - before

    def heal(self, min_age_s: float) -> bool:  # noqa: ARG002 - nobody's step is late here: the timeline has it at once
        """The log follows the timeline here: nothing is created, what the log lacks is adopted; True when there was something."""
        return self.can_write and self.adopt() > 0

    def take_back_needless_rollbacks(self) -> None:
        """Remove rollbacks whose process died and that nothing waits for: nobody else would ever end them."""
        with self._mutex:
            try:
                needless = needless_rollbacks(self.storage, ListedTimeline.read(self.storage), self.state)
            except ObjectNotFound:
                return  # somebody else ends one right now
            dead = [a for a in needless if is_dead(self.storage, a, self.clock, self.options)]
        if dead:
            self.take_back(dead)

    def take_back(self, begun: Sequence[ActionRecord]) -> None:
        """Remove what never completes from the timeline, and note it as rolled back: no rollback of Hudi's undoes cleans and rollbacks."""
        with self._checked_lock().hold(), self._mutex:
            for path in (timeline_path(Instant(a.instant, a.action, s)) for a in begun for s in (State.INFLIGHT, State.REQUESTED)):
                self.storage.delete(path)
            self._adopt()

    # --- writing -------------------------------------------------------------------------------------------------------------

    def append(self, decide: Decide) -> Entry:
        """As `ActiveTimeline.append`; the step is taken when its timeline files are there.

        Raises `UnsupportedTable` without a lock, `WriteConflict` when a write of the other side never gets going, and for what the other side must not do (`peer_rules`).
        """
        lock, lost = self._checked_lock(), 0
        deadline_s = self.clock.monotonic_s() + self.options[LOCK_WAIT_S]
        while lost < _LOCK_ATTEMPTS:
            with lock.hold() as held, self._mutex:
                try:
                    return self._append_under(held, decide)
                except _LockLost:
                    lost += 1
                    _LOGGER.warning("the table's lock was taken away while it was held; taking it again")
                    continue
                except _PeerStarting as starting:
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
        """See `ActiveTimeline.mint`; also above the time of every completed file, by which Hudi 1.x places log files (11.3)."""
        minted = super().mint(state)
        last = self._listed.last_completion if self._listed is not None else None
        return above_time(minted, last, state)

    def mint_above_files(self, state: TableState) -> str:
        """See `ActiveTimeline.mint_above_files`; every instant is, here."""
        return self.mint(state)

    def _checked_lock(self) -> PeerLock:
        if self._lock is None:
            raise UnsupportedTable(
                "a table shared with Apache Hudi's writers, opened without their lock",
                expected="the lock that both sides take",
                remedy="open it with tideline_locks.open_peer_lock: Table.open(path, peer_lock=open_peer_lock)",
            )
        return self._lock

    def _append_under(self, held: HeldPeerLock, decide: Decide) -> Entry:
        hold_to_rules(self.storage)
        self._adopt()
        draft = decide(self.state)
        self.state.check(draft)
        if draft.before is State.NONE and draft.action is not Action.ROLLBACK:
            # Also of a write that was just undone and begins again.
            check_lazy(self.state, self.clock, self.options)
        self._let_peers_start(draft)
        if not held.is_held():
            raise _LockLost
        self._take_step(draft, held)
        if draft.action is Action.ROLLBACK and draft.before is State.NONE and not held.is_held():
            self._look_behind_fence(draft)
        entry = self._mirror(draft)
        self._check_not_undone(draft)
        return entry

    def _look_behind_fence(self, draft: Draft) -> None:
        """A rollback that came late takes itself back when its target completed meanwhile: nothing of that may be deleted."""
        if not has_completed(ListedTimeline.read(self.storage), str(draft.body["target"])):
            return  # from here on its writer sees the rollback
        for path in reversed([path for path, _ in self._files_of(draft).create]):
            self.storage.delete(path)
        raise _LockLost

    def _check_not_undone(self, draft: Draft) -> None:
        """Raise `TransactionRolledBack` for a write that was stopped between its first files for so long that it counted as dead."""
        known = self.state.actions.get(draft.instant)
        if draft.after is State.INFLIGHT and known is not None and known.state is State.ROLLED_BACK:
            for path, _ in self._files_of(draft).create:
                self.storage.delete(path)
            raise TransactionRolledBack(
                f"instant {draft.instant} was rolled back while it began", expected="the lock until then", remedy="begin again"
            )

    def _let_peers_start(self, draft: Draft) -> None:
        """Raise `_PeerStarting` while completing `draft` could cost an update of the other side.

        Hudi takes its instant first and looks at the table later, not under one lock. Base files that complete in between with a later instant
        would be what it merges into, under an instant that lies before them: its own base file would never be read. Once its inflight file is
        there it has looked, and finds the conflict by itself.
        """
        if draft.after is not State.COMPLETED or draft.action not in _WITH_BASE_FILES:
            return
        for record in self.state.pending():
            if record.is_peers and record.state is State.REQUESTED and record.action in WRITE_ACTIONS and not record.is_clustering:
                earlier = record.instant < draft.instant and record.instant not in self._given_up
                if earlier and not record.fenced_by and beats(self.storage, record.instant, self.clock, self.options):
                    raise _PeerStarting(record.instant)

    def _adopt(self) -> None:
        for _ in range(LISTINGS):
            try:
                self._adopt_listed()
            except ObjectNotFound:
                continue  # others take files away: ends of rollbacks and archivals, and whoever goes on since our lock ran out
            return
        raise StorageError("timeline files kept disappearing while they were adopted", remedy="retry")

    def _adopt_listed(self) -> None:
        self.refresh()
        listed = ListedTimeline.read(self.storage)
        if (entry := self._unfinished_sharing(listed)) is not None:
            for path, content in timeline_files(entry).create:
                with suppress(ObjectExists):
                    self.storage.put_if_absent(path, content)
            listed = ListedTimeline.read(self.storage)
        self._listed = listed
        self._check_archive(listed)
        for path in late_files(listed, self.state):
            self.storage.delete(path)
        # By the state before the listing: while we log, others may go on with instants that it does not show.
        gone = vanished(listed, self.state)
        for step in missing_steps(listed, self.state):
            self._log(
                judged(read_step(self.storage, step, listed.timeline, self.state), self.state, listed, self.storage, self.options)
            )
        for step in vanished(listed, self.state):
            if step in gone:
                self._log(read_step(self.storage, step, listed.timeline, self.state))

    def _unfinished_sharing(self, listed: ListedTimeline) -> Entry | None:
        """The one step that the log has before the timeline, if its writer died between the two: that by which a table of ours became shared."""
        head = next((a for a in self.state.actions.values() if a.sequence == self.state.sequence), None)
        if head is None or head.is_peers or head.state is not State.COMPLETED:
            return None
        begun, ended = (Instant(head.instant, head.action, state) for state in (State.INFLIGHT, State.COMPLETED))
        if begun not in listed.timeline.paths or ended in listed.timeline.paths:
            return None
        entry = self.log.read(head.sequence)
        return entry if entry is not None and SHARING_KEY in entry.body else None

    def _check_archive(self, listed: ListedTimeline) -> None:
        """Raise `WritesMissed` when Apache Hudi archived writes that the log does not have. The archive is read when the timeline's begin has moved.

        Raises `UnsupportedTable` where the timeline is gone because the table was upgraded.
        """
        first = listed.first_completed
        if first == self._archive_read or not may_be_archived(listed, self.state):
            return
        properties = read_properties(self.storage)
        check_version(properties)
        missed = missed_writes(read_archived_instants(self.storage, properties), self.state)
        if missed:
            raise WritesMissed(
                f"{len(missed)} write(s) of Apache Hudi, the first {missed[0]}, were archived before anybody adopted them",
                expected="a look at the table at least once in hoodie.keep.min.commits of Apache Hudi's commits: the mirror's",
                remedy="with all writers stopped, remove .hoodie/.tideline and share the table again (tideline share PATH)",
            )
        self._archive_read = first

    def _log(self, draft: Draft) -> Entry | None:
        """Append to the log alone; None when the log has the step by now, or what others made of its instant."""
        for _ in range(_APPENDS):
            try:
                # Who was stopped for longer than the lock lasts finds that others adopted its step and went on.
                self.state.check(draft)
            except IllegalTransition:
                return None
            try:
                entry = self.log.append(draft, self.state.sequence + 1)
            except PlaceTrimmed:
                self._start_over()
                entry = None
            if entry is not None:
                self._fold(entry)
                self._keep_up(entry)
                return entry
            self.refresh()
        raise StorageError(f"the table log moved on {_APPENDS} times while {draft.instant} was appended", remedy="retry")

    def _take_step(self, draft: Draft, held: HeldPeerLock) -> None:
        """Create the timeline files, the last of which is what others see the step by; then what Hudi removes at its end."""
        files = self._files_of(draft)
        if draft.after is State.COMPLETED:
            self._check_begun(draft)
        files = self._with_inflight(draft, files)
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

    def _create_all(self, files: TimelineFiles, draft: Draft, held: HeldPeerLock) -> None:
        for path, content in files.create:
            create_file(self.storage, path, content, draft, held)

    def _files_of(self, draft: Draft) -> TimelineFiles:
        return timeline_files(draft_entry(draft, self.state.sequence + 1, self.clock.now()))

    def _with_inflight(self, draft: Draft, files: TimelineFiles) -> TimelineFiles:
        # Another attempt at a plan whose last attempt Hudi took back.
        inflight = Instant(draft.instant, draft.action, State.INFLIGHT)
        assert self._listed is not None
        if draft.before is State.INFLIGHT and draft.after is State.INFLIGHT and inflight not in self._listed.timeline.paths:
            return TimelineFiles(((timeline_path(inflight), b""), *files.create), files.delete)
        return files

    def _check_begun(self, draft: Draft) -> None:
        # Both files: who was stopped between the two creates the second one behind a rollback that took the first away.
        begun = (State.REQUESTED, State.INFLIGHT) if draft.action in _WITH_BASE_FILES else (State.INFLIGHT,)
        assert self._listed is not None
        gone = [state for state in begun if Instant(draft.instant, draft.action, state) not in self._listed.timeline.paths]
        if gone:
            raise TransactionRolledBack(
                f"instant {draft.instant} is not {gone[0]} on the timeline any more",
                expected=f"its {gone[0]} file",
                remedy="Apache Hudi took it back; begin again",
            )

    def _mirror(self, draft: Draft) -> Entry:
        """The step is taken: whatever happens to its entry is no failure of it."""
        try:
            entry = self._log(draft)
        except TidelineError as error:
            _LOGGER.warning("the log entry of %s %s is late: %s (whoever comes next adopts it)", draft.action, draft.instant, error)
            return draft_entry(draft, self.state.sequence + 1, self.clock.now())
        known = self.state.actions.get(draft.instant)
        return entry or draft_entry(draft, known.sequence if known is not None else self.state.sequence, self.clock.now())
