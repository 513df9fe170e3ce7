"""Each cell of the matrix of conflicts has a test, and what is said of writes is what `find_conflict` does."""

import ast
from pathlib import Path

import pyarrow as pa
import pytest
from tests.unit.table import test_conflict as scenarios
from tests.unit.table.tables import DEATH_S, cluster, contents, create, open_table, rows_of, write
from tests.unit.table.test_merge_on_read import compact

from tideline_table.clock import ManualClock
from tideline_table.storage import MemoryStorage
from tideline_table.table import TableType, roll_back_dead, schedule_clustering, schedule_compaction, write_rows
from tideline_table.timeline.instant import State
from tideline_table.transaction import WriteTransaction
from tideline_table.transaction.conflict_matrix import CARE, DEFINITION, MATRICES, RESTORES, WRITES
from tideline_table.writer import Operation

HERE = Path(__file__).parent
ROWS = {
    "update": "update or delete of a group",
    "append": "append to a group's log",
    "overwrite": "overwrite, delete-partition",
    "insert": "insert of keys",
    "move": "move of a row to another partition",
    "clustering": "clustering",
}
"""Own of `test_conflict` → row."""
COLUMNS = {
    "completed write": (
        scenarios.same_group_written,
        scenarios.other_group_written,
        scenarios.same_group_appended,
        scenarios.other_group_appended,
        scenarios.same_key_inserted,
        scenarios.other_key_inserted,
    ),
    "completed clustering": (scenarios.same_group_clustered, scenarios.other_group_clustered),
    "pending clustering": (
        scenarios.clustering_pending,
        scenarios.clustering_pending_with_priority,
        scenarios.clustering_of_another_group_pending_with_priority,
    ),
    "compaction, pending or completed": (
        scenarios.same_group_compaction_planned,
        scenarios.other_group_compaction_planned,
        scenarios.same_group_compacted,
    ),
}
COMPACTIONS = "test_conflict_matrix.test_plans_share_no_group"
SHOWN = {
    WRITES.title: {
        "compaction": {
            "completed write": "test_merge_on_read.test_writers_go_on_while_a_compaction_is_pending",
            "completed clustering": "test_conflict_matrix.test_a_compaction_is_run_beside_a_clustering",
            "pending clustering": COMPACTIONS,
            "compaction, pending or completed": COMPACTIONS,
            "rollback of own": "test_merge_on_read.test_a_failed_compaction_stays_pending_and_is_run_again",
        }
    },
    CARE.title: {
        "savepoint": {
            "write, clustering, compaction": "test_savepoint.test_the_row_of_savepoints_in_the_matrix",
            "pending clean": "test_savepoint.test_the_row_of_savepoints_in_the_matrix",
            "completed clean": "test_savepoint.test_the_row_of_savepoints_in_the_matrix",
            "savepoint of the same write": "test_savepoint.test_the_row_of_savepoints_in_the_matrix",
            "archival": "test_archival.test_savepoints_and_archival",
        },
        "clean": {
            "write, clustering, compaction": "test_clean_plan.test_slices_under_a_pending_clustering_are_kept",
            "pending clean": "test_restore.test_a_pending_clean_is_run_first_and_one_that_is_not_conflicts",
            "completed clean": "test_clean_plan.test_on_a_table",
            "savepoint of the same write": "test_savepoint.test_cleaning_keeps_what_a_savepoint_needs_and_nothing_more",
            "archival": "test_archival.test_the_table_goes_on",
        },
        "archival": {
            "write, clustering, compaction": "test_archival_plan.test_stops_at_the_newest_write_before_the_oldest_pending_one",
            "pending clean": "test_archival_plan.test_pending_cleans_hold_nothing",
            "completed clean": "test_archival.test_replaced_files_are_cleaned_first",
            "savepoint of the same write": "test_archival_plan.test_stops_at_savepoints",
            "archival": "test_archival.test_two_run_the_same_plan",
        },
    },
    RESTORES.title: {
        "write, clustering, rollback under way, newer compaction": {
            "requested or inflight restore": "test_restore.test_the_rows_of_restore_in_the_matrix",
            "completed restore": "test_restore.test_a_write_under_way_is_told",
            "restore asked for": "test_restore.test_the_plan_names_what_is_newer_newest_first",
        },
        "compaction planned before the savepoint": {
            "requested or inflight restore": "test_restore.test_the_rows_of_restore_in_the_matrix",
            "completed restore": "test_restore.test_a_compaction_planned_before_the_savepoint_can_still_be_run",
            "restore asked for": "test_restore.test_a_compaction_that_completed_since_but_was_planned_before_stays",
        },
        "whatever begins, a savepoint": {
            "requested or inflight restore": "test_restore.test_nothing_begins_while_it_is_pending_and_whoever_comes_by_finishes_it",
            "completed restore": "test_restore.test_everything_newer_is_gone",
            "restore asked for": "test_restore.test_the_plan_names_what_is_newer_newest_first",
        },
        "clean": {
            "requested or inflight restore": "test_restore.test_the_rows_of_restore_in_the_matrix",
            "completed restore": "test_restore.test_everything_newer_is_gone",
            "restore asked for": "test_restore.test_a_pending_clean_is_run_first_and_one_that_is_not_conflicts",
        },
        "restore": {
            "requested or inflight restore": "test_restore.test_the_rows_of_restore_in_the_matrix",
            "completed restore": "test_restore.test_older_savepoints_stay",
            "restore asked for": "test_restore.test_asked_again_it_takes_the_dead_one_to_its_end",
        },
        "incremental read": {
            "requested or inflight restore": "test_restore.test_readers_of_changes_are_told",
            "completed restore": "test_restore.test_readers_of_changes_are_told",
            "restore asked for": "test_restore.test_readers_of_changes_are_told",
        },
        "archival": {
            "requested or inflight restore": "test_restore.test_the_rows_of_restore_in_the_matrix",
            "completed restore": "test_restore.test_everything_newer_is_gone",
            "restore asked for": "test_restore.test_the_plan_names_what_is_newer_newest_first",
        },
    },
    DEFINITION.title: {
        "write of rows": {
            "schema changed": "test_schema_writes.test_a_change_of_the_schema_is_a_conflict",
            "progress of the same key moved": "test_progress.test_find_conflict_checks_progress_on_the_state_it_is_given",
            "properties changed": "test_upgraded_meanwhile.test_an_upgrade_freezes_writers_that_have_the_table_open",
            "overwrite of a partition": "test_overwrite.test_an_update_of_what_was_replaced_meanwhile_is_done_again",
            "rollback of the same instant": "test_transaction.test_a_stalled_writer_finds_out_at_its_commit",
        },
        "clustering, compaction": {
            "schema changed": "test_conflict_matrix.test_services_publish_the_schema_that_stands",
            "progress of the same key moved": "test_progress.test_table_services_and_other_writers_neither_hide_nor_lose_it",
            "properties changed": "test_upgraded_meanwhile.test_an_upgrade_freezes_writers_that_have_the_table_open",
            "overwrite of a partition": "test_overwrite.test_a_clustering_of_what_was_replaced_loses",
            "rollback of the same instant": "test_transaction.test_clustering_by_two_runners",
        },
        "rollback": {
            "schema changed": "test_conflict_matrix.test_a_rollback_minds_neither_schema_nor_overwrite",
            "progress of the same key moved": "test_progress.test_progress_that_stands_elsewhere_refuses_the_write",
            "properties changed": "test_upgraded_meanwhile.test_an_upgrade_freezes_writers_that_have_the_table_open",
            "overwrite of a partition": "test_conflict_matrix.test_a_rollback_minds_neither_schema_nor_overwrite",
            "rollback of the same instant": "test_transaction.test_a_living_writer_is_left_alone_and_a_dead_one_is_undone_once",
        },
    },
}
"""Matrix → own → other → the test."""


def test_every_cell_has_a_test():
    shown = {title: dict(rows) for title, rows in SHOWN.items()}
    for row in ROWS.values():
        columns = dict.fromkeys(COLUMNS, "test_conflict.test_matrix") | {"rollback of own": "test_conflict.test_rollback_of_own"}
        shown[WRITES.title][row] = columns
    for matrix in MATRICES:
        assert {own: set(row) for own, row in shown[matrix.title].items()} == {own: set(row) for own, row in matrix.cells.items()}
    for name in {name for rows in shown.values() for row in rows.values() for name in row.values()}:
        module, test = name.split(".")
        functions = [node for node in ast.parse((HERE / f"{module}.py").read_text()).body if isinstance(node, ast.FunctionDef)]
        assert test in [function.name for function in functions], name


@pytest.mark.parametrize("column", COLUMNS)
@pytest.mark.parametrize("own", ROWS)
def test_what_is_said_of_writes_is_what_happens(own, column):
    told = WRITES.cells[ROWS[own]][column]
    conflicts = any(own in scenarios.MATRIX[scenario] for scenario in COLUMNS[column])
    assert conflicts == any(word in told for word in ("conflict", "waits")), told


def test_the_scenarios_are_all_looked_at():
    looked_at = {scenario for column in COLUMNS.values() for scenario in column}
    beside = {
        scenarios.partition_overwritten,
        scenarios.other_partition_overwritten,
        scenarios.fenced_clustering_with_priority,
        scenarios.group_cleaned_away,
    }
    assert looked_at | beside == set(scenarios.MATRIX)


def two_groups():
    """A partition of two file groups with log files."""
    clock = ManualClock()
    storage = MemoryStorage(clock=clock)
    create(storage, clock, type=TableType.MOR)
    table = open_table(storage, clock, **{"hoodie.parquet.small.file.limit": 0, "hoodie.compact.inline.max.delta.commits": 1})
    for key in "ab":
        write(table, [(key, "p", 1, "x")])
    write(table, [(key, "p", 2, "y") for key in "ab"])
    return table


def test_plans_share_no_group():
    table = two_groups()
    assert schedule_clustering(table) is not None
    assert schedule_compaction(table) is None
    cluster(table)
    table = two_groups()
    assert schedule_compaction(table) is not None
    assert schedule_clustering(table) is None
    assert schedule_compaction(table) is None, "nor a second compaction"
    compact(table)
    assert schedule_clustering(table) is not None


def test_a_compaction_is_run_beside_a_clustering():
    """Its plan names its inputs: what was clustered since, in other groups, is none of its business."""
    table = two_groups()
    instant = schedule_compaction(table)
    for key in "cd":
        write(table, [(key, "p", 1, "new")])
    assert schedule_clustering(table) is not None
    cluster(table)
    compact(table)
    assert table.refresh().actions[instant].state is State.COMPLETED
    assert contents(table) == [("a", "p", 2, "y"), ("b", "p", 2, "y"), ("c", "p", 1, "new"), ("d", "p", 1, "new")]


@pytest.mark.parametrize(("schedule", "run"), [(schedule_clustering, cluster), (schedule_compaction, compact)])
def test_services_publish_the_schema_that_stands(schedule, run):
    """Planned before another wrote a column more, run behind it."""
    table = two_groups()
    planned = schedule(table)
    add_column(table)
    run(table)
    assert table.refresh().actions[planned].state is State.COMPLETED
    found = table.read(["id", "more"]).to_pylist()
    assert sorted((r["id"], r["more"]) for r in found) == [("a", None), ("b", None), ("new", "m")]


def test_a_rollback_minds_neither_schema_nor_overwrite():
    table = two_groups()
    dead = WriteTransaction.begin(table.timeline, table.lock, "UPSERT", table.write_action())
    dead.abandon()
    add_column(table)
    write(table, [("over", "p", 1, "written")], Operation.INSERT_OVERWRITE)
    table.clock.advance(DEATH_S)
    assert roll_back_dead(table) == [dead.instant]
    assert contents(table) == [("over", "p", 1, "written")]


def add_column(table):
    rows = rows_of([("new", "p", 1, "x")]).append_column("more", pa.array(["m"]))
    write_rows(table, rows, Operation.UPSERT, options={"tideline.write.schema.evolution": "evolve"})
