"""Session settings that hold for the moment in which a plan is made."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from pyspark.sql import SparkSession

KNOWN_FILES = {"spark.sql.sources.parallelPartitionDiscovery.threshold": str(2**31 - 1)}
"""We name every file; by default Spark starts a job to look at more than 32."""
_PLANNING = threading.Lock()
"""Threads share the settings of a session."""


@contextmanager
def planning_settings(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Have `settings` in the session until the context ends, then what was there before."""
    with _PLANNING:
        before = {key: spark.conf.get(key, None) for key in settings}
        try:
            for key, value in settings.items():
                spark.conf.set(key, value)
            yield
        finally:
            for key, old in before.items():
                if old is None:
                    spark.conf.unset(key)
                else:
                    spark.conf.set(key, old)
