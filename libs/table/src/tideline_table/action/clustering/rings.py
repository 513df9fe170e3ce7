"""The hash rings of a clustering in a table with consistent hashing.

In each partition of the plan, the outputs take the place of the inputs.

A node has one file id, so a partition of which file groups are clustered gets another ring. All other nodes keep their file
ids. A ring counts by the instant in its name. That of a clustering is the instant of its plan, so no ring of these partitions
may be newer:

- a resize leaves partitions of pending clusterings alone, and no second clustering is planned for them;
- an overwrite since the plan replaces the inputs, with which the clustering conflicts in any table.

Should a newer ring be there all the same, the clustering is rolled back (`TableRings.clustered`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from tideline_table.action.new_rings import NewRings
from tideline_table.coordination.committed import Committed
from tideline_table.errors import UnsupportedTable
from tideline_table.file_group.slice import FileGroupId
from tideline_table.index.hash_ring import HashRing
from tideline_table.table.facade import Table
from tideline_table.table.rings import TableRings


@dataclass(frozen=True, slots=True)
class ClusteredRings:
    """The rings that one clustering makes; none without consistent hashing."""

    made: NewRings
    known: TableRings | None
    """The rings when the clustering began; None without consistent hashing."""
    after: Mapping[str, HashRing]
    """The new ring of each partition of the plan."""

    @classmethod
    def begin(cls, table: Table, instant: str, groups: Iterable[FileGroupId]) -> ClusteredRings:
        """Return the rings of a clustering of these file groups. Raises `WriteConflict` as `TableRings.clustered`."""
        known = table.rings()
        return cls(NewRings(table), known, known.clustered(groups, instant) if known is not None else {})

    @property
    def before(self) -> dict[str, HashRing]:
        """The rings in which the inputs are."""
        return self.known.of(self.after) if self.known is not None else {}

    @property
    def based_on(self) -> dict[str, str]:
        """What `WriteSet.rings` is: the new rings are made of these, so none may have changed at the commit."""
        return self.known.instants(self.after) if self.known is not None else {}

    def publish(self, commit: Callable[[Mapping[str, str]], Committed]) -> Committed:
        """Create the files of the new rings and `commit` with the metadata that names their partitions."""
        return self.made.publish(self.known, self.after.values(), commit) if self.known is not None else commit({})


def check_no_shared_rings(table: Table, instant: str) -> None:
    """Raise `UnsupportedTable` for the clustering plan `instant` of a shared table with consistent hashing."""
    index = table.definition.ring_index
    if index is not None and not table.capabilities.changes_buckets:
        raise UnsupportedTable(
            f"clustering plan {instant} in the shared table {table.definition.name!r} with {index.text}",
            expected="an exclusive table: a writer of Apache Hudi would go on with the hash ring that it has read",
            remedy=f"cancel it: tideline job cancel PATH {instant}",
        )
