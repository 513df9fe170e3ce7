"""Early conflict detection of a write whose files are written by Spark's tasks: what is lost already is not worth finishing."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark import SparkContext
from pyspark.errors import PySparkException

from tideline_table.errors import Recovery, TidelineError
from tideline_table.transaction.write import EARLY_CHECK_S

_LOGGER = logging.getLogger(__name__)


@contextmanager
def ended_when_lost(context: SparkContext, tag: str, check: Callable[[], None]) -> Iterator[None]:
    """Call `check` once a second while the body runs; what it raises ends the jobs under `tag` and is raised in the body's place.

    It is called in a thread of its own, which has ended when this does. A check that may do better the next time is not minded.
    """
    watch = _Watch(context, tag, check)
    try:
        with watch:
            yield
    except (PySparkException, Py4JError) as error:
        if watch.lost is None:
            raise
        raise watch.lost from error
    if watch.lost is not None:
        raise watch.lost


class _Watch:
    def __init__(self, context: SparkContext, tag: str, check: Callable[[], None]) -> None:
        self._context = context
        self._tag = tag
        self._check = check
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="early check", daemon=True)
        self.lost: TidelineError | None = None

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(EARLY_CHECK_S):
            if self.lost is None:
                self.lost = self._look()
            if self.lost is not None:
                # Each time again: Spark may have been between two jobs of the write.
                self._context.cancelJobsWithTag(self._tag)

    def _look(self) -> TidelineError | None:
        try:
            self._check()
        except TidelineError as error:
            if error.recovery is not Recovery.RETRY:
                return error
            _LOGGER.warning("a running write could not be checked for conflicts: %s", error)
        return None
