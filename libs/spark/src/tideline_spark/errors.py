"""Errors of running on Spark, in Tideline's hierarchy."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException

from tideline_table.errors import Recovery, TidelineError

_PYTHON_ERROR = re.compile(r"^(?!org\.|java\.|Caused|at )[\w.]+(?:Error|Exception|Missing|Exists)\b.*: ")


class JavaNotFound(TidelineError):
    """There is no Java that Spark can run on, and none could be installed."""


class SparkFailed(TidelineError):
    """A Spark job failed for a reason that is not the table's: a lost executor, memory, an error in the source's own code."""

    recovery = Recovery.RETRY


def spark_failure(error: Exception) -> SparkFailed:
    """The failure of a Spark job with its reason in one line: Python's last line where a worker failed, the JVM's first one otherwise."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    in_worker = [line for line in lines if _PYTHON_ERROR.match(line)]
    reason = in_worker[-1] if in_worker else (lines or [type(error).__name__])[0]
    return SparkFailed(
        f"the Spark job failed ({reason})", expected="a finished job; nothing became visible", remedy="see the Spark log"
    )


@contextmanager
def translated() -> Iterator[None]:
    """Spark's errors as Tideline's."""
    try:
        yield
    except (PySparkException, Py4JError) as error:
        raise spark_failure(error) from error
