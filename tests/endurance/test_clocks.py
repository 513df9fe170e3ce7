"""Writers in processes of their own whose clocks are wrong (libfaketime): who is ahead is refused by name, all others go on,
and no acknowledged update is lost.

A disk takes any clock. An object store refuses signatures of a clock that is 15 minutes off, so there it is 10 minutes.
"""

from __future__ import annotations

import re
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from tests.endurance.cluster import member
from tests.endurance.ledger import Ledger
from tests.endurance.member import Settings, enough, open_table
from tests.endurance.test_no_update_is_lost import recovered
from tests.endurance.verdict import problems, told
from tests.endurance.workload import SCHEMA
from tests.plans import schedule_compaction
from tests.real.object_store import running_object_store
from tests.real.redis import running_redis
from tests.real.skewed_clock import SKEWED, SkewedClock
from tests.unit.table.coordination.test_file_times import placed_by_times

from tideline_table.clock import SystemClock
from tideline_table.errors import ClockSkew
from tideline_table.hudi.instant import State, time_from_instant
from tideline_table.table import TableRequest, TableType, create_table, summarise

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]
BUCKET = "clocks"
EXACT, AHEAD, BEHIND, JUMPS = range(4)
FIRST, MORE = 5, 4
"""Commits of writers whose clocks are wrong, and of each when all clocks are right again."""
ENDLESS = 10_000
"""Of writers that are refused, or ended when they are not needed any more."""
RUN_S = 240
"""More than the run takes, on however busy a machine."""
SLOW_S = 60
"""More than a writer takes from its instant to the entry that has it."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where the table is, and how far clocks are off there."""

    base_path: str
    skew_s: int


@pytest.fixture(params=["local", "minio"])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    if request.param == "local":
        yield Place(f"file:{tmp_path / 'table'}", 3600)
        return
    with running_object_store("minio") as server:
        server.make_bucket(BUCKET)
        for name, value in server.settings.items():
            monkeypatch.setenv(name, value)
        yield Place(f"s3://{BUCKET}/t", 600)


class Process:
    """One member with a clock of its own. Its lines come in order."""

    def __init__(self, number: int, generation: int, settings: Settings, clock: SkewedClock, role: str = "writer") -> None:
        loaded_with = {name: value for name, value in clock.environment.items() if name != SKEWED}
        self._process = member(role, number, generation, settings, clock.environment, {**loaded_with, SKEWED: "/dev/null"})
        self._lines = self._process.stdout

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait(RUN_S)
        self._process.close()

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
        self._process.send_signal(signal.SIGTERM)
        return self.ends()


def test_clocks_that_are_far_apart(place: Place, tmp_path: Path) -> None:
    folder, skew_s = tmp_path / "ledgers", place.skew_s
    folder.mkdir()
    create_table(place.base_path, TableRequest("t", SCHEMA, ("id",), ("part",), type=TableType.MOR))
    exact, ahead, behind, jumping = (SkewedClock(tmp_path / f"clock{n}", s) for n, s in enumerate((0, skew_s, -skew_s, 0)))
    with running_redis() as server, ExitStack() as running:
        right = Settings(1, place.base_path, server.url, str(folder), ENDLESS)
        few = replace(right, commits=FIRST)
        enough(right).touch()
        table = open_table(right, "looks")
        going = running.enter_context(Process(EXACT, 0, right, exact))
        going.hears("done")

        # Only the writer that is ahead is refused, before it appends.
        with Process(AHEAD, 0, right, ahead) as fast, Process(BEHIND, 0, few, behind) as slow:
            assert fast.ends() == {"ready": 1, "refused": 1}
            assert slow.ends() == {"ready": 1, "done": FIRST}
        assert "ahead of the time of the store; nothing was written" in refusal(folder, AHEAD)
        assert not any(entry.writer_id.startswith("writer1#") for entry in table.timeline.log.after(0))

        # A clock that jumps ahead while its writer runs, and then far back.
        with Process(JUMPS, 0, right, jumping) as jumped:
            jumped.hears("done")
            jumping.jump(skew_s)
            assert jumped.ends()["refused"] == 1
        jumping.jump(-skew_s)
        with Process(JUMPS, 1, right, jumping) as jumped:
            jumped.hears("done")
            jumping.jump(-2)
            jumped.hears("done")
        assert ahead_s(table.refresh().last_instant) < 2, "nothing of all that brought an instant that is ahead"

        # One that is let in, as releases did that asked for no store's time: the table goes on above its instants.
        with Process(AHEAD, 1, replace(few, max_skew_s=2.0 * skew_s), ahead) as fast:
            assert fast.ends() == {"ready": 1, "done": FIRST}
        brought = next(a.instant for a in table.refresh().completed_writes() if a.writer_id == "writer1#1")
        assert ahead_s(brought) > skew_s - RUN_S
        while not any(a.writer_id == "writer0#0" and a.instant > brought for a in table.refresh().completed_writes()):
            going.hears("done")
        (problem,) = [found for found in summarise(table).health.problems if "last instant" in found]
        named = re.search(r"writer writer1#1 brought it with (\d{17}), (\d+) s ahead of the time of the store", problem)
        assert named, problem
        assert named.group(1) <= brought
        assert skew_s - SLOW_S <= int(named.group(2)) <= skew_s + 2
        with pytest.raises(ClockSkew, match="a compaction would lie"):
            schedule_compaction(table, {"hoodie.compact.inline.max.delta.commits": 1})
        running.close()

        # All clocks are right but that of a cleaner, to which every heartbeat is old.
        counted = Counter(op.split(".")[0] for op in told(folder).done)
        cleaner = Process(0, 0, replace(right, max_skew_s=2.0 * skew_s), ahead, "cleaner")
        with cleaner, ExitStack() as last:
            again = [(n, replace(right, commits=counted[f"w{n}"] + MORE)) for n in (EXACT, AHEAD, BEHIND, JUMPS)]
            finishing = [last.enter_context(Process(n, 9, settings, exact)) for n, settings in again]
            assert all(process.ends()["done"] >= MORE for process in finishing)
            cleaned = cleaner.stop()
        table = recovered(right)
        heard = told(folder)
        assert not problems(table, heard)
        assert len(heard.done) >= sum(counted.values()) + 4 * MORE
        assert placed_by_times(table.storage, table) == {}, "as Apache Hudi 1.x places log files"
        undone = [a for a in table.state.actions.values() if a.state is State.ROLLED_BACK]
        print(f"{counted} with clocks apart, {cleaned} by a cleaner that is ahead, {len(undone)} undone")


def ahead_s(instant: str) -> float:
    return (time_from_instant(instant) - SystemClock().now()).total_seconds()


def refusal(folder: Path, number: int) -> str:
    """Why a writer gave up."""
    last = Ledger(folder / f"writer{number}.jsonl").read()[-1]
    assert last["event"] == "refused"
    return str(last["error"])
