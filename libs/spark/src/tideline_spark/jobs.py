"""Spark jobs that do one piece of Python work per task, and the tag that identifies the jobs of one write."""

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
    """Run `work` for each item in a separate task; return results in order of the items. Each item must fit into a Spark message.

    Raises the `TidelineError` of the first item that has one, and what Spark raises. Spark retries transient errors before that.
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
            raise  # Spark retries the task.
        return error


@contextmanager
def tagged_jobs(spark: SparkSession) -> Iterator[str]:
    """Tag the jobs that this thread starts inside the context, and cancel those still running if it ends with an error."""
    tag, context = f"tideline-{uuid.uuid4().hex}", spark.sparkContext
    context.addJobTag(tag)
    try:
        yield tag
    except BaseException:
        context.cancelJobsWithTag(tag)
        raise
    finally:
        context.removeJobTag(tag)
