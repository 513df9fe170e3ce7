"""Statistics of partitions: the union of those of their files, taken for all partitions at once with Arrow."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tideline_table.statistics.bounds import ColumnArrays, ColumnBounds, bounds_of, bounds_of_arrays
from tideline_table.statistics.column import ColumnStatistics, FileStatistics

PARTS = ("minimum", "maximum", "nulls", "nans")
"""What is kept of each column, as the fields of a struct. The struct is null if a file of the partition has no statistics of the
column."""


def by_partition(files: pa.Table, paths: pa.Array, partitions: pa.Array) -> pa.Table:
    """Return the statistics of partitions: `partition`, `rows`, and for each column of `files` a struct of `PARTS`.

    `files` has the columns `path`, `rows` and one struct for each column of the table. `paths` and `partitions` name all files
    of the table. A partition with a file that is not in `files` has null rows: nothing is known of it. The result is in order
    of partition.
    """
    files = files.combine_chunks()
    names = files.column_names[2:]
    within = partitions.take(pc.index_in(files.column("path").combine_chunks(), value_set=paths)).cast(pa.string())
    columns: dict[str, pa.Array] = {"partition": within, "rows": files.column("rows")}
    wanted: list[tuple[str, str]] = [("rows", "sum")]
    is_empty = pc.equal(files.column("rows"), 0).combine_chunks()
    for at, name in enumerate(names):
        held = files.column(name).combine_chunks()
        parts = {part: pc.struct_field(held, part) for part in PARTS}
        columns |= {
            f"{at}.known": pc.or_(held.is_valid(), is_empty),
            **{f"{at}.{part}": values for part, values in parts.items()},
        }
        wanted += [
            *((f"{at}.known", "all"), (f"{at}.minimum", "min"), (f"{at}.maximum", "max")),
            *((f"{at}.nulls", "sum"), (f"{at}.nans", "sum"), (f"{at}.nans", "min")),
        ]
    found = pa.table(columns).group_by("partition", use_threads=False).aggregate(wanted)
    unknown = partitions.filter(pc.invert(pc.is_in(paths, value_set=files.column("path").combine_chunks()))).unique()
    result = _whole(found.combine_chunks(), names)
    result = result.filter(pc.invert(pc.is_in(result.column("partition"), value_set=unknown)))
    nothing = pa.table({"partition": unknown.cast(pa.string())})
    return pa.concat_tables([result, nothing], promote_options="default").sort_by("partition")


def _whole(found: pa.Table, names: Sequence[str]) -> pa.Table:
    columns = [found.column("partition"), found.column("rows_sum")]
    for at in range(len(names)):
        minimum, maximum, nulls, least = (
            found.column(f"{at}.{part}").combine_chunks() for part in ("minimum_min", "maximum_max", "nulls_sum", "nans_min")
        )
        nans = pc.if_else(pc.less(least, 0), pa.scalar(-1, pa.int64()), found.column(f"{at}.nans_sum").combine_chunks())
        counts = [pc.fill_null(each, 0) for each in (nulls, nans)]
        mask = pc.invert(found.column(f"{at}.known_all").combine_chunks())
        columns.append(pa.StructArray.from_arrays([minimum, maximum, *counts], names=list(PARTS), mask=mask))
    return pa.table(columns, names=["partition", "rows", *names])


Columns: TypeAlias = Mapping[str, Sequence[ColumnArrays]]
"""Statistics by the name of a column, in the kinds that it had."""


class PartitionBounds:
    """The bounds of columns in a list of partitions.

    Those that are stored, together with those of files that were written later.
    """

    def __init__(
        self, wanted: Sequence[str], stored: pa.Table, columns: Columns, later: Mapping[str, FileStatistics | None]
    ) -> None:
        """Take the columns `partition` and `rows` of `stored` statistics, their `columns`, and the statistics of later files.

        `later` names the partitions with later files; None: files of which nothing is known.
        """
        self._rows = stored.column("rows").combine_chunks()
        self._columns = columns
        at = pc.index_in(pa.array(wanted, pa.string()), value_set=stored.column("partition").combine_chunks())
        changed = [number for number, partition in enumerate(wanted) if partition in later]
        self._changed = [self._with(at[number].as_py(), later[wanted[number]]) for number in changed]
        # The stored partitions, then the changed ones, then one of which nothing is known.
        stored_ones = stored.num_rows
        self._at = np.array(pc.fill_null(at, stored_ones + len(changed)), dtype=np.int64)
        self._at[changed] = np.arange(stored_ones, stored_ones + len(changed))

    def bounds(self, name: str, kind: pa.DataType) -> ColumnBounds:
        """Return the bounds of the column `name`, of type `kind` by now, in each of the wanted partitions."""
        stored = bounds_of_arrays(self._rows, self._columns.get(name, ()), kind)
        return stored.followed_by(bounds_of([*self._changed, None], name, kind)).take(self._at)

    def _with(self, at: int | None, later: FileStatistics | None) -> FileStatistics | None:
        """Return what is known of the stored partition number `at` (None: it is new) together with its later files."""
        if at is None or later is None:
            return later
        rows = self._rows[at].as_py()
        if rows is None:
            return None
        found = {name: held for name, kinds in self._columns.items() if (held := _one(at, kinds)) is not None}
        return FileStatistics(rows, found).union(later)


def _one(at: int, kinds: Iterable[ColumnArrays]) -> ColumnStatistics | None:
    for held in kinds:
        nulls = held.nulls[at].as_py()
        if nulls is not None:
            return ColumnStatistics(held.kind, held.minimum[at].as_py(), held.maximum[at].as_py(), nulls, held.nans[at].as_py())
    return None
