"""Stored statistics of a table: a file with those of all data files, and one beside it with those of all partitions.

Both are in Parquet's format, with one column of structs for each column of the table, so that a query reads the columns that
its condition names. The data files are in order of path, in row groups: a query reads the row groups of the files that it asks
for. Pages have checksums.

The two files may hold only what was written since others, their base, which then belong to them.
"""

from __future__ import annotations

import bisect
import json
import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tideline_table.errors import MALFORMED, CorruptMetadata, TidelineError
from tideline_table.log.entry import sequence_in
from tideline_table.statistics import PARTS, ColumnArrays, ColumnStatistics, FileStatistics, type_of
from tideline_table.storage import Storage

_LOGGER = logging.getLogger(__name__)

STATISTICS_FOLDER = ".hoodie/.tideline/statistics"
FEWEST_PARTITIONS = 64
"""With fewer partitions, the statistics of files cost about as much as those of partitions would."""
BROKEN = (*MALFORMED, pa.ArrowException, OSError, TidelineError)
"""What reading a statistics file may raise."""
BETWEEN = "\0"
"""Stands between name and kind of a column in the names of a table."""
FILE_PARTS = (*PARTS, "size_bytes", "uncompressed_bytes")
"""The fields of the struct of a column in a statistics file of data files."""

_COLUMNS_KEY = b"tideline.columns"
_SEQUENCE_KEY = b"tideline.sequence"
_PARTITIONS_KEY = b"tideline.partitions"
_BASE_KEY = b"tideline.base"
"""The sequence of the base."""
_SUFFIX, _PARTITIONS_SUFFIX = ".statistics", ".partitions"
"""Suffixes of the files. Tools that read `*.parquet` in the folder of a table must not take them for rows."""
_MOST_GROUPS = 16
_FEWEST_IN_GROUP = 4096
"""Row groups make a query read less, but the footer, which it always reads, larger."""


@dataclass(slots=True)
class StatisticsFile:
    """The statistics of data files, read when they are needed. Its methods raise one of `BROKEN` if the file is gone or damaged."""

    sequence: int
    has_partitions: bool
    """Whether a file with the statistics of partitions was stored with it."""
    _file: pq.ParquetFile
    _columns: list[tuple[str, str]]
    """Name and kind of each column; its statistics are in the file's column with this number as its name."""
    base: StatisticsFile | None
    """The file that has what this one lacks."""
    _paths: dict[int, list[str]] = field(default_factory=dict)
    """The paths of the data files, by row group."""
    _rows: dict[str, int] = field(default_factory=dict)
    _known: dict[str, dict[str, ColumnStatistics]] = field(default_factory=dict)
    _read: set[tuple[int, str]] = field(default_factory=set)
    """Row groups and columns that were read."""

    def of(self, paths: Sequence[str], columns: Sequence[str]) -> list[FileStatistics | None]:
        """Return the statistics of these columns of the data files at `paths`; None for a file that this one does not have."""
        for group in sorted(self._groups_of(paths)):
            if group not in self._paths:
                read = self._file.read_row_group(group, ["path", "rows"], use_threads=False)
                self._paths[group] = read.column("path").to_pylist()
                self._rows |= zip(self._paths[group], read.column("rows").to_pylist(), strict=True)
            for name in columns:
                self._read_column(group, name)
        found = [self._one(path, columns) for path in paths]
        if self.base is not None and (missing := [path for path, known in zip(paths, found, strict=True) if known is None]):
            older = dict(zip(missing, self.base.of(missing, columns), strict=True))
            return [known or older[path] for path, known in zip(paths, found, strict=True)]
        return found

    @property
    def files(self) -> int:
        """The number of data files, without those of the base."""
        return int(self._file.metadata.num_rows)

    def _read_column(self, group: int, name: str) -> None:
        if (group, name) in self._read:
            return
        for at, (known, kind) in enumerate(self._columns):
            if known == name:
                held = self._file.read_row_group(group, [str(at)], use_threads=False).column(0).to_pylist()
                self._known.setdefault(name, {}).update(
                    (path, column_of(kind, values))
                    for path, values in zip(self._paths[group], held, strict=True)
                    if values is not None
                )
        self._read.add((group, name))

    def _one(self, path: str, columns: Sequence[str]) -> FileStatistics | None:
        if path not in self._rows:
            return None
        known = ((name, self._known.get(name, {}).get(path)) for name in columns)
        return FileStatistics(self._rows[path], {name: found for name, found in known if found is not None})

    def _groups_of(self, paths: Sequence[str]) -> AbstractSet[int]:
        """Return the row groups that may have these paths."""
        footer = self._file.metadata
        held = [footer.row_group(at).column(0).statistics for at in range(footer.num_row_groups)]
        if not all(known is not None and known.has_min_max for known in held):
            return set(range(len(held)))  # a file of an earlier release
        lowest = [known.min for known in held]
        return {at for at in (bisect.bisect_right(lowest, path) - 1 for path in paths) if at >= 0}

    def table(self, paths: pa.Array | None = None, *, with_base: bool = True) -> pa.Table:
        """Return what is known of the files (of those at `paths`, if given), with the base.

        `path`, `rows`, and a column of structs for each column, named by name and kind.
        """
        names = ["path", "rows", *(BETWEEN.join(column) for column in self._columns)]
        groups = range(self._file.metadata.num_row_groups) if paths is None else sorted(self._groups_of(paths.to_pylist()))
        held = self._file.read_row_groups(list(groups), use_threads=False).rename_columns(names)
        if paths is not None:
            held = held.filter(pc.is_in(held.column("path"), value_set=paths))
        if self.base is None or not with_base:
            return held
        return pa.concat_tables([self.base.table(paths), held], promote_options="default")


@dataclass(slots=True)
class PartitionsFile:
    """The statistics of partitions, read when they are needed. Its methods raise one of `BROKEN` if the file is gone or damaged."""

    sequence: int
    _file: pq.ParquetFile
    _columns: list[tuple[str, str]]
    base: PartitionsFile | None
    """The file that has the partitions that this one lacks."""
    _partitions: pa.Table | None = None
    _known: dict[str, list[ColumnArrays]] = field(default_factory=dict)

    @property
    def partitions(self) -> pa.Table:
        """The columns `partition` and `rows`, in order of partition."""
        if self._partitions is None:
            self._partitions = self.table(()).combine_chunks()
        return self._partitions

    def columns(self, names: Sequence[str]) -> Mapping[str, Sequence[ColumnArrays]]:
        """Return the statistics of these columns in all partitions."""
        for name in names:
            if name not in self._known:
                self._known[name] = [_arrays(column, held) for column, held in _columns_of(self.table((name,)))]
        return {name: self._known[name] for name in names}

    def table(self, names: Collection[str] | None = None, *, with_base: bool = True) -> pa.Table:
        """Return what is known of the partitions, of these columns (None: all), with the base, in the form of `by_partition`.

        All pages of the files have checksums.
        """
        wanted = [at for at, (name, _) in enumerate(self._columns) if names is None or name in names]
        held = self._file.read(["partition", "rows", *map(str, wanted)], use_threads=False)
        held = held.rename_columns(["partition", "rows", *(BETWEEN.join(self._columns[at]) for at in wanted)])
        if self.base is None or not with_base:
            return held
        return with_partitions(self.base.table(names), held)


def with_partitions(before: pa.Table, now: pa.Table) -> pa.Table:
    """Return statistics of partitions: those in `now`, and of others those in `before`. In order of partition."""
    others = before.filter(pc.invert(pc.is_in(before.column("partition"), value_set=now.column("partition").combine_chunks())))
    return pa.concat_tables([others, now], promote_options="default").sort_by("partition")


def _columns_of(table: pa.Table) -> Iterator[tuple[str, pa.Array]]:
    for at, name in enumerate(table.column_names[2:], 2):
        yield name.split(BETWEEN)[1], table.column(at).combine_chunks()


def _arrays(kind: str, held: pa.Array) -> ColumnArrays:
    return ColumnArrays(kind, *(pc.struct_field(held, part) for part in PARTS))


def readable_files(storage: Storage, sequences: Sequence[int]) -> Iterator[StatisticsFile]:
    """Open the statistics files with these sequences that can be read, newest first, with a warning for the others."""
    for sequence in reversed(sequences):
        try:
            file, columns = _opened(storage, _path(sequence))
            found, below = (file.schema_arrow.metadata.get(key) for key in (_PARTITIONS_KEY, _BASE_KEY))
            base = None if below is None else next(readable_files(storage, [int(below)]), None)
            if below is not None and base is None:
                raise CorruptMetadata(f"no {_path(int(below))}", expected="the file with the statistics of the other files")
        except BROKEN as error:
            _LOGGER.warning("statistics file %s cannot be read (%s); more data files are read instead", _path(sequence), error)
            continue
        yield StatisticsFile(sequence, found is not None, file, columns, base)


def read_partitions(storage: Storage, sequence: int) -> PartitionsFile:
    """Open the statistics of partitions with this sequence. Raises one of `BROKEN`."""
    path = _path(sequence, _PARTITIONS_SUFFIX)
    file, columns = _opened(storage, path)
    if (found := file.schema_arrow.metadata[_SEQUENCE_KEY].decode()) != str(sequence):
        raise CorruptMetadata(f"{path} is of entry {found}", expected=f"entry {sequence}", remedy="delete it; it is written anew")
    below = file.schema_arrow.metadata.get(_BASE_KEY)
    return PartitionsFile(sequence, file, columns, None if below is None else read_partitions(storage, int(below)))


def _opened(storage: Storage, path: str) -> tuple[pq.ParquetFile, list[tuple[str, str]]]:
    source = storage.open_input(path)
    file = pq.ParquetFile(source, memory_map=False, pre_buffer=True, page_checksum_verification=True)
    columns = [(str(name), str(kind)) for name, kind in json.loads(file.schema_arrow.metadata[_COLUMNS_KEY])]
    for _, kind in columns:
        type_of(kind)
    return file, columns


def write_statistics_file(storage: Storage, sequence: int, files: pa.Table, partitions: pa.Table | None, base: int = 0) -> None:
    """Store statistics of data files (`StatisticsFile.table`) and, before them, of partitions (`by_partition`), if given.

    `base`: the sequence of the files that have the statistics of the others; 0: there are no others.
    """
    keys = {_SEQUENCE_KEY: str(sequence).encode()} | ({_BASE_KEY: str(base).encode()} if base else {})
    if partitions is not None:
        _write(
            storage,
            _path(sequence, _PARTITIONS_SUFFIX),
            partitions.rename_columns(_numbered(partitions)),
            keys | _names(partitions),
        )
        keys[_PARTITIONS_KEY] = str(partitions.num_rows).encode()
    in_group = max(_FEWEST_IN_GROUP, -(-files.num_rows // _MOST_GROUPS))
    ordered = files.rename_columns(_numbered(files)).sort_by("path")
    _write(storage, _path(sequence), ordered, keys | _names(files), row_group_size=in_group, write_statistics=["path"])


def _write(storage: Storage, path: str, table: pa.Table, keys: Mapping[bytes, bytes], **more: Any) -> None:
    options = {"compression": "zstd", "write_statistics": False, "write_page_checksum": True, **more}
    with storage.open_output(path) as sink:
        pq.write_table(table.replace_schema_metadata(keys), sink, **options)


def _numbered(table: pa.Table) -> list[str]:
    return [*table.column_names[:2], *map(str, range(table.num_columns - 2))]


def _names(table: pa.Table) -> dict[bytes, bytes]:
    return {_COLUMNS_KEY: json.dumps([name.split(BETWEEN) for name in table.column_names[2:]]).encode()}


def column_of(kind: str, values: Mapping[str, Any]) -> ColumnStatistics:
    """Return the statistics of a column from the fields of its struct."""
    return ColumnStatistics(kind, *(values[part] for part in FILE_PARTS))


def stored_sequences(storage: Storage) -> list[int]:
    """Return the sequences of the statistics files, ascending."""
    return sorted(sequence for sequence, name in _stored(storage) if name.endswith(_SUFFIX))


def delete_before(storage: Storage, kept: int, base: int = 0) -> None:
    """Delete the statistics files with a sequence below `kept`, but not those of `base`."""
    for sequence, name in _stored(storage):
        if sequence < kept and sequence != base:
            storage.delete(f"{STATISTICS_FOLDER}/{name}")


def _stored(storage: Storage) -> Iterator[tuple[int, str]]:
    for found in storage.list_folder(STATISTICS_FOLDER).objects:
        name = found.path.rpartition("/")[2]
        for suffix in (_SUFFIX, _PARTITIONS_SUFFIX):
            if name.endswith(suffix) and (sequence := sequence_in(name.removesuffix(suffix))) is not None:
                yield sequence, name


def _path(sequence: int, suffix: str = _SUFFIX) -> str:
    return f"{STATISTICS_FOLDER}/{sequence:020d}{suffix}"
