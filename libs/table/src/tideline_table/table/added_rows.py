"""Incremental queries of tables without meta fields: no row says which write made it, so files are compared, row by row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tideline_table.file_group.slice import FileSlice
from tideline_table.row_digest import row_hashes
from tideline_table.schema.meta_fields import META_FIELDS
from tideline_table.table.query import Snapshot

_SEED = 0x6A09E667F3BCC908


@dataclass(frozen=True, slots=True)
class AddedRows(Snapshot):
    """The rows of the files that a range of history touched, without those that the files before them have.

    Whole rows are compared, as often as they occur: so compaction and clustering, and rows that an insert copies into a new
    version of a small file, add nothing. A row that an overwrite writes as it was adds nothing either. Memory holds a hash of each
    row before, of one partition.
    """

    before: Snapshot | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError("parts of a partition cannot be compared in different processes")

    def scan_slices(
        self, slices: Sequence[FileSlice], columns: Sequence[str] | None, condition: pc.Expression | None, keys: pa.Array | None
    ) -> Iterator[pa.RecordBatch]:
        """See `Snapshot`."""
        assert self.before is not None
        names = [name for name in self.schema.names if name not in META_FIELDS]
        chosen = self.schema.names if columns is None else list(columns) or names[:1]
        before: dict[str, list[FileSlice]] = {}
        for old in self.before.slices:
            before.setdefault(old.group.partition_path, []).append(old)
        for partition, new in groupby(sorted(slices, key=lambda s: s.group), key=lambda s: s.group.partition_path):
            left: Counter[int] = Counter()
            for batch in Snapshot.scan_slices(self.before, before.get(partition, ()), None, condition, keys):
                left.update(row_hashes(batch, names, _SEED).tolist())
            for batch in Snapshot.scan_slices(self, list(new), None, condition, keys):
                mask = []
                for one in row_hashes(batch, names, _SEED).tolist():
                    mask.append(not left[one])  # which adds nothing to the counter
                    if left[one]:
                        left[one] -= 1
                yield batch.filter(pa.array(mask, pa.bool_())).select(chosen)
