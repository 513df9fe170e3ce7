"""Early conflict detection for a write by Spark tasks: a write that has already lost a conflict is cancelled."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark import SparkContext
from pyspark.errors import PySparkException

from tideline_table.action import EARLY_CHECK_S
from tideline_table.errors import Recovery, TidelineError

_LOGGER = logging.getLogger(__name__)


@contextmanager
def ended_when_lost(context: SparkContext, tag: str, check: Callable[[], None]) -> Iterator[None]:
    """Call `check` once a second while the body runs. An error that it raises cancels the jobs under `tag` and is raised here.

    A separate thread calls it and ends before this context does. An error that a retry may cure is only logged.
    """
    ended = threading.Event()
    lost: list[TidelineError] = []

    def watch() -> None:
        while not ended.wait(EARLY_CHECK_S):
            if not lost:
                try:
                    check()
                except TidelineError as error:
                    if error.recovery is not Recovery.RETRY:
                        lost.append(error)
                    else:
                        _LOGGER.warning("a running write could not be checked for conflicts: %s", error)
            if lost:
                # Cancel repeatedly: Spark may be between two jobs of the write.
                context.cancelJobsWithTag(tag)

    thread = threading.Thread(target=watch, name="early check", daemon=True)
    thread.start()
    try:
        try:
            yield
        finally:
            ended.set()
            thread.join()
    except (PySparkException, Py4JError) as error:
        if not lost:
            raise
        raise lost[0] from error
    if lost:
        raise lost[0]
