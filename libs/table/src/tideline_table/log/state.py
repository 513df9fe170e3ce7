"""State of a table after a prefix of its log: actions, file groups, replaced groups. Folded entry by entry, without I/O."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, fields, replace
from typing import Any

from tideline_table.errors import CorruptMetadata
from tideline_table.file_group.names import parse_log_file_name
from tideline_table.file_group.slice import FileGroupId, FileSlice
from tideline_table.file_group.versions import fold_file, fold_merged_log, is_gone, visible_slice, visible_slices
from tideline_table.hudi.instant import PUBLISHING_ACTIONS, Action, State
from tideline_table.hudi.write_stats import SCHEMA_KEY, CommitMetadata
from tideline_table.log.action import ActionRecord
from tideline_table.log.adopted import AdoptedTable
from tideline_table.log.body import Archived, Bare, Cleaned, Indexed, Published, RestoreBegun, Restored, SavepointMade
from tideline_table.log.bucket_resize import BucketResize, resize_in
from tideline_table.log.carried import carried_by_path
from tideline_table.log.cleaned import cleaned_files, first_whole, remove_cleaned
from tideline_table.log.entry import Entry
from tideline_table.log.metadata import MetadataTable, metadata_after
from tideline_table.log.plan import (
    ArchivalPlanned,
    ArchivedInstants,
    CleanPlanned,
    ClusteringPlanned,
    CompactionPlanned,
    Plan,
    RestorePlanned,
    RollbackStep,
)
from tideline_table.log.progress import Progress, progress_in
from tideline_table.log.rewind import Rewind
from tideline_table.log.ring_resize import check_rings, kept_resizes, made_by, resized_in
from tideline_table.log.savepoint import Saved, Savepoint, saved_by, saved_by_log
from tideline_table.log.sharing import PEER_WRITER, Sharing
from tideline_table.log.table_log import Draft
from tideline_table.log.transition import check_step
from tideline_table.log.undo import Rewritten, excess_groups, move_logs, undo_writes


@dataclass(slots=True)
class TableState:
    """The fold of the table log up to `sequence`. Only `apply` changes it."""

    sequence: int = 0
    last_instant: str = ""
    actions: dict[str, ActionRecord] = field(default_factory=dict)
    slices: dict[FileGroupId, dict[str, FileSlice]] = field(default_factory=dict)
    """Committed slices by base instant, oldest first, without cleaned slices."""
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
    """The clusterings among `ring_resizes`: the rows of the file groups that they made are sorted."""
    metadata: MetadataTable | None = None
    """The metadata table that Tideline keeps for Apache Hudi's readers; None if there is none."""
    eager_rollback: str = ""
    """The latest rollback by which Apache Hudi undid the write of a live writer."""
    _mutex: threading.RLock = field(default_factory=threading.RLock, init=False, repr=False, compare=False)
    """Threads share an open table; the lock hides partly applied entries."""

    def copy(self) -> TableState:
        """Return an independent copy: a change to one state does not change the other."""
        with self._mutex:
            return replace(self, **{f.name: _own(getattr(self, f.name)) for f in fields(self) if f.init})

    def check(self, step: Draft | Entry) -> None:
        """Raise `IllegalTransition` or `CorruptMetadata` unless `step` is a valid next transition. Changes nothing."""
        with self._mutex:
            check_step(self, step)

    def apply(self, entry: Entry) -> None:
        """Apply one entry completely, or raise and change nothing.

        Raises `IllegalTransition` for a step that the life cycle does not allow; `CorruptMetadata` for a gap in the sequence and
        for a rollback that names another action than that of its target.
        """
        with self._mutex:
            if entry.sequence != self.sequence + 1:
                raise CorruptMetadata(
                    f"table log entry {entry.sequence} after {self.sequence}", expected=f"entry {self.sequence + 1}"
                )
            check_step(self, entry)
            check_rings(entry)
            self.sequence = entry.sequence
            if entry.action is Action.SAVEPOINT:
                self.savepoints.pop(entry.instant, None)
                if isinstance(entry.body, SavepointMade):
                    self.savepoints[entry.instant] = saved_by(entry, entry.body)
                return
            self._apply_transition(entry)
            self._apply_body(entry)
            self.metadata = metadata_after(self.metadata, entry)
            if entry.after in (State.COMPLETED, State.ROLLED_BACK):
                self.plans.pop(entry.instant, None)

    def _apply_transition(self, entry: Entry) -> None:
        known = self.actions.get(entry.instant)
        self.last_instant = max(self.last_instant, entry.instant)
        self.actions[entry.instant] = ActionRecord(
            instant=entry.instant,
            action=entry.action,
            state=entry.after,
            operation=entry.operation,
            sequence=entry.sequence,
            started_sequence=known.started_sequence if known else entry.sequence,
            writer_id=entry.writer_id,
            since=entry.recorded,
        )

    def _apply_body(self, entry: Entry) -> None:
        body = entry.body
        match body:
            case RollbackStep():
                if body.plan is not None:
                    self.plans[entry.instant] = body
                self._apply_rollback(entry, body)
            case RestorePlanned():
                self.plans[entry.instant] = body
                for instant, _ in body.rewind.fenced:
                    self.actions[instant] = replace(self.actions[instant], fenced_by=entry.instant)
            case ClusteringPlanned() | CompactionPlanned() | CleanPlanned() | ArchivalPlanned():
                self.plans[entry.instant] = body
            case RestoreBegun():
                self._rewind(body.rewind, entry)
            case Restored():
                if body.undone:
                    self._take_back(frozenset(body.undone), entry)
                self._set_progress(body.progress)
            case Published():
                self._apply_commit(entry, body.metadata)
                if body.adopted is not None:
                    self._take_over(body.adopted, entry.sequence)
                self.sharing = body.sharing or self.sharing
            case Cleaned():
                self._apply_clean(body.retained, body.names)
            case Archived():
                self._apply_archival(entry.instant, body.archived)
            case Bare() | Indexed():
                pass

    def _set_progress(self, progress: Mapping[str, Progress] | None) -> None:
        if progress is not None:
            self.progress = dict(progress)

    def _take_over(self, adopted: AdoptedTable, sequence: int) -> None:
        for instant, action, name, operation, since in adopted.actions:
            known = (instant, Action(action), State(name), operation, sequence, sequence, PEER_WRITER, since)
            self.actions[instant] = ActionRecord(*known)
        self.slices, self.replaced, self.plans = dict(adopted.slices), dict(adopted.replaced), dict(adopted.plans)
        self.excess = excess_groups(self.slices, self.replaced)
        self.schema_json = adopted.schema_json or self.schema_json
        self.last_clean_retained, self.archived_before = adopted.last_clean_retained, adopted.archived_before
        self.whole_since, self.progress = adopted.whole_since, dict(adopted.progress)

    def _apply_rollback(self, entry: Entry, step: RollbackStep) -> None:
        if entry.after is State.COMPLETED:
            self._set_progress(step.progress)
        if step.eager:
            self.eager_rollback = entry.instant
        target = self.actions.get(step.target)
        if target is None or step.spares:
            return
        if not target.is_pending:
            if entry.after is State.COMPLETED and target.state is State.COMPLETED:
                self._take_back({step.target}, entry)
            return
        if entry.after is not State.COMPLETED:
            self.actions[step.target] = replace(target, fenced_by=entry.instant)
            for group in move_logs(self.slices, step.moves or ()):
                if len(self.slices[group]) == 1 and group not in self.replaced:
                    self.excess.discard(group)
            return
        planned = self.plans.get(entry.instant)
        if target.is_clustering and not (isinstance(planned, RollbackStep) and planned.cancels):
            for group in self.planned_groups(target.instant):
                self.clustering_losses[group] = self.clustering_losses.get(group, 0) + 1
        self.actions[step.target] = replace(target, state=State.ROLLED_BACK, fenced_by=entry.instant, sequence=entry.sequence)
        self.plans.pop(step.target, None)

    def _rewind(self, back: Rewind, entry: Entry) -> None:
        """Return the table to a savepoint. Pending instants newer than it are rolled back."""
        self.progress = dict(self.savepoints[back.savepoint].progress)
        self._take_back(back.undone_instants, entry)
        for instant, _ in back.fenced:
            record = self.actions[instant]
            self.actions[instant] = replace(record, state=State.ROLLED_BACK, fenced_by=entry.instant, sequence=entry.sequence)
            self.plans.pop(instant, None)
        for instant, _ in back.rollbacks:
            self.actions[instant] = replace(self.actions[instant], state=State.ROLLED_BACK, fenced_by=entry.instant)
        for instant in back.savepoints:
            self.savepoints.pop(instant, None)

    def _take_back(self, instants: AbstractSet[str], entry: Entry) -> None:
        """Remove the files, replacements and schemas that these completed writes published."""
        done = [known for i in sorted(instants) if (known := self.actions.get(i)) is not None]
        for known in done:
            self.actions[known.instant] = replace(known, state=State.ROLLED_BACK, fenced_by=entry.instant)
        undo_writes(self.slices, instants)
        self.replaced = {group: at for group, at in self.replaced.items() if at not in instants}
        self.excess = excess_groups(self.slices, self.replaced)
        if instants & set(self.schemas):
            # `schemas` is in the order in which writes set them, so the last one is current.
            self.schemas = {at: text for at, text in self.schemas.items() if at not in instants}
            self.schema_json = next(reversed(self.schemas.values()), "")
        self.bucket_numbers = {at: number for at, number in self.bucket_numbers.items() if at not in instants}
        self.bucket_rules = {at: text for at, text in self.bucket_rules.items() if at not in instants}
        self.ring_resizes = {at: names for at, names in self.ring_resizes.items() if at not in instants}
        self.ring_clusterings = self.ring_clusterings - instants
        if done:
            self.rewritten = (*self.rewritten, Rewritten(min(known.sequence for known in done), entry.sequence, entry.instant))

    def _apply_commit(self, entry: Entry, metadata: CommitMetadata) -> None:
        instant = entry.instant
        carried = carried_by_path(metadata.extra)
        for stat in metadata.stats:
            if not stat.path:
                continue
            group = FileGroupId(stat.partition_path, stat.file_id)
            slices = self.slices.setdefault(group, {})
            if entry.action is Action.LOG_COMPACTION:
                fold_merged_log(slices, group, instant, stat)
                continue
            fold_file(slices, group, carried.get(stat.path, instant), stat)
            if len(slices) > 1:
                self.excess.add(group)
        for partition, file_ids in (metadata.replaced or {}).items():
            for file_id in file_ids:
                group = FileGroupId(partition, file_id)
                self.replaced[group] = instant
                self.excess.add(group)
                self.clustering_losses.pop(group, None)
        self.progress |= progress_in(metadata.extra, instant)
        if (resize := resize_in(metadata.extra, instant)) is not None:
            self.bucket_numbers[instant] = resize.number
            self.bucket_rules |= {instant: resize.rules} if resize.rules else {}
        if resized := resized_in(metadata.extra, instant):
            self.ring_resizes[instant] = resized
            if isinstance(self.plans.get(instant), ClusteringPlanned):
                self.ring_clusterings.add(instant)
        schema = metadata.extra.get(SCHEMA_KEY, "")
        if schema and schema != self.schema_json:
            self.schema_json = self.schemas[instant] = schema

    def bucket_resizes(self) -> list[BucketResize]:
        """Return the numbers of buckets that the table got since its creation, oldest first."""
        with self._mutex:
            return [BucketResize(at, self.bucket_numbers[at], self.bucket_rules.get(at, "")) for at in sorted(self.bucket_numbers)]

    def bucket_resize(self, as_of: str = "") -> BucketResize | None:
        """Return the numbers of buckets as of an instant (empty: now), None for those of the creation."""
        known = [resize for resize in self.bucket_resizes() if not as_of or resize.instant <= as_of]
        return known[-1] if known else None

    def ring_instant(self, partition_path: str, as_of: str = "") -> str:
        """Return the instant of the commit that made the hash ring of a partition as of an instant (empty: now); empty for none."""
        with self._mutex:
            return made_by(self.ring_resizes, partition_path, as_of)

    def schema_at(self, as_of: str) -> str:
        """Return the table schema as of the instant `as_of` (inclusive). Before the first known schema, return the first one."""
        with self._mutex:
            known = sorted(self.schemas)
            before = [instant for instant in known if instant <= as_of]
            return self.schemas[(before or known)[-1 if before else 0]] if known else self.schema_json

    def _apply_clean(self, retained: str, gone: frozenset[tuple[str, str]]) -> None:
        if not retained:
            # Apache Hudi cleaned by file versions.
            left = {g: {i for i, s in self.slices.get(g, {}).items() if not is_gone(s, gone)} for g in self.excess}
            newest = max((a.instant for a in self.completed_writes()), default="")
            retained = first_whole(cleaned_files(gone, newest), left, self.replaced)
            self.whole_since = max(self.whole_since, retained)
        # Never move back: files that an earlier clean deleted stay deleted even if a later clean retains more commits.
        self.last_clean_retained = max(self.last_clean_retained, retained)
        remove_cleaned(self.slices, self.replaced, self.excess, gone)
        if self.ring_resizes:
            replacing = set(self.replaced.values())
            self.ring_resizes = kept_resizes(self.ring_resizes, self.last_clean_retained, self.savepoints, replacing)
            self.ring_clusterings &= self.ring_resizes.keys()

    def _apply_archival(self, instant: str, archived: ArchivedInstants) -> None:
        earlier = [a.instant for a in self.actions.values() if a.action is Action.ARCHIVAL and a.instant < instant]
        gone = [self.actions.pop(i) for i in (*archived.instants, *earlier) if i in self.actions]
        done = [a.sequence for a in gone if a.state is State.COMPLETED and a.action in PUBLISHING_ACTIONS]
        self.archived_sequence = max([self.archived_sequence, *done])
        self.archived_before = max(self.archived_before, archived.before)

    def is_pending(self, instant: str) -> bool:
        """Return whether `instant` is requested or inflight; false for an unknown or archived instant."""
        record = self.actions.get(instant)
        return record is not None and record.is_pending

    def pending(self) -> Iterator[ActionRecord]:
        """Return the requested and inflight actions, in order of instant."""
        with self._mutex:
            return iter([a for _, a in sorted(self.actions.items()) if a.is_pending])

    def completed_writes(self) -> list[ActionRecord]:
        """Return the completed commits, delta commits, replace commits, compactions and log compactions, in order of instant."""
        with self._mutex:
            return [a for _, a in sorted(self.actions.items()) if a.state is State.COMPLETED and a.action in PUBLISHING_ACTIONS]

    def writes_after(self, sequence: int) -> tuple[int, list[int], bool]:
        """Return the last entry, those of the completed writes after `sequence`, and whether no other write completed after it.

        Writes that were archived or undone since are not among them.
        """
        with self._mutex:
            found = sorted(a.sequence for a in self.completed_writes() if a.sequence > sequence)
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
            known = self.slices if wanted is None else {g: s for g, s in self.slices.items() if g.partition_path in wanted}
            found = visible_slices(known, self.replaced, as_of, self.groups_under_compaction())
        return sorted(found, key=lambda s: s.group)

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
        with self._mutex:
            moving = [(at, plan.moves) for at, plan in self.plans.items() if isinstance(plan, RollbackStep) and plan.moves]
            named = ((at, move.partition_path, parse_log_file_name(move.new_name)) for at, moves in moving for move in moves)
            return {FileGroupId(partition, name.file_id): at for at, partition, name in named if name is not None}

    def _named_by(self, pending: Callable[[], list[ActionRecord]]) -> dict[FileGroupId, str]:
        with self._mutex:
            return {group: a.instant for a in pending() for group in self.planned_groups(a.instant)}

    def under_archival(self) -> frozenset[str]:
        """Return the instants that a pending archival removes from the timeline. No action may rely on them any more."""
        plans = (plan for plan in self.plans.values() if isinstance(plan, ArchivalPlanned))
        return frozenset(instant for plan in plans for instant in plan.archived.instants)

    def has_priority(self, instant: str) -> bool:
        """Return whether writers have to wait for this pending clustering."""
        plan = self.plans.get(instant)
        return isinstance(plan, ClusteringPlanned) and plan.has_priority


def _own(value: Any) -> Any:
    """Copy the parts of `value` that the state changes in place: containers and dictionaries in them. Their elements are frozen."""
    if isinstance(value, dict):
        return {key: dict(held) if isinstance(held, dict) else held for key, held in value.items()}
    return set(value) if isinstance(value, set) else value
