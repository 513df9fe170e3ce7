"""A damaged base file stops Spark's scan and the rewrite in a task: no other rows are read or written."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession
from tests.spark.tables import ROUTED, Tables, content, rows

from tideline_spark.read import read
from tideline_spark.write import write_dataframe
from tideline_table.action import write_rows
from tideline_table.errors import DamagedFile
from tideline_table.table import Table
from tideline_table.writer import Operation


def _flip(path: Path, offset: int) -> None:
    found = bytearray(path.read_bytes())
    found[offset] ^= 1
    path.write_bytes(found)


def _table(tmp_path: Path) -> tuple[Table, Path]:
    tables = Tables(tmp_path, {**ROUTED, "hoodie.parquet.compression.codec": "none"})
    table = tables.create("t", partition_fields=())
    write_rows(table, rows(0, 50, 1), Operation.UPSERT)
    (found,) = table.slices()
    return table, tmp_path / "t" / found.path


def test_a_flipped_value_is_no_other_row_of_a_scan(spark: SparkSession, tmp_path: Path) -> None:
    table, path = _table(tmp_path)
    assert content(read(spark, table).toArrow()) == content(table.read())
    metadata = pq.read_metadata(path)
    (amount,) = (c for c in map(metadata.row_group(0).column, range(metadata.num_columns)) if c.path_in_schema == "amount")
    # The last byte of the chunk is one of a value or of its number in the dictionary.
    _flip(path, (amount.dictionary_page_offset or amount.data_page_offset) + amount.total_compressed_size - 1)

    with pytest.raises(Py4JJavaError, match="CRC checksum verification failed"):
        read(spark, table).toArrow()


def test_a_task_rewrites_only_the_file_that_the_commit_recorded(spark: SparkSession, tmp_path: Path) -> None:
    table, path = _table(tmp_path)
    before, writes = content(table.read()), table.refresh().completed_writes()
    sound = path.read_bytes()
    _flip(path, sound.rindex(b"parquet-cpp-arrow"))
    assert pq.read_table(path).num_rows == 50, "only the commit knows that this file is damaged"

    with pytest.raises(DamagedFile, match=r"has other bytes"):
        write_dataframe(table, spark.createDataFrame(rows(40, 60, 2)), Operation.UPSERT)

    assert table.refresh().completed_writes() == writes
    path.write_bytes(sound)
    assert content(Table.open(table.storage.root).read()) == before
