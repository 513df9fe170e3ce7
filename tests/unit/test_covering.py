"""Which combinations of parameters tests take instead of all."""

from __future__ import annotations

import itertools

import pytest
from tests.simulation import faults
from tests.simulation.faults import covering

AXES = ("abc", range(7), (True, False))


@pytest.mark.parametrize("strength", [1, 2])
def test_each_combination_of_so_many_values_is_there_and_few_rows_are(strength: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faults, "SAMPLE_STEP", 8)
    rows = covering(strength, *AXES)
    for chosen in itertools.combinations(range(len(AXES)), strength):
        wanted = set(itertools.product(*(AXES[n] for n in chosen)))
        assert {tuple(row[n] for n in chosen) for row in rows} == wanted
    assert len(rows) <= {1: 7, 2: 24}[strength]


def test_all_of_them_nightly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faults, "SAMPLE_STEP", 1)
    assert covering(1, *AXES) == list(itertools.product(*AXES))
