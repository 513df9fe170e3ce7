"""Compare the data files of a table with what its commits recorded."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa

from tideline_table.errors import CorruptMetadata, ObjectNotFound, UnsupportedTable
from tideline_table.hudi.file_names import is_log_path
from tideline_table.log.state import TableState
from tideline_table.log_format import BlockType, read_deletes, read_rows, scan_log
from tideline_table.log_format.block import whole_block
from tideline_table.metadata_table import Finding, FindingKind
from tideline_table.metadata_table.finding import gone, without_leaving
from tideline_table.reader.base_file import open_checked, parquet_file, readable
from tideline_table.storage import DataPath, Storage, check_pieces

_THREADS = 8
_PIECE_BYTES = 8 * 1024 * 1024
_ROWS = (BlockType.AVRO, BlockType.PARQUET, BlockType.HFILE)


def damaged_files(storage: Storage, state: TableState, *, deep: bool) -> list[Finding]:
    """Return the committed data files that are gone or not what their commits recorded, by path.

    Compares sizes, reads the footers of base files and the blocks of log files. `deep` reads all bytes of base files, and
    decodes what has no digest. Files that a pending clean deletes may be gone.
    """
    paths = sorted({path: path for found in state.every_slice() for path in found.paths}.values())
    with ThreadPoolExecutor(_THREADS) as pool:
        found = pool.map(lambda path: _finding(path, lambda: _check_file(storage, path, deep=deep)), paths)
        return list(without_leaving((each for each in found if each is not None), state))


def _finding(path: str, check: Callable[[], None]) -> Finding | None:
    try:
        check()
    except ObjectNotFound as error:
        return gone(error)
    except (CorruptMetadata, UnsupportedTable) as error:
        return Finding(FindingKind.DAMAGED_DATA, str(path), f"{error.found}; expected {error.expected}")
    return None


def _check_file(storage: Storage, path: DataPath, *, deep: bool) -> None:
    if is_log_path(path):
        _check_log(storage, path, deep=deep)
    else:
        _check_base(storage, path, deep=deep)


def _check_log(storage: Storage, path: DataPath, *, deep: bool) -> None:
    for block in scan_log(storage, path).blocks:
        if block.written is not None:
            whole_block(storage, block, block.written)
        elif deep and block.type is BlockType.DELETE:
            read_deletes(storage, block)
        elif deep and block.type in _ROWS:
            read_rows(storage, block)


def _check_base(storage: Storage, path: DataPath, *, deep: bool) -> None:
    with readable(path):
        source = open_checked(storage, path)
        file = parquet_file(source)
        if not deep:
            return
        body = path.ranges[0] if path.ranges else None
        if body is not None and body.digest:
            source.seek(body.start)
            check_pieces(path, body, _pieces(source, body.size_bytes))
            return
        for batch in file.iter_batches():
            batch.validate(full=True)


def _pieces(source: pa.NativeFile, size_bytes: int) -> Iterator[bytes]:
    while size_bytes and (piece := source.read(min(size_bytes, _PIECE_BYTES))):
        size_bytes -= len(piece)
        yield piece
