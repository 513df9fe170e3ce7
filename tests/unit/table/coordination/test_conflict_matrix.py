"""Each cell of the matrix of conflicts has a test, and what is said of writes is what `find_conflict` does."""

import ast
import re
from pathlib import Path

import pyarrow as pa
import pytest
from tests.plans import schedule_clustering, schedule_compaction
from tests.unit.table.action.write.test_merge_on_read import compact
from tests.unit.table.coordination import test_conflict as scenarios
from tests.unit.table.tables import DEATH_S, cluster, contents, create, open_table, rows_of, write

from tideline_table.action import roll_back_dead, write_rows
from tideline_table.action.write.transaction import WriteTransaction
from tideline_table.clock import ManualClock
from tideline_table.hudi.instant import State
from tideline_table.storage import MemoryStorage
from tideline_table.table import TableType
from tideline_table.writer import Operation

ROOT = Path(__file__).parents[4]
PAGE = (ROOT / "docs/conflicts.md").read_text()
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
CELL = re.compile(r"\[(?P<outcome>[^]]+)\]\[(?P<test>test_\w+)\]")


def tables():
    """Title → own → other → the match of the cell."""
    found = {}
    for section in PAGE.split("\n## ")[1:]:
        title, *lines = section.splitlines()
        heads, _, *rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines if line.startswith("|")]
        found[title] = {own: dict(zip(heads[1:], map(CELL.fullmatch, cells), strict=True)) for own, *cells in rows}
    return found


def test_every_cell_has_a_test():
    cells = [cell for rows in tables().values() for row in rows.values() for cell in row.values()]
    assert len(cells) > 80
    assert all(cells)
    places = dict(re.findall(r"^\[(test_\w+)\]: \.\./(\S+)$", PAGE, re.MULTILINE))
    assert set(places) == {cell["test"] for cell in cells}
    for test, place in places.items():
        functions = [node for node in ast.parse((ROOT / place).read_text()).body if isinstance(node, ast.FunctionDef)]
        assert test in [function.name for function in functions], test


@pytest.mark.parametrize("column", COLUMNS)
@pytest.mark.parametrize("own", ROWS)
def test_what_is_said_of_writes_is_what_happens(own, column):
    told = tables()["Writes, clustering and compaction"][ROWS[own]][column]["outcome"]
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
    over = rows_of([("over", "p", 1, "written")]).append_column("more", pa.array(["m"]))
    write_rows(table, over, Operation.INSERT_OVERWRITE)
    table.clock.advance(DEATH_S)
    assert roll_back_dead(table) == [dead.instant]
    assert contents(table) == [("over", "p", 1, "written")]


def add_column(table):
    rows = rows_of([("new", "p", 1, "x")]).append_column("more", pa.array(["m"]))
    write_rows(table, rows, Operation.UPSERT, options={"tideline.write.schema.evolution": "evolve"})
