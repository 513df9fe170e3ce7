"""Spark jobs that do one piece of Python work per task, and the tag by which the jobs of one write are known."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TypeVar

from pyspark import SparkContext
from pyspark.sql import SparkSession

from tideline_table.errors import Recovery, TidelineError

Item = TypeVar("Item")
Result = TypeVar("Result")


def run_each(context: SparkContext, items: Sequence[Item], work: Callable[[Item], Result]) -> list[Result]:
    """Do `work` for each item in a task of its own; results in order of the items. What one item holds has to fit into a message of Spark.

    Raises the first item's `TidelineError`, and what Spark raises. Errors that may pass are left to Spark's own retries first.
    """
    results: list[Result] = []
    for outcome in context.parallelize(items, max(1, len(items))).map(partial(_outcome, work)).collect():
        if isinstance(outcome, TidelineError):
            raise outcome
        results.append(outcome)
    return results


def _outcome(work: Callable[[Item], Result], item: Item) -> Result | TidelineError:
    try:
        return work(item)
    except TidelineError as error:
        if error.recovery is Recovery.RETRY:
            raise  # Spark tries the task again.
        return error


@contextmanager
def tagged_jobs(spark: SparkSession) -> Iterator[str]:
    """A tag that the jobs of this thread have inside of the context; those that still run are cancelled when it ends by an error."""
    tag, context = f"tideline-{uuid.uuid4().hex}", spark.sparkContext
    context.addJobTag(tag)
    try:
        yield tag
    except BaseException:
        context.cancelJobsWithTag(tag)
        raise
    finally:
        context.removeJobTag(tag)
