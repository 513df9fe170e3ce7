"""DataFrames written into tables that declare a payload class end as the engine writes them."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from tests.unit.table.tables import set_properties

from tideline_spark.write import write_dataframe
from tideline_table.action import write_rows
from tideline_table.errors import UnsupportedTable
from tideline_table.hudi.properties import PAYLOAD_CLASS, read_properties
from tideline_table.storage import open_storage
from tideline_table.table import Table, TableRequest, TableType, create_table
from tideline_table.writer import Operation

MODELS = "org.apache.hudi.common.model."
PARTIAL = MODELS + "PartialUpdateAvroPayload"
DMS = MODELS + "AWSDmsAvroPayload"
LARGE = {"tideline.spark.collect.bytes": 0}
GLOBAL = {"hoodie.index.type": "GLOBAL_SIMPLE", "hoodie.simple.index.update.partition.path": True}
SCHEMA = pa.schema([("id", pa.string()), ("region", pa.string()), ("ts", pa.int64()), ("a", pa.string()), ("Op", pa.string())])
WRITES = (
    [(n, "p", 5, "first", "I") for n in range(12)] + [(20, "p", 6, None, "I"), (20, "p", 5, "below", "I"), (21, "p", 5, "x", "D")],
    [
        (0, "p", 6, None, "U"),
        (1, "p", 4, "late", "U"),
        (2, "p", 4, None, "U"),
        (3, "p", 6, "gone", "D"),
        (4, "p", 4, "gone", "d"),
        (5, "p", 7, None, "U"),
        (5, "p", 6, "other", "U"),
        (6, "p", 6, "gone", "D"),
        (6, "p", 5, "kept", "U"),
        (30, "p", 1, "new", "I"),
    ],
    [(3, "p", 7, None, "I"), (0, "p", 8, "last", "U"), (7, "q", 9, "moved", "U"), (8, "q", 9, "gone", "D"), (9, "q", 2, "x", "U")],
)


def declared(path: Path, payload: str, kind: TableType, options: dict[str, object]) -> Table:
    create_table(str(path), TableRequest("t", SCHEMA, ("id",), ("region",), "ts", kind))
    storage = open_storage(str(path))
    set_properties(storage, {**read_properties(storage), PAYLOAD_CLASS: payload})
    return Table.open(str(path), options={"hoodie.parquet.small.file.limit": 0, **options})


def content(table: Table) -> list[str]:
    return sorted(map(str, table.read([*SCHEMA.names, "_hoodie_partition_path"]).to_pylist()))


@pytest.mark.parametrize(
    ("payload", "kind", "options"),
    [
        (PARTIAL, TableType.COW, LARGE),
        (PARTIAL, TableType.MOR, {}),
        (DMS, TableType.COW, {**LARGE, **GLOBAL}),
        (DMS, TableType.MOR, LARGE),
    ],
    ids=["partial updates", "partial updates, small source, logs", "deletions by value, global", "deletions by value, logs"],
)
def test_rows_meet_the_stored_ones_by_the_payload_class(
    spark: SparkSession, tmp_path: Path, payload: str, kind: TableType, options: dict[str, object]
) -> None:
    model, table = (declared(tmp_path / name, payload, kind, options) for name in ("model", "t"))
    for written in WRITES:
        rows = pa.Table.from_pylist([dict(zip(SCHEMA.names, (f"k{r[0]:02}", *r[1:]), strict=True)) for r in written], schema=SCHEMA)
        write_rows(model, rows, Operation.UPSERT)
        write_dataframe(table, spark.createDataFrame(rows).coalesce(1), Operation.UPSERT)
        assert content(table) == content(model)
    marked = {row["id"] for row in table.read(["id", "Op"]).to_pylist() if row["Op"].upper() == "D"}
    assert bool(marked) == (payload == PARTIAL)


def test_rows_with_open_cells_do_not_move_between_partitions(spark: SparkSession, tmp_path: Path) -> None:
    table = declared(tmp_path, PARTIAL, TableType.COW, {**LARGE, **GLOBAL})
    rows = pa.Table.from_pylist([dict(zip(SCHEMA.names, ("k", "p", 1, None, "U"), strict=True))], schema=SCHEMA)
    with pytest.raises(UnsupportedTable, match="global index that moves rows"):
        write_dataframe(table, spark.createDataFrame(rows), Operation.UPSERT)
    assert not table.refresh().actions
