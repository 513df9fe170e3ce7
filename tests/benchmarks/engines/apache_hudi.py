"""Apache Hudi 1.2.0 on Spark 3.5.

Runs under the peer's Python; imports nothing of this repository but `serving`, which needs the standard library only.

Options are Hudi's defaults but for what makes the two sides equal: table version, codec, number of shuffle partitions, and the
exchange of a bulk insert (by partition path, as this engine and plain Spark do it). The metadata table stays on, as is its
default. Other than in the conformance suite the JVM compiles fully.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from tests.benchmarks.engines import indexed, joined, layouts, serving

TABLE_VERSION = {"hoodie.write.table.version": serving.TABLE_VERSION, "hoodie.write.auto.upgrade": "false"}
CODEC = {"hoodie.parquet.compression.codec": serving.CODEC}
BULK_SORT_MODE = "PARTITION_PATH_REPARTITION"


class ApacheHudi:
    """One method per command."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def capabilities(self) -> dict[str, Any]:
        jvm: Any = self._spark.sparkContext._jvm
        java = jvm.java.lang.System.getProperty("java.version")
        can = ["copy_on_write", "merge_on_read", "clustering", "compaction", "plain"]
        return {"can": can, "versions": {"Apache Hudi": "1.2.0", "its Spark": self._spark.version, "its Java": java}}

    def plain_write(self, source: str, target: str) -> None:
        serving.plain_write(self._spark, source, target)

    def plain_read(self, source: str) -> None:
        serving.consume(self._spark.read.parquet(source))

    def bulk_insert(self, table: str, source: str, kind: str = "COPY_ON_WRITE", sort_mode: str = BULK_SORT_MODE) -> None:
        self._write(table, source, kind, "bulk_insert", {"hoodie.bulkinsert.sort.mode": sort_mode})

    def upsert(self, table: str, source: str, kind: str = "COPY_ON_WRITE", index: str = "") -> None:
        self._write(table, source, kind, "upsert", {"hoodie.index.type": index} if index else {})

    def _write(self, table: str, source: str, kind: str, operation: str, more: dict[str, str]) -> None:
        options = {
            "hoodie.table.name": "lineitem",
            "hoodie.datasource.write.table.type": kind,
            "hoodie.datasource.write.operation": operation,
            "hoodie.datasource.write.recordkey.field": ",".join(serving.KEY),
            "hoodie.datasource.write.partitionpath.field": serving.PARTITION,
            "hoodie.datasource.write.precombine.field": serving.ORDERING,
            **TABLE_VERSION,
            **CODEC,
            **more,
        }
        self._spark.read.parquet(source).write.format("hudi").options(**options).mode("append").save(table)

    def _load(self, table: str) -> DataFrame:
        return self._spark.read.format("hudi").load(table)

    def read(self, table: str) -> None:
        serving.consume(self._load(table))

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
        """Number and bytes of the visible base files."""
        names = self._load(table).select("_hoodie_partition_path", "_hoodie_file_name").distinct().collect()
        sizes = [(Path(table) / partition / name).stat().st_size for partition, name in names]
        return [len(sizes), sum(sizes)]

    def cluster(self, table: str, target_bytes: int) -> None:
        options = ",".join(f"{key}={value}" for key, value in {**CODEC, **_clustering(target_bytes)}.items())
        self._spark.sql(
            f"call run_clustering(path => '{table}', op => 'scheduleAndExecute', order => '{serving.SORT_COLUMN}', options => "
            f"'{options}')"
        ).collect()

    def compact(self, table: str) -> None:
        options = ",".join(f"{key}={value}" for key, value in {**CODEC, "hoodie.compact.inline.max.delta.commits": "1"}.items())
        for operation in ("schedule", "run"):
            self._spark.sql(f"call run_compaction(path => '{table}', op => '{operation}', options => '{options}')").collect()

    # --- indexes -----------------------------------------------------------------------------------------------------------------

    def insert_indexed(self, table: str, source: str, **described: Any) -> None:
        made = indexed.Indexed(**described)
        self._write(table, source, made.kind, "bulk_insert", {"hoodie.bulkinsert.sort.mode": BULK_SORT_MODE, **made.hudi_options()})

    def upsert_indexed(self, table: str, source: str, **described: Any) -> None:
        made = indexed.Indexed(**described)
        self._write(table, source, made.kind, "upsert", made.hudi_options())

    # --- joins and aggregations --------------------------------------------------------------------------------------------------

    def insert_bucketed(self, table: str, source: str, **described: Any) -> None:
        options = {**joined.Bucketed(**described).hudi_options(), **TABLE_VERSION, **CODEC}
        self._spark.read.parquet(source).write.format("hudi").options(**options).mode("overwrite").save(table)

    def _shuffled(self, lines: str, orders: str) -> DataFrame:
        self._spark.conf.set(*joined.NO_BROADCAST)
        if not orders:
            return joined.shuffled_groups(self._load(lines), f.expr)
        return joined.shuffled_join(self._load(lines), self._load(orders))

    def shuffled(self, lines: str, orders: str = "") -> int:
        return joined.consume(self._shuffled(lines, orders))

    def shuffled_checksum(self, lines: str, orders: str = "") -> list[str]:
        return joined.checksum(self._shuffled(lines, orders))

    # --- the clustering experiment -------------------------------------------------------------------------------------------

    def insert_small(self, table: str, **described: Any) -> None:
        made = layouts.Input(**described)
        options = {
            "hoodie.table.name": made.name,
            "hoodie.datasource.write.operation": "bulk_insert",
            "hoodie.datasource.write.recordkey.field": ",".join(made.key),
            "hoodie.datasource.write.partitionpath.field": "",
            "hoodie.datasource.write.keygenerator.class": "org.apache.hudi.keygen.NonpartitionedKeyGenerator",
            "hoodie.datasource.write.precombine.field": made.ordering,
            "hoodie.bulkinsert.sort.mode": "NONE",
            "hoodie.bulkinsert.shuffle.parallelism": str(made.files),
            **TABLE_VERSION,
            **CODEC,
        }
        rows = self._spark.read.parquet(made.source).repartition(made.files)
        rows.write.format("hudi").options(**options).mode("overwrite").save(table)

    def cluster_by(self, table: str, columns: list[str], layout: str, target_bytes: int) -> None:
        given = {**CODEC, **_clustering(target_bytes)}
        if layout != layouts.LINEAR:
            given["hoodie.layout.optimize.strategy"] = layout
        options = ",".join(f"{key}={value}" for key, value in given.items())
        self._spark.sql(
            f"call run_clustering(path => '{table}', op => 'scheduleAndExecute', order => '{','.join(columns)}', options => "
            f"'{options}')"
        ).collect()

    def ask_rows(self, table: str, **query: Any) -> str:
        return layouts.asked(self._load(table), **query)

    def data_files(self, table: str) -> list[str]:
        names = self._load(table).select("_hoodie_partition_path", "_hoodie_file_name").distinct().collect()
        return [str(Path(table) / partition / name) for partition, name in names]

    def warm_up(self, source: str, changes: str, folder: str) -> None:
        """Every kind of call once, on small tables."""
        for kind in ("COPY_ON_WRITE", "MERGE_ON_READ"):
            table = f"{folder}/{kind}"
            self.bulk_insert(table, source, kind)
            self.upsert(table, changes, kind)
            self.read(table)
            if kind == "MERGE_ON_READ":
                self.compact(table)
            else:
                self.cluster(table, 1 << 20)
        self.plain_write(source, f"{folder}/plain")
        self.plain_read(f"{folder}/plain")
        shutil.rmtree(folder)


def _clustering(target_bytes: int) -> dict[str, str]:
    return {"hoodie.clustering.plan.strategy.target.file.max.bytes": str(target_bytes)}


def start(folder: str, bundle: str, memory: str, cores: int) -> SparkSession:
    settings = {
        "spark.driver.memory": memory,
        "spark.driver.extraClassPath": bundle,
        "spark.driver.extraJavaOptions": f"-Duser.timezone=UTC -Djava.io.tmpdir={folder}",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.local.dir": folder,
        "spark.sql.warehouse.dir": str(Path(folder) / "warehouse"),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str(4 * cores),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.serializer": "org.apache.spark.serializer.KryoSerializer",
        "spark.kryo.registrator": "org.apache.spark.HoodieSparkKryoRegistrar",
        "spark.sql.extensions": "org.apache.spark.sql.hudi.HoodieSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.hudi.catalog.HoodieCatalog",
        **{f"spark.{key}": value for key, value in TABLE_VERSION.items()},
    }
    builder = SparkSession.builder.master(f"local[{cores}]").appName("apache-hudi-benchmarks")
    for key, value in settings.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    for key, value in TABLE_VERSION.items():
        session.conf.set(key, value)
    return session


if __name__ == "__main__":
    given = serving.arguments()
    spark = start(given.folder, given.bundle, given.memory, given.cores)
    try:
        serving.serve(ApacheHudi(spark), given.requests, given.replies)
    finally:
        spark.stop()
