"""A fleet whose mirror is dead for ten minutes while messages and topics are lost, and whose queue then repeats and mixes.

Services are those of a machine, in this process, on the embedded event log. Ten minutes and days pass by a clock that the test
moves; the mirror is stopped and another one started, so it remembers nothing.
"""

from __future__ import annotations

import random
import sqlite3
from collections import Counter

import pytest
from tests.unit.services.fleet import HEARTBEAT_GONE_S, Fleet, die, known_sequence, write

from tideline_cleaner.cleaning import CleanerService
from tideline_cleaner.settings import CleanerSettings
from tideline_events import MIRRORS, TABLES, Record
from tideline_lock_service.service import LockService
from tideline_lock_service.settings import LockServiceSettings
from tideline_mirror.mirroring import MirrorService
from tideline_mirror.pace import FRESHNESS_S
from tideline_mirror.settings import MirrorSettings
from tideline_planner.planning import PlannerService
from tideline_planner.settings import PlannerSettings
from tideline_runtime.news import News
from tideline_table.action import run_clustering
from tideline_table.hudi.instant import Action, State
from tideline_table.table import Table

DEAD_S = 600
DAY_S = 24 * 3600
SMALL = {"clustering_min_files": 3, "clustering_min_commits": 2}


class Run:
    """Mirror, planner, cleaner and lock service, which tick by the clock of the test."""

    def __init__(self, fleet: Fleet, seed: int) -> None:
        self.fleet, self.chance = fleet, random.Random(seed)
        self.mirror: MirrorService | None = None
        self.others = [
            fleet.service(PlannerService, PlannerSettings, "planner", **SMALL)[0],
            fleet.service(CleanerService, CleanerSettings, "cleaner")[0],
            fleet.service(LockService, LockServiceSettings, "locks", locks="storage:")[0],
        ]
        self.log = fleet.event_log.tail([TABLES.name, MIRRORS.name])
        self.news: list[News] = [found for service in self.others if (found := service._tables.looks._news) is not None]
        for news in self.news:
            news.stop()  # its thread goes by the machine's time
        self.start()

    def start(self) -> None:
        self.mirror, _ = self.fleet.service(MirrorService, MirrorSettings, "mirror", freshness_s=FRESHNESS_S)

    def kill(self) -> None:
        assert self.mirror is not None
        self.fleet.stop(self.mirror)
        self.mirror = None

    def tick(self, seconds: float, every_s: int, messages: tuple[str, ...] = ()) -> None:
        """Let time pass. The queue gives `messages` at the first tick, each twice and in any order, and then none."""
        queued = [*messages, *messages]
        self.chance.shuffle(queued)
        for _ in range(int(seconds // every_s)):
            self.fleet.clock.advance(every_s)
            if self.mirror is not None:
                self.mirror._notices.take(queued)
                queued = []
                while self.mirror.tick() == 0.0:
                    pass
            told: list[Record] = self.log.poll(0)
            mixed = [*told, *told]
            self.chance.shuffle(mixed)
            for service in self.others:
                for news in self.news:
                    news.take(mixed, is_at_end=self.log.is_at_end())
                service.tick()

    def truncate(self) -> None:
        """Delete all records of all topics: what no service has read is gone, and so is all that the mirror remembers there."""
        with sqlite3.connect(self.fleet.folder / "state/events.db") as database:
            database.execute("DELETE FROM records")
        database.close()


def entry(table: Table) -> str:
    return f"{table.storage.root}/.hoodie/.tideline/log/{table.refresh().sequence:020d}.json"


@pytest.mark.parametrize("seed", range(2))
def test_nothing_is_missed_and_nothing_done_twice_after_a_dead_mirror_and_lost_and_mixed_messages(fleet: Fleet, seed: int) -> None:
    tables = [fleet.create(f"trips{number}") for number in range(4)]
    for table in tables:
        write(table, 0)
    run = Run(fleet, seed)
    run.tick(3600, 60, tuple(map(entry, tables)))
    run.kill()
    told, untold, crashed, quiet = tables
    for number in range(1, 3):
        for table in (told, untold):
            write(table, 10 * number)
    dead = die(crashed)
    run.tick(DEAD_S, 60)
    run.truncate()
    # One more commit each that only the new mirror can tell of; of `untold` no message ever arrives.
    for table in (told, untold):
        write(table, 30)
    run.start()
    run.tick(DAY_S + HEARTBEAT_GONE_S, 300, (entry(told), entry(quiet)))

    for table in tables:
        steps = Counter(event.sequence for event in fleet.events("tideline.timeline") if event.table.uid == table.uid)
        assert steps == Counter(range(1, table.refresh().sequence + 1)), "each step is told, once"
        for service in run.others:
            assert known_sequence(service, table) == table.state.sequence
    for table in (told, untold):
        assert len(table.state.pending_clusterings()) == 1
        assert len([a for a in table.state.actions.values() if a.is_clustering]) == 1
        run_clustering(table)
    assert crashed.state.actions[dead].state is State.ROLLED_BACK
    assert [a.action for a in crashed.state.actions.values()].count(Action.ROLLBACK) == 1
    assert quiet.state.sequence == 2, "the steps of one commit: nothing was due"

    heads = [table.refresh().sequence for table in tables]
    run.tick(DAY_S, 900, tuple(map(entry, tables)))
    assert [table.refresh().sequence for table in tables] == heads, "what was done is not done again"
