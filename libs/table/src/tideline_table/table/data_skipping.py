"""Which file slices of an open table a query can leave unread, by the column statistics of its log or metadata table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from tideline_table.file_group.slice import FileSlice
from tideline_table.log.known_statistics import StatisticsSource
from tideline_table.log.state import TableState
from tideline_table.log.statistics_file import FEWEST_PARTITIONS
from tideline_table.reader.data_skipping import may_match
from tideline_table.reader.expression import columns_in
from tideline_table.schema.arrow import field_path, named_field
from tideline_table.statistics import ColumnBounds, FileStatistics, bounds_of


@dataclass(frozen=True, slots=True)
class DataSkipping:
    """Leaves out file slices by their statistics. Opens no data file and no footer."""

    known: StatisticsSource
    state: TableState
    sequence: int
    """The last entry that `state` had before the slices were chosen from it."""

    def slices_for(
        self, slices: Sequence[FileSlice], schema: pa.Schema, where: pc.Expression, unstored: Iterable[str]
    ) -> tuple[FileSlice, ...]:
        """Return the slices that can hold rows for which `where` is true. The values of `unstored` columns are not in the files.

        A merged row takes each of its values from some file of its slice, perhaps not all from the same one. So a slice with log
        files is judged by the statistics of all its files together: it is left out if no value of any of them fits.
        """
        chosen = tuple(slices)
        absent = set(unstored)
        paths = {name: field_path(schema, name) for name in columns_in(where)}
        names = {name for name, path in paths.items() if path and path[0] not in absent}
        if not names or not chosen:
            return chosen
        chosen = self._in_partitions(chosen, schema, where, names)
        files = self._statistics(chosen, names)

        def bounds(name: str) -> ColumnBounds | None:
            return bounds_of(files, name, named_field(schema, name).type) if name in names else None

        return tuple(s for s, may in zip(chosen, may_match(where, schema, len(chosen), bounds), strict=True) if may)

    def _in_partitions(
        self, slices: tuple[FileSlice, ...], schema: pa.Schema, where: pc.Expression, names: AbstractSet[str]
    ) -> tuple[FileSlice, ...]:
        """Return the slices of partitions that can hold rows for which `where` is true, by the statistics of partitions."""
        partitions = list(dict.fromkeys(s.group.partition_path for s in slices))
        if len(partitions) < FEWEST_PARTITIONS:
            return slices
        known = self.known.of_partitions(partitions, names, self.state, self.sequence)
        if known is None:
            return slices

        def bounds(name: str) -> ColumnBounds | None:
            return known.bounds(name, named_field(schema, name).type) if name in names else None

        left = {path for path, may in zip(partitions, may_match(where, schema, len(partitions), bounds), strict=True) if may}
        return tuple(s for s in slices if s.group.partition_path in left)

    def _statistics(self, slices: Sequence[FileSlice], names: AbstractSet[str]) -> list[FileStatistics | None]:
        paths = [path for file_slice in slices for path in file_slice.paths]
        found = iter(self.known.of(paths, names, self.state))
        return [_together([next(found) for _ in file_slice.paths]) for file_slice in slices]


def _together(files: Sequence[FileStatistics | None]) -> FileStatistics | None:
    whole: FileStatistics | None = FileStatistics(0)
    for file in files:
        if file is None or whole is None:
            return None
        whole = whole.union(file)
    return whole
