"""This engine without Spark: `write_rows` and `Table.read` in one process."""

from __future__ import annotations

import datetime as dt
import shutil
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq
from tests.benchmarks.engines import indexed, layouts, serving, tables
from tests.plans import schedule_clustering

from tideline_table.action import run_clustering, write_rows
from tideline_table.table import Table
from tideline_table.writer import Operation

_RANGE = (pc.field("l_shipdate") >= dt.date(1995, 3, 1)) & (pc.field("l_shipdate") < dt.date(1995, 3, 8))


class TidelineDirect:
    """One method per command."""

    def __init__(self) -> None:
        self._can = tables.built()

    def capabilities(self) -> dict[str, Any]:
        return {"can": self._can, "versions": {}}

    def bulk_insert(self, table: str, source: str, kind: str = "COPY_ON_WRITE") -> None:
        write_rows(tables.opened(table, source, kind), pq.read_table(source), Operation.BULK_INSERT)

    def upsert(self, table: str, source: str) -> None:
        write_rows(tables.opened(table), pq.read_table(source), Operation.UPSERT)

    def insert_indexed(self, table: str, source: str, **described: Any) -> None:
        write_rows(tables.made_indexed(table, source, indexed.Indexed(**described)), pq.read_table(source), Operation.BULK_INSERT)

    def upsert_indexed(self, table: str, source: str, **described: Any) -> None:
        write_rows(tables.indexed_table(table, indexed.Indexed(**described)), pq.read_table(source), Operation.UPSERT)

    def read(self, table: str) -> None:
        _, batches = Table.open(table).scan(serving.COLUMNS)
        for _ in batches:
            pass

    def query(self, table: str) -> str:
        rows = Table.open(table).read(["l_extendedprice", "l_discount"], where=_RANGE)
        one = pc.subtract(1, rows.column("l_discount"))
        return str(pc.sum(pc.multiply(rows.column("l_extendedprice"), one)).as_py())

    def look_up(self, table: str, key: list[int]) -> int:
        order, line = (pc.field(name) == value for name, value in zip(serving.KEY, key, strict=True))
        return int(Table.open(table).read(list(serving.COLUMNS), where=order & line).num_rows)

    def files(self, table: str) -> list[int]:
        return tables.base_files(table)

    def cluster(self, table: str, target_bytes: int) -> None:
        found = tables.opened(table)
        if schedule_clustering(found, tables.clustering_options(target_bytes)) is None:
            raise serving.Refused("no clustering was planned")
        run_clustering(found)

    def compact(self, table: str) -> None:
        tables.compact(table)

    # --- the clustering experiment -------------------------------------------------------------------------------------------

    def insert_small(self, table: str, **described: Any) -> None:
        made = layouts.Input(**described)
        rows = pq.read_table(made.source)
        write_rows(tables.made_small(table, made, rows.num_rows), rows, Operation.BULK_INSERT)

    def cluster_by(self, table: str, columns: list[str], layout: str, target_bytes: int) -> None:
        found = tables.opened(table)
        if schedule_clustering(found, tables.layout_options(columns, layout, target_bytes)) is None:
            raise serving.Refused("no clustering was planned")
        run_clustering(found)

    def ask_rows(self, table: str, column: str, low: Any, high: Any, total: str) -> str:
        values = pc.field(column)
        if isinstance(low, str) and isinstance(high, str) and column.endswith("date"):
            low, high = dt.date.fromisoformat(low), dt.date.fromisoformat(high)
        rows = Table.open(table).read([total], where=(values >= low) & (values <= high))
        return str(pc.sum(rows.column(total)).as_py())

    def data_files(self, table: str) -> list[str]:
        return tables.data_files(table)

    def warm_up(self, source: str, changes: str, folder: str) -> None:
        """Imports and pools."""
        table = f"{folder}/COPY_ON_WRITE"
        for _ in range(2):
            self.bulk_insert(table, source)
        self.upsert(table, changes)
        self.read(table)
        self.cluster(table, 1 << 20)
        shutil.rmtree(folder)


if __name__ == "__main__":
    given = serving.arguments()
    serving.serve(TidelineDirect(), given.requests, given.replies)
