"""Errors of running on Spark, in Tideline's hierarchy."""

from __future__ import annotations

from tideline_table.errors import Recovery, TidelineError


class JavaNotFound(TidelineError):
    """There is no Java that Spark can run on, and none could be installed."""


class SparkFailed(TidelineError):
    """A Spark job failed for a reason that is not the table's: a lost executor, memory, an error in the source's own code."""

    recovery = Recovery.RETRY
