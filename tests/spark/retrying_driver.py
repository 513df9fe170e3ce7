"""Run the pending clustering of a table on a local Spark that repeats failed tasks: `python -m tests.spark.retrying_driver
PATH`."""

from __future__ import annotations

import json
import sys

from tests.spark.dying_tasks import dying

from tideline_spark.application import cluster_tasks
from tideline_spark.plan_run import Termination
from tideline_spark.session import local_session, stop_session
from tideline_table.action import run_clustering
from tideline_table.table import Table

ATTEMPTS = 3


def main(path: str, split_bytes: str) -> None:
    """Let the writer of the second file die in its first attempt."""
    # `local[2]` would not repeat a task.
    spark = local_session("retries", 2, extra={"spark.master": f"local[2,{ATTEMPTS}]"}, short_lived=True)
    try:
        assert spark.sparkContext.master == f"local[2,{ATTEMPTS}]"
        table = Table.open(path, options={"tideline.clustering.split.group.bytes": split_bytes})
        done = run_clustering(table, run=lambda tasks: cluster_tasks(spark, [dying(t, 1) for t in tasks], Termination()))
        assert done is not None
        print(json.dumps({"files": [s.path for s in done.stats], "rows": sum(s.num_writes for s in done.stats)}))
    finally:
        stop_session(spark)


if __name__ == "__main__":
    main(*sys.argv[1:])
