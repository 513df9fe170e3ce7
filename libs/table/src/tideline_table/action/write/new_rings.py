"""New hash rings of partitions that a commit publishes: their files are created before the commit, and count from the commit on.

Each node of a ring has one file id. A commit that replaces file groups therefore gives their partitions rings with other ids: rows
that are written later would otherwise be in file groups that readers take for replaced.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace

from tideline_table.coordination.committed import Committed
from tideline_table.coordination.write_set import Overwrite
from tideline_table.errors import StorageError, TidelineError
from tideline_table.hudi.instant import State
from tideline_table.index.hash_ring import HashRing
from tideline_table.log.ring_resize import rings_metadata
from tideline_table.table.facade import Table
from tideline_table.table.rings import TableRings

CommitRings = Callable[[Mapping[str, str], Overwrite | None, Mapping[str, str]], Committed]


def renewed_rings(
    table: Table, rings: TableRings, overwrite: Overwrite | None, instant: str, written: Iterable[str]
) -> dict[str, HashRing]:
    """Return the rings that an overwrite at `instant` gives the partitions that it replaces or has `written` rows into.

    `rings` are those by which its rows were routed. Empty without an overwrite or without consistent hashing.
    """
    if overwrite is None:
        return {}
    replaced = overwrite.partitions
    if replaced is None:
        replaced = frozenset(s.group.partition_path for s in table.state.latest_slices())
    return rings.renewed(sorted({*replaced, *written}), instant)


@dataclass(slots=True)
class NewRings:
    """The rings of one transaction at a time."""

    table: Table
    made: list[HashRing] = field(default_factory=list)

    def commit(
        self, instant: str, rings: TableRings, routed_to: Collection[str], overwrite: Overwrite | None, commit: CommitRings
    ) -> Committed:
        """Commit a write that was routed by `rings` to these partitions. If it is an overwrite, the partitions get new rings.

        `commit` gets metadata, the overwrite, and what `WriteSet.rings` is.
        """
        renewed = renewed_rings(self.table, rings, overwrite, instant, routed_to)
        if overwrite is not None and rings.index.is_consistent:
            overwrite = replace(overwrite, renews=frozenset(renewed))
        routed_by = rings.instants({*routed_to, *renewed})
        return self.publish(renewed.values(), lambda extra: commit(extra, overwrite, routed_by))

    def publish(self, rings: Collection[HashRing], commit: Callable[[Mapping[str, str]], Committed]) -> Committed:
        """Create the files of `rings`, and `commit` with the metadata that names their partitions (none without `rings`)."""
        index = self.table.definition.buckets
        if not rings or index is None:
            return commit({})
        store = self.table.rings(index).store
        for ring in rings:
            self.made.append(ring)
            store.create(ring)
        done = commit(rings_metadata(ring.partition_path for ring in rings))
        with suppress(StorageError):  # the rings are committed, and the next writer of a partition makes up for a missing marker
            for ring in rings:
                store.mark(ring)
        return done

    @contextmanager
    def deleted_if_undone(self) -> Iterator[None]:
        """Enter around a transaction. If it fails and is undone, the files of its rings are deleted.

        Sharing the table deletes those that stay because a process died (`RingStore.sweep`).
        """
        self.made.clear()
        try:
            yield
        except Exception:
            if self.made:
                self._delete()
            raise

    def _delete(self) -> None:
        with suppress(TidelineError):  # the failure of the transaction is the one to report
            state = self.table.refresh()
            for ring in self.made:
                record = state.actions.get(ring.instant)
                if record is not None and record.state is State.ROLLED_BACK:
                    self.table.storage.delete(ring.path)
