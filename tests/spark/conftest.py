"""One Spark session for all tests of this folder."""

from __future__ import annotations

import logging
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.spark.tables import Tables

from tideline_spark.session import local_session, stop_session


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.spark)


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    """Take back what an application that runs in this process sets for the whole of it: handlers of its log and of SIGTERM."""
    root, handler = logging.getLogger(), signal.getsignal(signal.SIGTERM)
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    signal.signal(signal.SIGTERM, handler)


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    session = local_session("tests", 2, extra={"spark.sql.shuffle.partitions": "2"}, short_lived=True)
    yield session
    stop_session(session)


@pytest.fixture
def tables(tmp_path: Path) -> Tables:
    return Tables(tmp_path)
