"""Python workers of a session start with the engine, and are replaced when they end."""

from __future__ import annotations

import gc
import os
import sys

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession


def test_workers_start_with_the_engine(spark: SparkSession) -> None:
    # Only the daemon freezes what it imported.
    found = spark.sparkContext.parallelize([0], 1).map(lambda _: (gc.get_freeze_count(), "tideline_table.action" in sys.modules))
    ((frozen, is_loaded),) = found.collect()
    assert frozen > 0
    assert is_loaded


def test_a_worker_that_ends_is_replaced(spark: SparkSession) -> None:
    context = spark.sparkContext
    with pytest.raises(Py4JJavaError, match="worker"):
        context.parallelize([0], 1).map(lambda _: os._exit(1)).collect()
    assert context.parallelize([1, 2], 2).map(lambda number: number + 1).collect() == [2, 3]
