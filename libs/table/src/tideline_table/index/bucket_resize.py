"""Other numbers of buckets for a table: which partitions change, and which of their buckets exchange rows. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from tideline_table.errors import InvalidOption
from tideline_table.file_group.slice import FileSlice
from tideline_table.index.bucket import BucketIndex
from tideline_table.index.bucket_properties import bucket_index
from tideline_table.index.partition_rules import PartitionRules


def resized_index(index: BucketIndex, number: int | None, rules: str | None, *, is_partitioned: bool) -> BucketIndex:
    """Return `index` with another number of buckets of partitions without a rule, and with other rules; None keeps what it has.

    Rules end with one that always applies (`PartitionRules.closed`). Raises `InvalidOption` for numbers out of range, for rules
    that cannot be read, and for rules of a table without partitions.
    """
    default = index.number if number is None else number
    if rules is None:
        named = index.rules if number is None else index.rules.opened()
    else:
        named = PartitionRules.parse(rules)
    if named and not is_partitioned:
        raise InvalidOption(
            f"numbers of buckets by partition ({named.text}) in a table without partitions", expected="partition columns"
        )
    # A table that has rules keeps the form with rules: one for all partitions takes the place of none.
    closed = named.closed(default) if named or not index.rules else PartitionRules.of_all(default)
    checked = bucket_index(default, index.fields, index.key_fields, index.engine)
    return replace(index, number=checked.number, rules=PartitionRules.parse(closed.text))


@dataclass(frozen=True, slots=True)
class BucketChange:
    """A resize of the buckets of a table from one index to another, with the same hash fields."""

    before: BucketIndex
    after: BucketIndex

    def changes(self, partition_path: str) -> bool:
        """Return whether a partition gets another number of buckets."""
        return self.before.in_partition(partition_path).number != self.after.in_partition(partition_path).number

    def affected(self, slices: Iterable[FileSlice]) -> dict[str, list[FileSlice]]:
        """Return the slices of each partition that gets another number of buckets, in order of partition path."""
        found: dict[str, list[FileSlice]] = {}
        for file_slice in slices:
            found.setdefault(file_slice.group.partition_path, []).append(file_slice)
        return {name: found[name] for name in sorted(found) if self.changes(name)}

    def check_multiples(self, partitions: Iterable[str]) -> None:
        """Raise `InvalidOption` if one of these partitions cannot be split in place.

        Its new number is no multiple of the present one.
        """
        for name in partitions:
            old, new = (index.in_partition(name).number for index in (self.before, self.after))
            if new % old:
                raise InvalidOption(
                    f"{new} buckets for {f'partition {name!r}' if name else 'the table'}, which has {old}",
                    expected=f"a multiple of {old}: each bucket is split in place",
                    remedy="name a multiple, or let the resize write all rows of such partitions into new buckets: "
                    "tideline resize-buckets PATH ... --overwrite; resize_buckets(..., overwrite=True) in Python",
                )

    def exchanges(self, partition_path: str, slices: Iterable[FileSlice]) -> Iterator[list[FileSlice]]:
        """Yield the slices of one partition, those together whose rows go to the same new buckets.

        Equal hashes are equal modulo both numbers, so rows stay in their class modulo the greatest common divisor of the two. A
        multiple splits one slice at a time, and a divisor merges those that go to one bucket.
        """
        old, common = self.before.in_partition(partition_path), self.common_number(partition_path)
        classes: dict[int, list[FileSlice]] = {}
        for bucket, file_slice in sorted(old.group_of_each(slices).items()):
            classes.setdefault(bucket % common, []).append(file_slice)
        yield from classes.values()

    def common_number(self, partition_path: str) -> int:
        """Return the greatest common divisor of the two numbers of a partition."""
        return math.gcd(*(index.in_partition(partition_path).number for index in (self.before, self.after)))

    def turns(self, partition_path: str, exchanged: Sequence[FileSlice], limit_bytes: int) -> int:
        """Return in how many turns the rows of slices of `exchanges` move, so that about `limit_bytes` of input are in memory.

        At most one turn for each new bucket. One slice is read whole, and moves in one turn.
        """
        buckets = self.after.in_partition(partition_path).number // self.common_number(partition_path)
        needed = -(-sum(s.total_bytes for s in exchanged) // limit_bytes)
        return max(1, min(needed, buckets)) if len(exchanged) > 1 else 1
