"""Base files of a few rows, read by the caller's thread: Arrow's scanner wakes up helpers that cost more than all else in a
history."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tideline_table.reader.base_file import BaseFileScan, readable, with_dictionaries
from tideline_table.schema.identity import FileNames
from tideline_table.storage import Storage


class SmallFileScan(BaseFileScan):
    """As the production one for files of today's schema: the same calls to the storage, the same rows and errors."""

    def __init__(
        self,
        storage: Storage,
        path: str,
        schema: pa.Schema,
        names: FileNames | None = None,
        scan_bytes: int | None = None,
        dictionaries: frozenset[str] = frozenset(),
        *,
        one_thread: bool = False,
    ) -> None:
        self._scan_bytes = scan_bytes
        assert names is None or not names.apart, "columns have no ids"
        self._path, self._schema, self._evolved = path, with_dictionaries(schema, dictionaries), set()
        with readable(path):
            self._stored, self._row_groups = _decoded(storage.open_input(path).read())
        assert self._stored.names == schema.names

    def row_groups(self, where: pc.Expression | None = None) -> list[int]:
        return list(range(len(self._row_groups)))

    def rows(self, row_group: int) -> int:
        return int(self._row_groups[row_group].num_rows)

    def batches(self, row_groups: Sequence[int], wanted: pa.Schema) -> Iterator[pa.RecordBatch]:
        if row_groups:
            yield from self._read(row_groups, wanted.names)

    def filtered(self, columns: Sequence[str] | None, where: pc.Expression | None) -> Iterator[pa.RecordBatch]:
        names = list(columns) if columns is not None else self._schema.names
        if where is None:
            yield from (batch for batch in self._read(self.row_groups(), names) if batch.num_rows)
            return
        found = pa.Table.from_batches(self._read(self.row_groups(), self._schema.names), self._schema).filter(where)
        yield from (batch for batch in found.select(names).to_batches() if batch.num_rows)

    def _read(self, row_groups: Sequence[int], names: Sequence[str]) -> list[pa.RecordBatch]:
        wanted = pa.schema([self._schema.field(name) for name in names])
        found = pa.concat_tables([self._stored.empty_table(), *(self._row_groups[number] for number in row_groups)])
        return found.select(list(names)).cast(wanted).to_batches()


@functools.lru_cache(maxsize=64)
def _decoded(content: bytes) -> tuple[pa.Schema, tuple[pa.Table, ...]]:
    """The schema and the row groups of a file: several actors read each, few are decoded twice."""
    file = pq.ParquetFile(pa.BufferReader(content))
    return file.schema_arrow, tuple(file.read_row_group(number, use_threads=False) for number in range(file.num_row_groups))
