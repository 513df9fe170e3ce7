"""Runs queries on Spark 3.5 with Apache Hudi and a Hive metastore: `read_by_name.py BUNDLE METASTORE QUERY…` prints JSON rows.

Runs in the virtual environment of the peer, so it imports nothing of this project.
"""

import json
import sys
import tempfile

from pyspark.sql import SparkSession

bundle, metastore, *queries = sys.argv[1:]
settings = {
    "spark.jars": bundle,
    "spark.driver.memory": "1g",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.catalogImplementation": "hive",
    "spark.sql.warehouse.dir": tempfile.mkdtemp(),
    "spark.hadoop.hive.metastore.uris": metastore,
    "spark.serializer": "org.apache.spark.serializer.KryoSerializer",
    "spark.kryo.registrator": "org.apache.spark.HoodieSparkKryoRegistrar",
    "spark.sql.extensions": "org.apache.spark.sql.hudi.HoodieSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.hudi.catalog.HoodieCatalog",
}
builder = SparkSession.builder.master("local[1]")
for name, value in settings.items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()
for query in queries:
    print("rows " + json.dumps([list(row) for row in spark.sql(query).collect()]))
spark.stop()
