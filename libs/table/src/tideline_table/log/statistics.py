"""Column statistics of the files of a table: in the entries of the writes, and merged in statistics files beside the log.

An entry holds the statistics of the files that its write published, so they are committed with them. A process that writes a checkpoint
also writes a statistics file if writes have completed since the last one. The file merges the statistics of all files of the table, so
a reader needs one file and the entries after it. If a statistics file is missing, readers read more data files.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tideline_table.errors import MALFORMED, TidelineError
from tideline_table.hudi.instant import PUBLISHING_ACTIONS, State
from tideline_table.log.body import Published
from tideline_table.log.entry import Entry, sequence_in
from tideline_table.log.state import TableState
from tideline_table.statistics import ColumnStatistics, FileStatistics, type_of
from tideline_table.storage import Storage

_LOGGER = logging.getLogger(__name__)

STATISTICS_FOLDER = ".hoodie/.tideline/statistics"
_KEPT = 3
"""Number of statistics files to keep, as of checkpoints."""
_AT_ONCE = 16
_COLUMNS_KEY = b"tideline.columns"
_BETWEEN = "\0"
"""Stands between name and kind of a column in the names of a table."""
_PARTS = ("minimum", "maximum", "nulls", "nans", "size_bytes", "uncompressed_bytes")
_SUFFIX = ".statistics"
"""The suffix of statistics files. They are in Parquet's format, but tools that read `*.parquet` in the folder of a table must not take them for rows."""
BROKEN = (*MALFORMED, pa.ArrowException, OSError, TidelineError)
"""What reading a statistics file may raise."""

ReadEntry: TypeAlias = Callable[[int], Entry | None]


@dataclass(slots=True)
class StatisticsFile:
    """A statistics file, of which columns are read when they are needed. Its methods raise one of `BROKEN` if it is gone or damaged."""

    sequence: int
    _file: pq.ParquetFile
    _columns: list[tuple[str, str]]
    """Name and kind of each column; its statistics are in the file's column with this number as its name."""
    _rows: dict[str, int] | None = None

    @property
    def rows(self) -> Mapping[str, int]:
        """The paths of the files, each with its number of rows."""
        if self._rows is None:
            read = self._file.read(["path", "rows"], use_threads=False)
            self._rows = dict(zip(read.column("path").to_pylist(), read.column("rows").to_pylist(), strict=True))
        return self._rows

    def column(self, name: str) -> dict[str, ColumnStatistics]:
        """Return the statistics of a column by path."""
        found: dict[str, ColumnStatistics] = {}
        for at, (known, kind) in enumerate(self._columns):
            if known == name:
                held = self._file.read([str(at)], use_threads=False).column(0).to_pylist()
                found |= {
                    path: _of_struct(kind, values) for path, values in zip(self.rows, held, strict=True) if values is not None
                }
        return found

    def table(self) -> pa.Table:
        """Return the whole file, with its columns named as `_table` names them."""
        names = ["path", "rows", *(_joined(*column) for column in self._columns)]
        return self._file.read(use_threads=False).rename_columns(names)


def read_statistics_file(storage: Storage) -> StatisticsFile | None:
    """Open the newest statistics file; None if there is none that can be read, with a warning for a damaged one."""
    return next(_readable(storage, _sequences(storage)), None)


def _readable(storage: Storage, sequences: Sequence[int]) -> Iterator[StatisticsFile]:
    for sequence in reversed(sequences):
        try:
            file = pq.ParquetFile(storage.open_input(_path(sequence)), memory_map=False, pre_buffer=False)
            columns = [(str(name), str(kind)) for name, kind in json.loads(file.schema_arrow.metadata[_COLUMNS_KEY])]
            for _, kind in columns:
                type_of(kind)
        except BROKEN as error:
            _LOGGER.warning("statistics file %s cannot be read (%s); more data files are read instead", _path(sequence), error)
            continue
        yield StatisticsFile(sequence, file, columns)


def merge_statistics(storage: Storage, read_entry: ReadEntry, state: TableState) -> pa.Table:
    """Return the statistics of all files of the table in `state`, as far as they are known, in the form of `_table`."""
    return _merged(_readable(storage, _sequences(storage)), read_entry, state)


def _merged(files: Iterable[StatisticsFile], read_entry: ReadEntry, state: TableState) -> pa.Table:
    parts, sequence = [], 0
    for known in files:
        try:
            parts, sequence = [known.table()], known.sequence
            break
        except BROKEN as error:
            _LOGGER.warning("statistics file %d cannot be read (%s); an older one is taken", known.sequence, error)
    parts.append(_table(_written_after(read_entry, state, sequence)))
    whole = pa.concat_tables(parts, promote_options="default")
    live = pa.array([path for held in state.every_slice() for path in held.paths], pa.string())
    return whole.filter(pc.is_in(whole.column("path"), value_set=live))


def keep_statistics(storage: Storage, read_entry: ReadEntry, state: TableState) -> None:
    """Store the statistics of all files of the table in `state`, unless no write has completed since the newest statistics file."""
    sequences = _sequences(storage)
    files = _readable(storage, sequences)
    newest = next(files, None)
    if not _completed_after(state, newest.sequence if newest is not None else 0):
        return
    _write_statistics_file(storage, state.sequence, _merged(chain(filter(None, [newest]), files), read_entry, state))
    for old in sorted({*sequences, state.sequence})[:-_KEPT]:
        storage.delete(_path(old))


def _write_statistics_file(storage: Storage, sequence: int, merged: pa.Table) -> None:
    columns = [name.split(_BETWEEN) for name in merged.column_names[2:]]
    numbered = merged.rename_columns(["path", "rows", *map(str, range(len(columns)))])
    with storage.open_output(_path(sequence)) as sink:
        pq.write_table(
            numbered.replace_schema_metadata({_COLUMNS_KEY: json.dumps(columns)}), sink, compression="zstd", write_statistics=False
        )


def _written_after(read_entry: ReadEntry, state: TableState, sequence: int) -> dict[str, FileStatistics]:
    """Return the statistics in the entries of the completed writes after `sequence`, by path, as far as the log still has them."""
    missing = _completed_after(state, sequence)
    found: dict[str, FileStatistics] = {}
    if missing:
        with ThreadPoolExecutor(min(_AT_ONCE, len(missing))) as pool:
            for entry in pool.map(read_entry, missing):
                found |= _in_entry(entry) if entry is not None else {}
    return found


def _completed_after(state: TableState, sequence: int) -> list[int]:
    return sorted(
        action.sequence
        for action in list(state.actions.values())
        if action.state is State.COMPLETED and action.action in PUBLISHING_ACTIONS and action.sequence > sequence
    )


def _in_entry(entry: Entry) -> dict[str, FileStatistics]:
    if not isinstance(entry.body, Published):
        return {}
    try:
        return entry.body.file_statistics
    except MALFORMED as error:
        _LOGGER.warning("the statistics in entry %d cannot be read (%s); its files are read instead", entry.sequence, error)
        return {}


def _table(files: Mapping[str, FileStatistics]) -> pa.Table:
    """Return statistics as a table: path, number of rows, and for each column of the files a struct with the statistics."""
    columns = list(dict.fromkeys((name, held.kind) for file in files.values() for name, held in file.columns.items()))
    arrays: list[pa.Array] = [pa.array(list(files), pa.string()), pa.array([file.rows for file in files.values()], pa.int64())]
    arrays += [_structs(files.values(), name, kind) for name, kind in columns]
    return pa.table(arrays, names=["path", "rows", *(_joined(*column) for column in columns)])


def files_in(merged: pa.Table) -> dict[str, FileStatistics]:
    """Return the statistics in the result of `merge_statistics` by path."""
    paths = merged.column("path").to_pylist()
    known: list[dict[str, ColumnStatistics]] = [{} for _ in paths]
    for joined in merged.column_names[2:]:
        name, kind = joined.split(_BETWEEN)
        for held, values in zip(known, merged.column(joined).to_pylist(), strict=True):
            if values is not None:
                held[name] = _of_struct(kind, values)
    rows = merged.column("rows").to_pylist()
    return {path: FileStatistics(count, held) for path, count, held in zip(paths, rows, known, strict=True)}


def _structs(files: Iterable[FileStatistics], name: str, kind: str) -> pa.Array:
    arrow = type_of(kind)
    stored = pa.int64() if pa.types.is_temporal(arrow) else arrow
    types = [stored, stored, *([pa.int64()] * (len(_PARTS) - 2))]
    rows = []
    for file in files:
        held = file.columns.get(name)
        rows.append(None if held is None or held.kind != kind else {part: getattr(held, part) for part in _PARTS})
    return pa.array(rows, pa.struct(list(zip(_PARTS, types, strict=True))))


def _of_struct(kind: str, values: Mapping[str, Any]) -> ColumnStatistics:
    return ColumnStatistics(kind, *(values[part] for part in _PARTS))


def _joined(name: str, kind: str) -> str:
    return f"{name}{_BETWEEN}{kind}"


def _path(sequence: int) -> str:
    return f"{STATISTICS_FOLDER}/{sequence:020d}{_SUFFIX}"


def _sequences(storage: Storage) -> list[int]:
    names = [found.path.rpartition("/")[2] for found in storage.list_folder(STATISTICS_FOLDER).objects]
    found = (sequence_in(name.removesuffix(_SUFFIX)) for name in names if name.endswith(_SUFFIX))
    return sorted(sequence for sequence in found if sequence is not None)


class KnownStatistics:
    """The statistics of the files of one open table, read when a query first needs them and kept up with its log. Thread-safe.

    Data files never change, so what was read stays true. Files whose statistics are not found are not known, which is no error.
    """

    def __init__(self, storage: Storage, read_entry: ReadEntry) -> None:
        self._storage = storage
        self._read_entry = read_entry
        self._mutex = threading.Lock()
        self._file: StatisticsFile | None = None
        self._sequence = -1
        """The last entry whose statistics are known; -1: nothing was read yet."""
        self._columns: dict[str, dict[str, ColumnStatistics]] = {}
        self._recent: dict[str, FileStatistics] = {}

    def saw(self, entry: Entry) -> None:
        """Take the statistics of a whole entry that the caller has anyway, if it is the next one and no query reads others now.

        Never waits: a query may read from a slow storage meanwhile. It, or a later one, then reads the entry itself.
        """
        if not self._mutex.acquire(blocking=False):
            return
        try:
            if 0 <= self._sequence == entry.sequence - 1:
                self._recent |= _in_entry(entry)
                self._sequence = entry.sequence
        finally:
            self._mutex.release()

    def of(self, paths: Sequence[str], columns: Iterable[str], state: TableState) -> list[FileStatistics | None]:
        """Return what is known of these columns of the files at `paths`, of the table in `state`."""
        wanted = list(columns)
        with self._mutex:
            try:
                stored = self._stored(wanted, state)
            except BROKEN:
                # Another process deleted the statistics file, as there are newer ones.
                self._file, self._sequence, self._columns, self._recent = None, -1, {}, {}
                try:
                    stored = self._stored(wanted, state)
                except BROKEN as error:
                    _LOGGER.warning("statistics cannot be read (%s); more data files are read instead", error)
                    self._file, self._sequence, stored = None, -1, {}
            rows = self._file.rows if self._file is not None else {}
            return [self._recent.get(path) or _one(path, rows, stored) for path in paths]

    def _stored(self, columns: Sequence[str], state: TableState) -> dict[str, dict[str, ColumnStatistics]]:
        """Read what is new since the last call; return these columns in the statistics file."""
        if self._sequence < 0:
            self._file = read_statistics_file(self._storage)
            self._sequence = self._file.sequence if self._file is not None else 0
        if self._sequence < (sequence := state.sequence):
            self._recent |= _written_after(self._read_entry, state, self._sequence)
            self._sequence = sequence
        if self._file is not None:
            for name in columns:
                if name not in self._columns:
                    self._columns[name] = self._file.column(name)
        return {name: self._columns[name] for name in columns if name in self._columns}


def _one(path: str, rows: Mapping[str, int], stored: Mapping[str, Mapping[str, ColumnStatistics]]) -> FileStatistics | None:
    if path not in rows:
        return None
    return FileStatistics(rows[path], {name: held[path] for name, held in stored.items() if path in held})
