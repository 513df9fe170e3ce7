"""Column statistics of files whose writes were archived before a checkpoint of the log stored them."""

from __future__ import annotations

from typing import Any

import pyarrow.compute as pc
import pytest
from tests.unit.table.tables import contents, new_table, open_table, write

from tideline_table.action import archive, check_table, create_metadata
from tideline_table.log import statistics
from tideline_table.log.metadata import COLUMN_STATS
from tideline_table.table import TableType

SOON = {
    "hoodie.cleaner.commits.retained": 1,
    "hoodie.keep.min.commits": 2,
    "hoodie.keep.max.commits": 3,
    "tideline.archive.min.age": 0,
    "tideline.task.max.lifetime": 0,
}


@pytest.mark.parametrize("kind", list(TableType), ids=str)
def test_queries_leave_their_files_out_and_the_check_knows_them(kind: TableType) -> None:
    table, storage, clock = new_table(type=kind)
    table = open_table(storage, clock, **SOON)
    create_metadata(table, (COLUMN_STATS,))
    for number in range(6):
        write(table, [(f"k{number}", f"p{number}", number, "x")])
    for _ in range(2):
        done, *_ = archive(table)
        assert done is not None
        reader = open_table(storage, clock, "reader")
        chosen = reader.snapshot().only(pc.field("ts") == 1).slices
        assert [s.group.partition_path for s in chosen] == ["p1"]
        assert check_table(reader) == []
        for number in range(6, 10):
            write(table, [(f"k{number}", f"p{number}", number, "x")])
    assert len(contents(table)) == 10


def test_a_thread_that_writes_meanwhile_does_not_make_them_look_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    table, storage, clock = new_table()
    table = open_table(storage, clock, **SOON)
    write(table, [(f"k{number}", f"p{number}", 1, "x") for number in range(70)])
    for number in range(6):
        write(table, [(f"k{number}", f"p{number}", 1, "y")])
    real, once = statistics.by_partition, iter([True])

    def behind_a_write(*given: Any) -> Any:
        if next(once, False):
            write(table, [("late", "p69", 1000, "x")])
        return real(*given)

    monkeypatch.setattr(statistics, "by_partition", behind_a_write)
    done, *_ = archive(table)
    assert done is not None
    assert next(once, None) is None
    found = open_table(storage, clock, "reader").read(["id"], pc.field("ts") == 1000)
    assert found["id"].to_pylist() == ["late"]
