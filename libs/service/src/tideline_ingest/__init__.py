"""`tideline-ingest`: Kafka topics into a table, exactly once.

The offsets that a commit has taken in stand in its metadata and are checked at its commit point; there is no other state. What runs on Spark
(`tideline_spark.sink`) does not belong here: batches are bounded, so their rows never need another machine.
"""
