"""What the bodies of log entries say, understood before anything of them is folded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tideline_table.errors import CorruptMetadata
from tideline_table.file_group.adopted import AdoptedTable
from tideline_table.file_group.archived import ArchivedInstants
from tideline_table.file_group.savepoint import PROGRESS_KEY, Savepoint, progress_from, saved_by
from tideline_table.file_group.slice import FileGroupId
from tideline_table.timeline.entry import Entry
from tideline_table.timeline.instant import WRITE_ACTIONS, Action, State
from tideline_table.timeline.progress import Progress
from tideline_table.timeline.rewind import REWIND_KEY, Rewind
from tideline_table.timeline.sharing import ADOPTED_KEY, SHARING_KEY, Sharing
from tideline_table.timeline.write_stats import CommitMetadata


def compacted_groups(body: Mapping[str, Any]) -> list[FileGroupId]:
    """File groups that a compaction plan (in the body of its entry) names."""
    operations = (body.get("plan") or {}).get("operations") or ()
    return [FileGroupId(str(o["partitionPath"] or ""), str(o["fileId"])) for o in operations]


@dataclass(frozen=True, slots=True)
class EntryContent:
    """What the body of an entry says, understood before anything is folded."""

    commit: CommitMetadata | None = None
    retained: str = ""
    cleaned: frozenset[tuple[str, str]] | None = None
    undone: tuple[str, ...] = ()
    progress: Mapping[str, Progress] | None = None
    """What it becomes, where others restored or rolled back what had completed."""
    sharing: Sharing | None = None
    adopted: AdoptedTable | None = None
    savepoint: Savepoint | None = None
    rewind: Rewind | None = None
    archived: ArchivedInstants | None = None


def understood(entry: Entry) -> EntryContent:
    """What `entry` changes. Raises `CorruptMetadata` for a body that cannot be understood."""
    try:
        if entry.action is Action.REPLACE_COMMIT and "plan" in entry.body:
            planned_groups(entry.body)
        if entry.action is Action.COMPACTION and "plan" in entry.body:
            compacted_groups(entry.body)
        if entry.action is Action.RESTORE and REWIND_KEY in entry.body:
            return EntryContent(rewind=Rewind.from_json(entry.body[REWIND_KEY]))
        if entry.action is Action.ARCHIVAL and "plan" in entry.body:
            ArchivedInstants.from_json(entry.body["plan"])
        if entry.after is not State.COMPLETED:
            return EntryContent()
        if entry.action in WRITE_ACTIONS or entry.action is Action.COMPACTION:
            return _written(entry.body)
        if entry.action is Action.SAVEPOINT:
            return EntryContent(savepoint=saved_by(entry))
        if entry.action in (Action.RESTORE, Action.ROLLBACK):
            progress = progress_from(entry.body[PROGRESS_KEY]) if PROGRESS_KEY in entry.body else None
            return EntryContent(undone=tuple(str(instant) for instant in entry.body.get("undone") or ()), progress=progress)
        if entry.action is Action.ARCHIVAL:
            return EntryContent(archived=ArchivedInstants.from_json(entry.body["metadata"]))
        if entry.action is Action.CLEAN:
            metadata = entry.body["metadata"]
            names = {(p, str(name)) for p, part in metadata["partitionMetadata"].items() for name in part["successDeleteFiles"]}
            return EntryContent(retained=str(metadata.get("earliestCommitToRetain") or ""), cleaned=frozenset(names))
        return EntryContent()
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError) as error:
        raise CorruptMetadata(
            f"table log entry {entry.sequence} ({entry.action} {entry.instant}) cannot be understood ({type(error).__name__}: {error})",
            expected="the body of its action",
            remedy="restore the file; nothing was changed",
        ) from None


def _written(body: Mapping[str, Any]) -> EntryContent:
    sharing = Sharing.from_json(body[SHARING_KEY]) if body.get(SHARING_KEY) else None
    adopted = AdoptedTable.from_json(body[ADOPTED_KEY]) if body.get(ADOPTED_KEY) else None
    for plan in adopted.plans.values() if adopted else ():
        planned_groups(plan)
        compacted_groups(plan)
    return EntryContent(commit=CommitMetadata.from_json(body["metadata"]), sharing=sharing, adopted=adopted)


def planned_groups(body: Mapping[str, Any]) -> list[FileGroupId]:
    """File groups that a clustering plan (in the body of its entry) names."""
    plan = (body.get("plan") or {}).get("clusteringPlan") or {}
    return [
        FileGroupId(str(s["partitionPath"] or ""), str(s["fileId"]))
        for group in plan.get("inputGroups") or ()
        for s in group["slices"]
    ]
