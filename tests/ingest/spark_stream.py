"""One driver of a stream from Kafka by Spark's own source into a table, to be killed: `python -m tests.ingest.spark_stream
SETTINGS`.

SETTINGS is JSON: brokers, topic, table, checkpoint, batch_records, jars; and `dies`, the batch and the side of its commit at
which this process kills itself with SIGKILL, or null. Batches that ended are printed, one number a line.
"""

from __future__ import annotations

import json
import os
import signal
import sys

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from tideline_spark.session import local_session, stop_session
from tideline_spark.sink import sink

COLUMNS = "id string, region string, ts bigint, amount double"


def main(text: str) -> None:
    settings = json.loads(text)
    dies = settings["dies"]
    extra = {"spark.jars": ",".join(settings["jars"]), "spark.sql.shuffle.partitions": "1"}
    spark = local_session("stream", 1, extra=extra, short_lived=True)
    write = sink(settings["table"], query_id="trips", operation="insert")

    def batch(rows: DataFrame, number: int) -> None:
        if dies == [number, "before"]:
            os.kill(os.getpid(), signal.SIGKILL)
        write(rows, number)
        print(number, flush=True)
        if dies == [number, "behind"]:
            os.kill(os.getpid(), signal.SIGKILL)

    source = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", settings["brokers"])
        .option("subscribe", settings["topic"])
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", settings["batch_records"])
        .load()
    )
    rows = source.select(f.from_json(f.col("value").cast("string"), COLUMNS).alias("v")).select("v.*")
    started = rows.writeStream.option("checkpointLocation", settings["checkpoint"]).trigger(availableNow=True).foreachBatch(batch)
    started.start().awaitTermination()
    stop_session(spark)


if __name__ == "__main__":
    main(sys.argv[1])
