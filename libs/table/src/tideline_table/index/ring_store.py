"""Reading and creating the metadata files of hash rings (format reference 12.2). A file is created once and never changed."""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict
from collections.abc import Collection, Mapping

from tideline_table.errors import CorruptMetadata, ObjectExists, ObjectNotFound, WriteConflict
from tideline_table.index.hash_ring import (
    FIRST_INSTANT,
    METADATA_SUFFIX,
    HashRing,
    check_number,
    marker_path,
    parse_ring,
    ring_folder,
    ring_path,
)
from tideline_table.storage import Storage

_KEPT = 10_000
"""Rings kept in memory: a file never changes, but a table may have any number of partitions."""


class RingStore:
    """The rings of one table. Safe to share between threads."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._known: OrderedDict[str, HashRing] = OrderedDict()
        self._mutex = threading.Lock()

    def find(self, partition_path: str, number: int, instant: str) -> HashRing:
        """Return the ring that the commit `instant` made; for `FIRST_INSTANT` without a file, the ring that every writer derives.

        Reads a file once. The beginning of the file of a first ring counts as none: its writer died. Otherwise raises
        `CorruptMetadata` for a missing or torn file and one that contradicts itself, `UnsupportedTable` for a ring that began
        with another number of buckets than `number`.
        """
        found = self.read(partition_path, instant, number)
        if found is None and instant != FIRST_INSTANT:
            raise CorruptMetadata(
                f"no {ring_path(partition_path, instant)}",
                expected=f"the hash ring that commit {instant} made",
                remedy="restore the file: without it, the buckets of the partition are unknown",
            )
        if found is None:
            return HashRing.first(partition_path, number)
        check_number(found, number)
        return found

    def read(self, partition_path: str, instant: str, number: int = 0) -> HashRing | None:
        """Return the ring in the file of an instant, None without one. Raises `CorruptMetadata`.

        With a `number` of buckets, also None for the beginning of the file of that first ring.
        """
        path = ring_path(partition_path, instant)
        with self._mutex:
            known = self._known.get(path)
        if known is not None:
            return known
        try:
            content = self._storage.read(path)
        except ObjectNotFound:
            return None
        if number and instant == FIRST_INSTANT and _is_beginning(content, HashRing.first(partition_path, number)):
            return None
        found = parse_ring(content, path, partition_path, instant)
        self._keep(path, found)
        return found

    def create(self, ring: HashRing) -> None:
        """Create the file of a ring unless there is one. Concurrent callers all find one file, or complete its beginning alike.

        Raises `WriteConflict` if another attempt of the same instant has made another ring, from an older one of the partition.
        """
        with self._mutex:
            if self._known.get(ring.path) == ring:
                return
        try:
            self._storage.put_if_absent(ring.path, ring.content)
        except ObjectExists:
            found = self._storage.read(ring.path)
            if _is_beginning(found, ring):
                self._storage.put(ring.path, ring.content)
            elif ring.instant != FIRST_INSTANT and found != ring.content:
                raise WriteConflict(
                    f"an earlier attempt of {ring.instant} has left another ring in {ring.path}",
                    expected="the ring that this attempt makes: the partition got another one in between",
                    with_instant=ring.instant,
                ) from None

    def delete_uncommitted(self, resizes: Mapping[str, Collection[str]]) -> None:
        """Delete the files of all rings but the first ones and those of `resizes`: the committed ones that queries may ask for.

        `resizes` holds partitions by instant. Apache Hudi would take a ring that was not committed for valid once the rollback has
        removed its instant from the timeline. No ring may be committed meanwhile.
        """
        kept = {ring_path(name, instant) for instant, names in resizes.items() for name in names}
        for found in list(self._storage.list_objects(ring_folder(""))):
            is_ring, is_first = found.path.endswith(METADATA_SUFFIX), found.path.endswith(f"/{FIRST_INSTANT}{METADATA_SUFFIX}")
            if is_ring and not is_first and found.path not in kept:
                self._storage.delete(found.path)

    def mark(self, ring: HashRing) -> None:
        """Create the marker by which Apache Hudi knows a ring as valid once its instant is archived. The ring is committed."""
        path = marker_path(ring)
        with self._mutex:
            if path in self._known:
                return
        with contextlib.suppress(ObjectExists):
            self._storage.put_if_absent(path, b"")
        self._keep(path, ring)

    def _keep(self, path: str, ring: HashRing) -> None:
        with self._mutex:
            self._known[path] = ring
            self._known.move_to_end(path)
            if len(self._known) > _KEPT:
                self._known.popitem(last=False)


def _is_beginning(content: bytes, ring: HashRing) -> bool:
    """Return whether a file is the torn one of this ring: less than all of it, and nothing else."""
    return len(content) < len(ring.content) and ring.content.startswith(content)
