"""Spark jobs that do one piece of Python work per task, and the tag that identifies the jobs of one write."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TypeVar

from pyspark import SparkContext
from pyspark.sql import SparkSession

from tideline_table.errors import Recovery, TidelineError

Item = TypeVar("Item")
Result = TypeVar("Result")


def run_each(context: SparkContext, items: Sequence[Item], work: Callable[[Item], Result], tasks: int = 0) -> list[Result]:
    """Run `work` for each item in a task of its own, or in so many `tasks`; return results in order of the items.

    Each item must fit into a Spark message.

    Raises the `TidelineError` of the first item that has one, and what Spark raises. Spark retries transient errors before that.
    """
    return results_of(context.parallelize(items, tasks or max(1, len(items))).map(partial(_outcome, work)).collect())


def _outcome(work: Callable[[Item], Result], item: Item) -> Result | TidelineError:
    return outcome_of(partial(work, item))


def results_of(outcomes: Iterable[Result | TidelineError]) -> list[Result]:
    """Return the results among outcomes of tasks. Raises the first error."""
    results: list[Result] = []
    for outcome in outcomes:
        if isinstance(outcome, TidelineError):
            raise outcome
        results.append(outcome)
    return results


def outcome_of(work: Callable[[], Result]) -> Result | TidelineError:
    """Return what `work` returns or its error, a plain value for the driver.

    Raises errors that a retry may cure: Spark retries the task.
    """
    try:
        return work()
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
