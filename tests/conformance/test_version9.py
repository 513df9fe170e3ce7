"""Exclusive tables of versions 9 and 8, written here: after each action Apache Hudi 1.2.0 and hudi-rs see the same rows.

Apache Hudi also sees the same timeline and file slices, before and after archival into the history.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from tests.conformance.matrix import Matrix, Topic
from tests.conformance.peers.apache_hudi import ApacheHudi
from tests.conformance.written_here import BASE, Readers, rows
from tests.plans import schedule_clean, schedule_clustering, schedule_compaction

from tideline_table.action import (
    archive,
    cancel_plan,
    create_metadata,
    create_savepoint,
    delete_savepoint,
    restore_to_savepoint,
    run_clean,
    run_clustering,
    run_compaction,
    write_rows,
)
from tideline_table.action.metadata.run import METADATA_TYPES
from tideline_table.table import Table, TableType, create_table
from tideline_table.writer import Operation

OPTIONS = {"hoodie.parquet.small.file.limit": 0, "hoodie.logfile.data.block.format": "avro"}
NOW = {"hoodie.compact.inline.max.delta.commits": 1}
ARCHIVAL = {
    "hoodie.cleaner.commits.retained": 1,
    "hoodie.keep.min.commits": 2,
    "hoodie.keep.max.commits": 3,
    "tideline.archive.min.age": 0,
}
TABLES = pytest.mark.parametrize(
    ("version", "kind"), [(9, TableType.COW), (9, TableType.MOR), (8, TableType.COW), (8, TableType.MOR)], ids=str
)


WITH_METADATA = {(9, TableType.MOR), (8, TableType.COW)}
"""These tables have a metadata table, from which hudi-rs and Apache Hudi list files; the others are listed by folders."""


@pytest.fixture
def readers(
    apache_hudi: ApacheHudi, matrix: Matrix, workdir: Path, version: int, kind: TableType, request: pytest.FixtureRequest
) -> Readers:
    base = str(workdir / "trips")
    create_table(base, replace(BASE, type=kind, version=version))
    table = Table.open(base, options=OPTIONS)
    if (version, kind) in WITH_METADATA:
        create_metadata(table, METADATA_TYPES)
    return Readers(table, apache_hudi, matrix, f"version {version}, {request.node.name}")


@TABLES
def test_what_is_written_is_read(readers: Readers, version: int, kind: TableType) -> None:
    table = readers.table
    assert readers.peer.read(table.base_path).num_rows == 0
    with readers.step(Topic.INSERT, "insert") as step:
        write_rows(table, rows(range(20), 1), Operation.UPSERT)
        step.agree(rows(range(20), 1))
    with readers.step(Topic.UPSERT, "upsert") as step:
        write_rows(table, rows(range(10, 30), 2), Operation.UPSERT)
        step.agree()
    with readers.step(Topic.UPSERT, "late upsert") as step:
        write_rows(table, rows(range(15), 1), Operation.UPSERT)
        step.agree(pa.concat_tables([rows(range(10), 1), rows(range(10, 30), 2)]))
    with readers.step(Topic.DELETE, "delete") as step:
        write_rows(table, rows(range(5), 3), Operation.DELETE)
        step.agree(pa.concat_tables([rows(range(5, 10), 1), rows(range(10, 30), 2)]))
    if kind is TableType.MOR:
        with readers.step(Topic.COMPACTION, "log files of the slice after the plan") as step:
            planned = schedule_compaction(table, NOW)
            write_rows(table, rows(range(5, 8), 4), Operation.UPSERT)
            step.agree()
            run_compaction(table, planned or "")
            step.agree()
        with readers.step(Topic.COMPACTION, "a cancelled plan") as step:
            planned = schedule_compaction(table, NOW)
            write_rows(table, rows(range(5, 7), 5), Operation.UPSERT)
            cancel_plan(table, planned or "")
            step.agree()
    with readers.step(Topic.CLUSTERING, "clustering") as step:
        write_rows(table, rows(range(30, 34), 1), Operation.INSERT)
        planned = schedule_clustering(table)
        step.agree()
        run_clustering(table, planned or "")
        step.agree()
    with readers.step(Topic.INSERT_OVERWRITE, "overwrite of partitions") as step:
        write_rows(table, rows([40, 42], 1), Operation.INSERT_OVERWRITE)
        step.agree()
    with readers.step(Topic.SAVEPOINT, "restore") as step:
        saved = write_rows(table, rows([41], 1), Operation.UPSERT).instant
        create_savepoint(table, saved)
        expected = step.agree()
        write_rows(table, rows(range(50, 52), 1), Operation.UPSERT)
        if kind is TableType.MOR:
            write_rows(table, rows([41], 2), Operation.UPSERT)
            schedule_compaction(table, NOW)
            run_compaction(table)
        restore_to_savepoint(table, saved)
        assert step.agree().num_rows == expected.num_rows
        delete_savepoint(table, saved)


@TABLES
def test_the_history_is_read(readers: Readers, version: int, kind: TableType) -> None:
    table = readers.table
    with readers.step(Topic.ARCHIVAL, "history") as step:
        for n in range(14):
            write_rows(table, rows(range(n, n + 3), n), Operation.UPSERT)
            if kind is TableType.MOR and n % 4 == 3:
                schedule_compaction(table, NOW)
                run_compaction(table)
            schedule_clean(table, {"hoodie.cleaner.commits.retained": 1})
            run_clean(table)
            archive(table, ARCHIVAL)
        assert table.timeline.format.has_archive(table.storage)
        step.agree()
        # Older than the active timeline: Apache Hudi reads the history.
        everything = readers.peer.read(table.base_path, "incremental", begin="20000101000000000")
        assert set(everything["id"].to_pylist()) <= {f"k{n:04}" for n in range(16)}
        assert everything.num_rows
