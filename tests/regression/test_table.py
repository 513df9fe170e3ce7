"""docs/field-notes.md names every regression test, and nothing else."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.regression import test_beside_clustering, test_field_notes

TABLE = Path(__file__).parents[2] / "docs" / "field-notes.md"
ROW = re.compile(r"^\| .+ \| (?P<threads>.+) \| `(?P<test>test_\w+)` \|$", re.MULTILINE)


def rows() -> list[tuple[str, str]]:
    return [(row["threads"], row["test"]) for row in ROW.finditer(TABLE.read_text())]


def test_the_table_names_every_test_once() -> None:
    tests = [name for module in (test_field_notes, test_beside_clustering) for name in vars(module) if name.startswith("test_")]
    assert sorted(name for _, name in rows()) == sorted(tests)


@pytest.mark.parametrize(("threads", "name"), rows())
def test_names_carry_their_threads(threads: str, name: str) -> None:
    numbers = re.findall(r"(?:#|PR |HUDI-|RFC-)(\d+)", threads)
    assert [n for n in numbers if n not in re.findall(r"\d+", name)] == []
