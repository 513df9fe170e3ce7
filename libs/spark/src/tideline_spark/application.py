"""Table services as Spark applications.

`python -m tideline_spark.application clustering|compaction|logcompaction --table PATH --instant INSTANT`.

`several --plan JSON --plan JSON` runs several plans of any tables one after the other, so that Spark starts once. The plan on
the timeline defines the work. Tasks carry paths and options; rows enter the JVM only as bytes, when the ranges of a large
clustering group are exchanged. Running a completed plan again succeeds without doing anything. Logs are JSON lines on stderr.
"""

# ruff: noqa: D102 - the port documents these methods

from __future__ import annotations

import tideline_spark.requirement  # noqa: F401 isort: skip - before PySpark

import os
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tideline_spark.clustering import cluster_on_executors
from tideline_spark.errors import spark_failure
from tideline_spark.invocation import ExitCode
from tideline_spark.jobs import run_each
from tideline_spark.plan_run import Result, Task, Terminated, Termination, log_json_lines, run_application
from tideline_spark.python_daemon import SETTINGS as DAEMON_SETTINGS
from tideline_spark.session import is_running, local_session, stop_session
from tideline_table.action import ClusteredGroup, ClusteringTask

_CANCEL_INTERVAL_S = 0.5


def run_tasks(spark: SparkSession, tasks: Sequence[Task], termination: Termination, work: Callable[[Task], Result]) -> list[Result]:
    """Run `work` for each task on an executor; return results in order of the tasks. Errors as `run_job`."""
    return run_job(spark, termination, lambda context: run_each(context, tasks, work))


def cluster_tasks(spark: SparkSession, tasks: Sequence[ClusteringTask], termination: Termination) -> list[ClusteredGroup]:
    """Run clustering groups on executors, a large group as several tasks; return results in order of the groups.

    Errors as `run_job`.
    """
    return run_job(spark, termination, lambda context: cluster_on_executors(context, tasks))


def run_job(spark: SparkSession, termination: Termination, job: Callable[[SparkContext], list[Result]]) -> list[Result]:
    """Return what `job` returns.

    Raises the first task's `TidelineError`, `SparkFailed`, or `Terminated` (the tasks are cancelled).
    """
    context = spark.sparkContext

    # In a separate thread: a signal that interrupts a call would leave its response for the next call of the same thread.
    with ThreadPoolExecutor(1, thread_name_prefix="spark-job") as pool:
        running = pool.submit(job, context)
        try:
            with termination:
                return running.result()
        except Terminated:
            while not running.done():
                context.cancelAllJobs()  # repeated: the job may not have begun at the first cancellation
                wait([running], _CANCEL_INTERVAL_S)
            raise
        except (PySparkException, Py4JError) as error:
            termination.check()  # A signal to the whole process group ends the JVM too.
            raise spark_failure(error) from error


@dataclass(slots=True)
class SparkOnDemand:
    """Implements `TaskRunner` with the Spark session of this process, started when a plan first needs it."""

    title: str
    local_cores: int
    _session: SparkSession | None = field(default=None, repr=False)

    def get(self) -> SparkSession:
        """Return the session."""
        if self._session is None:
            self._session = self._started()
        return self._session

    def start(self) -> None:
        self.get()

    def run(self, tasks: Sequence[Task], termination: Termination, work: Callable[[Task], Result]) -> list[Result]:
        return run_tasks(self.get(), tasks, termination, work)

    def cluster(self, tasks: Sequence[ClusteringTask], termination: Termination) -> list[ClusteredGroup]:
        return cluster_tasks(self.get(), tasks, termination)

    def is_lost(self) -> bool:
        """Return whether the session was started and its JVM has ended since."""
        return self._session is not None and not is_running()

    def stop(self) -> None:
        """Stop the session if it was started."""
        if self._session is not None:
            stop_session(self._session)

    def _started(self) -> SparkSession:
        if "PYSPARK_GATEWAY_PORT" in os.environ and not self.local_cores:
            builder = SparkSession.builder.appName(f"tideline {self.title}")  # started by spark-submit
            return builder.config(map=dict(DAEMON_SETTINGS)).getOrCreate()
        return local_session(f"tideline {self.title}", self.local_cores or "*", short_lived=True)


def main(arguments: Sequence[str] | None = None) -> ExitCode:
    """Run one plan, or several."""
    log_json_lines()
    termination = Termination()
    termination.listen()
    return run_application(arguments, termination, SparkOnDemand)


if __name__ == "__main__":
    sys.exit(main())
