"""The rows of one side of a query by buckets, as a worker reads them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from tideline_spark.errors import BucketTooLarge
from tideline_table.table import KeyCheck, Snapshot

_PORTIONS = 8
"""So many portions of rows fit into the memory of a task."""


@dataclass(frozen=True, slots=True)
class BucketRows:
    """What a task reads of a table. A plain value that is sent to workers."""

    table: str
    """The name of the table, for messages."""
    columns: Mapping[str, str]
    """Columns of the result: their names there, by column of the table."""
    keys: tuple[str, ...]
    """The columns that are compared or grouped."""
    check: KeyCheck
    memory_bytes: int
    where: pc.Expression | None = field(default=None, compare=False)

    def read(self) -> list[str]:
        """Return the columns to read."""
        return list(dict.fromkeys([*self.keys, *self.columns, *self.check.columns]))

    def portions(self, part: Snapshot) -> Iterator[pa.Table]:
        """Yield the rows of a bucket in portions. Raises `InvalidRecord` as `KeyCheck.check`, and what `Snapshot.scan` raises."""
        batches: list[pa.RecordBatch] = []
        size_bytes = 0
        schema = part.output(self.read())
        for scanned in part.scan(schema.names, self.where):
            batch = pa.RecordBatch.from_arrays(scanned.select(schema.names).columns, schema=schema)
            self.check.check(batch)
            batches.append(batch)
            size_bytes += batch.nbytes
            if size_bytes >= self.memory_bytes // _PORTIONS:
                yield pa.Table.from_batches(batches)
                batches, size_bytes = [], 0
        if batches:
            yield pa.Table.from_batches(batches)

    def whole(self, part: Snapshot) -> pa.Table:
        """Return all rows of a bucket. Raises `BucketTooLarge` if they exceed the memory; other errors as `portions`."""
        held: list[pa.Table] = []
        size_bytes = 0
        for portion in self.portions(part):
            held.append(portion)
            size_bytes += portion.nbytes
            self.check_memory(size_bytes, part, "rows")
        return pa.concat_tables(held) if held else part.output(self.read()).empty_table()

    def check_memory(self, size_bytes: int, part: Snapshot, what: str) -> None:
        """Raise `BucketTooLarge` if a task would hold more than `memory_bytes`."""
        if size_bytes > self.memory_bytes:
            named = min(s.group.file_id[:8] for s in part.slices)
            raise BucketTooLarge(
                f"{what} of bucket {named} of table {self.table!r}, with the columns of the query: more than "
                f"{self.memory_bytes:,} bytes",
                expected="tideline.spark.bucket.memory.bytes at most: a task holds those of one bucket in memory",
                remedy="name fewer columns, raise the option with the memory of executors, split the buckets, or let Spark "
                "shuffle the rows of read",
            )
