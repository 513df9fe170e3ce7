"""Fixtures of tests of tables."""

import pytest

from tideline_table.storage import DataPath


@pytest.fixture
def unrecorded_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read files as those of writers whose commits say nothing about them: a test may replace a file."""
    monkeypatch.setattr(DataPath, "ranges", ())
