"""What a table is after a prefix of its log: actions, file groups, replaced groups. Folded entry by entry, without any I/O."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tideline_table.errors import CorruptMetadata, IllegalTransition
from tideline_table.file_group.slice import FileGroupId, FileSlice
from tideline_table.timeline.entry import Entry
from tideline_table.timeline.instant import WRITE_ACTIONS, Action, State, check_transition
from tideline_table.timeline.write_stats import SCHEMA_KEY, CommitMetadata

CLUSTER = "CLUSTER"
PRIORITY_KEY = "tideline.priority"
"""In a clustering plan's extra metadata: it has lost often enough, writers wait for it."""


@dataclass(frozen=True, slots=True)
class ActionRecord:
    """One instant of the table as far as the log tells."""

    instant: str
    action: Action
    state: State
    operation: str
    sequence: int
    """Of its latest transition; for a completed action the completion order."""
    started_sequence: int
    writer_id: str
    since: str = ""
    """When its latest transition was recorded (ISO 8601, UTC)."""
    fenced_by: str = ""
    """The rollback that was requested for it."""

    @property
    def is_pending(self) -> bool:
        """Neither completed nor rolled back."""
        return self.state in (State.REQUESTED, State.INFLIGHT)

    @property
    def is_clustering(self) -> bool:
        """A replace commit with a plan."""
        return self.action is Action.REPLACE_COMMIT and self.operation == CLUSTER


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
    last_clean_retained: str = ""
    excess: set[FileGroupId] = field(default_factory=set)
    """Groups that cleaning may find something in: more than one slice, or replaced."""

    def apply(self, entry: Entry) -> None:
        """Fold one entry. Raises `IllegalTransition` for a step that the life cycle does not have."""
        if entry.sequence != self.sequence + 1:
            raise CorruptMetadata(f"table log entry {entry.sequence} after {self.sequence}", expected=f"entry {self.sequence + 1}")
        known = self.actions.get(entry.instant)
        before = known.state if known else State.NONE
        if before is not entry.before:
            raise IllegalTransition(
                f"table log entry {entry.sequence} takes {entry.action} {entry.instant} from {entry.before}",
                expected=f"a step from {before}",
            )
        check_transition(entry.instant, entry.action, entry.before, entry.after)
        if known is not None and known.fenced_by:
            raise IllegalTransition(
                f"table log entry {entry.sequence} takes {entry.instant} to {entry.after}",
                expected=f"nothing more: rollback {known.fenced_by} was requested for it",
            )
        self.sequence = entry.sequence
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
        if entry.after is State.COMPLETED:
            self._apply_completion(entry)
            self.plans.pop(entry.instant, None)

    def _apply_rollback(self, entry: Entry) -> None:
        target = self.actions.get(entry.target)
        if target is None or not target.is_pending:
            raise IllegalTransition(f"rollback {entry.instant} of {entry.target or 'nothing'}", expected="a pending instant")
        if entry.after is not State.COMPLETED:
            self.actions[entry.target] = replace(target, fenced_by=entry.instant)
            return
        if target.is_clustering:
            for group in self.planned_groups(target.instant):
                self.clustering_losses[group] = self.clustering_losses.get(group, 0) + 1
        self.actions[entry.target] = replace(target, state=State.ROLLED_BACK, fenced_by=entry.instant, sequence=entry.sequence)
        self.plans.pop(entry.target, None)

    def _apply_completion(self, entry: Entry) -> None:
        if entry.action in WRITE_ACTIONS:
            self._apply_commit(entry.instant, CommitMetadata.from_json(entry.body["metadata"]))
        elif entry.action is Action.CLEAN:
            self._apply_clean(entry.body["metadata"])

    def _apply_commit(self, instant: str, metadata: CommitMetadata) -> None:
        for stat in metadata.stats:
            group = FileGroupId(stat.partition_path, stat.file_id)
            name = stat.path.rsplit("/", 1)[-1]
            slices = self.slices.setdefault(group, {})
            slices[instant] = FileSlice(group, instant, name, stat.file_size_bytes, stat.num_writes)
            if len(slices) > 1:
                self.excess.add(group)
        for partition, file_ids in (metadata.replaced or {}).items():
            for file_id in file_ids:
                group = FileGroupId(partition, file_id)
                self.replaced[group] = instant
                self.excess.add(group)
                self.clustering_losses.pop(group, None)
        self.schema_json = metadata.extra.get(SCHEMA_KEY) or self.schema_json

    def _apply_clean(self, metadata: Mapping[str, Any]) -> None:
        self.last_clean_retained = str(metadata.get("earliestCommitToRetain") or self.last_clean_retained)
        gone = {(p, str(name)) for p, part in metadata["partitionMetadata"].items() for name in part["successDeleteFiles"]}
        for group in list(self.excess):
            slices = self.slices.get(group, {})
            for instant in [i for i, s in slices.items() if (group.partition_path, s.base_file) in gone]:
                del slices[instant]
            if not slices:
                self.slices.pop(group, None)
                self.replaced.pop(group, None)
                self.excess.discard(group)
            elif len(slices) == 1 and group not in self.replaced:
                self.excess.discard(group)

    # --- questions ---------------------------------------------------------------------------------------------------

    def pending(self) -> Iterator[ActionRecord]:
        """Actions that are requested or inflight, in order of instant."""
        return (a for _, a in sorted(self.actions.items()) if a.is_pending)

    def completed_writes(self) -> list[ActionRecord]:
        """Completed commits, delta commits and replace commits in order of instant."""
        return [a for _, a in sorted(self.actions.items()) if a.state is State.COMPLETED and a.action in WRITE_ACTIONS]

    def latest_slices(self, as_of: str = "", partitions: Iterable[str] | None = None) -> list[FileSlice]:
        """The visible slice of each file group at `as_of` (empty: now), in order of partition and file id.

        A group replaced at R is hidden at and after R, visible before (11.4).
        """
        wanted = None if partitions is None else set(partitions)
        found: list[FileSlice] = []
        for group, slices in self.slices.items():
            if wanted is not None and group.partition_path not in wanted:
                continue
            gone = self.replaced.get(group)
            if gone is not None and (not as_of or gone <= as_of):
                continue
            instants = [i for i in slices if not as_of or i <= as_of]
            if instants:
                found.append(slices[max(instants)])
        return sorted(found, key=lambda s: s.group)

    def latest_slice(self, group: FileGroupId) -> FileSlice | None:
        """The visible slice of one group, None when it has none or was replaced."""
        slices = self.slices.get(group)
        if not slices or group in self.replaced:
            return None
        return slices[max(slices)]

    def planned_groups(self, instant: str) -> list[FileGroupId]:
        """File groups that a pending clustering plan names."""
        body = self.plans.get(instant, {})
        plan = (body.get("plan") or {}).get("clusteringPlan") or {}
        return [FileGroupId(s["partitionPath"], s["fileId"]) for group in plan.get("inputGroups") or () for s in group["slices"]]

    def pending_clusterings(self) -> list[ActionRecord]:
        """Clusterings that are planned or running and not fenced by a rollback."""
        return [a for a in self.pending() if a.is_clustering and not a.fenced_by]

    def groups_under_clustering(self) -> dict[FileGroupId, str]:
        """File group → instant of the pending clustering that names it."""
        return {group: a.instant for a in self.pending_clusterings() for group in self.planned_groups(a.instant)}

    def has_priority(self, instant: str) -> bool:
        """Whether writers have to wait for this pending clustering."""
        plan = (self.plans.get(instant, {}).get("plan") or {}).get("clusteringPlan") or {}
        return (plan.get("extraMetadata") or {}).get(PRIORITY_KEY) == "true"
