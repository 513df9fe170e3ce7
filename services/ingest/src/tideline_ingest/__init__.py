"""`tideline-ingest`: ingests Kafka topics into a table, exactly once.

The offsets that a commit covers are stored in its metadata and checked at its commit point. There is no other state. Ingestion on
Spark (`tideline_spark.sink`) is separate: batches here are bounded, so one process can hold their rows.
"""

from tideline_table.extras import extra

with extra("kafka"):
    import confluent_kafka
