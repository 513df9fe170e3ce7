"""A Spark job with a known result: squares by Arrow in the executor, summed. It prints one JSON object."""

import json
import socket
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

ROWS = 10_000


def squares(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Return the square of each id, and the host that computed it."""
    host = socket.gethostname()
    for batch in batches:
        ids = batch.column(0)
        yield pa.RecordBatch.from_arrays([pc.multiply(ids, ids), pa.array([host] * len(ids))], ["square", "host"])


def main() -> None:
    spark = SparkSession.builder.appName("smoke").getOrCreate()
    rows = spark.range(0, ROWS, 1, 2).mapInArrow(squares, "square long, host string").groupBy("host").sum("square").collect()
    total = sum(row[1] for row in rows)
    print(json.dumps({"is_right": total == sum(i * i for i in range(ROWS)), "hosts": sorted(row[0] for row in rows)}), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
