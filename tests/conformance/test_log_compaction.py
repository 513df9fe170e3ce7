"""Log compactions of Tideline: what Apache Hudi and hudi-rs read, beside writers too, and how Apache Hudi continues the table.

Log compactions of Apache Hudi, read here, are the story `mor-log-compaction` of `test_written_by_hudi.py`.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from tests.conformance.both_in_turn import QUICK
from tests.conformance.matrix import Matrix, Topic
from tests.conformance.peers.apache_hudi import ApacheHudi
from tests.conformance.peers.hudi_rs import read_hudi_rs
from tests.conformance.stories.life import EVENT_TIME, KEYS
from tests.conformance.stories.story import COMMON
from tests.conformance.written_here import BASE, Readers, rows
from tests.plans import schedule_compaction, schedule_log_compaction

from tideline_table.action import check_table, create_metadata, create_savepoint, run_compaction, run_log_compaction, write_rows
from tideline_table.hudi import Action
from tideline_table.table import Table, TableType, create_table
from tideline_table.writer import Operation

pytestmark = pytest.mark.timeout(900)

OPTIONS = {"hoodie.parquet.small.file.limit": 0, "hoodie.log.compaction.blocks.threshold": 2}


def deletions(numbers: list[int]) -> pa.Table:
    return rows(numbers, 0).select(["id", "part"])


def compacted_log(
    base: Path, ordering: str, log_format: str, indexed: Sequence[str] = (), version: int = 6
) -> tuple[Table, pa.Table]:
    """A table whose slices had several log files, one of them appended between the plan and its run; and the rows that it holds.

    By commit time, readers that put the merged file behind the appended one would bring older rows back.
    """
    create_table(str(base), replace(BASE, type=TableType.MOR, ordering_field=ordering, version=version))
    table = Table.open(str(base), options={**OPTIONS, "hoodie.logfile.data.block.format": log_format})
    write_rows(table, rows(range(12), 5), Operation.INSERT)
    if indexed:
        create_metadata(table, indexed)
    write_rows(table, rows(range(6), 6), Operation.UPSERT)
    write_rows(table, rows(range(3, 9), 7), Operation.UPSERT)
    write_rows(table, deletions([0, 1, 8]), Operation.DELETE)
    write_rows(table, rows([1], 8), Operation.UPSERT)
    instant = schedule_log_compaction(table)
    assert instant is not None
    # 9 was in no log file before, 2 in both, 0 is deleted in one.
    write_rows(table, rows([0, 2, 3, 9], 9), Operation.UPSERT)
    write_rows(table, deletions([4]), Operation.DELETE)
    done = run_log_compaction(table)
    assert done is not None
    assert done.instant == instant
    parts = [rows([0, 2, 3, 9], 9), rows([1], 8), rows([5, 6, 7], 7), rows([10, 11], 5)]
    return table, pa.concat_tables(parts)


@pytest.mark.parametrize(
    ("ordering", "log_format", "version"),
    [("ts", "avro", 6), ("", "parquet", 6), ("", "avro", 9), ("ts", "parquet", 8)],
    ids=["event-time-avro", "commit-time-parquet", "9", "8"],
)
def test_a_log_compaction_beside_writers(
    apache_hudi: ApacheHudi, matrix: Matrix, tmp_path: Path, ordering: str, log_format: str, version: int
) -> None:
    base = tmp_path / "trips"
    table, model = compacted_log(base, ordering, log_format, version=version)
    readers = Readers(table, apache_hudi, matrix, f"log compaction, {ordering or 'commit time'}, {log_format}, {version}")
    with readers.step(Topic.COMPACTION, "beside writers") as step:
        step.agree(model)
    write_rows(table, rows([2, 10], 11), Operation.UPSERT)
    model = pa.concat_tables([rows([2, 10], 11), rows([0, 3, 9], 9), *(model.slice(i, 1) for i in (4, 5, 6, 7, 9))])
    assert schedule_log_compaction(table) is not None
    assert run_log_compaction(table) is not None
    with readers.step(Topic.COMPACTION, "a second one") as step:
        step.agree(model)
    assert schedule_compaction(table, {"hoodie.compact.inline.max.delta.commits": 1}) is not None
    write_rows(table, rows([3], 12), Operation.UPSERT)
    assert run_compaction(table) is not None
    model = pa.concat_tables([rows([3], 12), rows([2, 10], 11), rows([0, 9], 9), model.slice(5)])
    with readers.step(Topic.COMPACTION, "compacted") as step:
        step.agree(model)


def test_queries_of_the_past(apache_hudi: ApacheHudi, matrix: Matrix, tmp_path: Path) -> None:
    base = tmp_path / "trips"
    table, _ = compacted_log(base, "ts", "avro")
    readers = Readers(table, apache_hudi, matrix, "log compaction, history")
    writes = [a.instant for a in table.state.completed_writes()]
    with readers.step(Topic.COMPACTION, "time travel") as step:
        for instant in writes:
            step.compare.rows(table.read(as_of=instant), apache_hudi.read(base, as_of=instant), f"as of {instant}")
    with readers.step(Topic.COMPACTION, "increments") as step:
        # Here, a point means the completion of a write, there its instant: a log compaction completes behind later writes.
        for begin in (a.instant for a in table.state.completed_writes() if a.action is not Action.LOG_COMPACTION):
            ours, theirs = table.incremental(begin).read(), apache_hudi.read(base, "incremental", begin=begin)
            step.compare.rows(ours, theirs, f"from {begin}")
    create_savepoint(table, writes[-1])
    with readers.step(Topic.COMPACTION, "savepoint") as step:
        step.agree()


def test_a_metadata_table_lists_the_merged_file(apache_hudi: ApacheHudi, matrix: Matrix, tmp_path: Path) -> None:
    base = tmp_path / "trips"
    table, model = compacted_log(base, "", "avro", indexed=["files", "column_stats", "record_index"])
    assert check_table(table) == []
    readers = Readers(table, apache_hudi, matrix, "log compaction, metadata table")
    with readers.step(Topic.COMPACTION, "listed") as step:
        ours = Table.open(str(base)).read()
        step.compare.rows(ours, apache_hudi.read(base, metadata=True), "by the metadata table")
        step.compare.rows(ours.select(model.column_names), model, "what was written", key=("id",))
    write_rows(table, rows([2, 10], 11), Operation.UPSERT)
    assert run_log_compaction(table, schedule_log_compaction(table) or "") is not None
    assert check_table(table) == []


def test_readers_of_today_skip_merged_blocks_in_either_place(apache_hudi: ApacheHudi, tmp_path: Path) -> None:
    """With the name that Apache Hudi gives its own, behind files appended meanwhile: what the merged blocks name is not applied."""
    table, model = compacted_log(tmp_path / "ours", "", "avro")
    base = tmp_path / "behind"
    shutil.copytree(tmp_path / "ours", base)
    shutil.rmtree(base / ".hoodie" / ".tideline")
    for found in table.slices():
        place, merged = next((at, log) for at, log in enumerate(found.log_files) if log.merges_earlier)
        assert place < len(found.log_files) - 1
        folder, later = base / found.group.partition_path, found.log_files[-1].version + 1
        name = merged.name.replace(f".log.{merged.version}_", f".log.{later}_")
        (folder / merged.name).rename(folder / name)
        for commit in (base / ".hoodie").glob("*.deltacommit"):  # a file that a commit names must be there
            commit.write_text(commit.read_text(encoding="utf-8").replace(merged.name, name), encoding="utf-8")
    _holds(apache_hudi, base, model, "behind later files")


@pytest.mark.parametrize("ordering", ["ts", ""], ids=["event-time", "commit-time"])
def test_apache_hudi_continues_the_table(apache_hudi: ApacheHudi, tmp_path: Path, ordering: str) -> None:
    """Its upsert appends behind the merged file, its own log compaction and its compaction merge it.

    On a copy: the table is exclusive.
    """
    compacted_log(tmp_path / "ours", ordering, "avro")
    base = tmp_path / "theirs"
    shutil.copytree(tmp_path / "ours", base)  # keeps modification times, by which Apache Hudi places log files
    shutil.rmtree(base / ".hoodie" / ".tideline")
    options = {**COMMON, **QUICK, **KEYS, "hoodie.table.name": "trips", "hoodie.datasource.write.operation": "upsert"}
    if ordering:
        options |= EVENT_TIME
    logs = {"hoodie.log.compaction.enable": "true", "hoodie.log.compaction.inline": "true"}

    def write(found: pa.Table, **more: str) -> None:
        apache_hudi.write(base, found, {**options, **more})

    write(rows([2, 6], 20))
    model = pa.concat_tables([rows([2, 6], 20), rows([0, 3, 9], 9), rows([1], 8), rows([5, 7], 7), rows([10, 11], 5)])
    _holds(apache_hudi, base, model, "upsert")
    write(rows([5], 21), **logs, **{"hoodie.log.compaction.blocks.threshold": "1"})
    model = pa.concat_tables([rows([5], 21), rows([2, 6], 20), rows([0, 3, 9], 9), rows([1], 8), rows([7], 7), rows([10, 11], 5)])
    assert list((base / ".hoodie").glob("*.logcompaction.requested"))
    _holds(apache_hudi, base, model, "their log compaction")
    write(rows([7], 22), **{"hoodie.compact.inline": "true", "hoodie.compact.inline.max.delta.commits": "1"})
    model = pa.concat_tables([rows([7], 22), rows([5], 21), rows([2, 6], 20), rows([0, 3, 9], 9), rows([1], 8), rows([10, 11], 5)])
    assert list((base / ".hoodie").glob("*.compaction.requested"))
    _holds(apache_hudi, base, model, "their compaction")


def _holds(peer: ApacheHudi, base: Path, model: pa.Table, what: str) -> None:
    wanted = model.sort_by("id").select(["id", "ts"])
    for name, found in (("Apache Hudi", peer.read(base)), ("here", Table.open(str(base)).read()), ("hudi-rs", read_hudi_rs(base))):
        assert found.select(["id", "ts"]).sort_by("id").cast(wanted.schema).equals(wanted), f"{what}: {name}"
