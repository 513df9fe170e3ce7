"""Results of writes and table services."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tideline_table.action import InlineService, SkippedPartition
    from tideline_table.coordination import Committed


class Shown:
    """A result that notebooks show as a table of its fields."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        from tideline.html_view import fields_of  # noqa: PLC0415 - only notebooks need it

        return fields_of(self)


@dataclass(frozen=True, slots=True)
class Commit(Shown):
    """A committed write. `sequence` is its position in the table log. Incremental readers continue from it.

    In merge-on-read tables with a bucket index, writers look for no keys: each row that goes to an existing bucket counts as
    updated, or as deleted, whether the table had its key or not.
    """

    instant: str
    sequence: int
    rows_inserted: int
    rows_updated: int
    rows_deleted: int
    """Rows removed, with those of file groups that an overwrite or a partition deletion replaced. -1: only a merge of their log
    files tells it."""
    attempts: int
    """Number of attempts: 1 plus the number of conflicts after which the write was repeated."""
    inline: tuple[InlineService, ...] = ()
    """The table services that this writer planned or ran behind its commit (`hoodie.compact.inline`,
    `hoodie.clustering.inline`)."""

    @classmethod
    def of(cls, done: Committed, inline: tuple[InlineService, ...] = ()) -> Commit:
        """Return the counts of a transaction that the engine committed, and what the writer did behind it."""
        return cls(done.instant, done.sequence, done.rows_inserted, done.rows_updated, done.rows_deleted, done.attempts, inline)


@dataclass(frozen=True, slots=True)
class Resize(Commit):
    """A resize of buckets. It is false, and its instant is empty, if no partition had to be changed."""

    skipped: tuple[SkippedPartition, ...] = ()
    """All partitions with files that it left as they are, each with the reason, in order of partition path."""

    def __bool__(self) -> bool:
        return bool(self.instant)

    @classmethod
    def to(cls, done: Committed | None, skipped: tuple[SkippedPartition, ...], sequence: int) -> Resize:
        """Return what the engine committed, None for nothing, and what it left out. `sequence`: of the table."""
        if done is None:
            return cls("", sequence, 0, 0, 0, 1, skipped=skipped)
        counts = (done.rows_inserted, done.rows_updated, done.rows_deleted)
        return cls(done.instant, done.sequence, *counts, done.attempts, skipped=skipped)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceResult(Shown):
    """The result of a table service. It is false if there was nothing to do; `reason` then says why in one line."""

    instant: str = ""
    reason: str = ""

    def __bool__(self) -> bool:
        return bool(self.instant)


@dataclass(frozen=True, slots=True, kw_only=True)
class Clustering(ServiceResult):
    """A clustering: small files of a partition were rewritten as fewer, sorted files."""

    sequence: int = 0
    rows_rewritten: int = 0
    files_written: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Compaction(ServiceResult):
    """A compaction: log files were merged into base files, or by a log compaction into one log file of their slice."""

    sequence: int = 0
    log_files_merged: int = 0
    files_written: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Clean(ServiceResult):
    """A clean: files that no retained query reads were deleted."""

    files_deleted: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Archival(ServiceResult):
    """An archival: instants were moved from the active timeline into an archive file."""

    instants: tuple[str, ...] = ()
    file: str = ""
    late_files_deleted: tuple[str, ...] = ()
    """Files that tasks of rolled-back writes created after the rollback."""


@dataclass(frozen=True, slots=True)
class Restoration(Shown):
    """A restore to a savepoint and what it removes, newest first. `instant` is that of the restore; it is empty for a dry run."""

    instant: str
    savepoint: str
    undone: tuple[str, ...]
    """Completed writes that are undone."""
    ended: tuple[str, ...]
    """Inflight writes and pending plans that are ended."""
    savepoints: tuple[str, ...]
    files_deleted: int
