"""Counts against their ceilings: what is said when one rose or fell, and what each count counts."""

from __future__ import annotations

import pytest
from scripts import check_ceilings
from scripts.check_ceilings import main

FILE = "# why\n[ceilings]\nlines = 1000\ndoors = 7\n\n[steps]\nlines = 500\n"


@pytest.fixture
def file(tmp_path):
    (tmp_path / "ceilings.toml").write_text(FILE)
    return tmp_path / "ceilings.toml"


@pytest.mark.parametrize(
    "counts", [{"lines": 1001, "doors": 7}, {"lines": 3, "doors": 8}, {"lines": 3}, {"lines": 3, "doors": 1, "new": 0}]
)
def test_a_count_that_rose_or_is_not_in_the_file_is_an_error(file, counts, capsys):
    assert main([], file, counts) == 1
    said = capsys.readouterr().err
    assert "ceiling" in said
    assert ("doors is 8, its ceiling 7" in said) == (counts.get("doors") == 8)


def test_a_count_that_fell_is_told_and_written_down_if_wanted(file, capsys):
    assert main([], file, {"lines": 501, "doors": 7}) == 0
    assert capsys.readouterr().out == ""
    assert main([], file, {"lines": 500, "doors": 5}) == 0
    assert "doors fell: its ceiling can be 5 instead of 7" in capsys.readouterr().out
    assert file.read_text() == FILE
    assert main(["--lower"], file, {"lines": 500, "doors": 5}) == 0
    assert file.read_text() == FILE.replace("1000", "500").replace("7", "5")
    assert main([], file, {"lines": 500, "doors": 6}) == 1


ENGINE = "libs/table/src/tideline_table"


@pytest.mark.parametrize(
    ("count", "expected"),
    [("product_lines", 7), ("long_lines", 2), ("questions_for_the_kind_of_table", 2), ("files_that_name_a_service", 2)],
)
def test_what_is_counted(count, expected):
    texts = {
        f"{ENGINE}/action/clean/run.py": "TableService.CLEAN\n",
        f"{ENGINE}/action/clean/plan.py": "TableService.CLUSTERING\n",
        "services/planner/src/tideline_planner/tick.py": "TableService.CLEAN\nif t.is_shared or t.has_log or t.has_logs:\n",
        f"{ENGINE}/table/facade.py": "self.is_exclusive\n",
        f"{ENGINE}/coordination/timeline.py": "self.is_exclusive\n" + "x" * 133,
        "tests/unit/test_clean.py": "TableService.CLEAN; t.is_shared  # " + "x" * 132,
    }
    assert getattr(check_ceilings, count)(texts) == expected
