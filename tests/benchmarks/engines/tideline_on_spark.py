"""This engine on Spark: `write_dataframe`, `read`, clustering by `cluster_tasks`, in one session of `local_session`."""

from __future__ import annotations

import importlib
import shutil
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from tests.benchmarks.engines import indexed, joined, layouts, serving, tables
from tests.plans import schedule_clustering

from tideline_spark.application import cluster_tasks
from tideline_spark.bucket_query import BucketScan, bucket_aggregate, bucket_join
from tideline_spark.plan_run import Termination
from tideline_spark.read import read
from tideline_spark.session import local_session, stop_session
from tideline_spark.write import write_dataframe
from tideline_table.action import run_clustering
from tideline_table.errors import TidelineError
from tideline_table.writer import Operation


class TidelineOnSpark:
    """One method per command."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._can = [*tables.built(), "plain"]

    def capabilities(self) -> dict[str, Any]:
        jvm: Any = self._spark.sparkContext._jvm
        java = jvm.java.lang.System.getProperty("java.version")
        return {"can": self._can, "versions": {"Spark": self._spark.version, "Java": java, "pyarrow": pa.__version__}}

    def plain_write(self, source: str, target: str) -> None:
        serving.plain_write(self._spark, source, target)

    def plain_read(self, source: str) -> None:
        serving.consume(self._spark.read.parquet(source))

    def plain_checksum(self, source: str) -> list[Any]:
        return serving.checksum(self._spark.read.parquet(source))

    def expected(self, base: str, changes: list[str]) -> list[Any]:
        """The checksum of `base` with all `changes` upserted in their order, by Spark alone."""
        kept = self._spark.read.parquet(base)
        added: list[DataFrame] = []
        for source in changes:
            newer = self._spark.read.parquet(source)
            kept = kept.join(newer.select(*serving.KEY), list(serving.KEY), "left_anti")
            added = [rows.join(newer.select(*serving.KEY), list(serving.KEY), "left_anti") for rows in added] + [newer]
        for rows in added:
            kept = kept.select(*serving.COLUMNS).union(rows.select(*serving.COLUMNS))
        return serving.checksum(kept)

    def bulk_insert(self, table: str, source: str, kind: str = "COPY_ON_WRITE") -> None:
        write_dataframe(tables.opened(table, source, kind), self._spark.read.parquet(source), Operation.BULK_INSERT)

    def upsert(self, table: str, source: str) -> None:
        write_dataframe(tables.opened(table), self._spark.read.parquet(source), Operation.UPSERT)

    def _load(self, table: str) -> DataFrame:
        return read(self._spark, table)

    def read(self, table: str) -> None:
        # Spark tells no Python worker which columns a later `select` leaves out.
        serving.consume(read(self._spark, table, columns=serving.COLUMNS))

    def query(self, table: str) -> str:
        row = self._load(table).where(serving.RANGE).selectExpr(serving.RANGE_RESULT).first()
        assert row is not None
        return str(row[0])

    def look_up(self, table: str, key: list[int]) -> int:
        where = " and ".join(f"{name} = {value}" for name, value in zip(serving.KEY, key, strict=True))
        return len(self._load(table).where(where).select(*serving.COLUMNS).collect())

    def checksum(self, table: str) -> list[Any]:
        return serving.checksum(self._load(table))

    def files(self, table: str) -> list[int]:
        return tables.base_files(table)

    def cluster(self, table: str, target_bytes: int) -> None:
        found = tables.opened(table)
        instant = schedule_clustering(found, tables.clustering_options(target_bytes))
        if instant is None:
            raise serving.Refused("no clustering was planned")
        run_clustering(found, instant, run=lambda tasks: cluster_tasks(self._spark, tasks, Termination()))

    def compact(self, table: str) -> None:
        compact_slice = importlib.import_module("tideline_table.action.compaction.plan").compact_slice
        context = self._spark.sparkContext
        tables.compact(table, run=lambda tasks: context.parallelize(tasks, len(tasks)).map(compact_slice).collect())

    # --- indexes -----------------------------------------------------------------------------------------------------------------

    def insert_indexed(self, table: str, source: str, **described: Any) -> None:
        made = tables.made_indexed(table, source, indexed.Indexed(**described))
        write_dataframe(made, self._spark.read.parquet(source), Operation.BULK_INSERT)

    def upsert_indexed(self, table: str, source: str, **described: Any) -> None:
        found = tables.indexed_table(table, indexed.Indexed(**described))
        write_dataframe(found, self._spark.read.parquet(source), Operation.UPSERT)

    # --- joins and aggregations --------------------------------------------------------------------------------------------------

    def insert_bucketed(self, table: str, source: str, **described: Any) -> None:
        made = tables.made_bucketed(table, source, joined.Bucketed(**described))
        write_dataframe(made, self._spark.read.parquet(source), Operation.BULK_INSERT)

    def orders(self, source: str, target: str) -> None:
        """Write a row for each order of lineitem."""
        rows = self._spark.read.parquet(source).groupBy(joined.ON)
        texts = ("count(*) as o_lines", "min(l_comment) as o_comment", "max(l_version) as o_version")
        rows.agg(*(f.expr(text) for text in texts)).coalesce(1).write.parquet(target)

    def _shuffled(self, lines: str, orders: str) -> DataFrame:
        self._spark.conf.set(*joined.NO_BROADCAST)
        if not orders:
            return joined.shuffled_groups(self._load(lines), f.expr)
        return joined.shuffled_join(self._load(lines), self._load(orders))

    def shuffled(self, lines: str, orders: str = "") -> int:
        return joined.consume(self._shuffled(lines, orders))

    def shuffled_checksum(self, lines: str, orders: str = "") -> list[str]:
        return joined.checksum(self._shuffled(lines, orders))

    def _by_bucket(self, lines: str, orders: str) -> DataFrame:
        if not orders:
            return bucket_aggregate(self._spark, lines, joined.ON, joined.TOTALS)
        left, right = BucketScan(lines, columns=joined.LINE_COLUMNS), BucketScan(orders, columns=joined.ORDER_COLUMNS)
        return bucket_join(self._spark, left, right, joined.ON)

    def by_bucket(self, lines: str, orders: str = "") -> int:
        return joined.consume(self._by_bucket(lines, orders))

    def by_bucket_checksum(self, lines: str, orders: str = "") -> list[str]:
        return joined.checksum(self._by_bucket(lines, orders))

    # --- the clustering experiment -------------------------------------------------------------------------------------------

    def insert_small(self, table: str, **described: Any) -> None:
        made = layouts.Input(**described)
        rows = self._spark.read.parquet(made.source)
        write_dataframe(tables.made_small(table, made), rows, Operation.BULK_INSERT)

    def cluster_by(self, table: str, columns: list[str], layout: str, target_bytes: int) -> None:
        found = tables.opened(table)
        instant = schedule_clustering(found, tables.layout_options(columns, layout, target_bytes))
        if instant is None:
            raise serving.Refused("no clustering was planned")
        run_clustering(found, instant, run=lambda tasks: cluster_tasks(self._spark, tasks, Termination()))

    def ask_rows(self, table: str, **query: Any) -> str:
        return layouts.asked(self._load(table), **query)

    def data_files(self, table: str) -> list[str]:
        return tables.data_files(table)

    def warm_up(self, source: str, changes: str, folder: str) -> None:
        """Every kind of call once, on small tables."""
        kinds = ["COPY_ON_WRITE", *(["MERGE_ON_READ"] if "merge_on_read" in self._can else [])]
        for kind in kinds:
            table = f"{folder}/{kind}"
            for _ in range(2):
                self.bulk_insert(table, source, kind)
            try:
                for _ in range(2):
                    self.upsert(table, changes)
                self.read(table)
                self.query(table)
                if kind == "COPY_ON_WRITE":
                    self.cluster(table, 1 << 20)
                elif "compaction" in self._can:
                    self.compact(table)
            except TidelineError:
                if kind == "COPY_ON_WRITE":
                    raise  # merge-on-read is new: what it cannot do shows in its own works
        self.plain_write(source, f"{folder}/plain")
        self.plain_read(f"{folder}/plain")
        shutil.rmtree(folder)


if __name__ == "__main__":
    given = serving.arguments()
    settings = {"spark.local.dir": given.folder, "spark.sql.shuffle.partitions": str(4 * given.cores)}
    session = local_session("tideline-benchmarks", given.cores, given.memory, settings)
    try:
        serving.serve(TidelineOnSpark(session), given.requests, given.replies)
    finally:
        stop_session(session)
