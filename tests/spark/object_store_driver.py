"""A driver that writes and scans tables in an object store: `python -m tests.spark.object_store_driver SETTINGS`.

SETTINGS is JSON: root, jars, events. Endpoint and credentials are in the environment. It prints one JSON document of what it
saw. It is a process of its own because a JVM takes credentials and class path at its start, and because the session of the
other tests has no S3A.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from tests.plans import schedule_clustering, schedule_compaction
from tests.spark.tables import ROUTED, SCHEMA, content, rows

from tideline_spark.errors import ObjectStoreScanUnavailable
from tideline_spark.invocation import Invocation
from tideline_spark.read import read
from tideline_spark.session import local_session, stop_session
from tideline_spark.write import WriteReport, write_dataframe
from tideline_table.action import TableService
from tideline_table.table import Table, TableRequest, TableType, create_table
from tideline_table.writer import Operation

OPTIONS = {**ROUTED, "hoodie.parquet.small.file.limit": 0}


def rows_of(df: DataFrame) -> list[str]:
    return content(df.toArrow())


def written(spark: SparkSession, path: str, kind: TableType) -> dict[str, Any]:
    """An insert and an upsert, with the keys looked up by Spark's scan; the reads before and after the table service."""
    create_table(path, TableRequest("t", SCHEMA, ("id",), ("region",), "ts", kind))
    table, reports = Table.open(path, options=OPTIONS), list[WriteReport]()
    write_dataframe(table, spark.createDataFrame(rows(0, 40, 1)), Operation.INSERT, on_report=reports.append)
    first = read(spark, table)
    seen: dict[str, Any] = {"inserted": rows_of(first), "files": first.inputFiles()}
    second = write_dataframe(table, spark.createDataFrame(rows(30, 60, 2)), Operation.UPSERT, on_report=reports.append)
    seen["key_scans"] = ["FileScan parquet" in report.plan for report in reports]
    seen["upserted"] = rows_of(read(spark, table))
    seen["optimized"] = rows_of(read(spark, table, read_optimized=True))
    seen["incremental"] = rows_of(read(spark, path.replace("s3://", "s3a://"), since=table.refresh().completed_writes()[0].instant))
    seen["instant"] = second.instant
    service = TableService.CLUSTERING if kind is TableType.COW else TableService.COMPACTION
    instant = (
        schedule_clustering(table)
        if kind is TableType.COW
        else schedule_compaction(table, {"hoodie.compact.inline.max.delta.commits": 1})
    )
    assert instant is not None
    done = subprocess.run(
        [sys.executable, "-m", "tideline_spark.application", *Invocation(service, path, instant, local_cores=1).arguments()],
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    seen["service"] = {"exit_code": done.returncode, "log": done.stderr[-3000:]}
    table.refresh()
    after = read(spark, table)
    seen["serviced"] = {
        "rows": rows_of(after),
        "files": after.inputFiles(),
        "with_logs": sum(bool(s.log_files) for s in table.slices()),
    }
    return seen


def paths_of_spark(spark: SparkSession, root: str) -> dict[str, Any]:
    """What Spark does itself below the root: write, rename as checkpoints do, read."""
    spark.range(5).write.parquet(f"{root}/plain/new")
    path: Any = spark._jvm.org.apache.hadoop.fs.Path
    system = path(root).getFileSystem(spark._jsparkSession.sessionState().newHadoopConf())
    renamed = system.rename(path(f"{root}/plain/new"), path(f"{root}/plain/old"))
    return {"renamed": renamed, "sum": sum(row.id for row in spark.read.parquet(f"{root}/plain/old").collect())}


def refused_credentials(spark: SparkSession, path: str) -> dict[str, Any]:
    """A read and a write that need Spark's scan, in a process with other credentials than its JVM."""
    table = Table.open(path, options=OPTIONS)  # the engine's client keeps the credentials with which it was opened
    os.environ["AWS_SESSION_TOKEN"] = "a-token-of-later"
    said = []
    try:
        for attempt in (
            lambda: read(spark, table).collect(),
            lambda: write_dataframe(table, spark.createDataFrame(rows(0, 5, 9)), Operation.UPSERT),
        ):
            try:
                attempt()
            except ObjectStoreScanUnavailable as error:
                said.append(str(error))
    finally:
        del os.environ["AWS_SESSION_TOKEN"]
    return {"said": said, "pending": len(list(table.refresh().pending())), "rows": content(table.read())}


def main(text: str) -> None:
    settings = json.loads(text)
    extra = {
        "spark.jars": ",".join(settings["jars"]),
        "spark.sql.shuffle.partitions": "2",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": settings["events"],
        "spark.eventLog.compress": "false",
    }
    spark, root = local_session("object-store", 2, extra=extra, short_lived=True), settings["root"]
    try:
        seen: dict[str, Any] = {
            kind.name: written(spark, f"{root}/{kind.name} é%2F", kind) for kind in (TableType.COW, TableType.MOR)
        }
        seen["spark"] = paths_of_spark(spark, root)
        seen["settings"] = json.dumps([spark.sparkContext.getConf().getAll(), spark.sql("SET -v").collect()])
        seen["plan"] = read(spark, f"{root}/COW é%2F")._jdf.queryExecution().toString()
        seen["refused"] = refused_credentials(spark, f"{root}/COW é%2F")
    finally:
        stop_session(spark)
    print(json.dumps(seen))


if __name__ == "__main__":
    main(sys.argv[1])
