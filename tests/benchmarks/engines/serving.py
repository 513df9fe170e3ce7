"""What the processes of all engines share: JSON lines in on one descriptor, JSON lines out on another, one timed call each.

Runs under two Pythons (this repository's and the peer's), so it imports the standard library only. A request is
`{"command", ...arguments}`; a reply `{"value", "seconds"}` or `{"error"}`. The end of the requests ends the process.
"""

from __future__ import annotations

import argparse
import json
import os
import time
import traceback
from typing import Any

COLUMNS = (
    "l_orderkey", "l_partkey", "l_suppkey", "l_linenumber", "l_quantity", "l_extendedprice", "l_discount", "l_tax", "l_returnflag",
    "l_linestatus", "l_shipdate", "l_commitdate", "l_receiptdate", "l_shipinstruct", "l_shipmode", "l_comment", "l_version",
)  # fmt: skip
VERSION_VARIABLE = "TIDELINE_BENCHMARK_TABLE_VERSION"
TABLE_VERSION = os.environ.get(VERSION_VARIABLE, "6")
KEY = ("l_orderkey", "l_linenumber")
PARTITION = "l_shipmode"
ORDERING = "l_version"
SORT_COLUMN = "l_shipdate"
CHECKSUM = ("count(1)", f"cast(sum(cast(xxhash64({', '.join(COLUMNS)}) as decimal(38, 0))) as string)")
"""Row count and the sum of all rows' hashes: equal for equal sets of rows, on Spark 3.5 and 4."""
RANGE = "l_shipdate >= date '1995-03-01' and l_shipdate < date '1995-03-08'"
RANGE_RESULT = "cast(sum(l_extendedprice * (1 - l_discount)) as string) as revenue"
PARTITIONS = 7
CODEC = "snappy"


class Refused(Exception):
    """What an engine cannot do; told as it is."""


def checksum(frame: Any) -> list[Any]:
    """`CHECKSUM` of a Spark DataFrame with lineitem's columns."""
    row = frame.selectExpr(*CHECKSUM).first()
    return [int(row[0]), str(row[1])]


def consume(frame: Any) -> None:
    """Make every column of every row, and throw it away."""
    frame.select(*COLUMNS).write.format("noop").mode("overwrite").save()


def plain_write(spark: Any, source: str, target: str) -> None:
    """Spark's own Parquet writer behind the exchange that a table write with one file per partition needs."""
    rows = spark.read.parquet(source).repartition(PARTITION)
    rows.write.partitionBy(PARTITION).option("compression", CODEC).parquet(target)


def serve(engine: Any, requests: int, replies: int) -> None:
    """Answer until the requests end. `seconds` covers the call and nothing else."""
    with os.fdopen(requests, encoding="utf-8") as lines, os.fdopen(replies, "w", encoding="utf-8") as answers:
        for line in lines:
            arguments = json.loads(line)
            command = arguments.pop("command")
            began = time.perf_counter()
            try:
                value = getattr(engine, command)(**arguments)
                answer = {"value": value, "seconds": time.perf_counter() - began}
            except Exception as error:  # noqa: BLE001 - whatever fails here is the answer
                traceback.print_exc()
                answer = {"error": f"{type(error).__name__}: {error}"[:2000]}
            answers.write(json.dumps(answer) + "\n")
            answers.flush()


def arguments() -> argparse.Namespace:
    """What `link.EngineLink` passes."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--requests", type=int, required=True)
    parser.add_argument("--replies", type=int, required=True)
    parser.add_argument("--folder", required=True, help="for temporary files")
    parser.add_argument("--memory", default="2g", help="heap of a JVM")
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--bundle", default="", help="Apache Hudi's jar")
    return parser.parse_args()
