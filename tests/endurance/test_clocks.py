"""Writers in processes of their own whose clocks are an hour apart: refused by name where they must be, and no acknowledged update is lost."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import IO

import pytest
from tests.endurance.cluster import REPOSITORY
from tests.endurance.ledger import Ledger
from tests.endurance.member import Settings, enough, open_table
from tests.endurance.test_no_update_is_lost import recovered
from tests.endurance.verdict import problems, told
from tests.endurance.workload import SCHEMA
from tests.real.redis import running_redis

from tideline_table.table import TableRequest, TableType, create_table
from tideline_table.timeline.instant import State, time_from_instant

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]
HOUR_S = 3600.0
EXACT, AHEAD, BEHIND = range(3)
FIRST, MORE = 5, 4
"""Commits of the writer that is ahead, and of each when all clocks are right again."""
ENDLESS = 10_000
"""Of writers that have to be refused."""
RUN_S = 240
"""More than the run takes, on however busy a machine."""


class Process:
    """One writer. Its lines come in order."""

    def __init__(self, number: int, generation: int, settings: Settings, role: str = "writer") -> None:
        command = [sys.executable, "-m", "tests.endurance.member", role, str(number), str(generation), settings.to_json()]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY)
        assert self._process.stdout is not None
        self._lines: IO[str] = self._process.stdout

    def hears(self, wanted: str) -> None:
        """Wait for a line."""
        assert any(line.strip() == wanted for line in self._lines), f"ended without {wanted!r}"

    def ends(self) -> Counter[str]:
        """What it told until it ended by itself."""
        said = Counter(line.strip() for line in self._lines)
        assert self._process.wait(RUN_S) == 0
        return said

    def stop(self) -> Counter[str]:
        """What it told until it was told to stop."""
        self._process.terminate()
        return self.ends()

    def close(self) -> None:
        self._process.kill()
        self._process.wait(RUN_S)
        self._lines.close()


@contextmanager
def processes(*wanted: tuple[int, int, Settings]) -> Iterator[list[Process]]:
    """Those writers at once; none is left."""
    running = [Process(*one) for one in wanted]
    try:
        yield running
    finally:
        for process in running:
            process.close()


def test_clocks_that_are_an_hour_apart(tmp_path: Path) -> None:
    folder, base_path = tmp_path / "ledgers", f"file:{tmp_path / 'table'}"
    folder.mkdir()
    create_table(base_path, TableRequest("t", SCHEMA, ("id",), ("part",), type=TableType.MOR))
    with running_redis() as server:
        right = Settings(1, base_path, server.url, str(folder), ENDLESS)
        enough(right).touch()
        ahead = replace(right, offset_s=HOUR_S, commits=FIRST)
        with processes((EXACT, 0, right)) as (exact,):
            exact.hears("done")
            with processes((AHEAD, 0, ahead), (BEHIND, 0, replace(right, offset_s=-HOUR_S))) as (fast, slow):
                assert slow.ends() == {"ready": 1, "refused": 1}
                assert fast.ends() == {"ready": 1, "done": FIRST}
                assert exact.ends()["refused"] == 1
        refused = {number: refusal(folder, number) for number in (EXACT, BEHIND)}
        assert all("ahead of this machine's clock" in said and "by NTP" in said for said in refused.values()), refused
        state = open_table(right, "looks").state
        assert (time_from_instant(state.last_instant) - open_table(right, "looks").clock.now()).total_seconds() > HOUR_S - RUN_S

        # All clocks are right, those of the cleaner excepted, to which every heartbeat is an hour old.
        patient = replace(right, max_skew_s=2 * HOUR_S)
        counted = Counter(op.split(".")[0] for op in told(folder).done)
        again = [(n, 1, replace(patient, commits=counted[f"w{n}"] + MORE)) for n in (EXACT, AHEAD, BEHIND)]
        cleaner = Process(0, 0, replace(patient, offset_s=HOUR_S), "cleaner")
        try:
            with processes(*again) as running:
                assert all(process.ends()["done"] >= MORE for process in running)
            cleaned = cleaner.stop()
        finally:
            cleaner.close()
        table = recovered(patient)
        heard = told(folder)
        assert not problems(table, heard)
        assert len(heard.done) == sum(counted.values()) + 3 * MORE
        undone = [a for a in table.state.actions.values() if a.state is State.ROLLED_BACK]
        print(f"{counted} with clocks apart, {cleaned} by a cleaner that is ahead, {len(undone)} undone")


def refusal(folder: Path, number: int) -> str:
    """Why a writer gave up."""
    last = Ledger(folder / f"writer{number}.jsonl").read()[-1]
    assert last["event"] == "refused"
    return str(last["error"])
