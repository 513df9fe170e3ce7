"""Numbers about neighbouring file groups, from which plans and reports see whether the slices of these groups matter to them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from operator import attrgetter
from typing import Any

from tideline_table.file_group.slice import FileGroupId, FileSlice, visible_slices


@dataclass(frozen=True, slots=True)
class PartSummary:
    """Sums over the visible slices of some file groups that follow each other. A checkpoint stores the fields in this order."""

    groups: int = 0
    partitions: int = 0
    rows: int = 0
    """-1 if only a query can count them."""
    base_bytes: int = 0
    log_files: int = 0
    """Log files that a reader opens: without those that a log compaction merged."""
    log_bytes: int = 0
    most_log_files: int = 0
    oldest_log: str = ""
    """The first write of a log file; empty if none is known."""
    newest: str = ""
    """The largest instant of a slice or log file."""
    files: int = 0
    """Files of the visible slices, merged log files included."""
    total_bytes: int = 0
    all_files: int = 0
    """Files of older slices, too."""
    all_bytes: int = 0
    most: int = 0
    """The most groups in one partition."""
    first: str = ""
    """The first partition path."""
    first_groups: int = 0
    last: str = ""
    last_groups: int = 0
    sizes: tuple[tuple[int, int], ...] = ()
    """Lower bounds of the bytes of slices → the number of slices between this bound and the next (`_floor`)."""

    def small(self, limit: int) -> int | None:
        """Return the number of slices with fewer bytes than `limit`; None if only their sizes tell it."""
        if limit <= 0:
            return 0
        edge = _floor(limit)
        if edge != limit and any(floor == edge for floor, _ in self.sizes):
            return None
        return sum(count for floor, count in self.sizes if floor < limit)

    def with_next(self, other: PartSummary) -> PartSummary:
        """Return the summary of these groups and of those that follow them."""
        if not (self.groups and other.groups):
            kept, empty = (self, other) if self.groups else (other, self)
            return replace(kept, all_files=kept.all_files + empty.all_files, all_bytes=kept.all_bytes + empty.all_bytes)
        goes_on = self.last == other.first
        joint = self.last_groups + other.first_groups if goes_on else 0
        sizes = Counter(dict(self.sizes))
        sizes.update(dict(other.sizes))
        return PartSummary(
            self.groups + other.groups,
            self.partitions + other.partitions - goes_on,
            -1 if min(self.rows, other.rows) < 0 else self.rows + other.rows,
            self.base_bytes + other.base_bytes,
            self.log_files + other.log_files,
            self.log_bytes + other.log_bytes,
            max(self.most_log_files, other.most_log_files),
            min((at for at in (self.oldest_log, other.oldest_log) if at), default=""),
            max(self.newest, other.newest),
            self.files + other.files,
            self.total_bytes + other.total_bytes,
            self.all_files + other.all_files,
            self.all_bytes + other.all_bytes,
            max(self.most, other.most, joint),
            self.first,
            joint if goes_on and self.partitions == 1 else self.first_groups,
            other.last,
            joint if goes_on and other.partitions == 1 else other.last_groups,
            tuple(sorted(sizes.items())),
        )

    def to_list(self) -> list[Any]:
        """Return a form for checkpoints."""
        return [*_VALUES(self)[:-1], [n for pair in self.sizes for n in pair]]

    @classmethod
    def from_list(cls, fields: Sequence[Any]) -> PartSummary:
        """Return the summary of a result of `to_list`. Raises `TypeError` or `ValueError` for invalid fields."""
        *sums, sizes = fields
        made = replace(cls(*sums), sizes=tuple(zip(map(int, sizes[::2]), map(int, sizes[1::2]), strict=True)))
        if any(type(given) is not expected for given, expected in zip(_VALUES(made), _TYPES, strict=True)):
            raise TypeError(f"a summary of file slices {fields!r}")
        return made


# `astuple` copies what is nested, 0.13 ms a part at each checkpoint and twice that at each opening.
_VALUES = attrgetter(*(field.name for field in fields(PartSummary)))
_TYPES = tuple(map(type, _VALUES(PartSummary())))


def summary_of(
    held: Mapping[FileGroupId, Mapping[str, FileSlice]],
    replaced: Mapping[FileGroupId, str],
    compactions: Mapping[FileGroupId, str],
) -> tuple[PartSummary, list[FileSlice]]:
    """Return the summary of file groups in order, and their visible slices."""
    visible = list(visible_slices(held, replaced, "", compactions))
    in_partition: dict[str, int] = {}
    floors: dict[int, int] = {}
    rows, base_bytes, log_files, log_bytes, most_log_files, files, total_bytes = 0, 0, 0, 0, 0, 0, 0
    oldest_log = newest = ""
    # One pass without calls, also of `_floor`: a checkpoint makes the summary of the part that changed, and few of its groups have
    # log files.
    for s in visible:
        partition_path = s.group.partition_path
        in_partition[partition_path] = in_partition.get(partition_path, 0) + 1
        newest = max(newest, s.base_instant)
        files += bool(s.base_file)
        base_bytes += s.size_bytes
        size_bytes = s.size_bytes
        if s.log_files:
            applied = s.applied.log_files
            log_files += len(applied)
            most_log_files = max(most_log_files, len(applied))
            log_bytes += sum(log.size_bytes for log in applied)
            files += len(s.log_files)
            size_bytes = s.total_bytes
            logs = [log.instant for log in s.log_files]
            newest = max(newest, *logs)
            oldest_log = min((at for at in (oldest_log, *logs) if at), default="")
        rows = -1 if s.log_files or s.rows < 0 or rows < 0 else rows + s.rows
        total_bytes += size_bytes
        shift = size_bytes.bit_length() - 3
        floor = size_bytes >> shift << shift if shift > 0 else size_bytes
        floors[floor] = floors.get(floor, 0) + 1
    all_files, all_bytes = 0, 0
    for slices in held.values():
        for s in slices.values():
            all_files += bool(s.base_file) + len(s.log_files)
            all_bytes += s.total_bytes if s.log_files else s.size_bytes
    first, last = (visible[0].group.partition_path, visible[-1].group.partition_path) if visible else ("", "")
    made = PartSummary(
        groups=len(visible),
        partitions=len(in_partition),
        rows=rows,
        base_bytes=base_bytes,
        log_files=log_files,
        log_bytes=log_bytes,
        most_log_files=most_log_files,
        oldest_log=oldest_log,
        newest=newest,
        files=files,
        total_bytes=total_bytes,
        all_files=all_files,
        all_bytes=all_bytes,
        most=max(in_partition.values(), default=0),
        first=first,
        first_groups=in_partition.get(first, 0),
        last=last,
        last_groups=in_partition.get(last, 0),
        sizes=tuple(sorted(floors.items())),
    )
    return made, visible


def crowds(parts: Sequence[PartSummary]) -> list[int]:
    """Return for each part a bound on the groups of the fullest partition that has a group in it, those in other parts included."""
    runs = [0]  # the groups of the partition with which each part begins, in the parts before it
    for before, after in pairwise(parts):
        goes_on = before.last == after.first
        runs.append((before.last_groups + (runs[-1] if before.partitions == 1 else 0)) if goes_on else 0)
    ahead = [0] * len(parts)
    for at in range(len(parts) - 2, -1, -1):
        after = parts[at + 1]
        if parts[at].last == after.first:
            ahead[at] = after.first_groups + (ahead[at + 1] if after.partitions == 1 else 0)
    return [
        max(part.most, runs[at] + part.first_groups + (ahead[at] if part.partitions == 1 else 0), part.last_groups + ahead[at])
        for at, part in enumerate(parts)
    ]


def _floor(size_bytes: int) -> int:
    """Return the lower bound of the range of sizes that has `size_bytes`: a quarter of a power of two is one range."""
    shift = max(0, size_bytes.bit_length() - 3)
    return size_bytes >> shift << shift
