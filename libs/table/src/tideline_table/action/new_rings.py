"""New hash rings of partitions that a write or a clustering publishes.

Their files are created before the commit, and count from it on.

Each node of a ring has one file id. A commit that replaces file groups therefore gives their partitions rings with other ids: rows
that are written later would otherwise be in file groups that readers take for replaced.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace

from tideline_table.coordination.committed import Committed
from tideline_table.coordination.write_set import Overwrite
from tideline_table.errors import StorageError, TidelineError
from tideline_table.hudi.instant import State
from tideline_table.index.hash_ring import HashRing
from tideline_table.log.resizes import rings_metadata
from tideline_table.table.facade import Table
from tideline_table.table.rings import TableRings

CommitRings = Callable[[Mapping[str, str], Overwrite | None, Mapping[str, str]], Committed]


@dataclass(slots=True)
class NewRings:
    """The rings of one transaction at a time."""

    table: Table
    made: list[HashRing] = field(default_factory=list)

    def commit(
        self, instant: str, rings: TableRings | None, routed_to: Collection[str], overwrite: Overwrite | None, commit: CommitRings
    ) -> Committed:
        """Commit a write that was routed by `rings` to these partitions. If it is an overwrite, the partitions get new rings.

        `commit` gets metadata, the overwrite, and what `WriteSet.rings` is: nothing more than the overwrite without consistent
        hashing.
        """
        if rings is None:
            return commit({}, overwrite, {})
        renewed: dict[str, HashRing] = {}
        if overwrite is not None:
            replaced = overwrite.partitions
            if replaced is None:
                replaced = frozenset(self.table.state.partition_paths())
            renewed = rings.renewed(sorted({*replaced, *routed_to}), instant)
            overwrite = replace(overwrite, renews=frozenset(renewed))
        routed_by = rings.instants({*routed_to, *renewed})
        return self.publish(rings, renewed.values(), lambda extra: commit(extra, overwrite, routed_by))

    def publish(
        self, known: TableRings, rings: Collection[HashRing], commit: Callable[[Mapping[str, str]], Committed]
    ) -> Committed:
        """Create the files of `rings` beside those `known`, and `commit` with metadata that names their partitions, if any."""
        for ring in rings:
            self.made.append(ring)
            known.store.create(ring)
        done = commit(rings_metadata(ring.partition_path for ring in rings) if rings else {})
        with suppress(StorageError):  # the rings are committed, and the next writer of a partition makes up for a missing marker
            for ring in rings:
                known.store.mark(ring)
        return done

    @contextmanager
    def deleted_if_undone(self) -> Iterator[None]:
        """Enter around a transaction. If it fails and is undone, the files of its rings are deleted.

        Sharing the table deletes those that stay because a process died (`RingStore.delete_uncommitted`).
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
