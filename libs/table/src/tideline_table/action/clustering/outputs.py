"""The output files of clustering tasks."""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Iterable, Iterator
from functools import partial

import pyarrow as pa

from tideline_table.action.clustering.task import ClusteringTask
from tideline_table.config import ROW_GROUP_ROWS, Options
from tideline_table.hudi.write_stats import NO_PREVIOUS_COMMIT, WriteStat
from tideline_table.reader.base_file import DICTIONARY
from tideline_table.reader.encoded_slice import repeated
from tideline_table.schema.meta_fields import MetaField, with_meta_fields
from tideline_table.storage import Storage
from tideline_table.writer.base_file import open_base_file
from tideline_table.writer.marker import MarkerType, create_marker


class Outputs:
    """The output files of a task, written one after the other with equal row counts."""

    def __init__(self, task: ClusteringTask, storage: Storage, rows: int) -> None:
        self._task = task
        self._storage = storage
        self._options = Options(task.options)
        self._schema = with_meta_fields(task.schema)
        self._per_file = max(1, math.ceil(rows / task.output_files))

    def written(self, ordered: Iterable[pa.Table]) -> list[WriteStat]:
        """Write the rows and return the files."""
        cut = _cut(ordered, self._schema, self._per_file, self._options[ROW_GROUP_ROWS])
        files = itertools.groupby(cut, key=lambda numbered: numbered[0])
        return [self._write_file(number, (rows for _, rows in numbered), self._per_file) for number, numbered in files]

    def written_as(self, number: int, ordered: Iterable[pa.Table]) -> WriteStat:
        """Write all rows into the output file with this number."""
        cut = _cut(ordered, self._schema, sys.maxsize, self._options[ROW_GROUP_ROWS])
        return self._write_file(number, (rows for _, rows in cut), sys.maxsize)

    def _write_file(self, number: int, row_groups: Iterator[pa.Table], per_file: int) -> WriteStat:
        task, storage = self._task, self._storage
        file_id, path = task.output(number)
        create_marker(storage, task.instant, path, MarkerType.CREATE)
        named = map(partial(_named, path.rsplit("/", 1)[-1]), row_groups)
        first = next(named)
        # Only the last row group of a file is not full.
        is_whole = first.num_rows < min(self._options[ROW_GROUP_ROWS], per_file) or first.num_rows == per_file
        with open_base_file(storage, path, first, task.avro_schema, self._options, is_whole=is_whole) as file:
            for rows in itertools.chain([first], named):
                file.write(rows)
        # By its footer, because the commit publishes the file and not what was meant to be in it.
        return WriteStat(
            file_id,
            task.partition_path,
            path,
            NO_PREVIOUS_COMMIT,
            file.rows,
            file.size_bytes,
            record=file.record,
            statistics=file.statistics,
        )


def _named(name: str, rows: pa.Table) -> pa.Table:
    position = rows.schema.get_field_index(MetaField.FILE_NAME)
    if rows.num_rows and rows.column(MetaField.RECORD_KEY).null_count == rows.num_rows:
        return rows  # of a table without meta fields
    field = rows.schema.field(position).with_type(DICTIONARY)
    return rows.set_column(position, field, repeated(name, rows.num_rows))


def _cut(ordered: Iterable[pa.Table], schema: pa.Schema, per_file: int, per_row_group: int) -> Iterator[tuple[int, pa.Table]]:
    """Yield the rows in row groups, each with the number of its file: full ones, except for the last one of each file.

    A group without rows becomes one file without rows.
    """
    held: list[pa.Table] = []
    file = in_file = count = 0
    for table in ordered:
        start = 0
        while start < table.num_rows:
            wanted = min(per_row_group, per_file - in_file) - count
            part = table.slice(start, wanted)
            held.append(part)
            start, count = start + part.num_rows, count + part.num_rows
            if part.num_rows == wanted:
                yield file, pa.concat_tables(held)
                in_file, held, count = in_file + count, [], 0
                if in_file == per_file:
                    file, in_file = file + 1, 0
    if held or (file, in_file) == (0, 0):
        yield file, pa.concat_tables(held) if held else schema.empty_table()
