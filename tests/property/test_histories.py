"""Random histories on copy-on-write, merge-on-read and compacted tables, and replicas fed by changes: `make histories` tries
many more."""

import subprocess
import sys

import pytest
from tests.histories.history import History, Model, Step, Version, draw
from tests.histories.replay import replay


def of(*steps: tuple[str, tuple[Version, ...]]) -> tuple[Step, ...]:
    """Steps of upserts and deletions with the rows that they leave."""
    model, made = Model(by_time=True, is_global=False), []
    for kind, versions in steps:
        (model.upsert if kind == "upsert" else model.delete)(versions)
        made.append(Step(kind, versions, rows=dict(model.rows)))
    return tuple(made)


FIRST = Version("a", "p", 4, "first"), Version("b", "p", 4, "other"), Version("c", "p", 4, "third")
LATE = Version("a", "p", 1, "late")
CASES = {
    "a late row behind a deletion by key": of(("upsert", FIRST), ("delete", (LATE,)), ("upsert", (LATE,))),
    "a late row behind a flagged deletion": of(
        ("upsert", FIRST), ("upsert", (Version("a", "p", 4, "", deleted=True),)), ("upsert", (LATE,))
    ),
    "late deletions, one without an ordering value": of(
        ("upsert", FIRST),
        (
            "upsert",
            (
                Version("a", "p", None, "", deleted=True),
                Version("b", "p", 1, "", deleted=True),
                Version("c", "p", 4, "", deleted=True),
            ),
        ),
    ),
    "a late deletion by zero": of(("upsert", FIRST), ("upsert", (Version("a", "p", 2, "", deleted=True),))),
}


@pytest.mark.parametrize("ordering", ["int8", "int16", "int32", "int64", "date", "time32", "float64", "timestamp_us", "text"])
@pytest.mark.parametrize("case", CASES)
def test_what_tables_showed_wrongly(case, ordering):
    replay(History(0, ordering, "", CASES[case]))


@pytest.mark.parametrize("seed", range(1, 21))
def test_histories(seed):
    replay(draw(seed))


def test_the_long_run_replays_histories_in_processes_of_its_own():
    """`make histories`. Its processes once ended at their start, for ever."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.histories", "--runs", "2", "--seed", "1", "--jobs", "1"],
        capture_output=True,
        text=True,
        check=False,
        timeout=540,
    )
    assert done.returncode == 0, done.stderr
    assert "2 histories in " in done.stdout
    assert " 0 differ (" in done.stdout
