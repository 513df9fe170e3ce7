"""What a commit costs does not grow with the table: calls of Python functions, requests, bytes, over an interval of checkpoints."""

from __future__ import annotations

import cProfile
import pstats

import pytest
from tests.benchmarks import large_tables

from tideline_table.table import TableType

SMALL, LARGE = 10, 10_000
COMMITS = 27
"""More than the commits between two checkpoints: two entries each, a checkpoint every 50."""


@pytest.mark.parametrize("table_type", TableType)
def test_a_commit_costs_the_same_beside_10_and_10000_file_groups(table_type: TableType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_tables, "UPSERTS", COMMITS)
    monkeypatch.setattr(large_tables, "WARM", COMMITS)
    costs = {groups: costs_of(table_type, groups, monkeypatch) for groups in (SMALL, LARGE)}
    for name, small in costs[SMALL].items():
        assert costs[LARGE][name] <= 1.1 * small, (name, costs)


def costs_of(table_type: TableType, groups: int, monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    profile, write = cProfile.Profile(), large_tables.write_rows
    done = 0

    def counted(*given: object) -> None:
        nonlocal done
        done += 1
        if done <= 1 + COMMITS:  # the first one makes the group that the others write
            write(*given)
        else:
            profile.runcall(write, *given)

    with monkeypatch.context() as patched:
        patched.setattr(large_tables, "write_rows", counted)
        found = large_tables.commit_costs(table_type, groups=groups, instants=1)
    calls = sum(counts[1] for counts in pstats.Stats(profile).stats.values())
    return {"calls": calls / COMMITS, "requests": float(str(found["calls"])), "KiB": float(str(found["kib"]))}
