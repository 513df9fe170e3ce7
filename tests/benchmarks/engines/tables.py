"""What both of this engine's processes do the same way: make and open the table, plan its services, say what is built."""

from __future__ import annotations

import importlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from tests.benchmarks.engines import indexed, joined, layouts, serving

from tideline_table.action import create_metadata, write_rows
from tideline_table.errors import TidelineError
from tideline_table.hudi.properties import PROPERTIES_PATH
from tideline_table.table import BloomIndex, BucketIndex, KeyIndex, RecordIndex, Table, TableRequest, create_table
from tideline_table.table.definition import TableType
from tideline_table.writer import Operation

OPTIONS = {"hoodie.parquet.compression.codec": serving.CODEC}


def schema_of(source: str) -> pa.Schema:
    """Of a Parquet file, or of the first one in a folder."""
    path = Path(source)
    return pq.read_schema(path if path.is_file() else min(path.glob("*.parquet")))


def opened(path: str, source: str = "", kind: str = "COPY_ON_WRITE") -> Table:
    """The table at `path`; made for the rows of `source` when there is none."""
    if source and not (Path(path) / PROPERTIES_PATH).exists():
        of = schema_of(source), serving.KEY, (serving.PARTITION,), serving.ORDERING
        request = TableRequest("lineitem", *of, type=TableType(kind), version=int(serving.TABLE_VERSION))
        create_table(path, request)
    return Table.open(path, options=OPTIONS)


def clustering_options(target_bytes: int) -> dict[str, object]:
    """As Apache Hudi gets them."""
    return {
        "hoodie.clustering.plan.strategy.target.file.max.bytes": target_bytes,
        "hoodie.clustering.plan.strategy.sort.columns": serving.SORT_COLUMN,
    }


_ROW_BYTES = 1024


def made_small(path: str, made: layouts.Input, rows: int = 0) -> Table:
    """Make a table without partitions that writes the rows of `made` (their number is needed without Spark) into so many files."""
    create_table(path, TableRequest(made.name, schema_of(made.source), tuple(made.key), (), made.ordering))
    if not rows:
        return Table.open(path, options={**OPTIONS, "tideline.spark.insert.parallelism": made.files})
    sizes = {
        "hoodie.copyonwrite.record.size.estimate": _ROW_BYTES,
        "hoodie.parquet.max.file.size": -(-rows // made.files) * _ROW_BYTES,
    }
    return Table.open(path, options={**OPTIONS, **sizes})


def made_indexed(path: str, source: str, made: indexed.Indexed) -> Table:
    """Make an empty table with this index."""
    kept: dict[str, KeyIndex | None] = {
        indexed.SIMPLE: None,
        indexed.BLOOM: BloomIndex(),
        indexed.BUCKET: BucketIndex(made.buckets),
        indexed.RECORD: RecordIndex(),
    }
    create_table(
        path,
        TableRequest(
            "lineitem",
            schema_of(source),
            serving.KEY,
            (serving.PARTITION,),
            serving.ORDERING,
            type=TableType(made.kind),
            index=kept[made.index],
        ),
    )
    table = indexed_table(path, made)
    if made.index == indexed.RECORD:
        create_metadata(table, (indexed.RECORD,))
    return table


def indexed_table(path: str, made: indexed.Indexed) -> Table:
    """Open a table of `made_indexed`."""
    sizes = {"hoodie.parquet.max.file.size": made.file_bytes, "hoodie.copyonwrite.record.size.estimate": made.row_bytes}
    return Table.open(path, options={**OPTIONS, **sizes})


def made_bucketed(path: str, source: str, made: joined.Bucketed) -> Table:
    """Make an empty table with a bucket index on the order key."""
    partition = (made.partition,) if made.partition else ()
    request = TableRequest(
        made.name, schema_of(source), tuple(made.key), partition, made.ordering, index=BucketIndex(made.buckets, (joined.ON,))
    )
    create_table(path, request)
    return Table.open(path, options=OPTIONS)


def layout_options(columns: list[str], layout: str, target_bytes: int) -> dict[str, object]:
    """Options of a clustering by these columns, as Apache Hudi gets them."""
    sort = {"hoodie.clustering.plan.strategy.sort.columns": ",".join(columns), "hoodie.layout.optimize.strategy": layout}
    return {**clustering_options(target_bytes), **sort}


def data_files(path: str) -> list[str]:
    """Paths of the visible base files."""
    return [str(Path(path) / s.path) for s in Table.open(path).slices() if s.base_file]


def base_files(path: str) -> list[int]:
    """Number and bytes of the visible base files."""
    slices = [s for s in Table.open(path).slices() if s.base_file]
    return [len(slices), sum(os.path.getsize(Path(path) / s.path) for s in slices)]


def service(name: str) -> Callable[..., Any] | None:
    """A function of `tideline_table.action.compaction.run` by name, None when that is not built."""
    try:
        compaction = importlib.import_module("tideline_table.action.compaction.run")
    except ModuleNotFoundError:
        return None
    found: Callable[..., Any] | None = getattr(compaction, name, None)
    return found


def compact(path: str, **running: Any) -> None:
    """Plan and run a compaction, `running` passed on to the engine. Raises `Refused` when it is not built."""
    schedule, run = service("request_compaction"), service("run_compaction")
    if schedule is None or run is None:
        raise serving.Refused("not built")
    table = opened(path)
    if not isinstance(schedule(table, {"hoodie.compact.inline.max.delta.commits": 1}), str):
        raise serving.Refused("no compaction was planned")
    run(table, **running)


def built() -> list[str]:
    """What this engine can do, found out by doing it."""
    can = ["copy_on_write", "clustering"]
    rows = pa.table({n: pa.array([1], pa.int64()) for n in (*serving.KEY, serving.ORDERING)}).append_column(
        serving.PARTITION, pa.array(["AIR"])
    )
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/probe"
        request = TableRequest("probe", rows.schema, serving.KEY, (serving.PARTITION,), serving.ORDERING, type=TableType.MOR)
        try:
            create_table(path, request)
            table = Table.open(path)
            write_rows(table, rows, Operation.BULK_INSERT)
            write_rows(table, rows, Operation.UPSERT)
            if table.read().num_rows == 1 and any(Path(path).glob("*/.*.log.*")):
                can.append("merge_on_read")
        except TidelineError:
            return can
    if service("request_compaction") is not None and service("run_compaction") is not None:
        can.append("compaction")
    return can
