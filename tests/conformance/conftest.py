"""The peers of the conformance suite, one Spark process for the whole session."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.conformance.peers.apache_hudi import ApacheHudi


@pytest.fixture(scope="session")
def apache_hudi() -> Iterator[ApacheHudi]:
    """The real Apache Hudi; see `peers/environment.py` for what it needs."""
    with ApacheHudi() as peer:
        yield peer


@pytest.fixture
def workdir(tmp_path: Path) -> Path:
    """A folder of the test's own for tables."""
    return tmp_path


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks what needs the Spark process, so that `-m "not spark"` leaves it alone."""
    for item in items:
        if "apache_hudi" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.spark)
