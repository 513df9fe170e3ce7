"""What may happen to a table after a clustering that carried writes over: services, archival, restores, queries that skip files."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from tests.plans import schedule_log_compaction
from tests.unit.table.action.clustering.test_carry_over import CARRY, NO_RETRY, clustered, filled, updates
from tests.unit.table.archives import FEW, OLD_S, TASK_S, clean, seen_by_others
from tests.unit.table.tables import contents, open_table, write

from tideline_table.action import archive, create_savepoint, restore_to_savepoint, run_log_compaction
from tideline_table.action.log_compaction.task import merge_log
from tideline_table.action.receipt import RECEIPT_KEY, proven_columns
from tideline_table.hudi.instant import Action
from tideline_table.row_digest import RowDigest, digest_rows, seed_of
from tideline_table.table import Table
from tideline_table.writer import Operation

AT_ONCE = {"hoodie.log.compaction.blocks.threshold": 2}


def merge_logs(table: Table) -> None:
    assert schedule_log_compaction(table, AT_ONCE) is not None
    assert run_log_compaction(table, run=lambda tasks: [merge_log(task, table.storage) for task in tasks]) is not None


def test_carried_files_are_merged_by_a_log_compaction():
    table = filled()
    done = clustered(table, updates)
    assert done is not None
    before, since = contents(table), table.refresh().sequence
    merge_logs(table)
    table = open_table(table.storage, table.clock)
    (made,) = [s for s in table.slices() if s.base_instant == done.instant]
    assert any(log.merges_earlier for log in made.log_files)
    assert contents(table) == before == seen_by_others(table.storage, table.clock)
    assert table.incremental(since).read().num_rows == 0
    write(table, [("a0", "p", 60, "later")])
    assert ("a0", "p", 60, "later") in contents(table)


def test_merged_input_logs_are_clustered_and_later_ones_carried():
    table, expected = filled(), filled()
    for each in (table, expected):
        write(each, [("a0", "p", 15, "u")])
        write(each, [("a0", "p", 16, "u")])
    merge_logs(table)
    updates(expected)
    assert clustered(table, updates) is not None
    assert contents(table) == contents(expected)


def test_the_clustering_and_the_carried_writes_are_archived():
    table = filled()
    done = clustered(table, updates)
    assert done is not None
    writes = {log.instant for s in table.slices() for log in s.log_files}
    for n in range(8):
        write(table, [(f"a{n % 4}", "p", 70 + n, "later")])
        clean(table)
    rows = contents(table)
    table.clock.advance(OLD_S + TASK_S)
    assert archive(table, FEW) is not None
    again = open_table(table.storage, table.clock)
    assert not {done.instant, *writes} & {record.instant for record in again.state.completed_writes()}
    assert contents(again) == rows == seen_by_others(table.storage, table.clock)
    assert clustered(again, lambda writer: write(writer, [("b3", "p", 90, "u")], **NO_RETRY)) is not None
    assert ("b3", "p", 90, "u") in contents(again)


def test_a_restore_to_a_write_behind_it_keeps_carried_rows():
    table = filled()
    clustered(table, updates)
    at = write(table, [("a2", "p", 60, "kept")]).instant
    rows = contents(table)
    create_savepoint(table, at)
    write(table, [("a0", "p", 61, "undone")])
    write(table, [("b1", "p", 62, "undone")])
    restore_to_savepoint(table, at)
    assert contents(open_table(table.storage, table.clock)) == rows
    assert clustered(table, lambda writer: write(writer, [("b3", "p", 90, "u")], **NO_RETRY)) is not None
    assert ("b3", "p", 90, "u") in contents(table)


@pytest.mark.parametrize("columns", ["ts", "v", "id"])
def test_queries_skip_no_carried_file(columns):
    table = filled()
    clustered(table, updates)
    rows = table.read().to_pylist()
    for value in {row[columns] for row in rows}:
        found = table.read(where=f"{columns} = {value!r}").to_pylist()
        assert sorted(r["id"] for r in found) == sorted(r["id"] for r in rows if r[columns] == value)


def test_two_groups_carry_their_own_writes():
    """Two groups of one plan: a write to both becomes a log file in each output; if one cannot be carried, nothing is."""
    table, expected = filled(), filled()
    size = max(s.size_bytes for s in table.slices())
    options = {"hoodie.clustering.plan.strategy.max.bytes.per.group": 2 * size + 1}
    updates(expected)
    done = clustered(table, updates, **options)
    assert done is not None
    made = [s for s in table.slices() if s.base_instant == done.instant]
    assert len(made) == 2
    assert all(s.log_files for s in made)
    assert contents(table) == contents(expected)


def test_the_receipt_is_that_of_the_base_files():
    table = filled()
    done = clustered(table, updates)
    assert done is not None
    (entry,) = [e for e in table.timeline.log.after(0) if e.sequence == done.sequence]
    assert entry.action is Action.REPLACE_COMMIT
    receipt = json.loads(entry.body.metadata.extra[RECEIPT_KEY])
    found = RowDigest()
    for stat in done.stats:
        if not stat.is_log:
            rows = _rows(table, stat.path)
            found += digest_rows(rows, proven_columns(rows.schema, "ts", receipt["verify"]), seed_of(done.instant))
    assert (found.text, found.rows) == (receipt["digest"], receipt["rows"])
    assert receipt["files"] == sum(not stat.is_log for stat in done.stats)


def _rows(table: Table, path: str) -> pa.Table:
    return pa.parquet.read_table(pa.BufferReader(table.storage.read(path)))


def test_deleted_again_and_inserted_again():
    table, expected = filled(), filled()

    def during(writer: Any) -> None:
        write(writer, [("b0", "p", 0, "")], Operation.DELETE, **NO_RETRY)
        write(writer, [("b0", "p", 50, "back")], **NO_RETRY)

    during(expected)
    assert clustered(table, during, **CARRY) is not None
    for each in (table, expected):
        write(each, [("b0", "p", 0, "")], Operation.DELETE)
        write(each, [("b0", "p", 1, "again")])
    assert contents(table) == contents(expected)
