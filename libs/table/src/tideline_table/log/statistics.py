"""Column statistics of the files of a table: in the entries of the writes, and merged in statistics files beside the log.

An entry holds the statistics of the files that its write published, so they are committed with them. A process that writes a
checkpoint also writes statistics files if writes have completed since the last ones (`statistics_file`). They merge the
statistics of all files of the table, so a reader needs them and the entries after them. If a statistics file is missing,
readers read more data files.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import chain
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from tideline_table.errors import MALFORMED
from tideline_table.file_group.slice import FileSlice
from tideline_table.log.body import Published
from tideline_table.log.entry import Entry
from tideline_table.log.packed import PackedSlices
from tideline_table.log.part_summary import PartSummary
from tideline_table.log.state import TableState
from tideline_table.log.statistics_file import (
    BETWEEN,
    BROKEN,
    FEWEST_PARTITIONS,
    FILE_PARTS,
    StatisticsFile,
    column_of,
    delete_before,
    read_partitions,
    readable_files,
    stored_sequences,
    with_partitions,
    write_statistics_file,
)
from tideline_table.statistics import ColumnStatistics, FileStatistics, by_partition, type_of
from tideline_table.storage import Storage

_LOGGER = logging.getLogger(__name__)

_BASE_SHARE = 8
"""Statistics of files written since a base lie beside it, until they are this part of it."""
_KEPT = 3
"""Number of statistics files to keep, as of checkpoints."""
_AT_ONCE = 16

ReadEntry: TypeAlias = Callable[[int], Entry | None]


@dataclass(slots=True)
class Written:
    """The statistics of the files that the completed writes in a range of the log published."""

    files: dict[str, FileStatistics] = field(default_factory=dict)
    """By path; a file without statistics is missing."""
    partitions: dict[str, FileStatistics | None] = field(default_factory=dict)
    """Of all these files of a partition together, by partition path; None: of one of them nothing is known."""
    is_whole: bool = True
    """Whether `partitions` names every partition that got files in the range, also of writes that were undone or archived since."""

    def add(self, entry: Entry) -> None:
        """Add what `entry` published."""
        body = entry.body
        if not isinstance(body, Published):
            return
        self.is_whole &= body.adopted is None  # these files are not in the commit's metadata
        try:
            known = body.file_statistics
        except MALFORMED as error:
            _LOGGER.warning("the statistics in entry %d cannot be read (%s); its files are read instead", entry.sequence, error)
            known = {}
        self.files |= known
        for stat in body.metadata.stats:
            if stat.path:
                before, file = self.partitions.get(stat.partition_path, _NOTHING), known.get(stat.path)
                self.partitions[stat.partition_path] = before.union(file) if before is not None and file is not None else None


_NOTHING = FileStatistics(0)


def read_statistics_file(storage: Storage) -> StatisticsFile | None:
    """Open the newest statistics file; None if there is none that can be read, with a warning for a damaged one."""
    return next(readable_files(storage, stored_sequences(storage)), None)


def read_written(read_entry: ReadEntry, state: TableState, known: int, written: Written) -> int:
    """Add to `written` what completed writes after the entry `known` published, as far as the log has them.

    Return the last entry read.
    """
    sequence, missing, is_whole = state.writes_after(known)
    written.is_whole &= is_whole
    if missing:
        with ThreadPoolExecutor(min(_AT_ONCE, len(missing))) as pool:
            for entry in pool.map(read_entry, missing):
                if entry is None:
                    written.is_whole = False
                else:
                    written.add(entry)
    return sequence


def merge_statistics(storage: Storage, read_entry: ReadEntry, state: TableState) -> pa.Table:
    """Return the known statistics of all files of the table in `state`, in the form of `StatisticsFile.table`."""
    return _all(readable_files(storage, stored_sequences(storage)), read_entry, state)[0]


def _live(slices: Sequence[FileSlice]) -> tuple[pa.Array, pa.Array]:
    """Return the paths of all files of the slices, and their partition paths."""
    paths = pa.array([path for held in slices for path in held.paths], pa.string())
    return paths, pa.array([held.group.partition_path for held in slices for _ in held.paths], pa.string())


def _merged(files: Iterable[StatisticsFile], read_entry: ReadEntry, state: TableState) -> pa.Table:
    parts, sequence = [], 0
    for known in files:
        try:
            parts, sequence = [known.table()], known.sequence
            break
        except BROKEN as error:
            _LOGGER.warning("statistics file %d cannot be read (%s); an older one is taken", known.sequence, error)
    written = Written()
    read_written(read_entry, state, sequence, written)
    parts.append(statistics_table(written.files))
    return pa.concat_tables(parts, promote_options="default")


def keep_statistics(storage: Storage, read_entry: ReadEntry, state: TableState) -> None:
    """Store the statistics of all files and partitions in `state`, unless no write has completed since the newest ones."""
    sequences = stored_sequences(storage)
    files = readable_files(storage, sequences)
    newest = next(files, None)
    if _is_new(storage, newest, state) if newest is not None else not state.writes_after(0)[1]:
        return
    found: tuple[pa.Table, pa.Table | None] | None = None
    base = 0
    if newest is not None and isinstance(state.slices, PackedSlices):
        written = Written()
        read_written(read_entry, state, newest.sequence, written)
        for beside in (True, False):
            found = _continued(storage, newest, written, state.slices, state.totals()[0], beside=beside)
            if found is not None:
                base = (newest.base or newest).sequence if beside else 0
                break
    merged, partitions = found or _all(chain(filter(None, [newest]), files), read_entry, state)
    write_statistics_file(storage, state.sequence, merged, partitions, base)
    delete_before(storage, sorted({*sequences, state.sequence})[-_KEPT:][0], base)


def _all(files: Iterable[StatisticsFile], read_entry: ReadEntry, state: TableState) -> tuple[pa.Table, pa.Table | None]:
    """Return the statistics of all files and, if there are many, of all partitions."""
    known = _merged(files, read_entry, state)
    if not known.num_rows:
        return known, None  # of a table without statistics, no file is looked at
    paths, within = _live(state.every_slice())
    merged = known.filter(pc.is_in(known.column("path"), value_set=paths))
    return merged, by_partition(merged, paths, within) if len(within.unique()) >= FEWEST_PARTITIONS else None


def _continued(
    storage: Storage, newest: StatisticsFile, written: Written, slices: PackedSlices, totals: PartSummary, *, beside: bool
) -> tuple[pa.Table, pa.Table | None] | None:
    """Return what `_all` does, from the newest file and the partitions written since, or what is to lie `beside` its base.

    None: see all files. Of other partitions, files that were cleaned since stay: what bounds more files bounds those that are left.
    So it is for tables with many file groups, and as long as most of the files are there.
    """
    if not written.is_whole or (not newest.has_partitions and totals.partitions >= FEWEST_PARTITIONS):
        return None
    try:
        added = statistics_table(written.files)
        files = [] if beside and newest.base is None else [newest.table(with_base=not beside)]
        merged = pa.concat_tables([*files, added], promote_options="default")
        most = (newest.base or newest).files // _BASE_SHARE if beside else 2 * totals.all_files
        if merged.num_rows > most or (beside and not written.partitions):
            return None
        if not newest.has_partitions:
            return merged, None
        before = read_partitions(storage, newest.sequence)
        if beside and (before.base.sequence if before.base else 0) != (newest.base.sequence if newest.base else 0):
            return None  # two processes wrote the two files: what lies beside one base says too little above another
        paths, within = _live([one for held in slices.of_partitions(written.partitions).values() for one in held.values()])
        known = pa.concat_tables([newest.table(paths), added], promote_options="default")
        now = by_partition(known.filter(pc.is_in(known.column("path"), value_set=paths)), paths, within)
        is_first = beside and before.base is None
        return merged, now if is_first else with_partitions(before.table(with_base=not beside), now)
    except BROKEN as error:
        _LOGGER.warning("the statistics at entry %d cannot be read (%s); they are made anew", newest.sequence, error)
        return None


def _is_new(storage: Storage, newest: StatisticsFile, state: TableState) -> bool:
    _, missing, is_whole = state.writes_after(newest.sequence)
    return not missing and is_whole and _has_partitions(storage, newest, state)


def _has_partitions(storage: Storage, newest: StatisticsFile, state: TableState) -> bool:
    """Return whether the statistics of partitions beside a file can be read, or the table needs none."""
    if not newest.has_partitions:
        return state.totals()[0].partitions < FEWEST_PARTITIONS
    try:
        read_partitions(storage, newest.sequence).table()
    except BROKEN as error:
        _LOGGER.warning(
            "the statistics of partitions at entry %d cannot be read (%s); they are written anew", newest.sequence, error
        )
        return False
    return True


def statistics_table(files: Mapping[str, FileStatistics]) -> pa.Table:
    """Return statistics as a table: path, number of rows, and for each column of the files a struct with the statistics."""
    columns = list(dict.fromkeys((name, held.kind) for file in files.values() for name, held in file.columns.items()))
    arrays: list[pa.Array] = [pa.array(list(files), pa.string()), pa.array([file.rows for file in files.values()], pa.int64())]
    arrays += [_structs(files.values(), name, kind) for name, kind in columns]
    return pa.table(arrays, names=["path", "rows", *(BETWEEN.join(column) for column in columns)])


def files_in(merged: pa.Table) -> dict[str, FileStatistics]:
    """Return the statistics in the result of `merge_statistics` by path."""
    paths = merged.column("path").to_pylist()
    known: list[dict[str, ColumnStatistics]] = [{} for _ in paths]
    for joined in merged.column_names[2:]:
        name, kind = joined.split(BETWEEN)
        for held, values in zip(known, merged.column(joined).to_pylist(), strict=True):
            if values is not None:
                held[name] = column_of(kind, values)
    rows = merged.column("rows").to_pylist()
    return {path: FileStatistics(count, held) for path, count, held in zip(paths, rows, known, strict=True)}


def _structs(files: Iterable[FileStatistics], name: str, kind: str) -> pa.Array:
    arrow = type_of(kind)
    stored = pa.int64() if pa.types.is_temporal(arrow) else arrow
    types = [stored, stored, *([pa.int64()] * (len(FILE_PARTS) - 2))]
    rows = []
    for file in files:
        held = file.columns.get(name)
        rows.append(None if held is None or held.kind != kind else {part: getattr(held, part) for part in FILE_PARTS})
    return pa.array(rows, pa.struct(list(zip(FILE_PARTS, types, strict=True))))
