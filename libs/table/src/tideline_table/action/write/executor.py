"""Where a write looks up keys and writes file groups: in this process, or in an external executor."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

import pyarrow as pa

from tideline_table.errors import VerificationFailed
from tideline_table.file_group.slice import FileGroupId, FileSlice
from tideline_table.index.simple import Location, PlaceT
from tideline_table.table.facade import Table
from tideline_table.writer import FileGroupResult, RoutedTask, WriteContext, write_file_group

MOST_KEPT_KEYS = 250_000
"""Rows of a write whose keys are kept for its records in the metadata table, until the next entry of the log. More are read in its
files."""
Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class RoutedWrite:
    """The file groups that one attempt of a write writes."""

    table: Table
    context: WriteContext
    tasks: Sequence[RoutedTask]
    rows: pa.Table
    """The rows of `PreparedInput.rows`, and any deletions after them; each task names its rows by position."""
    appends: frozenset[FileGroupId]
    """Groups that only get a log file: the write does not read their base files."""
    check: Callable[[], None]
    """Raises the conflict that a commit would have now. To be called between two files; thread-safe."""
    written: Callable[[FileGroupResult], None]
    """To be called with each result as soon as it exists; thread-safe."""

    def incoming(self, routed: RoutedTask) -> pa.Table:
        """Return the rows of one task."""
        return self.rows.take(pa.array(routed.positions))


class WriteExecutor(Protocol):
    """The two parts of a write whose work grows with the table: key look-up and file writing."""

    def locate(
        self,
        table: Table,
        wanted: Mapping[PlaceT, pa.ChunkedArray],
        slices: Mapping[PlaceT, Sequence[FileSlice]],
        *,
        by_filters: bool = False,
    ) -> Mapping[PlaceT, Location]:
        """Return where the `wanted` keys of each place are among its visible `slices`, as `SimpleIndex.locate` does."""
        ...

    def write(self, work: RoutedWrite) -> list[FileGroupResult]:
        """Write all file groups; return the results in the order of the tasks."""
        ...


def check_written(tasks: Sequence[RoutedTask], results: Sequence[FileGroupResult]) -> None:
    """Raise `VerificationFailed` unless there is one result for each task, in the same order and of the same file group."""
    groups = [(routed.task.partition_path, routed.task.file_id) for routed in tasks]
    written = [(result.stat.partition_path, result.stat.file_id) if result.stat is not None else None for result in results]
    if len(written) != len(groups) or any(found not in (None, group) for found, group in zip(written, groups, strict=True)):
        raise VerificationFailed(
            f"{len(results)} result(s) that are not those of the write's tasks, in their order",
            expected=f"one result of each of its {len(tasks)} task(s)",
            remedy="nothing was committed; check the logs of its tasks, then write again",
        )


@dataclass(frozen=True, slots=True)
class ThisProcess:
    """An executor that uses threads of this process."""

    parallelism: int

    def locate(
        self,
        table: Table,
        wanted: Mapping[PlaceT, pa.ChunkedArray],
        slices: Mapping[PlaceT, Sequence[FileSlice]],
        *,
        by_filters: bool = False,
    ) -> Mapping[PlaceT, Location]:
        """See `WriteExecutor`."""
        found = self._each(lambda name: table.index.locate(wanted[name], slices[name], by_filters=by_filters), list(wanted))
        return dict(zip(wanted, found, strict=True))

    def write(self, work: RoutedWrite) -> list[FileGroupResult]:
        """See `WriteExecutor`."""
        table = work.table
        keeps = table.timeline.records is not None and table.state.metadata is not None and work.context.has_meta_fields
        context = replace(work.context, keeps_keys=keeps and work.rows.num_rows <= MOST_KEPT_KEYS)

        def one(routed: RoutedTask) -> FileGroupResult:
            work.check()
            # Step 5 of a commit, for one file group: a marker, then the file.
            written = write_file_group(context, routed.task, work.incoming(routed), work.table.storage)
            work.written(written)
            return written

        return self._each(one, work.tasks)

    def _each(self, do: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
        if len(items) < 2 or self.parallelism < 2:
            return [do(item) for item in items]
        with ThreadPoolExecutor(min(self.parallelism, len(items)), thread_name_prefix="write") as pool:
            return list(pool.map(do, items))
