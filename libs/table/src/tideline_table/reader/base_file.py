"""Reading Parquet base files (format reference 8.2)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from tideline_table.errors import CorruptMetadata, StorageError
from tideline_table.file_group.slice import FileSlice
from tideline_table.storage import Storage

MIN_KEY = b"hoodie_min_record_key"
MAX_KEY = b"hoodie_max_record_key"
_BROKEN = (pa.ArrowInvalid, OSError)
"""What Arrow raises on bytes that are no sound Parquet file."""


@dataclass(frozen=True, slots=True)
class BaseFileFooter:
    """What a base file's footer tells without reading rows. Keys are empty where the writer left them out."""

    rows: int
    min_key: str
    max_key: str

    def may_hold(self, low: str, high: str) -> bool:
        """Whether a key between `low` and `high` (both in) can be in the file."""
        return not self.max_key or (self.min_key <= high and low <= self.max_key)


def read_footer(storage: Storage, path: str) -> BaseFileFooter:
    """The footer of a base file."""
    with _opened(storage, path) as file:
        pairs = file.metadata.metadata or {}
        return BaseFileFooter(file.metadata.num_rows, pairs.get(MIN_KEY, b"").decode(), pairs.get(MAX_KEY, b"").decode())


def read_base_file(storage: Storage, path: str, columns: Sequence[str] | None = None) -> pa.Table:
    """All rows of a base file, decoded by one thread: parallelism is over files."""
    with _opened(storage, path) as file:
        try:
            return file.read(columns=list(columns) if columns is not None else None, use_threads=False)
        except _BROKEN as error:
            raise _corrupt(path, error) from None


def _opened(storage: Storage, path: str) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(storage.open_input(path), memory_map=False, pre_buffer=True)
    except _BROKEN as error:
        raise _corrupt(path, error) from None


def _corrupt(path: str, error: Exception) -> CorruptMetadata | StorageError:
    if isinstance(error, OSError) and error.errno:  # the disk's answer, not Arrow's opinion about the bytes
        return StorageError(f"{error.strerror} at {path!r}", remedy="check the disk and its rights, then retry")
    return CorruptMetadata(f"base file {path} cannot be read ({error})", expected="a Parquet file", remedy="restore the file")


def scan_slices(
    storage: Storage,
    slices: Sequence[FileSlice],
    schema: pa.Schema,
    columns: Sequence[str] | None = None,
    where: pc.Expression | None = None,
) -> Iterator[pa.RecordBatch]:
    """Rows of base-file-only slices in `schema` (columns that an older file lacks are null), filtered by `where`.

    Row groups that cannot match are skipped by their statistics. `schema` has the meta fields; nothing holds a whole table in memory.
    """
    parquet = ds.ParquetFileFormat()
    for file_slice in slices:
        fragment = parquet.make_fragment(storage.open_input(file_slice.path))
        try:
            scanner = fragment.scanner(schema=schema, columns=list(columns) if columns is not None else None, filter=where)
            yield from (batch for batch in scanner.to_batches() if batch.num_rows)
        except (pa.ArrowInvalid, OSError) as error:
            raise _unreadable(file_slice.path, error) from None


def _unreadable(path: str, error: Exception) -> CorruptMetadata:
    reason = str(error).split("\n", 1)[0]
    return CorruptMetadata(
        f"base file {path} cannot be read ({reason})", expected="a Parquet file", remedy="restore the file from a copy"
    )
