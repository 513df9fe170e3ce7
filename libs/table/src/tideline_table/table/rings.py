"""The hash rings of an open table with consistent hashing. The table log says which commit made the ring of a partition."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tideline_table.errors import WriteConflict
from tideline_table.file_group.slice import FileGroupId
from tideline_table.index.bucket import BucketIndex
from tideline_table.index.hash_ring import FIRST_INSTANT, HashRing
from tideline_table.index.ring_change import renewed_ring
from tideline_table.index.ring_store import RingStore
from tideline_table.log.resizes import made_by
from tideline_table.log.state import TableState


@dataclass(frozen=True, slots=True)
class TableRings:
    """Finds the rings of partitions at one moment of the table, of one bucket index."""

    store: RingStore
    index: BucketIndex
    resizes: Mapping[str, tuple[str, ...]]
    """`TableState.ring_resizes` at one moment."""

    def at(self, partition_path: str, as_of: str = "") -> HashRing:
        """Return the ring of a partition now or at an instant. Raises as `RingStore.find`."""
        made = made_by(self.resizes, partition_path, as_of) or FIRST_INSTANT
        return self.store.find(partition_path, self.index.number, made)

    def unread(self, partition_path: str) -> HashRing:
        """Return what `at` returns now, without reading the file of a first ring.

        Its writers derive it alike, and check it when they write.
        """
        resized = made_by(self.resizes, partition_path)
        return self.at(partition_path) if resized else HashRing.first(partition_path, self.index.number)

    @property
    def resized(self) -> dict[str, HashRing]:
        """The rings of all partitions that have another one than the first."""
        return self.of({name for names in self.resizes.values() for name in names})

    def of(self, partitions: Iterable[str]) -> dict[str, HashRing]:
        """Return the rings of these partitions now."""
        return {name: self.at(name) for name in partitions}

    def instants(self, partitions: Iterable[str]) -> dict[str, str]:
        """Return which commit made the ring of each partition, empty for a first ring."""
        return {name: made_by(self.resizes, name) for name in partitions}

    def check_unchanged(self, state: TableState) -> None:
        """Raise `WriteConflict` if a ring of `state` is not known here."""
        if missed := state.ring_resizes.keys() - self.resizes.keys():
            raise WriteConflict(f"commit {max(missed)} changed hash rings since this process read them", with_instant=max(missed))

    def renewed(self, partitions: Iterable[str], instant: str) -> dict[str, HashRing]:
        """Return the rings that a replacement of these partitions at `instant` gives them."""
        return {name: renewed_ring(ring, instant) for name, ring in self.of(partitions).items()}

    def clustered(self, groups: Iterable[FileGroupId], instant: str) -> dict[str, HashRing]:
        """Return the rings that a clustering at `instant` of these file groups gives their partitions.

        Raises `WriteConflict` if a partition got a ring since the clustering was planned that is newer (the ring of the
        clustering would count for nothing, because rings are ordered by their instants) or that lacks one of the file groups.
        """
        found: dict[str, set[str]] = {}
        for group in groups:
            found.setdefault(group.partition_path, set()).add(group.file_id)
        rings = self.of(found)
        for name, ring in rings.items():
            gone = found[name].difference(ring.file_ids)
            if ring.instant > instant or gone:
                raise WriteConflict(
                    f"partition {name!r} got another hash ring by {ring.instant}",
                    expected=f"a ring older than clustering {instant}, with nodes for its {len(found[name])} file group(s)",
                    with_instant=ring.instant,
                    remedy="plan again",
                )
        return {name: renewed_ring(ring, instant, found[name]) for name, ring in rings.items()}

    def routing(self, partitions: Iterable[str], instant: str, *, opens_groups: bool, overwrites: bool) -> dict[str, HashRing]:
        """Return the rings by which the write `instant` finds the buckets of its rows; errors and files as for `for_writing`."""
        found = self.for_writing(partitions) if opens_groups else self.of(partitions)
        return self.renewed(found, instant) if overwrites else found

    def for_writing(self, partitions: Iterable[str]) -> dict[str, HashRing]:
        """Return the rings of partitions that get rows, and create what other engines need to find them there.

        A first ring has its file before a row is written. The marker of a resize may be missing if its process died.
        """
        found = self.of(partitions)
        for ring in found.values():
            if ring.instant == FIRST_INSTANT:
                self.store.create(ring)
            else:
                self.store.mark(ring)
        return found
