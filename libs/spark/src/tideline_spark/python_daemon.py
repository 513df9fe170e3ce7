"""The process from which Spark forks Python workers, with the engine imported once for all of them.

Spark starts it where `spark.python.daemon.module` names it. With Spark's own daemon each worker imports the engine by itself,
about a second of a processor, and again after a minute without tasks, when Spark ends idle workers.
"""

from __future__ import annotations

import gc
import importlib
import sys

from pyspark import daemon

MODULE = "tideline_spark.python_daemon"
SETTINGS = {"spark.python.daemon.module": MODULE}
"""Settings of a Spark application that starts its workers from this module. Its executors must have this package."""
_ENGINE = (
    "pandas",
    "pyarrow.dataset",
    "tideline_spark.bucket_query",
    "tideline_spark.clustering",
    "tideline_spark.data_source",
    "tideline_spark.read",
    "tideline_spark.small_source",
    "tideline_spark.write",
)
"""Modules with all that tasks use, and what Spark imports for Arrow batches. None may print, because Spark reads the daemon's
port from its output, or start a Python thread."""


def main() -> None:
    """Import the engine and Spark's worker, and serve as Spark's daemon does."""
    # Spark passes the module of the worker, and names other ones for the workers of data sources.
    for name in (*sys.argv[1:], *_ENGINE):
        importlib.import_module(name)
    # A worker collects garbage after each task. Objects that are frozen are not looked at, and their memory stays shared.
    gc.collect()
    gc.freeze()
    daemon.manager()


if __name__ == "__main__":
    main()
