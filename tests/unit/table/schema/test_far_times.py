"""Times from the year 10000 on, which Spark and Parquet hold and Python's `datetime` does not."""

from __future__ import annotations

from datetime import UTC, datetime

import pyarrow as pa
import pytest
from tests.plans import schedule_clustering
from tests.unit.table.tables import QUIET

from tideline_table.action import preview_clustering, run_clustering, write_rows
from tideline_table.action.clustering.execute import cluster_group
from tideline_table.clock import ManualClock
from tideline_table.storage import MemoryStorage
from tideline_table.table import Table, TableRequest, advise, create_table
from tideline_table.writer import Operation

FAR_US = (
    int((datetime(9999, 12, 31, tzinfo=UTC) - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds()) * 1_000_000 + 2 * 86_400_000_000
)
COLUMNS = {"at": pa.timestamp("us", "UTC"), "local": pa.timestamp("us"), "day": pa.date32()}


@pytest.fixture
def table() -> Table:
    """Four files with overlapping ranges."""
    clock = ManualClock()
    storage = MemoryStorage(clock=clock)
    schema = pa.schema([pa.field("id", pa.string(), nullable=False), *COLUMNS.items()])
    create_table(storage.root, TableRequest("t", schema, ("id",)), clock, storage)
    found = Table.open(storage.root, options=QUIET, clock=clock, storage=storage)
    for file in range(4):
        moments = pa.array([FAR_US + (row * 4 + file) * 86_400_000_000 for row in range(5)], pa.int64())
        days = pa.array([value.as_py() // 86_400_000_000 for value in moments], pa.int32())
        columns = [moments.cast(COLUMNS["at"]), moments.cast(COLUMNS["local"]), days.cast(COLUMNS["day"])]
        rows = pa.Table.from_arrays([pa.array([f"{file}-{row}" for row in range(5)]), *columns], schema=schema)
        write_rows(found, rows, Operation.BULK_INSERT, parallelism=1)
        clock.advance(1)
    return found


@pytest.mark.parametrize("column", list(COLUMNS))
@pytest.mark.parametrize("strategy", ["size", "overlap"])
def test_files_are_clustered_by_them(table: Table, column: str, strategy: str) -> None:
    options = {"hoodie.clustering.plan.strategy.sort.columns": column, "hoodie.clustering.plan.strategy.class": strategy}
    previewed = preview_clustering(table, options)
    assert (previewed.groups, previewed.files_read) == (1, 4)
    assert schedule_clustering(table, options)
    done = run_clustering(table, run=lambda tasks: [cluster_group(task, table.storage) for task in tasks])
    assert done is not None
    values = table.read([column]).column(0).cast(pa.int32() if column == "day" else pa.int64()).to_pylist()
    assert values == sorted(values)
    assert len(values) == 20


def test_a_table_with_them_has_an_advice(table: Table) -> None:
    assert advise(table).file_groups == 4
