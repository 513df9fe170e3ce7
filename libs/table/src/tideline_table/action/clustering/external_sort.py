"""Sorting of rows that do not fit into memory: range-partition them into files, then sort the files one after the other.

Bounds come from a sample of the sort keys. Rows equal to a bound have a file of their own, which needs no sorting, so that a
frequent value may have any number of rows. A file that is still too large is partitioned again. Files are Arrow IPC in a
temporary folder.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tideline_table.action.clustering.execution_strategy import RowOrder
from tideline_table.storage import writing

SAMPLE_ROWS = 200_000
_SAMPLE_ROW_BYTES = 1024
_MOST_BOUNDS = 64
_TAG = "_tag"

Batches = Callable[[], Iterable[pa.RecordBatch]]
"""Returns all rows, the same at each call."""


def sort_rows(rows: pa.Table, order: RowOrder) -> pa.Table:
    """Return the rows in the given order, sorted in memory."""
    return rows.take(sort_indices(order(rows)))


def sort_externally(batches: Batches, order: RowOrder, sample: pa.Table, folder: Path, limit_bytes: int) -> Iterator[pa.Table]:
    """Yield all rows in the given order, in pieces, holding about `limit_bytes` of rows at a time.

    `sample` has rows with the columns of the order. `folder` is for files. Raises `StorageFull` or `StorageError` for a full or
    broken disk.
    """
    keys = order(sample)
    parts = _Parts(folder, _bounds(keys, _MOST_BOUNDS))
    try:
        # An eighth, because a piece is held with its sort keys, their order and its sorted copy.
        for rows in pieces(batches(), limit_bytes // 8):
            parts.add(rows, order)
        parts.close()
        for number in sorted(parts.size_bytes):
            yield from _sorted_part(parts, number, order, limit_bytes)
            parts.path(number).unlink()
            pa.default_memory_pool().release_unused()
    finally:
        parts.close()


def pieces(batches: Iterable[pa.RecordBatch], size_bytes: int) -> Iterator[pa.Table]:
    """Yield rows in tables of at least `size_bytes`, the last one smaller."""
    held: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        held.append(batch)
        size += batch.nbytes
        if size >= size_bytes:
            yield pa.Table.from_batches(held)
            held, size = [], 0
    if held:
        yield pa.Table.from_batches(held)


@dataclass(slots=True)
class Sample:
    """A uniform random sample of at most `most` rows, and the count of all rows added."""

    most: int
    rows: int = 0
    _chosen: pa.Table | None = None
    _random: np.random.Generator = field(default_factory=lambda: np.random.default_rng(1))

    def add(self, rows: pa.Table) -> None:
        """Let rows take part: each row draws a number, and the rows with the smallest numbers are the sample."""
        self.rows += rows.num_rows
        drawn = rows.append_column(_TAG, pa.array(self._random.random(rows.num_rows)))
        if rows.num_rows > self.most:
            drawn = self._smallest(drawn)
        self._chosen = drawn if self._chosen is None else pa.concat_tables([self._chosen, drawn])
        if self._chosen.num_rows > 2 * self.most:
            self._chosen = self._smallest(self._chosen)

    def table(self, schema: pa.Schema) -> pa.Table:
        """Return the sample."""
        if self._chosen is None:
            return schema.empty_table()
        return self._smallest(self._chosen).drop_columns([_TAG])

    def _smallest(self, drawn: pa.Table) -> pa.Table:
        return drawn.take(pc.sort_indices(drawn.column(_TAG))[: self.most])


def sample_rows(limit_bytes: int) -> int:
    """Return the number of rows of a sample that takes a small part of the memory."""
    return max(1000, min(SAMPLE_ROWS, limit_bytes // _SAMPLE_ROW_BYTES))


class _Parts:
    """Files with the rows between two bounds (even numbers) and with those equal to a bound (odd numbers), in order."""

    def __init__(self, folder: Path, bounds: pa.Table) -> None:
        self._folder = folder
        self._bounds = bounds
        self._writers: dict[int, pa.ipc.RecordBatchFileWriter] = {}
        self._sinks: list[pa.OSFile] = []
        self.size_bytes: dict[int, int] = {}

    def path(self, number: int) -> Path:
        """Return the file of a part."""
        return self._folder / f"part-{number}.arrow"

    def add(self, rows: pa.Table, order: RowOrder) -> None:
        """Append rows to the files of their parts."""
        parts = part_numbers(order(rows), self._bounds)
        by_part = np.argsort(parts, kind="stable")
        rows = rows.take(pa.array(by_part))
        numbers, starts = np.unique(parts[by_part], return_index=True)
        for number, start, end in zip(numbers.tolist(), starts, [*starts[1:], rows.num_rows], strict=True):
            part = rows.slice(start, end - start)
            with writing(str(self.path(number))):
                self._writer(number, rows.schema).write_table(part)
            self.size_bytes[number] = self.size_bytes.get(number, 0) + part.nbytes

    def close(self) -> None:
        """Finish the files. Calling it again does nothing."""
        with writing(str(self._folder)):
            for writer in self._writers.values():
                writer.close()
            for sink in self._sinks:
                sink.close()
        self._writers, self._sinks = {}, []

    def batches(self, number: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a part."""
        with pa.OSFile(str(self.path(number))) as source, pa.ipc.open_file(source) as reader:
            for index in range(reader.num_record_batches):
                yield reader.get_batch(index)

    def _writer(self, number: int, schema: pa.Schema) -> pa.ipc.RecordBatchFileWriter:
        if number not in self._writers:
            sink = pa.OSFile(str(self.path(number)), "wb")
            self._sinks.append(sink)
            self._writers[number] = pa.ipc.new_file(sink, schema, options=pa.ipc.IpcWriteOptions(compression="lz4"))
        return self._writers[number]


def _sorted_part(parts: _Parts, number: int, order: RowOrder, limit_bytes: int) -> Iterator[pa.Table]:
    if number % 2:
        # Equal keys: any order of them is right.
        yield from (pa.Table.from_batches([batch]) for batch in parts.batches(number))
    elif parts.size_bytes[number] <= limit_bytes // 2:
        yield sort_rows(pa.Table.from_batches(parts.batches(number)), order)
    else:
        chosen = Sample(sample_rows(limit_bytes))
        for rows in pieces(parts.batches(number), limit_bytes // 8):
            chosen.add(rows)
        folder = parts.path(number).with_suffix("")
        with writing(str(folder)):
            folder.mkdir()
        sample = chosen.table(rows.schema)
        yield from sort_externally(lambda: parts.batches(number), order, sample, folder, limit_bytes)


def _bounds(keys: pa.Table, most: int) -> pa.Table:
    ordered = keys.take(sort_indices(keys))
    at = np.unique(np.linspace(0, ordered.num_rows - 1, min(most, ordered.num_rows) + 2).astype(np.int64)[1:-1])
    return ordered.take(pa.array(at))


def part_numbers(keys: pa.Table, bounds: pa.Table) -> np.ndarray:
    """Return the part of each row: twice the number of bounds below it, one more if it is equal to a bound.

    Arrow's own order of values decides, with a mark before and one behind the rows that are equal to a bound.
    """
    count = bounds.num_rows
    marked = pa.concat_tables([bounds, keys, bounds])
    tags = np.repeat(np.array([0, 1, 2], dtype=np.uint8), [count, keys.num_rows, count])
    indices = sort_indices(marked.append_column(_TAG, pa.array(tags))).to_numpy()
    found = tags[indices]
    begun, ended = np.cumsum(found == 0), np.cumsum(found == 2)
    parts = np.empty(len(found), dtype=np.int64)
    parts[indices] = 2 * ended + (begun > ended)
    return parts[count : count + keys.num_rows]


def sort_indices(keys: pa.Table) -> pa.Array:
    """Return the order of rows by their sort keys. Rows with equal keys stay in their order."""
    return pc.sort_indices(keys, sort_keys=[(name, "ascending") for name in keys.column_names])


def strided(rows: pa.Table, most: int) -> pa.Table:
    """Return at most `most` rows at equal distances."""
    step = math.ceil(rows.num_rows / most)
    return rows if step <= 1 else rows.take(pa.array(np.arange(0, rows.num_rows, step)))
