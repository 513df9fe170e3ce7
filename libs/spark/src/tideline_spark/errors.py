"""Errors of running on Spark, in Tideline's hierarchy."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException

from tideline_table.errors import Recovery, StorageFull, TidelineError

_PYTHON_ERROR = re.compile(r"^(?!org\.|java\.|Caused|at )[\w.]+(?:Error|Exception|Missing|Exists|Full|Refused)\b.*: ")
_FULL = (os.strerror(errno.ENOSPC), os.strerror(errno.EDQUOT))


class JavaNotFound(TidelineError):
    """No Java that Spark can run on was found."""


class ObjectStoreScanUnavailable(TidelineError):
    """Spark's own scan cannot read tables in the object store: packages are missing, or settings do not fit."""


class BucketTooLarge(TidelineError):
    """A task of a query by buckets would hold more of one bucket in memory than `tideline.spark.bucket.memory.bytes`."""


class SparkFailed(TidelineError):
    """A Spark job failed for a reason outside the table: a lost executor, memory, an error in the code of the source."""

    recovery = Recovery.RETRY


def spark_failure(error: Exception) -> SparkFailed | StorageFull:
    """Return the failure of a Spark job with a one-line reason: Python's last line if a worker failed, else the JVM's first line.

    `StorageFull` if a disk was full: the storage of the table, or the disk of Spark's shuffles and spills.
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    in_worker = [line for line in lines if _PYTHON_ERROR.match(line)]
    reason = in_worker[-1] if in_worker else (lines or [type(error).__name__])[0]
    if full := next((line for line in lines if any(answer in line for answer in _FULL)), ""):
        return StorageFull(
            f"the Spark job failed ({in_worker[-1] if in_worker else full})",
            expected="free space in the table and in spark.local.dir of every executor",
            remedy="free space there, then retry; nothing became visible",
        )
    return SparkFailed(
        f"the Spark job failed ({reason})", expected="a finished job; nothing became visible", remedy="see the Spark log"
    )


@contextmanager
def translated() -> Iterator[None]:
    """Translate Spark's errors into Tideline's."""
    try:
        yield
    except (PySparkException, Py4JError) as error:
        raise spark_failure(error) from error
