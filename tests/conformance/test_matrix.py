"""The matrix itself: it can fail, it says why cells are empty, and in a whole session none is forgotten."""

from __future__ import annotations

import pyarrow as pa
import pytest
from tests.conformance.matrix import EVERY_CELL, Cell, Direction, Kind, Matrix, Topic

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


def test_what_counts_as_not_built_cannot_be_filled_unnoticed() -> None:
    judged = Matrix({UPSERT: "later"}, [DELETE])
    for cell in (UPSERT, DELETE):
        with pytest.raises(AssertionError, match="take them off"), judged.cells(cell, label="built"):
            pass
    assert "not built [1]: later" in judged.lines()
    assert not {UPSERT, DELETE} & set(judged.empty_cells())


@pytest.mark.whole_suite
def test_no_cell_was_forgotten(matrix: Matrix) -> None:
    assert matrix.empty_cells() == []
