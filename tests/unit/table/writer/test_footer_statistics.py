"""Floating columns with a NaN have no least and greatest values in base files: Spark and Apache Hudi would pass over the NaN."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.plans import schedule_clustering
from tests.unit.table.tables import cluster, open_table

from tideline_table.action import write_rows
from tideline_table.clock import ManualClock
from tideline_table.storage import MemoryStorage, Storage
from tideline_table.table import Table, TableRequest, TableType, create_table
from tideline_table.writer import Operation

NAN = float("nan")
FLOATS = {"x", "y", "s.f", "l.list.element", "m.key_value.value"}
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("x", pa.float64()),
        ("y", pa.float32()),
        ("s", pa.struct([("f", pa.float64()), ("t", pa.string())])),
        ("l", pa.list_(pa.float64())),
        ("m", pa.map_(pa.string(), pa.float32())),
    ]
)


def row(key: int, number: float) -> dict[str, object]:
    return {"id": key, "x": number, "y": 1.0, "s": {"f": number, "t": "a"}, "l": [number], "m": [("k", number)]}


def put(table: Table, *rows: dict[str, object]) -> None:
    write_rows(table, pa.Table.from_pylist(list(rows), schema=SCHEMA), Operation.UPSERT)


def without_statistics(storage: Storage, table: Table) -> list[set[str]]:
    """The columns without bounds in each base file of the table now."""
    found = []
    for part in table.slices():
        footer = pq.read_metadata(storage.open_input(part.path))
        chunks = [footer.row_group(group).column(at) for group in range(footer.num_row_groups) for at in range(footer.num_columns)]
        found.append({chunk.path_in_schema for chunk in chunks if chunk.statistics is None or not chunk.statistics.has_min_max})
        assert all(chunk.has_column_index == chunk.is_stats_set for chunk in chunks)
    return found


def made(kind: TableType = TableType.COW, **options: object) -> tuple[Table, Storage]:
    clock = ManualClock()
    storage = MemoryStorage(clock=clock)
    create_table(storage.root, TableRequest("t1", SCHEMA, ("id",), (), "", kind), clock, storage)
    return open_table(storage, clock, **options), storage


@pytest.mark.parametrize("kind", TableType)
def test_a_column_with_a_nan_has_no_bounds(kind):
    table, storage = made(kind)
    put(table, row(1, 1.0), row(2, 2.0))
    assert without_statistics(storage, table) == [set()]

    table, storage = made(kind)
    put(table, row(1, 1.0), row(2, NAN))
    assert without_statistics(storage, table) == [FLOATS - {"y"}]


def test_an_upsert_brings_and_removes_a_nan():
    table, storage = made()
    put(table, row(1, 1.0), row(2, 1.0))
    put(table, row(2, NAN))
    assert without_statistics(storage, table) == [FLOATS - {"y"}]
    put(table, row(2, 2.0))
    assert without_statistics(storage, table) == [set()]


@pytest.mark.parametrize(("in_group", "expected"), [(6, set()), (5, set()), (2, FLOATS)])
def test_a_clustering_writes_no_bounds_of_floats_while_rows_may_follow(in_group, expected):
    table, storage = made(**{"tideline.parquet.row.group.rows": in_group, "hoodie.parquet.small.file.limit": 0})
    put(table, *(row(key, 1.0) for key in range(2)))
    put(table, *(row(key, 1.0) for key in range(2, 5)))
    assert without_statistics(storage, table) == [set(), set()]
    assert schedule_clustering(table) is not None
    assert cluster(table) is not None
    assert without_statistics(storage, table) == [expected]
