"""What a table is after a prefix of its log: actions, file groups, replaced groups. Folded entry by entry, without any I/O."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tideline_table.errors import CorruptMetadata, IllegalTransition
from tideline_table.file_group.action import ActionRecord
from tideline_table.file_group.adopted import AdoptedTable
from tideline_table.file_group.archived import ArchivedInstants
from tideline_table.file_group.cleaned import cleaned_files, first_whole
from tideline_table.file_group.content import compacted_groups, planned_groups, understood
from tideline_table.file_group.savepoint import Saved, Savepoint, saved_by_log
from tideline_table.file_group.slice import FileGroupId, FileSlice
from tideline_table.file_group.undo import Rewritten, rewind, take_back
from tideline_table.file_group.versions import fold_file, is_gone, visible_slice
from tideline_table.timeline.entry import Entry
from tideline_table.timeline.instant import WRITE_ACTIONS, Action, State, check_transition
from tideline_table.timeline.log import Draft
from tideline_table.timeline.progress import Progress, progress_in
from tideline_table.timeline.rewind import Rewind
from tideline_table.timeline.sharing import PEER_WRITER, Sharing
from tideline_table.timeline.write_stats import SCHEMA_KEY, CommitMetadata

_PUBLISHING = WRITE_ACTIONS | {Action.COMPACTION}
PRIORITY_KEY = "tideline.priority"
"""In a clustering plan's extra metadata: it has lost often enough, writers wait for it."""


@dataclass(slots=True)
class TableState:
    """Fold of the log up to `sequence`. `apply` is the only way to change it."""

    sequence: int = 0
    last_instant: str = ""
    actions: dict[str, ActionRecord] = field(default_factory=dict)
    slices: dict[FileGroupId, dict[str, FileSlice]] = field(default_factory=dict)
    """Committed slices by base instant, oldest first, cleaned ones left out."""
    replaced: dict[FileGroupId, str] = field(default_factory=dict)
    plans: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    """Bodies of pending plans (clustering, clean, rollback)."""
    clustering_losses: dict[FileGroupId, int] = field(default_factory=dict)
    schema_json: str = ""
    progress: dict[str, Progress] = field(default_factory=dict)
    """By key, what commits last said about where those who feed the table stand."""
    schemas: dict[str, str] = field(default_factory=dict)
    """Schemas that writes changed the table to, by instant."""
    identified_schemas: tuple[str, ...] = ()
    """In a table that others write, where columns have ids: the history of its schema, oldest first."""
    last_clean_retained: str = ""
    """Queries as of this instant and later find their files, and so does one of the state just before it, unless `whole_since` is as late.
    Of older ones files were cleaned."""
    whole_since: str = ""
    """Of every state before this instant, the one just before it too, files are missing: cleaning by file versions deleted them."""
    archived_before: str = ""
    """Where the active timeline begins: older instants that are not among `actions` were archived when they had completed (11.1)."""
    archived_sequence: int = 0
    """In a table with a log: the last place in its completion order that an archived write had."""
    excess: set[FileGroupId] = field(default_factory=set)
    """Groups that cleaning may find something in: more than one slice, or replaced."""
    savepoints: dict[str, Savepoint] = field(default_factory=dict)
    """By the instant of the write that each protects, which it shares; those of Apache Hudi's in shared tables are on the timeline only."""
    rewritten: tuple[Rewritten, ...] = ()
    """Stretches of the log whose writes were taken back after they had completed."""
    sharing: Sharing | None = None
    """How the table is shared with Apache Hudi's writers; None where all writers are Tideline's, and for tables that only others write."""
    eager_rollback: str = ""
    """The latest rollback by which Apache Hudi undid a write that was alive."""
    _mutex: threading.RLock = field(default_factory=threading.RLock, repr=False, compare=False)
    """Threads share an open table: nobody sees half of an entry."""

    def check(self, step: Draft | Entry) -> None:
        """Raise `IllegalTransition` unless `step` may come next. Changes nothing."""
        with self._mutex:
            if self.restoring not in ("", step.instant) and self.sharing is None:
                raise IllegalTransition(
                    f"{step.action} {step.instant} beside restore {self.restoring}", expected="nothing else until it is completed"
                )
            if step.action is Action.SAVEPOINT:
                self._check_savepoint(step)
                return
            known = self.actions.get(step.instant)
            before = known.state if known else State.NONE
            if before is not step.before:
                raise IllegalTransition(
                    f"a step takes {step.action} {step.instant} from {step.before} to {step.after}",
                    expected=f"a step from {before}",
                )
            check_transition(step.instant, step.action, step.before, step.after)
            if known is not None and known.action is not step.action:
                raise IllegalTransition(
                    f"a step takes {known.action} {step.instant} on as {step.action}", expected=f"{known.action}"
                )
            if known is not None and known.fenced_by and step.after is not State.ROLLED_BACK:
                raise IllegalTransition(
                    f"a step takes {step.action} {step.instant} to {step.after}",
                    expected=f"nothing more: rollback {known.fenced_by} was requested for it",
                )
            if step.action is Action.ROLLBACK:
                self._check_rollback(step)

    def _check_savepoint(self, step: Draft | Entry) -> None:
        before = State.COMPLETED if step.instant in self.savepoints else State.NONE
        if before is not step.before:
            raise IllegalTransition(f"a savepoint of {step.instant} that is {before} is taken for {step.before}")
        check_transition(step.instant, step.action, step.before, step.after)
        write = self.actions.get(step.instant)
        if write is None or write.state is not State.COMPLETED or write.action not in _PUBLISHING:
            raise IllegalTransition(f"a savepoint of {step.instant}", expected="a completed write")

    def _check_rewind(self, back: Rewind, restore: str) -> None:
        if back.savepoint not in self.savepoints:
            raise IllegalTransition(f"restore {restore} to {back.savepoint}", expected="a savepoint")
        ended, pending = (State.COMPLETED,), (State.REQUESTED, State.INFLIGHT)
        for named, states in (((*back.undone, *back.rollbacks), ended), (back.fenced, pending)):
            for instant, action in named:
                known = self.actions.get(instant)
                if known is None or known.action is not action or known.state not in states:
                    raise IllegalTransition(f"restore {restore} takes back {instant}", expected=f"a {action} that is {states[-1]}")

    def _check_rollback(self, step: Draft | Entry) -> None:
        target = self.actions.get(str(step.body.get("target", "")))
        if step.writer_id == PEER_WRITER and self.sharing is not None:
            return  # it has happened already, and Hudi also undoes what had completed
        if self.sharing is not None and step.after is State.COMPLETED and target is not None and target.fenced_by:
            return  # Hudi undid it at the same time, by a rollback of its own
        if target is None or not target.is_pending:
            raise IllegalTransition(
                f"rollback {step.instant} of {step.body.get('target') or 'nothing'}", expected="a pending instant as its target"
            )
        if target.fenced_by not in ("", step.instant):
            raise IllegalTransition(
                f"rollback {step.instant} of {target.instant}", expected=f"rollback {target.fenced_by}, which began first"
            )
        if step.body.get("target_action") != target.action:
            raise CorruptMetadata(f"rollback {step.instant} of {target.instant} without its action", expected=f"{target.action}")

    def apply(self, entry: Entry) -> None:
        """Fold one entry, all of it or, with an error, nothing of it.

        Raises `IllegalTransition` for a step that the life cycle does not have, `CorruptMetadata` for a body that cannot be understood.
        """
        with self._mutex:
            if entry.sequence != self.sequence + 1:
                raise CorruptMetadata(
                    f"table log entry {entry.sequence} after {self.sequence}", expected=f"entry {self.sequence + 1}"
                )
            self.check(entry)
            content = understood(entry)
            if content.rewind is not None:
                self._check_rewind(content.rewind, entry.instant)
            self.sequence = entry.sequence
            if entry.action is Action.SAVEPOINT:
                self.savepoints.pop(entry.instant, None)
                if content.savepoint is not None:
                    self.savepoints[entry.instant] = content.savepoint
                return
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
            if "plan" in entry.body:
                self.plans[entry.instant] = entry.body
            if entry.action is Action.ROLLBACK:
                self._apply_rollback(entry)
            if content.rewind is not None:
                self._apply_rewind(entry, content.rewind)
            if entry.after is State.COMPLETED:
                if content.commit is not None:
                    self._apply_commit(entry.instant, content.commit)
                if content.cleaned is not None:
                    self._apply_clean(content.retained, content.cleaned)
                if content.undone:
                    take_back(self, frozenset(content.undone), entry.instant, entry.sequence)
                if content.progress is not None:
                    self.progress = dict(content.progress)
                if content.adopted is not None:
                    self._take_over(content.adopted, entry.sequence)
                if content.archived is not None:
                    self._apply_archival(entry.instant, content.archived)
                self.sharing = content.sharing or self.sharing
            if entry.after in (State.COMPLETED, State.ROLLED_BACK):
                self.plans.pop(entry.instant, None)

    def _take_over(self, adopted: AdoptedTable, sequence: int) -> None:
        for instant, action, name, operation, since in adopted.actions:
            known = (instant, Action(action), State(name), operation, sequence, sequence, PEER_WRITER, since)
            self.actions[instant] = ActionRecord(*known)
        self.slices, self.replaced, self.plans = dict(adopted.slices), dict(adopted.replaced), dict(adopted.plans)
        self.excess = {group for group, slices in self.slices.items() if len(slices) > 1} | set(self.replaced)
        self.schema_json = adopted.schema_json or self.schema_json
        self.last_clean_retained, self.archived_before = adopted.last_clean_retained, adopted.archived_before
        self.whole_since, self.progress = adopted.whole_since, dict(adopted.progress)

    def _apply_rewind(self, entry: Entry, back: Rewind) -> None:
        if entry.after is State.INFLIGHT:
            rewind(self, back, entry.instant, entry.sequence)
            return
        for instant, _ in back.fenced:
            self.actions[instant] = replace(self.actions[instant], fenced_by=entry.instant)

    def _apply_rollback(self, entry: Entry) -> None:
        target = self.actions.get(entry.target)
        if entry.body.get("eager"):
            self.eager_rollback = entry.instant
        if target is None or entry.body.get("spares"):
            return  # of Hudi's: it took back an attempt of a plan that is still there, or what came and went while nobody looked
        if not target.is_pending:
            if entry.after is State.COMPLETED and target.state is State.COMPLETED:
                take_back(self, {entry.target}, entry.instant, entry.sequence)
            return
        if entry.after is not State.COMPLETED:
            self.actions[entry.target] = replace(target, fenced_by=entry.instant)
            return
        if target.is_clustering:
            for group in self.planned_groups(target.instant):
                self.clustering_losses[group] = self.clustering_losses.get(group, 0) + 1
        self.actions[entry.target] = replace(target, state=State.ROLLED_BACK, fenced_by=entry.instant, sequence=entry.sequence)
        self.plans.pop(entry.target, None)

    def _apply_commit(self, instant: str, metadata: CommitMetadata) -> None:
        for stat in metadata.stats:
            if not stat.path:
                continue
            group = FileGroupId(stat.partition_path, stat.file_id)
            slices = self.slices.setdefault(group, {})
            fold_file(slices, group, instant, stat)
            if len(slices) > 1:
                self.excess.add(group)
        for partition, file_ids in (metadata.replaced or {}).items():
            for file_id in file_ids:
                group = FileGroupId(partition, file_id)
                self.replaced[group] = instant
                self.excess.add(group)
                self.clustering_losses.pop(group, None)
        self.progress |= progress_in(metadata.extra, instant)
        self.take_schema(instant, metadata.extra.get(SCHEMA_KEY, ""))

    def take_schema(self, instant: str, text: str) -> None:
        """Note the schema that a write left behind; an empty text says nothing."""
        if text and text != self.schema_json:
            self.schema_json = self.schemas[instant] = text

    def schema_at(self, as_of: str) -> str:
        """The schema that the newest write up to the instant `as_of` (in) left behind; before all that are known, the first one."""
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
        # Never back: what an earlier clean removed stays removed when a later one keeps more commits.
        self.last_clean_retained = max(self.last_clean_retained, retained)
        for group in list(self.excess):
            slices = self.slices.get(group, {})
            for instant in [i for i, s in slices.items() if is_gone(s, gone)]:
                del slices[instant]
            if not slices:
                self.slices.pop(group, None)
                self.replaced.pop(group, None)
                self.excess.discard(group)
            elif len(slices) == 1 and group not in self.replaced:
                self.excess.discard(group)

    def _apply_archival(self, instant: str, archived: ArchivedInstants) -> None:
        earlier = [a.instant for a in self.actions.values() if a.action is Action.ARCHIVAL and a.instant < instant]
        gone = [self.actions.pop(i) for i in (*archived.instants, *earlier) if i in self.actions]
        done = [a.sequence for a in gone if a.state is State.COMPLETED and a.action in _PUBLISHING]
        self.archived_sequence = max([self.archived_sequence, *done])
        self.archived_before = max(self.archived_before, archived.before)

    # --- questions ---------------------------------------------------------------------------------------------------

    def is_pending(self, instant: str) -> bool:
        """Whether `instant` is under way: neither ended nor, since then, archived."""
        record = self.actions.get(instant)
        return record is not None and record.is_pending

    def pending(self) -> Iterator[ActionRecord]:
        """Actions that are requested or inflight, in order of instant."""
        with self._mutex:
            return iter([a for _, a in sorted(self.actions.items()) if a.is_pending])

    def completed_writes(self) -> list[ActionRecord]:
        """Completed commits, delta commits, replace commits and compactions in order of instant."""
        with self._mutex:
            return [a for _, a in sorted(self.actions.items()) if a.state is State.COMPLETED and a.action in _PUBLISHING]

    def saved(self) -> Saved:
        """What the savepoints of the log protect."""
        with self._mutex:
            return saved_by_log(self.savepoints, self.completed_writes()) if self.savepoints else {}

    def latest_slices(self, as_of: str = "", partitions: Iterable[str] | None = None) -> list[FileSlice]:
        """The visible slice of each file group at `as_of` (empty: now), in order of partition and file id.

        A group replaced at R is hidden at and after R, visible before (11.4).
        """
        wanted = None if partitions is None else set(partitions)
        with self._mutex:
            found: list[FileSlice] = []
            compacting = self.groups_under_compaction()
            for group, slices in self.slices.items():
                if wanted is not None and group.partition_path not in wanted:
                    continue
                gone = self.replaced.get(group)
                if gone is not None and (not as_of or gone <= as_of):
                    continue
                visible = visible_slice(slices, as_of, compacting.get(group, ""))
                if visible is not None:
                    found.append(visible)
        return sorted(found, key=lambda s: s.group)

    def every_slice(self) -> list[FileSlice]:
        """All committed slices that were not cleaned, older and replaced ones too."""
        with self._mutex:
            return [s for slices in self.slices.values() for s in slices.values()]

    def latest_slice(self, group: FileGroupId) -> FileSlice | None:
        """The visible slice of one group, None when it has none or was replaced."""
        with self._mutex:
            slices = self.slices.get(group)
            if not slices or group in self.replaced:
                return None
            return visible_slice(slices, "", self.groups_under_compaction().get(group, ""))

    @property
    def restoring(self) -> str:
        """The pending restore, empty when there is none."""
        with self._mutex:
            return next((at for at in self.plans if at in self.actions and self.actions[at].action is Action.RESTORE), "")

    def planned_groups(self, instant: str) -> list[FileGroupId]:
        """File groups that a pending clustering plan names."""
        return planned_groups(self.plans.get(instant, {}))

    def pending_clusterings(self) -> list[ActionRecord]:
        """Clusterings that are planned or running and not fenced by a rollback."""
        return [a for a in self.pending() if a.is_clustering and not a.fenced_by]

    def groups_under_clustering(self) -> dict[FileGroupId, str]:
        """File group → instant of the pending clustering that names it."""
        with self._mutex:
            return {group: a.instant for a in self.pending_clusterings() for group in self.planned_groups(a.instant)}

    def pending_compactions(self) -> list[ActionRecord]:
        """Compactions that are planned or running and not fenced by a rollback."""
        return [a for a in self.pending() if a.action is Action.COMPACTION and not a.fenced_by]

    def groups_under_compaction(self) -> dict[FileGroupId, str]:
        """File group → instant of the pending compaction that names it: new log files belong to the slice of that instant (11.2)."""
        with self._mutex:
            return {
                group: a.instant for a in self.pending_compactions() for group in compacted_groups(self.plans.get(a.instant, {}))
            }

    def has_priority(self, instant: str) -> bool:
        """Whether writers have to wait for this pending clustering."""
        plan = (self.plans.get(instant, {}).get("plan") or {}).get("clusteringPlan") or {}
        return (plan.get("extraMetadata") or {}).get(PRIORITY_KEY) == "true"
