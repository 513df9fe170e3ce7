"""Plans in log entries: what a pending action will do.

`to_json` returns the JSON form in log entries and checkpoints, `parse_plan` reads it. Hudi documents keep the form of the Avro
records in timeline files. The constructor of a plan reads the fields that the fold needs, and so checks them. A malformed plan
raises one of the exceptions in `errors.MALFORMED`.
"""

# ruff: noqa: D102 - the module docstring describes to_json and from_json

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tideline_table.file_group.slice import FileGroupId, SliceVersion, join_path
from tideline_table.hudi.instant import Action
from tideline_table.json_text import given
from tideline_table.log.progress import Progress, progress_from, progress_json
from tideline_table.log.rewind import Rewind

Document = Mapping[str, Any]
"""A record of the Hudi format, in the form of its Avro or JSON file."""
PRIORITY_KEY = "tideline.priority"
"""Extra metadata of a clustering plan, set to `true` if the clustering lost so many conflicts that writers have to wait for it."""


@dataclass(frozen=True, slots=True)
class ClusteringPlanned:
    """A clustering plan (`HoodieRequestedReplaceMetadata`)."""

    plan: Document
    read: Mapping[FileGroupId, SliceVersion] | None = None
    """Versions of the slices that the planner read; None for a plan of Apache Hudi."""
    groups: tuple[FileGroupId, ...] = field(init=False, compare=False, repr=False)
    """The file groups that the plan names."""
    has_priority: bool = field(init=False, compare=False, repr=False)
    """Whether writers have to wait for this clustering."""

    def __post_init__(self) -> None:
        plan = self.plan.get("clusteringPlan") or {}
        slices = (s for group in plan.get("inputGroups") or () for s in group["slices"])
        object.__setattr__(self, "groups", tuple(_group(s) for s in slices))
        object.__setattr__(self, "has_priority", (plan.get("extraMetadata") or {}).get(PRIORITY_KEY) == "true")

    def to_json(self) -> dict[str, Any]:
        read = None if self.read is None else [[*g, v.base_instant, v.log_files] for g, v in self.read.items()]
        return given(plan=self.plan, read=read)

    @classmethod
    def from_json(cls, document: Document) -> ClusteringPlanned:
        read = document.get("read")
        versions = read and {
            FileGroupId(str(p), str(f)): SliceVersion(str(base), int(logs[0]) if logs else 0) for p, f, base, *logs in read
        }
        return cls(document["plan"] or {}, versions or None)


@dataclass(frozen=True, slots=True)
class CompactionPlanned:
    """The plan of a compaction or of a log compaction (`HoodieCompactionPlan`)."""

    plan: Document
    groups: tuple[FileGroupId, ...] = field(init=False, compare=False, repr=False)
    """The file groups that the plan names."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "groups", tuple(_group(o) for o in self.plan.get("operations") or ()))

    def to_json(self) -> dict[str, Any]:
        return {"plan": self.plan}

    @classmethod
    def from_json(cls, document: Document) -> CompactionPlanned:
        return cls(document["plan"] or {})


@dataclass(frozen=True, slots=True)
class CleanPlanned:
    """A clean plan (`HoodieCleanerPlan`)."""

    plan: Document

    @property
    def paths(self) -> frozenset[str]:
        """The files that the plan deletes, relative to the table's root.

        It may name them below a former base path, or in Hadoop's spelling.
        """
        named = self.plan.get("filePathsToBeDeletedPerPartition") or {}
        return frozenset(path_named(p, str(file["filePath"])) for p, files in named.items() for file in files)

    def to_json(self) -> dict[str, Any]:
        return {"plan": self.plan}

    @classmethod
    def from_json(cls, document: Document) -> CleanPlanned:
        return cls(document["plan"])


@dataclass(frozen=True, slots=True)
class ArchivedInstants:
    """Instants to archive, in order. They include rolled-back instants, which have no timeline files any more."""

    instants: tuple[str, ...]
    before: str
    """First completed write of the active timeline after the archival. All of `instants` are older."""

    def to_json(self) -> dict[str, Any]:
        return {"instants": list(self.instants), "before": self.before}

    @classmethod
    def from_json(cls, document: Document) -> ArchivedInstants:
        found = cls(tuple(str(instant) for instant in document["instants"]), str(document["before"]))
        if any(instant >= found.before for instant in found.instants):
            raise ValueError(f"instants that are not older than {found.before}")
        return found


@dataclass(frozen=True, slots=True)
class ArchivalPlanned:
    """An archival plan: the instants to remove from the active timeline."""

    archived: ArchivedInstants

    def to_json(self) -> dict[str, Any]:
        return {"plan": self.archived.to_json()}

    @classmethod
    def from_json(cls, document: Document) -> ArchivalPlanned:
        return cls(ArchivedInstants.from_json(document["plan"]))


@dataclass(frozen=True, slots=True)
class RestorePlanned:
    """A restore plan (`HoodieRestorePlan`), the instants it undoes, and the data files of each undone write, newest write first."""

    plan: Document
    rewind: Rewind
    files: Mapping[str, Sequence[str]]
    unreplaced: tuple[str, ...] = ()
    """The partition paths of the file groups that an undone write replaced."""

    def to_json(self) -> dict[str, Any]:
        files = {instant: list(paths) for instant, paths in self.files.items()}
        return given(plan=self.plan, rewind=self.rewind.to_json(), files=files, unreplaced=list(self.unreplaced) or None)

    @classmethod
    def from_json(cls, document: Document) -> RestorePlanned:
        files = {str(at): tuple(map(str, paths)) for at, paths in document["files"].items()}
        unreplaced = tuple(map(str, document.get("unreplaced") or ()))
        return cls(document["plan"], Rewind.from_json(document["rewind"]), files, unreplaced)


class LogMove(NamedTuple):
    """A log file that gets another name: it joins the slice that the new name names."""

    partition_path: str
    old_name: str
    new_name: str


@dataclass(frozen=True, slots=True)
class RollbackStep:
    """Body of every transition of a rollback."""

    target: str
    """The instant to undo."""
    target_action: str
    plan: Document | None = None
    """`HoodieRollbackPlan`. None on completion, and for a rollback by Apache Hudi."""
    metadata: Document | None = None
    """`HoodieRollbackMetadata`, set on completion."""
    attempt: str = ""
    """Random token by which each of several competing processes recognises its own entry."""
    spares: bool = False
    """Set for a rollback by Apache Hudi that undid only one attempt of a plan, or a target that the log does not know."""
    eager: bool = False
    """Set for a rollback by which Apache Hudi undid the write of a live writer."""
    progress: Mapping[str, Progress] | None = None
    """Ingestion progress after the rollback, set if Apache Hudi rolled back a completed write."""
    cancels: bool = False
    """Set if an operator cancelled a plan; it did not lose a conflict."""
    moves: tuple[LogMove, ...] | None = None
    """Set from the step on in which a cancelled compaction gives back its log files (`coordination.unscheduling`). Of the
    completed step: not empty."""

    @property
    def files_deleted(self) -> int:
        """Number of files that the completed rollback deleted; 0 before."""
        return int((self.metadata or {}).get("totalFilesDeleted") or 0)

    @property
    def partitions(self) -> frozenset[str]:
        """The partition paths in which the completed rollback deleted files or gave them other names; none before."""
        return rolled_back_partitions(self.metadata or {}).union(m.partition_path for m in self.moves or () if self.metadata)

    def to_json(self) -> dict[str, Any]:
        return given(
            target=self.target,
            target_action=self.target_action,
            plan=self.plan,
            metadata=self.metadata,
            attempt=self.attempt or None,
            spares=self.spares or None,
            eager=self.eager or None,
            progress=None if self.progress is None else progress_json(self.progress),
            cancels=self.cancels or None,
            moves=None if self.moves is None else [list(move) for move in self.moves],
        )

    @classmethod
    def from_json(cls, document: Document) -> RollbackStep:
        return cls(
            target=str(document.get("target") or ""),
            target_action=str(document.get("target_action") or ""),
            plan=document.get("plan"),
            metadata=document.get("metadata"),
            attempt=str(document.get("attempt") or ""),
            spares=bool(document.get("spares")),
            eager=bool(document.get("eager")),
            progress=progress_from(document["progress"]) if "progress" in document else None,
            cancels=bool(document.get("cancels")),
            moves=tuple(LogMove(str(p), str(old), str(new)) for p, old, new in document["moves"]) if "moves" in document else None,
        )


Plan = ClusteringPlanned | CompactionPlanned | CleanPlanned | ArchivalPlanned | RestorePlanned | RollbackStep
"""`TableState.plans` keeps the plan until the action ends."""
HUDI_PLANS = (ClusteringPlanned, CompactionPlanned, CleanPlanned, RestorePlanned, RollbackStep)
"""Plans whose `plan` is the document of a requested timeline file."""
_PLANS: Mapping[Action, Callable[[Document], Plan]] = {
    Action.REPLACE_COMMIT: ClusteringPlanned.from_json,
    Action.COMPACTION: CompactionPlanned.from_json,
    Action.LOG_COMPACTION: CompactionPlanned.from_json,
    Action.CLEAN: CleanPlanned.from_json,
    Action.ARCHIVAL: ArchivalPlanned.from_json,
    Action.RESTORE: RestorePlanned.from_json,
    Action.ROLLBACK: RollbackStep.from_json,
}


def parse_plan(action: Action, document: Document) -> Plan:
    """Parse the plan of a pending `action` from its JSON form."""
    return _PLANS[action](document)


def rolled_back_partitions(metadata: Document) -> frozenset[str]:
    """Return the partition paths in which a rollback (`HoodieRollbackMetadata`) deleted or extended files."""
    parts = (metadata.get("partitionMetadata") or {}).items()
    return frozenset(str(name) for name, part in parts if part.get("successDeleteFiles") or part.get("rollbackLogFiles"))


def planned_files(plans: Iterable[Plan]) -> set[str]:
    """Return the paths of the files that clustering and compaction plans read, relative to the table's root."""
    found: set[str] = set()
    for plan in plans:
        if isinstance(plan, CompactionPlanned):
            documents = plan.plan.get("operations") or ()
        elif isinstance(plan, ClusteringPlanned):
            groups = (plan.plan.get("clusteringPlan") or {}).get("inputGroups") or ()
            documents = [document for group in groups for document in group["slices"]]
        else:
            continue
        for document in documents:
            names = [document.get("dataFilePath"), *(document.get("deltaFilePaths") or ())]
            found |= {path_named(_group(document).partition_path, str(name)) for name in names if name}
    return found


def path_named(partition_path: str, name: str) -> str:
    """Return the path, relative to the table's root, of a file that a plan names by its URI, its path or its name."""
    return join_path(partition_path, name.rpartition("/")[2])


def _group(document: Document) -> FileGroupId:
    return FileGroupId(str(document["partitionPath"] or ""), str(document["fileId"]))
