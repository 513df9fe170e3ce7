"""State of a table after a prefix of its log: actions, file groups, replaced groups. Folded entry by entry.

Without I/O, but for the file slices of a table with many file groups: they are read before an entry changes them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, fields, replace
from typing import Any

from tideline_table.errors import CorruptMetadata
from tideline_table.file_group.slice import FileGroupId, close_slice, fold_file, fold_merged_log, is_gone
from tideline_table.hudi.instant import PUBLISHING_ACTIONS, Action, State
from tideline_table.hudi.write_stats import SCHEMA_KEY, CommitMetadata
from tideline_table.log.action import ActionRecord
from tideline_table.log.adopted import AdoptedTable
from tideline_table.log.body import (
    Archived,
    Bare,
    Cleaned,
    Indexed,
    Published,
    RestoreBegun,
    Restored,
    SavepointMade,
    carried_by_path,
)
from tideline_table.log.cleaned import cleaned_files, first_whole, remove_cleaned
from tideline_table.log.entry import Entry
from tideline_table.log.metadata import metadata_after
from tideline_table.log.packed import PackedSlices
from tideline_table.log.plan import (
    ArchivalPlanned,
    ArchivedInstants,
    CleanPlanned,
    ClusteringPlanned,
    CompactionPlanned,
    RestorePlanned,
    RollbackStep,
)
from tideline_table.log.progress import Progress, progress_in
from tideline_table.log.resizes import kept_resizes, resize_in, resized_in
from tideline_table.log.rewind import Rewind
from tideline_table.log.savepoint import saved_by
from tideline_table.log.sharing import HUDI_WRITER
from tideline_table.log.table_log import Draft
from tideline_table.log.undo import Rewritten, excess_groups, move_logs, undo_writes
from tideline_table.log.view import StateView, check_step

LEAST_PACKED = 10_000
"""From so many file groups on, a checkpoint keeps their slices in parts (`PackedSlices`)."""
_UNLOCKED_KEPT = 10
_REAPPENDED_KEPT = 100
REAPPENDED = "tideline.reappended"
"""Key of a commit's extra metadata: the hidden write whose rows it holds, as far as they are not older than visible ones."""


@dataclass(slots=True)
class TableState(StateView):
    """The fold of the table log up to `sequence`. Only `apply` changes it."""

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
            if isinstance(entry.body, Published) and entry.body.metadata.says_more:
                resized_in(entry.body.metadata.extra, entry.instant)
            if isinstance(self.slices, PackedSlices):
                # Before anything changes: storage must not fail in the middle of an entry.
                self.slices.hold(self._groups_of(entry))
            self.sequence = entry.sequence
            self.last_instant = max(self.last_instant, entry.completion)
            if entry.action is Action.SAVEPOINT:
                self.savepoints.pop(entry.instant, None)
                if isinstance(entry.body, SavepointMade):
                    self.savepoints[entry.instant] = saved_by(entry, entry.body)
                return
            self._apply_transition(entry)
            self._apply_body(entry)
            if self.metadata is not None or entry.action is Action.INDEXING:
                self.metadata = metadata_after(self.metadata, entry)
            if entry.after in (State.COMPLETED, State.ROLLED_BACK):
                self.plans.pop(entry.instant, None)
            if isinstance(self.slices, PackedSlices):
                self.slices.settle(beyond=max(LEAST_PACKED, len(self.slices) // 32))

    def _groups_of(self, entry: Entry) -> Collection[FileGroupId] | None:
        """Return the file groups whose slices an entry may change; None: any."""
        body = entry.body
        match body:
            case Published():
                return {FileGroupId(stat.partition_path, stat.file_id) for stat in body.metadata.stats}
            case Cleaned():
                return None if self.ring_resizes else self.excess
            case RollbackStep():
                return self.planned_groups(body.target) if self.is_pending(body.target) and not body.moves else None
            case RestoreBegun() | Restored():
                return None
        return ()

    def pack(self) -> PackedSlices | None:
        """Keep the slices of a table with many file groups packed, with all that changed; return them, None for other tables."""
        with self._mutex:
            if isinstance(self.slices, PackedSlices):
                self.slices.settle()
            elif len(self.slices) >= LEAST_PACKED:
                self.slices = PackedSlices.of(self.slices)
            return self.slices if isinstance(self.slices, PackedSlices) else None

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
            completion=entry.completion,
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
                self._note_sharing(entry.instant, body)
                if (write := body.metadata.extra.get(REAPPENDED)) is not None:
                    self.reappended = dict([*self.reappended.items(), (write, entry.instant)][-_REAPPENDED_KEPT:])
            case Cleaned():
                self._apply_clean(body.retained, body.names)
            case Archived():
                self._apply_archival(entry.instant, body.archived)
            case Bare() | Indexed():
                pass

    def _note_sharing(self, instant: str, body: Published) -> None:
        if body.sharing is not None:
            if self.sharing is None:
                self.writers = None if body.writers is None else dict.fromkeys(body.writers, "")
            elif self.writers is not None:
                self.writers = dict.fromkeys(self.writers, instant)  # an operator vouches for all
            self.sharing, self.unlocked = body.sharing, {}
        if body.writer and self.writers is not None:
            seen = "" if body.unlocked else self.writers.get(body.writer) or (instant if body.locked else "")
            self.writers = {**self.writers, body.writer: seen}
        if body.unlocked:
            self.unlocked[instant] = body.unlocked
            self.unlocked = dict(list(self.unlocked.items())[-_UNLOCKED_KEPT:])

    def _set_progress(self, progress: Mapping[str, Progress] | None) -> None:
        if progress is not None:
            self.progress = dict(progress)

    def _take_over(self, adopted: AdoptedTable, sequence: int) -> None:
        for instant, action, name, operation, since in adopted.actions:
            taken = (instant, Action(action), State(name), operation, sequence, sequence, HUDI_WRITER, since)
            known, ended = self.actions.get(instant), adopted.completions.get(instant, "")
            is_known = known is not None and known.state is State(name)
            self.actions[instant] = (
                replace(known, completion=ended) if known is not None and is_known else ActionRecord(*taken, completion=ended)
            )
        there = {instant for instant, *_ in adopted.actions}
        for known in [a for a in self.pending() if a.instant not in there]:
            self.actions[known.instant] = replace(known, state=State.ROLLED_BACK, sequence=sequence)
        self.slices, self.replaced, self.plans = dict(adopted.slices), dict(adopted.replaced), dict(adopted.plans)
        self.excess = excess_groups(self.slices, self.replaced)
        self.schema_json = adopted.schema_json or self.schema_json
        # Never move back, as in `_apply_clean`: the cleans that the log knows may be archived by now.
        self.last_clean_retained = max(self.last_clean_retained, adopted.last_clean_retained)
        self.archived_before = max(self.archived_before, adopted.archived_before)
        self.whole_since = max(self.whole_since, adopted.whole_since)
        self.progress = {**self.progress, **adopted.progress}

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
            if step.moves == ():
                self._close_slices({step.target}, self.planned_groups(step.target))
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

    def _close_slices(self, instants: AbstractSet[str], groups: Iterable[FileGroupId] | None = None) -> None:
        for group in list(self.slices) if groups is None else groups:
            known = self.slices.get(group, {})
            if closed := sorted(instants & known.keys(), reverse=True):
                slices = dict(known)
                for instant in closed:
                    close_slice(slices, instant)
                self.slices[group] = slices

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
        if any(known.completion for known in done):
            self._close_slices(instants)
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
        compactions = self.groups_under_compaction() if entry.completion else {}
        for stat in metadata.stats:
            if not stat.path:
                continue
            group = FileGroupId(stat.partition_path, stat.file_id)
            slices = dict(self.slices.get(group, {}))
            below = None
            if entry.completion:
                begun = (at for at in (*slices, compactions.get(group, "")) if at <= entry.completion)
                below = max(begun, default="")
            # In version 6 nothing tells which log files one of Apache Hudi merged: readers open them, too.
            if entry.action is Action.LOG_COMPACTION and (entry.completion or entry.writer_id != HUDI_WRITER):
                fold_merged_log(slices, group, instant, stat, below, self._merged_names(instant, group) if entry.completion else ())
                self.slices[group] = slices
                continue
            fold_file(slices, group, carried.get(stat.path, instant), stat, below)
            self.slices[group] = slices
            if len(slices) > 1:
                self.excess.add(group)
        for partition, file_ids in (metadata.replaced or {}).items():
            for file_id in file_ids:
                group = FileGroupId(partition, file_id)
                self.replaced[group] = instant
                self.excess.add(group)
                self.clustering_losses.pop(group, None)
        if metadata.says_more:
            self._apply_extra(instant, metadata.extra)
        schema = metadata.extra.get(SCHEMA_KEY, "")
        if schema and schema != self.schema_json and not (metadata.is_rewrite and self.schema_json):
            self.schema_json = self.schemas[instant] = schema

    def _merged_names(self, instant: str, group: FileGroupId) -> frozenset[str]:
        """Return the log files of a group that the plan of a log compaction names; none if the plan is not known."""
        plan = self.plans.get(instant)
        operations = plan.plan["operations"] if isinstance(plan, CompactionPlanned) else ()
        own = (o for o in operations if (str(o["partitionPath"] or ""), str(o["fileId"])) == group)
        return frozenset(str(path).rsplit("/", 1)[-1] for o in own for path in o["deltaFilePaths"] or ())

    def _apply_extra(self, instant: str, extra: Mapping[str, str]) -> None:
        self.progress |= progress_in(extra, instant)
        if (resize := resize_in(extra, instant)) is not None:
            self.bucket_numbers[instant] = resize.number
            self.bucket_rules |= {instant: resize.rules} if resize.rules else {}
        if resized := resized_in(extra, instant):
            self.ring_resizes[instant] = resized
            if isinstance(self.plans.get(instant), ClusteringPlanned):
                self.ring_clusterings.add(instant)

    def _apply_clean(self, retained: str, gone: frozenset[tuple[str, str]]) -> None:
        if not retained:
            # Apache Hudi cleaned by file versions.
            left = {g: {i for i, s in self.slices.get(g, {}).items() if not is_gone(s, gone)} for g in sorted(self.excess)}
            newest = max((a.instant for a in self.completed_writes()), default="")
            retained = first_whole(cleaned_files(gone, newest), left, self.replaced)
            self.whole_since = max(self.whole_since, retained)
        # Never move back: files that an earlier clean deleted stay deleted even if a later clean retains more commits.
        self.last_clean_retained = max(self.last_clean_retained, retained)
        remove_cleaned(self.slices, self.replaced, self.excess, gone)
        if self.ring_resizes:
            replacing = set(self.replaced.values())
            self.ring_resizes = kept_resizes(self.ring_resizes, self.last_clean_retained, self.savepoints, replacing)
            held = {at for slices in self.slices.values() for at in slices}
            self.ring_clusterings &= held | self.ring_resizes.keys()

    def _apply_archival(self, instant: str, archived: ArchivedInstants) -> None:
        earlier = [a.instant for a in self.actions.values() if a.action is Action.ARCHIVAL and a.instant < instant]
        gone = [self.actions.pop(i) for i in (*archived.instants, *earlier) if i in self.actions]
        done = [a.sequence for a in gone if a.state is State.COMPLETED and a.action in PUBLISHING_ACTIONS]
        self.archived_sequence = max([self.archived_sequence, *done])
        self.archived_before = max(self.archived_before, archived.before)


def _own(value: Any) -> Any:
    """Copy the parts of `value` that the state changes in place: containers and dictionaries in them. Their elements are frozen."""
    if isinstance(value, PackedSlices):
        return value.copy()
    if isinstance(value, dict):
        return {key: dict(held) if isinstance(held, dict) else held for key, held in value.items()}
    return set(value) if isinstance(value, set) else value
