"""Conflict detection: a pure function from what a transaction did and what the log says since to the conflict, if any.

`conflict_matrix` lists what conflicts with what; here is why.

A write into a group under a pending clustering follows `UPDATE_STRATEGIES`: by default it waits for a clustering with priority alone, and not for
ever (`transaction.priority`). One that Apache Hudi planned, in a shared table, is always a conflict. Whoever goes first, no row is lost: a
clustering whose input was written since it was planned conflicts at its commit.

Log files that others appended to the same slice meanwhile are a conflict for a write that only appends where they hold a row of its own.
Otherwise its log file gets the next version and is merged behind them, as if it had begun later; nothing is written again.

A compaction that was planned after an update began is a conflict because the update's log file would belong to the slice that the plan
does not read any more; the update is done again and appends to the slice that the compaction will make. So is one that completed since an update
began that saw it pending: its log file may hold keys that the new base file dropped.

A commit that moves somebody's progress needs it where that was expected; otherwise it is refused for good (`ProgressMoved`).

A write also conflicts with every other one that changed the schema of the table since it was based on it, unless both changed it alike.

Cleaning conflicts with no write: it takes only slices that no transaction on the latest state reads; a transaction so slow that its
input is gone fails when it reads. Field notes: #13255, #9472, #18830, #9831.

Archival conflicts with no write: what it takes off the timeline is complete, and older than everything that is pending. A write that was
rolled back is passed only when a sweep found none of its files (`service.archival`). A writer so slow that its instant was forgotten meanwhile
finds that out like any other that was rolled back. Field notes: #6938, PR 7401, PR 11440, #10964.

Two inserts of one key conflict in the scope of the later one: in one partition, or with a global index in any two. A row that moves to another
partition is an insert there and a change of the group that it leaves.

Schema changes are part of a write and follow the rule above. Indexing has no rule: no index is kept beside the files. Table properties have none:
they are written at creation, and by sharing under the lock of both sides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np

from tideline_table.errors import (
    ClusteringFirst,
    CorruptMetadata,
    ProgressMoved,
    RestoredMeanwhile,
    RestorePending,
    SavepointRefused,
    TransactionRolledBack,
    UnsupportedTable,
    WriteConflict,
)
from tideline_table.file_group.savepoint import every_saved_slice
from tideline_table.file_group.slice import FileGroupId, FileSlice, SliceVersion
from tideline_table.file_group.state import TableState
from tideline_table.schema import arrow_from_avro
from tideline_table.service.archival import under_archival
from tideline_table.timeline.instant import WRITE_ACTIONS, Action, State
from tideline_table.timeline.progress import ProgressStep


@dataclass(frozen=True, slots=True)
class InsertedKeys:
    """Keys that a completed write added: their hashes, or only where they are when they are too many to carry."""

    instant: str
    hashes: np.ndarray | None
    partitions: frozenset[str]


@dataclass(frozen=True, slots=True)
class SchemaStep:
    """The Avro texts of the table schema that a write was based on and that it leaves behind."""

    based_on: str
    own: str

    def fits(self, text: str) -> bool:
        """Whether a table of that schema is the one that the write was based on, or made alike: by its columns, not by its text."""
        if text in ("", self.based_on, self.own):
            return True
        try:
            found = arrow_from_avro(text)
            return any(found.equals(arrow_from_avro(known)) for known in (self.based_on, self.own) if known)
        except (CorruptMetadata, UnsupportedTable):
            return False


@dataclass(frozen=True, slots=True)
class Overwrite:
    """Replaces everything in these partitions (None: in the table), whatever is there when it commits."""

    partitions: frozenset[str] | None = None

    def replaced(self, state: TableState) -> list[FileGroupId]:
        """The file groups that are visible in them now."""
        return [s.group for s in state.latest_slices(partitions=self.partitions)]


UpdateStrategy = Callable[[TableState, str], bool]
"""Whether a write to a file group under the pending clustering of that instant gives way to it."""

UPDATE_STRATEGIES: dict[str, UpdateStrategy] = {
    # The writer wins and the clustering is planned again, until it lost so often that it has priority.
    "yield": lambda state, clustering: state.has_priority(clustering),
    # RFC-19: the file groups belong to the clustering until it is done.
    "reject": lambda _state, _clustering: True,
}


class SliceGrew(WriteConflict):
    """Others appended log files to slices that this write appends to: its log files move behind theirs."""

    def __init__(self, groups: frozenset[FileGroupId], with_instant: str) -> None:
        super().__init__(
            f"log files were appended to {len(groups)} file group(s), at the latest by {with_instant}", with_instant=with_instant
        )
        self.groups = groups


@dataclass(frozen=True, slots=True)
class WriteSet:
    """What a transaction relies on and changes."""

    instant: str
    based_on: dict[FileGroupId, SliceVersion] = field(default_factory=dict)
    """File groups that it read and rewrites, appends to or replaces → the version of the slice that it read."""
    inserted: np.ndarray = field(default_factory=lambda: np.empty(0, dtype=np.uint64))
    """Hashes of the keys that it added and that must stay unique, as those in `InsertedKeys`: in their partitions, or in the table."""
    appends: frozenset[FileGroupId] = frozenset()
    """Those of `based_on` that it only appends a log file to."""
    update_strategy: UpdateStrategy | None = UPDATE_STRATEGIES["yield"]
    """None for table services: plans never share a group."""
    schema: SchemaStep | None = None
    """None for table services: they publish the schema that the table has when they commit."""
    progress: ProgressStep | None = None
    overwrites: Overwrite | None = None


def check_still_own(state: TableState, instant: str) -> None:
    """Raise `TransactionRolledBack` unless `instant` is inflight and not fenced."""
    record = state.actions.get(instant)
    if record is None or record.state is not State.INFLIGHT or record.fenced_by:
        by = f" by {record.fenced_by}" if record and record.fenced_by else ""
        fence = state.actions.get(record.fenced_by) if record else None
        if fence is not None and fence.action is Action.RESTORE:
            raise _restored(instant, fence.instant)
        if fence is not None and fence.is_peers:
            remedy = (
                "begin again; if its heartbeat was fresh, the other writer cleans failed writes eagerly: "
                "give it hoodie.cleaner.policy.failed.writes=LAZY and the options that 'tideline share PATH' prints"
            )
        else:
            remedy = "its heartbeat had expired; begin again"
        raise TransactionRolledBack(f"instant {instant} was rolled back{by}", expected="an inflight instant", remedy=remedy)


def check_not_restoring(state: TableState, instant: str, *, begins: bool) -> None:
    """Raise what a pending restore means for a step of `instant` (`begins`: its first one); nothing for the restore's own steps."""
    restore = state.restoring
    if restore in ("", instant):
        return
    record = state.actions.get(instant)
    if record is not None and record.fenced_by == restore and not begins:
        raise _restored(instant, restore)
    raise RestorePending(
        f"restore {restore} is bringing the table back to a savepoint",
        with_instant=restore,
        expected="a table that is not being restored",
        remedy="retry when it is done; if its process died, tideline run rollback PATH finishes it",
    )


def _restored(instant: str, restore: str) -> RestoredMeanwhile:
    return RestoredMeanwhile(
        f"instant {instant} was taken back by restore {restore}",
        expected="an inflight instant",
        remedy="the table was brought back to a savepoint: read it again before you write",
    )


def check_progress(step: ProgressStep | None, state: TableState) -> None:
    """Raise `ProgressMoved` unless the progress stands where `step` expects it."""
    if step is None:
        return
    held = state.progress.get(step.key)
    if (held.value if held else None) != step.expected:
        raise ProgressMoved(
            f"progress {step.key!r} is at {held.value} since {held.instant}"
            if held
            else f"progress {step.key!r} was never committed",
            key=step.key,
            held=held.value if held else None,
            expected=step.expected or "none",
            remedy="somebody else feeds the table under the same name: go on from there, or stop",
        )


def find_savepoint_conflict(state: TableState, instant: str, root: str) -> SavepointRefused | WriteConflict | None:
    """Why no savepoint of the write `instant` can be made in a table at `root` as it stands, None when it can."""
    record = state.actions.get(instant)
    if record is None or record.state is not State.COMPLETED or record.action not in WRITE_ACTIONS | {Action.COMPACTION}:
        found = f"{record.action} {instant}, which is {record.state}" if record is not None else f"no instant {instant}"
        return SavepointRefused(f"a savepoint of {found}", expected="a completed write, clustering or compaction")
    if instant in state.savepoints:
        return SavepointRefused(f"a savepoint of {instant} is there already", expected="one savepoint of a write")
    if instant < state.last_clean_retained:
        return SavepointRefused(
            f"a savepoint of {instant}, of which cleaning may have removed files",
            expected=f"an instant from {state.last_clean_retained} on",
            remedy="raise hoodie.cleaner.commits.retained to keep more",
        )
    if instant in under_archival(state):
        return WriteConflict(
            f"an archival is about to take {instant} off the timeline", with_instant=instant, remedy="save a later write"
        )
    keeps = {f"{root}/{path}" for s in every_saved_slice(state.slices, state.replaced, {instant: frozenset()}) for path in s.paths}
    for clean in (a for a in state.pending() if a.action is Action.CLEAN):
        named = state.plans[clean.instant]["plan"].get("filePathsToBeDeletedPerPartition") or {}
        if any(file["filePath"] in keeps for files in named.values() for file in files):
            return WriteConflict(
                f"clean {clean.instant} is about to delete files that a savepoint of {instant} needs",
                with_instant=clean.instant,
                remedy="save a later write",
            )
    return None


def _last_writer(file_slice: FileSlice) -> str:
    return max(file_slice.base_instant, *(log.instant for log in file_slice.log_files), "")


def find_conflict(own: WriteSet, state: TableState, inserted_since: Iterable[InsertedKeys]) -> WriteConflict | None:
    """The first conflict of `own` with `state`, which is everything that is committed or pending now.

    `inserted_since` are the completed writes after `own` began. Raises `TransactionRolledBack` when own was fenced,
    `ProgressMoved`.
    """
    check_still_own(state, own.instant)
    check_progress(own.progress, state)
    if own.schema is not None and not own.schema.fits(state.schema_json):
        # Rows written by the older schema would take new columns away from the file groups that they were merged with.
        other = max(state.completed_writes(), key=lambda action: action.sequence).instant
        return WriteConflict(f"the schema of the table changed, at the latest by {other}", with_instant=other)
    grown: dict[FileGroupId, str] = {}
    for group, read_version in own.based_on.items():
        replaced_by = state.replaced.get(group)
        if replaced_by is not None:
            return WriteConflict(
                f"file group {group.file_id} in {group.partition_path!r} was replaced by {replaced_by}", with_instant=replaced_by
            )
        if read_version.base_instant > own.instant:
            # Its base file would stand before the one that it was made of, and nobody would ever read it. Its log file would be of an earlier
            # time than the slice that it lies in: no savepoint and no query as of a time in between would have it.
            return WriteConflict(
                f"file group {group.file_id} in {group.partition_path!r} was rewritten by {read_version.base_instant} after this write began",
                expected=f"a slice older than {own.instant}",
                with_instant=read_version.base_instant,
            )
        latest = state.latest_slice(group)
        if latest is not None and group in own.appends and _only_grew(latest, read_version):
            grown[group] = _last_writer(latest)
        elif latest is None or latest.version != read_version:
            other = _last_writer(latest) if latest else "nothing"
            return WriteConflict(
                f"file group {group.file_id} in {group.partition_path!r} was written by {other}",
                expected=f"slice {read_version.base_instant} with {read_version.log_files} log file(s)",
                with_instant=other,
            )
    overwritten = own.overwrites.replaced(state) if own.overwrites is not None else []
    under = state.groups_under_compaction() if overwritten else {}
    for group in overwritten:
        if group in under:
            # A compaction is never rolled back, and cleaning would take the files that it reads.
            return WriteConflict(
                f"file group {group.file_id} in {group.partition_path!r} is under compaction {under[group]}",
                with_instant=under[group],
                remedy="run the compaction, then retry: tideline run compaction PATH",
            )
    if own.update_strategy is not None and (own.based_on or overwritten):
        under = state.groups_under_clustering()
        for group in (*own.based_on, *overwritten):
            clustering = under.get(group)
            if clustering is not None and state.actions[clustering].is_peers:
                return WriteConflict(
                    f"file group {group.file_id} is under clustering {clustering} of Apache Hudi, which lets no writer pass",
                    with_instant=clustering,
                    remedy="retry when it is done, or run it: tideline run clustering PATH",
                )
            if clustering is not None and own.update_strategy(state, clustering):
                return ClusteringFirst(
                    f"file group {group.file_id} is under clustering {clustering}, which goes first",
                    with_instant=clustering,
                    remedy="retry when it is done, or run it: tideline run clustering PATH",
                )
    if len(own.inserted):
        for other_keys in inserted_since:
            if other_keys.hashes is not None and len(np.intersect1d(own.inserted, other_keys.hashes)):
                return WriteConflict(
                    f"record keys were inserted by {other_keys.instant} at the same time", with_instant=other_keys.instant
                )
    return SliceGrew(frozenset(grown), max(grown.values())) if grown else None


def _only_grew(latest: FileSlice, read: SliceVersion) -> bool:
    return latest.version._replace(log_files=read.log_files) == read and len(latest.log_files) > read.log_files
