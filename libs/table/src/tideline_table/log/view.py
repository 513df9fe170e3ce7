"""What a table state holds, and what queries, plans and writers ask of it: its timeline and its file slices.

Nothing here changes it. `check_step` says which steps may follow: writers ask it before an append, and the fold before an entry
counts.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from dataclasses import dataclass, field
from heapq import nlargest
from itertools import chain
from operator import attrgetter
from typing import Protocol

from tideline_table.errors import CorruptMetadata, IllegalTransition
from tideline_table.file_group.slice import FileGroupId, FileSlice, visible_slice, visible_slices
from tideline_table.hudi.file_names import parse_log_file_name
from tideline_table.hudi.instant import PUBLISHING_ACTIONS, Action, State, check_transition
from tideline_table.log.action import PENDING, ActionRecord
from tideline_table.log.body import RestoreBegun
from tideline_table.log.entry import Entry
from tideline_table.log.metadata import MetadataTable
from tideline_table.log.packed import PackedSlices, Parts, Where
from tideline_table.log.part_summary import PartSummary, summary_of
from tideline_table.log.plan import (
    ArchivalPlanned,
    CleanPlanned,
    ClusteringPlanned,
    CompactionPlanned,
    Plan,
    RestorePlanned,
    RollbackStep,
)
from tideline_table.log.progress import Progress
from tideline_table.log.resizes import BucketResize, made_by
from tideline_table.log.rewind import Rewind
from tideline_table.log.savepoint import Saved, Savepoint, saved_by_log
from tideline_table.log.sharing import HUDI_WRITER, Sharing
from tideline_table.log.table_log import Draft
from tideline_table.log.undo import Rewritten

_NAMED = 2
"""A summary names the first and the last partition of its part."""


class KnownSteps(Protocol):
    """The part of a table's state (`TableState`) that decides which transition may follow."""

    actions: dict[str, ActionRecord]
    savepoints: dict[str, Savepoint]
    sharing: Sharing | None

    @property
    def restoring(self) -> str:
        """Instant of the pending restore; empty if there is none."""


def check_step(state: KnownSteps, step: Draft | Entry) -> None:
    """Raise `IllegalTransition` unless `step` is a valid next transition; `CorruptMetadata` if a rollback names a wrong action."""
    named = f"{step.action} {step.instant}"
    if state.restoring not in ("", step.instant) and state.sharing is None:
        raise IllegalTransition(
            f"{named} while restore {state.restoring} is pending", expected="no other action until it completes"
        )
    if step.action is Action.SAVEPOINT:
        _check_savepoint(state, step)
        return
    known = state.actions.get(step.instant)
    before = known.state if known else State.NONE
    if before is not step.before:
        raise IllegalTransition(f"a step of {named} from {step.before} to {step.after}", expected=f"a step from {before}")
    check_transition(step.instant, step.action, step.before, step.after)
    if known is not None and known.action is not step.action:
        raise IllegalTransition(f"a step of {named}", expected=f"a step of {known.action} {step.instant}")
    if known is not None and known.fenced_by and step.after is not State.ROLLED_BACK:
        raise IllegalTransition(
            f"a step of {named} to {step.after} after rollback {known.fenced_by} was requested for it", expected="no further step"
        )
    if step.action is Action.ROLLBACK:
        _check_rollback(state, step)
    if isinstance(step.body, RestorePlanned | RestoreBegun):
        _check_rewind(state, step.body.rewind, step.instant)


def _check_savepoint(state: KnownSteps, step: Draft | Entry) -> None:
    before = State.COMPLETED if step.instant in state.savepoints else State.NONE
    if before is not step.before:
        raise IllegalTransition(f"a step of savepoint {step.instant} from {step.before}", expected=f"a step from {before}")
    check_transition(step.instant, step.action, step.before, step.after)
    write = state.actions.get(step.instant)
    if write is None or write.state is not State.COMPLETED or write.action not in PUBLISHING_ACTIONS:
        raise IllegalTransition(f"a savepoint of {step.instant}", expected="a completed write")


def _check_rewind(state: KnownSteps, back: Rewind, restore: str) -> None:
    if back.savepoint not in state.savepoints:
        raise IllegalTransition(f"restore {restore} to {back.savepoint}", expected="a savepoint")
    ended, pending = (State.COMPLETED,), (State.REQUESTED, State.INFLIGHT)
    for named, states in (((*back.undone, *back.rollbacks), ended), (back.fenced, pending)):
        for instant, action in named:
            known = state.actions.get(instant)
            if known is None or known.action is not action or known.state not in states:
                raise IllegalTransition(f"restore {restore} undoes {instant}", expected=f"a {action} that is {states[-1]}")


def _check_rollback(state: KnownSteps, step: Draft | Entry) -> None:
    body = step.body if isinstance(step.body, RollbackStep) else RollbackStep("", "")
    target = state.actions.get(body.target)
    if step.writer_id == HUDI_WRITER and state.sharing is not None:
        return  # it has happened already, and Apache Hudi may also roll back completed writes
    if state.sharing is not None and step.after is State.COMPLETED and target is not None and target.fenced_by:
        return  # Apache Hudi rolled back the same instant at the same time
    if target is None or not target.is_pending:
        raise IllegalTransition(
            f"rollback {step.instant} of {body.target or 'no instant'}", expected="a pending instant as its target"
        )
    if target.fenced_by not in ("", step.instant):
        raise IllegalTransition(
            f"rollback {step.instant} of {target.instant}", expected=f"rollback {target.fenced_by}, which began first"
        )
    if body.target_action != target.action:
        raise CorruptMetadata(
            f"rollback {step.instant} of {target.instant} as action {body.target_action!r}", expected=f"action {target.action}"
        )


@dataclass(slots=True)
class StateView:
    """The table as of `sequence` of its log. `TableState` folds the entries of the log into it."""

    sequence: int = 0
    last_instant: str = ""
    actions: dict[str, ActionRecord] = field(default_factory=dict)
    slices: MutableMapping[FileGroupId, Mapping[str, FileSlice]] = field(default_factory=dict)
    """Committed slices by base instant, oldest first, without cleaned slices. `PackedSlices` in a table with many file groups."""
    replaced: dict[FileGroupId, str] = field(default_factory=dict)
    plans: dict[str, Plan] = field(default_factory=dict)
    """Plans of pending actions, by instant."""
    clustering_losses: dict[FileGroupId, int] = field(default_factory=dict)
    schema_json: str = ""
    progress: dict[str, Progress] = field(default_factory=dict)
    """Ingestion progress: the newest committed value of each key."""
    schemas: dict[str, str] = field(default_factory=dict)
    """Schemas of the table, by the instant of the write that introduced each."""
    identified_schemas: tuple[str, ...] = ()
    """Schema history of a Hudi-written table whose columns have ids, oldest first."""
    last_clean_retained: str = ""
    """Queries as of this instant or later find their files; so do queries of the state just before it if `whole_since` is older.
    Cleans deleted files of older states."""
    whole_since: str = ""
    """States before this instant, including the one just before it, may lack files that cleaning by file versions deleted."""
    archived_before: str = ""
    """Start of the active timeline. Older instants that are not in `actions` were completed and archived (11.1)."""
    archived_sequence: int = 0
    """In a table with a log: the highest completion sequence of an archived write."""
    excess: set[FileGroupId] = field(default_factory=set)
    """File groups that a clean has to examine: groups with more than one slice, and replaced groups."""
    savepoints: dict[str, Savepoint] = field(default_factory=dict)
    """Savepoints by the instant of the write they protect. Savepoints of Apache Hudi in shared tables are on the timeline only."""
    rewritten: tuple[Rewritten, ...] = ()
    """Ranges of the log that contain completed writes which were undone later."""
    sharing: Sharing | None = None
    """Sharing with Apache Hudi's writers. None if only Tideline writes the table, or only Apache Hudi."""
    bucket_numbers: dict[str, int] = field(default_factory=dict)
    """Numbers of buckets that the table got since its creation, by the instant of the resize."""
    bucket_rules: dict[str, str] = field(default_factory=dict)
    """Partition rules beside `bucket_numbers`, for the resizes since which the table has rules."""
    ring_resizes: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """With consistent hashing: the partitions that got another hash ring, by the instant of the resize, overwrite or clustering."""
    ring_clusterings: set[str] = field(default_factory=set)
    """Clusterings in tables with consistent hashing: the rows of the file groups that they made are sorted."""
    metadata: MetadataTable | None = None
    """The metadata table that Tideline keeps for Apache Hudi's readers; None if there is none."""
    eager_rollback: str = ""
    """The latest rollback by which Apache Hudi undid the write of a live writer."""
    unlocked: dict[str, str] = field(default_factory=dict)
    """The last writes of Apache Hudi that completed without the common lock, with what is known of their writers. Empty again from
    the entry on by which an operator says that every writer takes it."""
    writers: dict[str, str] | None = None
    """Writers of Apache Hudi, by kind and release → the commit at which each was seen with the common lock, or the entry by which
    an operator vouched for it; empty: not yet. None: services do not ask, because who shared the table vouched for all."""
    reappended: dict[str, str] = field(default_factory=dict)
    """Writes of Apache Hudi that a rewrite had hidden → the commit that holds their rows since (`log/hidden.py`)."""
    _mutex: threading.RLock = field(default_factory=threading.RLock, init=False, repr=False, compare=False)
    """Threads share an open table; the lock hides partly applied entries."""

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep other threads from applying an entry until the end of the context."""
        with self._mutex:
            yield

    @property
    def probation(self) -> str:
        """One line about the writers that were not seen with the common lock; empty without such: nothing waits for them."""
        writers = self.writers or {}
        unseen = sorted(name for name, seen in writers.items() if not seen)
        if not unseen:
            return ""
        seen = len(writers) - len(unseen)
        return f"probation: seen {seen} of {len(writers)} writers with the lock of the table, not yet: {', '.join(unseen)}"

    def bucket_resizes(self) -> list[BucketResize]:
        """Return the numbers of buckets that the table got since its creation, oldest first."""
        with self._mutex:
            return [BucketResize(at, self.bucket_numbers[at], self.bucket_rules.get(at, "")) for at in sorted(self.bucket_numbers)]

    def bucket_resize(self, as_of: str = "") -> BucketResize | None:
        """Return the numbers of buckets as of an instant (empty: now), None for those of the creation."""
        if not self.bucket_numbers:
            return None
        known = [resize for resize in self.bucket_resizes() if not as_of or resize.instant <= as_of]
        return known[-1] if known else None

    def ring_instant(self, partition_path: str) -> str:
        """Return the instant of the commit that made the hash ring of a partition; empty for none."""
        with self._mutex:
            return made_by(self.ring_resizes, partition_path)

    def schema_at(self, as_of: str) -> str:
        """Return the table schema as of the instant `as_of` (inclusive). Before the first known schema, return the first one."""
        with self._mutex:
            known = sorted(self.schemas)
            before = [instant for instant in known if instant <= as_of]
            return self.schemas[(before or known)[-1 if before else 0]] if known else self.schema_json

    def is_pending(self, instant: str) -> bool:
        """Return whether `instant` is requested or inflight; false for an unknown or archived instant."""
        record = self.actions.get(instant)
        return record is not None and record.is_pending

    def pending(self) -> Iterator[ActionRecord]:
        """Return the requested and inflight actions, in order of instant."""
        with self._mutex:
            return iter([a for _, a in sorted([(at, a) for at, a in self.actions.items() if a.state in PENDING])])

    def completed_writes(self) -> list[ActionRecord]:
        """Return the completed commits, delta commits, replace commits, compactions and log compactions, in order of instant."""
        with self._mutex:
            found = [(at, a) for at, a in self.actions.items() if a.state is State.COMPLETED and a.action in PUBLISHING_ACTIONS]
            return [a for _, a in sorted(found)]

    def writes_after(self, sequence: int) -> tuple[int, list[int], bool]:
        """Return the last entry, those of the completed writes after `sequence`, and whether no other write completed after it.

        Writes that were archived or undone since are not among them.
        """
        with self._mutex:
            later = [a for a in self.actions.values() if a.sequence > sequence]
            found = sorted(a.sequence for a in later if a.state is State.COMPLETED and a.action in PUBLISHING_ACTIONS)
            is_whole = self.archived_sequence <= sequence and all(each.sequence <= sequence for each in self.rewritten)
            return self.sequence, found, is_whole

    def saved(self) -> Saved:
        """Return the savepoints of the log with their late writes (`saved_by_log`)."""
        with self._mutex:
            return saved_by_log(self.savepoints, self.completed_writes()) if self.savepoints else {}

    def latest_slices(self, as_of: str = "", partitions: Iterable[str] | None = None) -> list[FileSlice]:
        """Return the visible slice of each file group as of `as_of` (empty: now), in order of partition path and file id.

        A group replaced at instant R is visible before R and hidden from R on (11.4).
        """
        wanted = None if partitions is None else set(partitions)
        with self._mutex:
            known = self.slices if wanted is None else self._of_partitions(wanted)
            return sorted(visible_slices(known, self.replaced, as_of, self.groups_under_compaction()), key=attrgetter("group"))

    def groups_in(self, partitions: Iterable[str]) -> set[FileGroupId]:
        """Return all file groups of partitions, also replaced ones. Costs nothing for the other partitions."""
        with self._mutex:
            return set(self._of_partitions(set(partitions)))

    def _of_partitions(self, wanted: AbstractSet[str]) -> Mapping[FileGroupId, Mapping[str, FileSlice]]:
        if isinstance(self.slices, PackedSlices):
            return self.slices.of_partitions(wanted)
        return {group: held for group, held in self.slices.items() if group.partition_path in wanted}

    def each_latest(self, where: Where | None = None) -> Iterator[FileSlice]:
        """Yield what `latest_slices` returns. In a table with many file groups, few slices exist at a time.

        With `where`, such a table passes over the parts that did not change since they were packed and are not wanted.
        """
        parts, replaced, compactions = self._parts(where, changes_hide=False)
        held = (part for part in parts if not isinstance(part, PartSummary))
        return chain.from_iterable(visible_slices(part, replaced, "", compactions) for part in held)

    def partition_paths(self) -> list[str]:
        """Return the partitions with visible slices, in order. Of a part in one or two partitions, the summary names them."""
        parts, replaced, compactions = self._parts(lambda part, _: part.partitions > _NAMED, changes_hide=True)
        found = set[str]()
        for part in parts:
            if isinstance(part, PartSummary):
                found.update((part.first, part.last) if part.groups else ())
            else:
                found.update(s.group.partition_path for s in visible_slices(part, replaced, "", compactions))
        return sorted(found)

    def sample(self, most: int) -> list[FileSlice]:
        """Return visible slices of now: at most so many, of file groups that are new or whose part is. Costs no more than these."""
        with self._mutex:
            known = self.slices.newest(most) if isinstance(self.slices, PackedSlices) else list(self.slices)[-most:]
            return self.latest_among(nlargest(most, known))

    def totals(self, small_bytes: int = 0) -> tuple[PartSummary, int]:
        """Return the sums over the visible slices, and how many of these have fewer bytes than `small_bytes`.

        A table with many file groups decodes the parts that changed, and those with slices of nearly this size.
        """
        parts, replaced, compactions = self._parts(lambda part, _: part.small(small_bytes) is None, changes_hide=True)
        whole, small = PartSummary(), 0
        for part in parts:
            if isinstance(part, PartSummary):
                found, count = part, part.small(small_bytes) or 0
            else:
                found, visible = summary_of(part, replaced, compactions)
                count = sum(s.total_bytes < small_bytes for s in visible)
            whole, small = whole.with_next(found), small + count
        return whole, small

    def _parts(self, where: Where | None, *, changes_hide: bool) -> tuple[Parts, dict[FileGroupId, str], dict[FileGroupId, str]]:
        """Return the file groups in parts, as `PackedSlices.each_part`, with the replaced groups and those under compaction.

        `changes_hide`: a summary does not stand for a part in which one of these groups is.
        """
        with self._mutex:
            replaced, compactions = dict(self.replaced), self.groups_under_compaction()
            if isinstance(self.slices, PackedSlices):
                return self.slices.copy().each_part([*replaced, *compactions] * changes_hide, where), replaced, compactions
            return iter([{group: self.slices[group] for group in sorted(self.slices)}]), replaced, compactions

    def latest_among(self, groups: Iterable[FileGroupId]) -> list[FileSlice]:
        """Return the visible slices of now of these file groups. Costs nothing for the other groups of the table."""
        with self._mutex:
            known = {group: held for group in sorted(groups) if (held := self.slices.get(group)) is not None}
            return list(visible_slices(known, self.replaced, "", self.groups_under_compaction()))

    def every_slice(self) -> list[FileSlice]:
        """Return all committed slices that were not cleaned, including older and replaced ones."""
        with self._mutex:
            return [s for slices in self.slices.values() for s in slices.values()]

    def latest_slice(self, group: FileGroupId) -> FileSlice | None:
        """Return the visible slice of one group, or None if it has none or was replaced."""
        with self._mutex:
            slices = self.slices.get(group)
            if not slices or group in self.replaced:
                return None
            return visible_slice(slices, "", self.groups_under_compaction().get(group, ""))

    @property
    def restoring(self) -> str:
        """Instant of the pending restore; empty if there is none."""
        if not self.plans:
            return ""
        with self._mutex:
            return next((at for at, plan in self.plans.items() if isinstance(plan, RestorePlanned)), "")

    def planned_groups(self, instant: str) -> tuple[FileGroupId, ...]:
        """Return the file groups that a pending plan of a clustering, compaction or log compaction names."""
        plan = self.plans.get(instant)
        return plan.groups if isinstance(plan, ClusteringPlanned | CompactionPlanned) else ()

    def pending_clusterings(self) -> list[ActionRecord]:
        """Return the pending clusterings that are not fenced by a rollback."""
        return [a for a in self.pending() if a.is_clustering and not a.fenced_by]

    def pending_compactions(self) -> list[ActionRecord]:
        """Return the pending compactions that are not fenced by a rollback."""
        return [a for a in self.pending() if a.action is Action.COMPACTION and not a.fenced_by]

    def pending_log_compactions(self) -> list[ActionRecord]:
        """Return the pending log compactions that are not fenced by a rollback."""
        return [a for a in self.pending() if a.action is Action.LOG_COMPACTION and not a.fenced_by]

    def groups_under_log_compaction(self) -> dict[FileGroupId, str]:
        """Return file group → instant of the pending log compaction that names it."""
        return self._named_by(self.pending_log_compactions)

    def groups_under_clustering(self) -> dict[FileGroupId, str]:
        """Return file group → instant of the pending clustering that names it."""
        return self._named_by(self.pending_clusterings)

    def groups_under_compaction(self) -> dict[FileGroupId, str]:
        """Return file group → instant of its pending compaction. New log files belong to the slice of that instant (11.2).

        A cancelled compaction counts until it has given back its log files.
        """
        return self._named_by(lambda: [a for a in self.pending() if a.action is Action.COMPACTION and self._opens_slices(a)])

    def _opens_slices(self, compaction: ActionRecord) -> bool:
        if not compaction.fenced_by:
            return True
        rollback = self.plans.get(compaction.fenced_by)
        return isinstance(rollback, RollbackStep) and rollback.moves is None

    def groups_in_move(self) -> dict[FileGroupId, str]:
        """Return file group → the pending rollback that moves log files of it, because their compaction was cancelled."""
        if not self.plans:
            return {}
        with self._mutex:
            moving = [(at, plan.moves) for at, plan in self.plans.items() if isinstance(plan, RollbackStep) and plan.moves]
            named = ((at, move.partition_path, parse_log_file_name(move.new_name)) for at, moves in moving for move in moves)
            return {FileGroupId(partition, name.file_id): at for at, partition, name in named if name is not None}

    def _named_by(self, pending: Callable[[], list[ActionRecord]]) -> dict[FileGroupId, str]:
        if not self.plans:
            return {}
        with self._mutex:
            return {group: a.instant for a in pending() for group in self.planned_groups(a.instant)}

    def under_archival(self) -> frozenset[str]:
        """Return the instants that a pending archival removes from the timeline. No action may rely on them any more."""
        plans = (plan for plan in self.plans.values() if isinstance(plan, ArchivalPlanned))
        return frozenset(instant for plan in plans for instant in plan.archived.instants)

    def under_clean(self) -> frozenset[str]:
        """Return the paths of the files that pending cleans delete: they may be gone already."""
        with self._mutex:
            return frozenset(path for plan in self.plans.values() if isinstance(plan, CleanPlanned) for path in plan.paths)

    def has_priority(self, instant: str) -> bool:
        """Return whether writers have to wait for this pending clustering."""
        plan = self.plans.get(instant)
        return isinstance(plan, ClusteringPlanned) and plan.has_priority
