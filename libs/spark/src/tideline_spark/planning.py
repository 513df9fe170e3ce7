"""Session settings that apply only while a plan is made."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from pyspark.sql import SparkSession

_KNOWN_FILES = {"spark.sql.sources.parallelPartitionDiscovery.threshold": str(2**31 - 1)}
_PLANNING = threading.Lock()
"""Held while settings are changed, because threads share the settings of a session."""


def known_files(root: str) -> dict[str, str]:
    """Return settings for a scan that names every file below `root`.

    By default Spark starts a job to check more than 32 paths. On disks the driver alone is faster; in an object store each
    check is a request.
    """
    return _KNOWN_FILES if root.startswith("file:") else {}


def write_settings(root: str, *, broadcasts_keys: bool) -> dict[str, str]:
    """Return settings for the plan of a write into a table at `root`, which broadcasts the keys of the table or shuffles them."""
    # Spark's runtime Bloom filter would evaluate the source a second time to prune the table's keys.
    settings = {**known_files(root), "spark.sql.optimizer.runtime.bloomFilter.enabled": "false"}
    if not broadcasts_keys:
        # Adaptive execution runs each exchange as a separate job: four jobs with a shuffled look-up.
        settings["spark.sql.adaptive.enabled"] = "false"
    return settings


@contextmanager
def planning_settings(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Apply `settings` to the session until the context ends, then restore the previous values."""
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
