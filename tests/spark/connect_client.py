"""A client of Spark Connect, with a server of its own: `python -m tests.spark.connect_client TABLE FOLDER` prints JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pyspark.sql import SparkSession

from tideline_spark.data_source import register
from tideline_spark.read import read
from tideline_table.errors import InvalidOption

COLUMNS = "id long, city string, fare double, at long"
TRIPS = {
    "hoodie.table.name": "trips",
    "hoodie.datasource.write.recordkey.field": "id",
    "hoodie.datasource.write.partitionpath.field": "city",
    "hoodie.datasource.write.precombine.field": "at",
}


def run(table: str, folder: Path) -> dict[str, object]:
    """Create, upsert, query and stream into a table at `table`; return what was seen."""
    spark = SparkSession.builder.remote("local[1]").getOrCreate()
    register(spark)
    first = spark.createDataFrame([(1, "ber", 1.0, 1), (2, "ams", 2.0, 1)], COLUMNS)
    first.write.format("tideline").options(**TRIPS).mode("append").save(table)
    second = spark.createDataFrame([(2, "ams", 9.0, 2), (3, "ber", 3.0, 1)], COLUMNS)
    second.write.format("tideline").options(**TRIPS).mode("append").save(table)
    rows = spark.read.format("tideline").load(table).where("fare > 2").orderBy("id")
    seen: dict[str, object] = {"class": type(spark).__module__, "dear": [row["id"] for row in rows.collect()]}
    spark.createDataFrame([(4, "ber", 4.0, 1)], COLUMNS).write.parquet(str(folder / "arrivals"))
    arrivals = spark.readStream.schema(COLUMNS).parquet(str(folder / "arrivals"))
    stream = arrivals.writeStream.format("tideline").option("query_id", "trips").trigger(availableNow=True)
    stream.option("checkpointLocation", str(folder / "checkpoint")).start(table).awaitTermination()
    spark.read.format("tideline").load(table).createOrReplaceTempView("trips")
    seen["total"] = spark.sql("SELECT sum(fare) AS total FROM trips").collect()[0]["total"]
    try:
        read(spark, table)
    except InvalidOption as error:
        seen["refused"] = error.found
    return seen


if __name__ == "__main__":
    print(json.dumps(run(sys.argv[1], Path(sys.argv[2]))))
