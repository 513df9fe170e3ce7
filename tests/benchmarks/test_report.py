"""What a run's numbers mean: ratios are of pairs, void numbers give none, a wrong result voids its number."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.benchmarks.lineitem import Lineitem
from tests.benchmarks.report import markdown, results
from tests.benchmarks.run import Measured, Run, Sample
from tests.benchmarks.works import HUDI, SPARK

ROWS = Lineitem(0.01, Path("base"), {}, 60_175, 1_000, (1, 1))


def measured() -> Measured:
    found = Measured()
    found.samples["upsert_one", HUDI] = [Sample(1, 10.0, 20.0), Sample(2, 40.0, 20.0), Sample(3, 12.0, 24.0)]
    # The second repetition of Tideline failed: its peer has no partner.
    found.samples["upsert_one", SPARK] = [Sample(1, 2.0, 4.0), Sample(3, 4.0, 6.0)]
    return found


def test_ratios_are_of_the_same_repetition() -> None:
    assert measured().ratios("upsert_one", HUDI, SPARK) == [5.0, 3.0]
    assert measured().ratios("upsert_one", HUDI, SPARK, cpu=True) == [5.0, 4.0]


@pytest.mark.parametrize("name", [HUDI, SPARK])
def test_a_void_number_gives_no_ratio_and_is_told(name: str) -> None:
    found = measured()
    found.void["upsert_one", name] = "wrong result"
    assert found.ratios("upsert_one", HUDI, SPARK) == []
    assert found.seconds("upsert_one", name) == []
    told = results(found, None, ROWS, {}, {"repetitions": 3})
    (work,) = (w for w in told["works"] if w["key"] == "upsert_one")
    assert work["engines"][name] == {"void": "wrong result"}
    assert work["ratio_to_hudi"] == {}
    assert "| wrong result |" in markdown(told)


def test_a_result_that_differs_voids_the_number() -> None:
    said: list[str] = []
    run = Run(ROWS, Path(), {}, {}, {}, 1.0, said.append, measured=measured())
    run._expect("upsert_one", SPARK, [60_175, "1"], [60_175, "1"])
    assert run.measured.void == {}
    run._expect("upsert_one", SPARK, [60_175, "1"], [60_175, "2"])
    assert "wrong result" in run.measured.void["upsert_one", SPARK]
    assert said


def test_everybody_is_first_once() -> None:
    run = Run(ROWS, Path(), {}, {}, {}, 1.0, print)
    assert {run._in_turn("abc")[0] for _ in range(3)} == {"a", "b", "c"}
