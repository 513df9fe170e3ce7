"""The matrix itself: it can fail, it says why cells are empty, and in a whole session none is forgotten."""

from __future__ import annotations

import pyarrow as pa
import pytest
from tests.conformance.matrix import EVERY_CELL, Cell, Direction, Kind, Matrix, Topic
from tests.conformance.service_strategies import Proof, Strategy, impossible, reasons

from tideline_table.action.clustering.execution_strategy import STRATEGIES as EXECUTIONS
from tideline_table.action.clustering.plan_strategy import STRATEGIES as PLANS
from tideline_table.config import (
    CLEAN_POLICY,
    CLUSTERING_GROUP_ORDER,
    CLUSTERING_PARTITION_FILTER,
    COMPACTION_STRATEGIES,
    LAYOUT_STRATEGY,
)
from tideline_table.coordination.write_set import UPDATE_STRATEGIES

UPSERT = Cell(Topic.UPSERT, Kind.COW, Direction.THERE_HERE)
DELETE = Cell(Topic.DELETE, Kind.COW, Direction.THERE_HERE)
ROWS = pa.table({"id": ["a", "b"], "n": [1, 2]})


def test_a_cell_counts_comparisons() -> None:
    judged = Matrix({})
    with judged.cells(UPSERT, label="one", key=("id",)) as compare:
        compare.rows(ROWS, ROWS, "rows")
        compare.rows(ROWS, ROWS, "again")
        compare.excused(7)
    assert any(line.split("  ")[0] == "upsert" and "ok 2 #7" in line for line in judged.lines())
    assert UPSERT not in judged.empty_cells()
    assert len(judged.empty_cells()) == len(EVERY_CELL) - 1


def test_a_difference_fails_every_cell_it_stands_for() -> None:
    judged = Matrix({})
    with (
        pytest.raises(AssertionError, match="n is 2 in tideline, 3 in Apache Hudi"),
        judged.cells(UPSERT, DELETE, label="two", key=("id",)) as compare,
    ):
        compare.rows(ROWS, ROWS.set_column(1, "n", pa.array([1, 3])), "rows")
    assert "FAIL upsert, COPY_ON_WRITE, Hudi → here: two" in judged.lines()
    assert "FAIL delete, COPY_ON_WRITE, Hudi → here: two" in judged.lines()


def test_a_cell_without_a_comparison_fails() -> None:
    judged = Matrix({})
    with pytest.raises(AssertionError, match="no rows were compared"), judged.cells(UPSERT, label="nothing"):
        pass
    assert "FAIL upsert, COPY_ON_WRITE, Hudi → here: nothing" in judged.lines()


def test_what_counts_as_empty_cannot_be_filled_unnoticed() -> None:
    judged = Matrix({UPSERT: "later"}, [DELETE])
    for cell in (UPSERT, DELETE):
        with pytest.raises(AssertionError, match="take them off"), judged.cells(cell, label="built"):
            pass
    assert "empty [1]: later" in judged.lines()
    assert not {UPSERT, DELETE} & set(judged.empty_cells())


@pytest.mark.whole_suite
def test_no_cell_was_forgotten(matrix: Matrix, service_matrix: Matrix) -> None:
    assert matrix.empty_cells() == []
    assert service_matrix.empty_cells() == []


def test_another_matrix_has_its_own_rows_and_columns() -> None:
    judged = Matrix(reasons(), list(impossible()), rows=Strategy, columns=Proof, names_tests=True)
    cell = Cell(Strategy.SIZE, Kind.MOR, Proof.CLUSTERING)
    assert cell in judged.empty_cells()
    with judged.cells(cell, label="one", key=("id",)) as compare:
        compare.rows(ROWS, ROWS, "rows")
    assert cell not in judged.empty_cells()
    assert "test_matrix.py::test_another_matrix_has_its_own_rows_and_columns: clustering plan: size" in judged.lines()


def test_every_strategy_that_an_option_names_is_a_row() -> None:
    """Whoever adds a strategy adds it to the matrix, and with it to the tests that fill it."""
    named = {
        "clustering plan": set(PLANS.built_in),
        "clustering execution": set(EXECUTIONS.built_in),
        "clustering updates": set(UPDATE_STRATEGIES),
        "clustering filter": set(CLUSTERING_PARTITION_FILTER.choices),
        "clustering group order": set(CLUSTERING_GROUP_ORDER.choices),
        "clustering layout": {choice for choice in LAYOUT_STRATEGY.choices if choice.islower()},
        "compaction": set(COMPACTION_STRATEGIES.values()),
        "clean": set(CLEAN_POLICY.choices),
    }
    rows = {strategy.value for strategy in Strategy}
    missing = sorted(f"{kind}: {name}" for kind, names in named.items() for name in names if f"{kind}: {name}" not in rows)
    assert not missing
