"""A Spark session on this machine, for laptops, tests and table services on small tables."""

from __future__ import annotations

import tideline_spark.requirement  # noqa: F401 isort: skip - before PySpark

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from pyspark import SparkContext
from pyspark.sql import SparkSession

from tideline_spark.hadoop_s3 import local_packages, session_settings
from tideline_spark.java import find_java
from tideline_spark.python_daemon import SETTINGS as DAEMON_SETTINGS
from tideline_table.errors import InvalidOption

ARROW_BATCH_ROWS = 65_536
"""Rows per Arrow batch between the JVM and Python; Spark's default of 10,000 costs about 5 %."""
_SHORT_LIVED = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-XX:ReservedCodeCacheSize=240m", "-XX:MetaspaceSize=256m")
"""JVM options for short runs: eight small upserts on one core took 21 s of JVM time instead of 37 s.

With one compiler, a JVM has room for 48 MB of code by default. Queries and writes fill it within minutes, and the JVM then throws
code away that it compiles again. It also collects all garbage each time that the classes of Spark outgrow a limit, at first 21 MB.
"""
_STOP_TIMEOUT_S = 30.0
_LOG4J = Path(__file__).with_name("log4j2.properties")
_LOOPBACK = "127.0.0.1"


def local_session(
    app_name: str,
    cores: int | str = "*",
    memory: str = "1g",
    extra: Mapping[str, str] | None = None,
    *,
    short_lived: bool = False,
    with_s3: bool = False,
) -> SparkSession:
    """Start a session of `cores` threads in one JVM with a heap of `memory`, on the loopback interface, in UTC, with Arrow, no UI.

    `extra` is additional configuration. With `short_lived` the JVM compiles faster and optimizes less, for work of a minute or
    less. With `with_s3` Spark resolves Hadoop's S3 file system at its start, unless it is among Spark's jars (13 MB, see
    `hadoop_s3`). Object stores get settings and credentials of the variables `AWS_*` at this moment. End the session with
    `stop_session`, which leaves no process behind. Raises `JavaNotFound`, and `ObjectStoreScanUnavailable` if the version of
    Hadoop is unknown.
    """
    os.environ["JAVA_HOME"] = str(find_java())
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = _LOOPBACK
    threads = (os.cpu_count() or 1) if cores == "*" else int(cores)
    settings = {
        "spark.driver.memory": memory,
        "spark.driver.host": _LOOPBACK,
        "spark.driver.bindAddress": _LOOPBACK,
        "spark.driver.extraJavaOptions": " ".join(
            [f"-Dlog4j2.configurationFile={_LOG4J.as_uri()}", "-Duser.timezone=UTC", *(_SHORT_LIVED if short_lived else ())]
        ),
        "spark.log.level": "ERROR",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.execution.arrow.maxRecordsPerBatch": str(ARROW_BATCH_ROWS),
        "spark.sql.shuffle.partitions": str(4 * threads),
        **DAEMON_SETTINGS,
        **session_settings(),
        **(extra or {}),
    }
    for key, value in (local_packages() if with_s3 else {}).items():
        settings[key] = ",".join(filter(None, [settings.get(key), value]))
    builder = SparkSession.builder.master(f"local[{cores}]").appName(app_name)
    for key, value in settings.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def is_connect(spark: SparkSession) -> bool:
    """Return whether a session is one of Spark Connect, whose JVM is out of reach."""
    return type(spark).__module__.startswith("pyspark.sql.connect.")


def use_this_python(spark: SparkSession) -> None:
    """Let Python workers on this machine run the interpreter of this process, unless the user has chosen one.

    Spark's default is the first `python3` on PATH, which may lack this package. A cluster's workers have their own interpreter.
    Raises `InvalidOption` for a session of Spark Connect, in which only the data source works.
    """
    if is_connect(spark):
        raise InvalidOption(
            "a session of Spark Connect",
            expected="a session whose JVM this process talks to",
            remedy='spark.read.format("tideline") and df.write.format("tideline") work in both',
        )
    context = spark.sparkContext
    chosen = "PYSPARK_PYTHON" in os.environ or context.getConf().contains("spark.pyspark.python")
    if not chosen and (context.master or "").startswith("local"):
        context.pythonExec = sys.executable


def is_running() -> bool:
    """Return whether the JVM of the session runs, as far as this process can know: spark-submit watches one that it started."""
    launched = getattr(SparkContext._gateway, "proc", None)  # noqa: SLF001 - see stop_session
    return SparkContext._gateway is not None and (launched is None or launched.poll() is None)  # noqa: SLF001


def stop_session(spark: SparkSession) -> None:
    """Stop the session and, if this process started its JVM, end the JVM and wait for it. Safe to repeat."""
    gateway = SparkContext._gateway  # noqa: SLF001 - PySpark has no public way to end the JVM that it started
    if gateway is None:
        return
    launched: subprocess.Popen[bytes] | None = getattr(gateway, "proc", None)
    if launched is None or launched.poll() is None:
        spark.stop()
    if launched is None:
        return  # spark-submit started the JVM and ends it
    gateway.shutdown()
    SparkContext._gateway = None  # noqa: SLF001
    SparkContext._jvm = None  # noqa: SLF001
    if launched.stdin is not None:
        launched.stdin.close()
    try:
        launched.wait(_STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        launched.kill()
        launched.wait()
