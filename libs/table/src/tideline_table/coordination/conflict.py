"""Conflict detection: a pure function from what a transaction did and what the log says since to the first conflict, if any.

`docs/conflicts.md` lists what conflicts with what. The reasons follow.

A write into a file group under a pending clustering follows `UPDATE_STRATEGIES`. By default it waits only for a clustering with
priority, and for a limited time (`coordination.priority`). A clustering that Apache Hudi planned, in a shared table, is always a
conflict. In either order no row is lost: a clustering whose input was written after its plan conflicts at its commit.

Log files that other writers appended to the same slice conflict with a write that only appends, if they hold one of its rows.
Otherwise its log file is copied to the next log version and merged after them, as if the write had begun later.

A compaction planned after an update began conflicts with it: the update's log file would belong to the slice that the plan no
longer reads. The update runs again and appends to the slice that the compaction will create. A compaction that was pending when an
update began and completed since conflicts, too: the log file may hold keys that the new base file dropped.

A commit that moves progress requires the value that it expects; otherwise it is refused for good (`ProgressMoved`).
A write conflicts with every write that changed the table schema since the one it was based on, unless both changed it alike.

Cleaning and archival conflict with no write. A clean deletes only slices that no transaction on the latest state reads; an archival
removes only instants that have ended, older than every pending write. A transaction so slow that its input was deleted fails
when it reads, and one whose instant was archived fails like any writer that was rolled back.

Two inserts of one key conflict in the scope of the later one: in one partition, or with a global index in any two. A row that moves
to another partition is an insert there and a change of the file group that it leaves.

In a table with a bucket index, two writes that both open the file group of a bucket conflict; a write into an existing group
follows the rules above. The ids of the two groups differ, so that the files of the losing write never join the group of the
other one. With consistent hashing the hash ring fixes the id; a write that was routed by another ring than the one that counts
conflicts, too.

Creating or dropping an index changes no rows. Table properties need no rule: they are written at creation, and by sharing under the
lock that both engines take.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from tideline_table.coordination.write_set import InsertedKeys, WriteSet
from tideline_table.errors import (
    ClusteringFirst,
    ProgressMoved,
    RestoredMeanwhile,
    RestorePending,
    SavepointRefused,
    TransactionRolledBack,
    WriteConflict,
)
from tideline_table.file_group.slice import FileGroupId, FileSlice, SliceVersion
from tideline_table.hudi.file_names import bucket_of_file_id
from tideline_table.hudi.instant import PUBLISHING_ACTIONS, Action, State
from tideline_table.log.plan import CleanPlanned
from tideline_table.log.progress import ProgressStep
from tideline_table.log.savepoint import every_saved_slice
from tideline_table.log.state import TableState


def last_writer(file_slice: FileSlice) -> str:
    """Return the instant of the last write into a slice."""
    return max(file_slice.base_instant, *(log.instant for log in file_slice.log_files), "")


def resized_meanwhile(own: WriteSet, state: TableState) -> WriteConflict | None:
    """Return the conflict with another number of buckets or hash ring than that of `own`, and of a resize with other writes."""
    resize = state.bucket_resize()
    at = resize.instant if resize is not None else ""
    if own.resized_by is not None and own.resized_by != at:
        return WriteConflict(
            f"the table got {resize.text if resize is not None else 'the numbers of buckets of its creation'} by "
            f"{at or 'a restore'}",
            expected="the numbers that this write began with",
            with_instant=at,
        )
    for partition, routed_by in own.rings.items():
        at = state.ring_instant(partition)
        if at != routed_by:
            return WriteConflict(
                f"partition {partition!r} got another hash ring by {at or 'a restore'}",
                expected="the ring by which this write found its buckets",
                with_instant=at,
            )
    return None if own.splits is None else _split_group_changed(own, state)


def _split_group_changed(own: WriteSet, state: TableState) -> WriteConflict | None:
    assert own.splits is not None
    visible = {s.group: s for s in state.each_latest() if own.splits_in(s.group)}
    changed = [s for group, s in visible.items() if own.splits.get(group) != s.version]
    if changed or visible.keys() != own.splits.keys():
        by = max((last_writer(s) for s in changed), default="")
        return WriteConflict(
            f"file groups changed while their buckets were split, at the latest by {by or 'a replacement'}", with_instant=by
        )
    under = {at for group, at in state.groups_under_compaction().items() if own.splits_in(group)}
    if under:
        at = min(under)
        return WriteConflict(
            f"compaction {at} is pending, and cleaning would delete the files that it reads",
            with_instant=at,
            remedy="run the compaction, then retry: tideline run compaction PATH",
        )
    return None


def replaced_in_a_ring(own: WriteSet, overwritten: Sequence[FileGroupId]) -> WriteConflict | None:
    """Return the conflict over `overwritten` file groups in a partition whose ring stays.

    Later rows would go to replaced file groups.
    """
    renews = own.overwrites.renews if own.overwrites is not None else None
    for group in overwritten if renews is not None else ():
        if renews is not None and group.partition_path not in renews:
            return WriteConflict(
                f"partition {group.partition_path!r} got its first rows while this overwrite ran",
                expected="the partitions for which it has made hash rings",
                with_instant="",
            )
    return None


def opened_meanwhile(own: WriteSet, state: TableState) -> WriteConflict | None:
    """Return the conflict over a bucket that was empty when `own` began. An overwrite replaces what others opened."""
    if not own.opens or own.overwrites is not None:
        return None
    for group in own.opens:
        if group in state.replaced:
            # With consistent hashing, the node had this file id only.
            by = state.replaced[group]
            return WriteConflict(f"file group {group.file_id} in {group.partition_path!r} was replaced by {by}", with_instant=by)
    opened = {_bucket_of(group) for group in own.opens}
    for other in state.latest_slices(partitions={group.partition_path for group in own.opens}):
        partition, bucket = _bucket_of(other.group)
        if (partition, bucket) in opened:
            by = last_writer(other)
            return WriteConflict(
                f"bucket {bucket} of partition {partition!r} got its file group {other.group.file_id} from {by}",
                expected="an empty bucket, as when this write began",
                with_instant=by,
            )
    return None


def _bucket_of(group: FileGroupId) -> tuple[str, int | str]:
    """Return what no two file groups share: the bucket number, or the file id, which the node of a hash ring fixes."""
    number = bucket_of_file_id(group.file_id)
    return group.partition_path, group.file_id if number is None else number


class SliceGrew(WriteConflict):
    """Other writers appended log files to slices that this write appends to. Its log files get later versions."""

    def __init__(self, groups: frozenset[FileGroupId], with_instant: str) -> None:
        super().__init__(
            f"log files were appended to {len(groups)} file group(s), at the latest by {with_instant}", with_instant=with_instant
        )
        self.groups = groups


def check_still_own(state: TableState, instant: str) -> None:
    """Raise `TransactionRolledBack` unless `instant` is inflight and not fenced.

    `RestoredMeanwhile` if the table was restored since.
    """
    record = state.actions.get(instant)
    if record is None or record.state is not State.INFLIGHT or record.fenced_by:
        # Not only the restore that fenced it: archival may have removed the record, and recovery may have been faster.
        restores = [a.instant for a in state.actions.values() if a.action is Action.RESTORE and a.instant > instant]
        if restores:
            raise _restored(instant, min(restores))
        fence = state.actions.get(record.fenced_by) if record else None
        if fence is not None and fence.is_by_hudi:
            remedy = (
                "begin again; if its heartbeat was fresh, the other writer cleans failed writes eagerly: "
                "give it hoodie.cleaner.policy.failed.writes=LAZY and the options that 'tideline share PATH' prints"
            )
        else:
            remedy = "its heartbeat had expired; begin again"
        by = f" by {record.fenced_by}" if record and record.fenced_by else ""
        raise TransactionRolledBack(f"instant {instant} was rolled back{by}", expected="an inflight instant", remedy=remedy)


def check_not_restoring(state: TableState, instant: str, *, begins: bool) -> None:
    """Raise the error for a step of `instant` during a restore (`begins`: its first step); the restore's own steps pass."""
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
    """Raise `ProgressMoved` unless the progress of the key has the value that `step` expects."""
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
            remedy="another process writes the table under the same key: continue from its progress, or stop",
        )


def find_savepoint_conflict(state: TableState, instant: str) -> SavepointRefused | WriteConflict | None:
    """Return why the table cannot have a savepoint of the write `instant` now, None if it can."""
    record = state.actions.get(instant)
    if record is None or record.state is not State.COMPLETED or record.action not in PUBLISHING_ACTIONS:
        found = f"{record.action} {instant}, which is {record.state}" if record is not None else f"no instant {instant}"
        return SavepointRefused(f"a savepoint of {found}", expected="a completed write, clustering or compaction")
    if instant in state.savepoints:
        return SavepointRefused(f"a savepoint of {instant} exists already", expected="one savepoint of a write")
    if instant < state.last_clean_retained:
        return SavepointRefused(
            f"a savepoint of {instant}, of which cleaning may have removed files",
            expected=f"an instant from {state.last_clean_retained} on",
            remedy="raise hoodie.cleaner.commits.retained to keep more",
        )
    if instant in state.under_archival():
        return WriteConflict(
            f"an archival is about to take {instant} off the timeline", with_instant=instant, remedy="save a later write"
        )
    keeps = {path for s in every_saved_slice(state.slices, state.replaced, {instant: frozenset()}) for path in s.paths}
    for clean in (a for a in state.pending() if a.action is Action.CLEAN):
        plan = state.plans.get(clean.instant)
        if isinstance(plan, CleanPlanned) and not keeps.isdisjoint(plan.paths):
            return WriteConflict(
                f"clean {clean.instant} is about to delete files that a savepoint of {instant} needs",
                with_instant=clean.instant,
                remedy="save a later write",
            )
    return None


def clusterings_met(own: WriteSet, state: TableState) -> frozenset[str]:
    """Return the pending clusterings of file groups that `own` changes: the ones about which its `update_strategy` is asked."""
    under = state.groups_under_clustering()
    overwritten = own.overwrites.replaced(state) if own.overwrites is not None and under else []
    return frozenset(under[group] for group in (*own.based_on, *overwritten) if group in under)


def find_conflict(own: WriteSet, state: TableState, inserted_since: Iterable[InsertedKeys]) -> WriteConflict | None:
    """Return the first conflict of `own` with `state`, which holds everything committed or pending now.

    `inserted_since`: the keys of writes completed after `own` began. Raises `ProgressMoved`, and `TransactionRolledBack` if `own`
    was fenced.
    """
    check_still_own(state, own.instant)
    check_progress(own.progress, state)
    if own.schema is not None and not own.schema.fits(state.schema_json):
        # Rows of the older schema would drop the new columns from the file groups that they are merged with.
        other = max(state.completed_writes(), key=lambda action: action.sequence).instant
        return WriteConflict(f"the schema of the table changed, at the latest by {other}", with_instant=other)
    resized = resized_meanwhile(own, state) if own.goes_by_buckets else None
    if resized is not None:
        return resized
    grown: dict[FileGroupId, str] = {}
    changed = _changed_meanwhile(own, state, grown)
    if changed is not None:
        return changed
    taken = opened_meanwhile(own, state) if own.opens else None
    if taken is not None:
        return taken
    overwritten = own.overwrites.replaced(state) if own.overwrites is not None else []
    beside = replaced_in_a_ring(own, overwritten)
    if beside is not None:
        return beside
    under = state.groups_under_compaction() if overwritten else {}
    for group in overwritten:
        if group in under:
            # The compaction may still run, and cleaning would delete the files that it reads.
            return WriteConflict(
                f"file group {group.file_id} in {group.partition_path!r} is under compaction {under[group]}",
                with_instant=under[group],
                remedy="run the compaction, then retry: tideline run compaction PATH; or cancel it: tideline job cancel PATH "
                "INSTANT",
            )
    held = _held_by_clustering(own, overwritten, state)
    if held is not None:
        return held
    for other_keys in inserted_since:
        if other_keys.found_in is not None or (
            other_keys.hashes is not None and len(own.inserted) and len(np.intersect1d(own.inserted, other_keys.hashes))
        ):
            where = f" of partition {other_keys.found_in!r}" if other_keys.found_in is not None else ""
            return WriteConflict(
                f"record keys{where} were inserted by {other_keys.instant} at the same time", with_instant=other_keys.instant
            )
    return SliceGrew(frozenset(grown), max(grown.values())) if grown else None


def _changed_meanwhile(own: WriteSet, state: TableState, grown: dict[FileGroupId, str]) -> WriteConflict | None:
    """Return the conflict over a file group that `own` read.

    Add the groups that only got log files, with their last writer, to `grown`.
    """
    in_move = state.groups_in_move()
    for group, read_version in own.based_on.items():
        if group in in_move:
            # Until the old log files are deleted, readers of Apache Hudi merge them once more, behind newer ones.
            return WriteConflict(
                f"log files of file group {group.file_id} in {group.partition_path!r} are moved by rollback {in_move[group]}",
                with_instant=in_move[group],
                remedy="retry; if its process died, tideline run rollback PATH finishes it",
            )
        replaced_by = state.replaced.get(group)
        if replaced_by is not None:
            return WriteConflict(
                f"file group {group.file_id} in {group.partition_path!r} was replaced by {replaced_by}", with_instant=replaced_by
            )
        if read_version.base_instant > own.instant:
            # A base file would sort before the one that it was made of and never be read. A log file would be older than its slice:
            # no savepoint and no query as of a time in between would include it.
            return WriteConflict(
                f"file group {group.file_id} in {group.partition_path!r} was rewritten by {read_version.base_instant} after this "
                "write began",
                expected=f"a slice older than {own.instant}",
                with_instant=read_version.base_instant,
            )
        latest = state.latest_slice(group)
        # A table service replaces what it read, so nothing is merged with that any more.
        overtaken = _overtaken(own, group, latest, state) if latest is not None and own.update_strategy is not None else None
        if overtaken is not None:
            return overtaken
        if latest is not None and group in own.appends and _only_grew(latest, read_version):
            grown[group] = last_writer(latest)
        elif latest is None or latest.version != read_version:
            other = last_writer(latest) if latest else "nothing"
            return WriteConflict(
                f"file group {group.file_id} in {group.partition_path!r} was written by {other}",
                expected=f"slice {read_version.base_instant} with {read_version.log_files} log file(s)",
                with_instant=other,
            )
    return None


def _overtaken(own: WriteSet, group: FileGroupId, latest: FileSlice, state: TableState) -> WriteConflict | None:
    """Return the conflict over a log file that would be merged behind what `own` made of it, where completion times say slices.

    A log file goes by its instant, so one of a later instant would hide what `own` appends. A base file takes no log file that
    completed after its instant, so readers would merge it once more.
    """
    appends = group in own.appends
    for log in latest.log_files:
        record = state.actions.get(log.instant)
        if record is not None and record.completion and own.instant < (log.instant if appends else record.completion):
            return WriteConflict(
                f"file group {group.file_id} in {group.partition_path!r} got log files of {log.instant} after this write began",
                expected=f"log files older than {own.instant}",
                with_instant=log.instant,
            )
    return None


def _held_by_clustering(own: WriteSet, overwritten: Sequence[FileGroupId], state: TableState) -> WriteConflict | None:
    """Return the conflict with a planned clustering that has precedence over `own` by its update strategy."""
    if own.update_strategy is None or not (own.based_on or overwritten):
        return None
    under = state.groups_under_clustering()
    for group in (*own.based_on, *overwritten):
        clustering = under.get(group)
        if clustering is None:
            continue
        if state.actions[clustering].is_by_hudi:
            return WriteConflict(
                f"file group {group.file_id} is under clustering {clustering} of Apache Hudi, which lets no writer pass",
                with_instant=clustering,
                remedy="retry when it is done, or run it: tideline run clustering PATH",
            )
        if own.update_strategy(state, clustering):
            return ClusteringFirst(
                f"file group {group.file_id} is under clustering {clustering}, which goes first",
                with_instant=clustering,
                remedy="retry when it is done, or run it: tideline run clustering PATH",
            )
    return None


def _only_grew(latest: FileSlice, read: SliceVersion) -> bool:
    return latest.version._replace(log_files=read.log_files) == read and latest.version.log_files > read.log_files
