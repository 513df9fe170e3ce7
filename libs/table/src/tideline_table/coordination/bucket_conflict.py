"""Conflicts over the buckets of a table with a bucket index: pure, as all of `conflict`."""

from __future__ import annotations

from collections.abc import Sequence

from tideline_table.coordination.write_set import WriteSet
from tideline_table.errors import WriteConflict
from tideline_table.file_group.slice import FileGroupId, FileSlice
from tideline_table.hudi.file_names import bucket_of_file_id
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
    visible = {s.group: s for s in state.latest_slices() if own.splits_in(s.group)}
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
