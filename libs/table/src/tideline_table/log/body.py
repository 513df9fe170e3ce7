"""Bodies of log entries: one frozen class per kind of transition. Only this module parses and serialises them.

`parse_body` chooses the class by the action and the state after the transition. Hudi documents in a body (plans, clean and rollback
metadata) keep the form of the Avro records in timeline files. The constructor of a body reads the fields that the fold needs, and
so checks them. A malformed body raises one of the exceptions in `errors.MALFORMED`. `to_json` returns the form that
`parse_body` reads.
"""

# ruff: noqa: D102 - the module docstring describes to_json and from_json

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tideline_table.errors import CorruptMetadata
from tideline_table.hudi.instant import PUBLISHING_ACTIONS, Action, State
from tideline_table.hudi.write_stats import CommitMetadata
from tideline_table.json_text import given
from tideline_table.log.adopted import AdoptedTable
from tideline_table.log.plan import ArchivedInstants, Document, Plan, RollbackStep, parse_plan, rolled_back_partitions
from tideline_table.log.progress import Progress, progress_from, progress_json
from tideline_table.log.rewind import Rewind
from tideline_table.log.sharing import Sharing
from tideline_table.statistics import FileStatistics, statistics_from, statistics_json


@dataclass(frozen=True, slots=True)
class Bare:
    """An empty body: the header of the entry says everything about the transition."""

    def to_json(self) -> dict[str, Any]:
        return {}


@dataclass(frozen=True, slots=True)
class RestoreBegun:
    """The first attempt of a restore. From this entry on, the writes of `rewind` are undone. Later attempts have a `Bare` body."""

    rewind: Rewind

    def to_json(self) -> dict[str, Any]:
        return {"rewind": self.rewind.to_json()}


@dataclass(frozen=True, slots=True)
class Published:
    """A completed write, clustering or compaction."""

    metadata: CommitMetadata
    inserted_key_hashes: str | None = None
    """Sorted 64-bit hashes of the inserted keys with their partition paths, little-endian, base64. None if there are too many."""
    inserted_key_hashes_of_table: str | None = None
    """The same for the keys without partition paths, from writes whose keys are unique in the table."""
    sharing: Sharing | None = None
    """Set when the table is shared with Apache Hudi's writers from this entry on."""
    adopted: AdoptedTable | None = None
    """State of a Hudi-written table, in the first commit of its table log."""
    unlocked: str = ""
    """Set for an adopted write of Apache Hudi that completed without the common lock: what is known of its writer."""
    writer: str = ""
    """What is known of the writer of an adopted write of Apache Hudi, in a table whose writers have to be seen with the lock."""
    locked: bool = False
    """Whether the lock's trace showed that this writer took it."""
    writers: tuple[str, ...] | None = None
    """Set where `sharing` begins, if no plan may be published until each writer is seen with the lock: those of the last writes."""
    statistics: Document | None = field(default=None, compare=False)
    """Column statistics of its files (`statistics_json`), as an entry holds them. `file_statistics` reads them."""

    @property
    def partitions(self) -> frozenset[str]:
        """The partition paths in which it wrote or replaced files."""
        return frozenset(s.partition_path for s in self.metadata.stats).union(self.metadata.replaced or ())

    @property
    def file_statistics(self) -> dict[str, FileStatistics]:
        """Column statistics of the files that were written, by path, as far as their writer took them. Raises `MALFORMED`."""
        if self.statistics is not None:
            return statistics_from(self.statistics)
        return {stat.path: stat.statistics for stat in self.metadata.stats if stat.statistics is not None}

    @property
    def for_the_fold(self) -> Published:
        """This body without keys and statistics, which the fold does not need: who needs them reads the entry itself."""
        metadata = replace(self.metadata, stats=tuple(replace(stat, statistics=None, keys=None) for stat in self.metadata.stats))
        return replace(self, metadata=metadata, inserted_key_hashes=None, inserted_key_hashes_of_table=None, statistics=None)

    def to_json(self) -> dict[str, Any]:
        statistics = self.statistics
        if statistics is None and (taken := self.file_statistics):
            statistics = statistics_json(taken)
        return given(
            metadata=self.metadata.to_json(),
            inserted_key_hashes=self.inserted_key_hashes,
            inserted_key_hashes_of_table=self.inserted_key_hashes_of_table,
            sharing=self.sharing and self.sharing.to_json(),
            adopted=self.adopted and self.adopted.to_json(),
            unlocked=self.unlocked or None,
            writer=self.writer or None,
            locked=self.locked or None,
            writers=None if self.writers is None else list(self.writers),
            statistics=statistics,
        )

    @classmethod
    def from_json(cls, document: Document) -> Published:
        return cls(
            metadata=CommitMetadata.from_json(document["metadata"]),
            inserted_key_hashes=document.get("inserted_key_hashes"),
            inserted_key_hashes_of_table=document.get("inserted_key_hashes_of_table"),
            sharing=Sharing.from_json(document["sharing"]) if document.get("sharing") else None,
            adopted=AdoptedTable.from_json(document["adopted"]) if document.get("adopted") else None,
            unlocked=str(document.get("unlocked") or ""),
            writer=str(document.get("writer") or ""),
            locked=document.get("locked") is True,
            writers=None if document.get("writers") is None else tuple(map(str, document["writers"])),
            statistics=document.get("statistics"),
        )


@dataclass(frozen=True, slots=True)
class Cleaned:
    """A completed clean (`HoodieCleanMetadata`)."""

    metadata: Document
    retained: str = field(init=False, compare=False, repr=False)
    """The earliest instant as of which a query still finds its files. Empty if Apache Hudi cleaned by file versions."""
    names: frozenset[tuple[str, str]] = field(init=False, compare=False, repr=False)
    """Partition path and name of each deleted file."""

    def __post_init__(self) -> None:
        parts = self.metadata["partitionMetadata"].items()
        names = frozenset((str(p), str(name)) for p, part in parts for name in part["successDeleteFiles"])
        object.__setattr__(self, "names", names)
        object.__setattr__(self, "retained", str(self.metadata.get("earliestCommitToRetain") or ""))

    @property
    def files_deleted(self) -> int:
        """Number of files that the clean deleted."""
        return int(self.metadata["totalFilesDeleted"])

    @property
    def partitions(self) -> frozenset[str]:
        """The partition paths in which it deleted files."""
        return frozenset(partition for partition, _ in self.names)

    def to_json(self) -> dict[str, Any]:
        return {"metadata": self.metadata}

    @classmethod
    def from_json(cls, document: Document) -> Cleaned:
        return cls(document["metadata"])


@dataclass(frozen=True, slots=True)
class Archived:
    """A completed archival. `file` is the archive file that it wrote."""

    archived: ArchivedInstants
    file: str = ""

    def to_json(self) -> dict[str, Any]:
        return {"metadata": self.archived.to_json(), "file": self.file}

    @classmethod
    def from_json(cls, document: Document) -> Archived:
        return cls(ArchivedInstants.from_json(document["metadata"]), str(document.get("file", "")))


@dataclass(frozen=True, slots=True)
class Restored:
    """A completed restore (`HoodieRestoreMetadata`). `undone` and `progress` are set only for a restore by Apache Hudi."""

    metadata: Document | None = None
    undone: tuple[str, ...] = ()
    progress: Mapping[str, Progress] | None = None
    unreplaced: tuple[str, ...] = ()
    """The partition paths of replaced file groups that are visible again, of a restore by Tideline."""

    @property
    def instants(self) -> tuple[str, ...]:
        """The instants of the writes that it undid."""
        return self.undone or tuple(str(instant) for instant in (self.metadata or {}).get("instantsToRollback") or ())

    @property
    def files_deleted(self) -> int:
        """Number of files that the restore deleted."""
        return sum(int(one["totalFilesDeleted"]) for one in self._rollbacks)

    @property
    def partitions(self) -> frozenset[str]:
        """The partition paths in which it deleted files or made replaced file groups visible."""
        return frozenset(self.unreplaced).union(*(rolled_back_partitions(one) for one in self._rollbacks))

    @property
    def _rollbacks(self) -> list[Document]:
        by_instant = (self.metadata or {}).get("hoodieRestoreMetadata") or {}
        return [one for found in by_instant.values() for one in found]

    def to_json(self) -> dict[str, Any]:
        progress = None if self.progress is None else progress_json(self.progress)
        return given(
            metadata=self.metadata,
            undone=list(self.undone) or None,
            progress=progress,
            unreplaced=list(self.unreplaced) or None,
        )

    @classmethod
    def from_json(cls, document: Document) -> Restored:
        undone = tuple(str(instant) for instant in document.get("undone") or ())
        progress = progress_from(document["progress"]) if "progress" in document else None
        return cls(document.get("metadata"), undone, progress, tuple(map(str, document.get("unreplaced") or ())))


@dataclass(frozen=True, slots=True)
class SavepointMade:
    """A savepoint (`HoodieSavepointMetadata`) and the ingestion progress as of the write that it protects."""

    metadata: Document
    progress: Mapping[str, Progress]

    def to_json(self) -> dict[str, Any]:
        return {"metadata": self.metadata, "progress": progress_json(self.progress)}

    @classmethod
    def from_json(cls, document: Document) -> SavepointMade:
        metadata = document["metadata"]
        if missing := {"savepointedBy", "comments"} - set(metadata):
            raise KeyError(*sorted(missing))
        return cls(metadata, progress_from(document["progress"]))


@dataclass(frozen=True, slots=True)
class Indexed:
    """The creation of partitions of the metadata table. They hold what the table holds as of this entry.

    With the partition `files`, it replaces the whole metadata table; without it, it adds to the one that is there.
    """

    partitions: tuple[str, ...]
    max_deltas: int
    """Number of delta commits in the metadata table after which it is compacted."""
    upto: str = ""
    """The newest completed write; empty if there is none."""
    file_groups: Mapping[str, int] = field(default_factory=dict)
    """Partition → number of its file groups, for partitions that have more than one."""
    columns: tuple[str, ...] = ()
    """The columns that a partition of column statistics has records of."""

    def groups_of(self, partition: str) -> int:
        """Return the number of file groups of a partition."""
        return self.file_groups.get(partition, 1)

    def document(self, *, operation: str = "") -> dict[str, Any]:
        """Return the `HoodieIndexPlan`, or with `operation` the `HoodieIndexCommitMetadata`."""
        infos = [
            {"version": 1, "metadataPartitionPath": name, "indexUptoInstant": self.upto, "extraMetadata": None}
            for name in self.partitions
        ]
        return {"version": 1, **({"operationType": operation} if operation else {}), "indexPartitionInfos": infos}

    def to_json(self) -> dict[str, Any]:
        known = {"partitions": list(self.partitions), "max_deltas": self.max_deltas, "upto": self.upto}
        groups = {"file_groups": dict(self.file_groups)} if self.file_groups else {}
        return {**known, **groups, **({"columns": list(self.columns)} if self.columns else {})}

    @classmethod
    def from_json(cls, document: Document) -> Indexed:
        groups = {str(name): int(number) for name, number in (document.get("file_groups") or {}).items()}
        columns = tuple(map(str, document.get("columns") or ()))
        found = cls(tuple(map(str, document["partitions"])), int(document["max_deltas"]), str(document["upto"]), groups, columns)
        if not found.partitions or found.max_deltas < 1 or min(groups.values(), default=1) < 1:
            raise ValueError("an index without partitions, or with a limit or a number of file groups below 1")
        return found


def _of_tideline(parse: Callable[[Document], Body]) -> Callable[[Document], Body]:
    """For actions of which one by Apache Hudi has no body: an indexing, and what earlier releases recorded of a log compaction."""
    return lambda document: parse(document) if document else Bare()


Body = Bare | Plan | RestoreBegun | Published | Cleaned | Archived | Restored | SavepointMade | Indexed

_RESULTS: Mapping[Action, Callable[[Document], Body]] = dict.fromkeys(PUBLISHING_ACTIONS, Published.from_json) | {
    Action.CLEAN: Cleaned.from_json,
    Action.ARCHIVAL: Archived.from_json,
    Action.RESTORE: Restored.from_json,
    Action.SAVEPOINT: SavepointMade.from_json,
    Action.INDEXING: _of_tideline(Indexed.from_json),
    Action.LOG_COMPACTION: _of_tideline(Published.from_json),
}


def parse_body(action: Action, after: State, document: Document) -> Body:
    """Parse the body of a transition of `action` to the state `after`."""
    if action is Action.ROLLBACK:
        return RollbackStep.from_json(document)
    if after is State.COMPLETED:
        result = _RESULTS.get(action)
        return Bare() if result is None else result(document)
    if "plan" in document:
        return parse_plan(action, document)
    return RestoreBegun(Rewind.from_json(document["rewind"])) if "rewind" in document else Bare()


CARRIED_KEY = "tideline.carried"
"""Key in the extra metadata of a clustering: JSON of the instant of each write → the paths of the log files with its rows.

It wrote these files on behalf of writes that ran beside it. The state files each of them under the write that its rows are of, so
that a restore or a query as of an instant treats the rows as part of that write, wherever they are.
"""


def carried_text(files: Mapping[str, list[str]]) -> str:
    """Return the value of `CARRIED_KEY` for these files: instant of the write → paths."""
    return json.dumps(files, sort_keys=True)


def carried_by_path(extra: Mapping[str, str]) -> dict[str, str]:
    """Return path → instant of the write for the log files that a clustering names; empty for other commits.

    Raises `CorruptMetadata` for a value that `carried_text` does not write.
    """
    text = extra.get(CARRIED_KEY, "")
    if not text:
        return {}
    try:
        return {str(path): str(instant) for instant, paths in json.loads(text).items() for path in paths}
    except (ValueError, AttributeError, TypeError, RecursionError):
        raise CorruptMetadata(f"{CARRIED_KEY} {text[:80]!r}", expected="instants of writes with paths of log files") from None
