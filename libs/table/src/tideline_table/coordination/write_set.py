"""What a transaction read and changes, as the decisions about conflicts take it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from tideline_table.errors import CorruptMetadata, UnsupportedTable
from tideline_table.file_group.slice import FileGroupId, SliceVersion
from tideline_table.log.progress import ProgressStep
from tideline_table.log.state import TableState
from tideline_table.schema import arrow_from_avro


@dataclass(frozen=True, slots=True)
class InsertedKeys:
    """Keys that a completed write added: their hashes, or the result of a look-up if the commit does not carry them."""

    instant: str
    hashes: np.ndarray | None
    found_in: str | None = None
    """The partition in which a look-up found a key of the own write among them."""


@dataclass(frozen=True, slots=True)
class SchemaStep:
    """The Avro texts of the table schema that a write was based on and that it publishes."""

    based_on: str
    own: str

    def fits(self, text: str) -> bool:
        """Return whether a table with this schema has the base of the write or its result, compared by columns if texts differ."""
        if text in ("", self.based_on, self.own):
            return True
        try:
            found = arrow_from_avro(text)
            return any(found.equals(arrow_from_avro(known)) for known in (self.based_on, self.own) if known)
        except (CorruptMetadata, UnsupportedTable):
            return False


@dataclass(frozen=True, slots=True)
class Overwrite:
    """The replacement of all rows of these partitions (None: of the table) as of the commit."""

    partitions: frozenset[str] | None = None
    renews: frozenset[str] | None = None
    """With consistent hashing, the partitions that get other hash rings: in these only, file groups may be replaced."""

    def replaced(self, state: TableState) -> list[FileGroupId]:
        """Return the file groups that are visible in these partitions now."""
        return [s.group for s in state.latest_slices(partitions=self.partitions)]

    def rows_replaced(self, state: TableState) -> int:
        """Return the number of rows in these file groups; -1 if only a merge of files tells it."""
        rows = [s.known_rows for s in state.latest_slices(partitions=self.partitions)]
        return -1 if any(n < 0 for n in rows) else sum(rows)


UpdateStrategy = Callable[[TableState, str], bool]
"""Return whether a write to a file group under the pending clustering with that instant gives way to the clustering."""

UPDATE_STRATEGIES: dict[str, UpdateStrategy] = {
    # The write commits and the clustering is planned again, until it has priority because it lost often.
    "yield": lambda state, clustering: state.has_priority(clustering),
    # The same for the write: what the clustering does with it is decided at the clustering's commit
    # (`action.clustering.carry_over`).
    "carry-over": lambda state, clustering: state.has_priority(clustering),
    # RFC-19: the file groups belong to the clustering until it ends.
    "reject": lambda _state, _clustering: True,
}


@dataclass(frozen=True, slots=True)
class WriteSet:
    """What a transaction read and changes."""

    instant: str
    based_on: dict[FileGroupId, SliceVersion] = field(default_factory=dict)
    """File groups that it read and rewrites, appends to or replaces → the version of the slice that it read."""
    inserted: np.ndarray = field(default_factory=lambda: np.empty(0, dtype=np.uint64))
    """Hashes of added keys that must stay unique in their partitions or in the table; same hash as in `InsertedKeys`."""
    appends: frozenset[FileGroupId] = frozenset()
    """The groups of `based_on` that it only appends a log file to."""
    update_strategy: UpdateStrategy | None = UPDATE_STRATEGIES["yield"]
    """None for table services, whose plans never share a group."""
    schema: SchemaStep | None = None
    """None for table services, which publish the schema that the table has when they commit."""
    progress: ProgressStep | None = None
    overwrites: Overwrite | None = None
    opens: frozenset[FileGroupId] = frozenset()
    """New file groups of a table with a bucket index, which has one file group for each bucket of a partition."""
    resized_by: str | None = None
    """The instant of `TableState.bucket_resize` (empty for none) by whose numbers its rows were routed; None if nothing was routed
    by it."""
    rings: Mapping[str, str] = field(default_factory=dict)
    """With consistent hashing: `TableState.ring_instant` of each partition by whose ring rows were routed, or from whose ring
    another is made."""
    splits: Mapping[FileGroupId, SliceVersion] | None = None
    """The file groups that a resize replaces, with the versions read."""
    splits_in: Callable[[FileGroupId], bool] = lambda _: True
    """Whether a resize replaces a file group if it is visible: then `splits` must name it. All of the table, if not said
    otherwise."""

    @property
    def goes_by_buckets(self) -> bool:
        """Whether rows were routed, or file groups are replaced, by numbers of buckets or by hash rings."""
        return self.resized_by is not None or bool(self.rings) or self.splits is not None
