"""`python -m tests.walk.at_once --minutes 10`: Apache Hudi 1.2.0 and Tideline write one table at the same time, and processes die.

As `tests/conformance/test_both_at_once.py`, for longer: both keep its metadata table, table services of Tideline run beside them,
writers of Tideline die with their files written, and now and then Apache Hudi's process is killed while it writes.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle
from pathlib import Path

import pyarrow.parquet as pq
from tests.conformance import both_in_turn
from tests.conformance.both_in_turn import Turns, trips
from tests.conformance.crashing_writer import DIED
from tests.conformance.matrix import Kind
from tests.conformance.peers.apache_hudi import ApacheHudi, PeerFailed
from tests.conformance.test_both_at_once import (
    BEATS,
    BOTH,
    COMMITS,
    DEATH_S,
    LOST,
    OURS,
    SERVICES,
    THEIRS,
    Race,
    counted,
    ended,
    services_of,
)
from tests.conformance.test_shared_metadata import agree
from tests.conformance.test_shared_versions_metadata import ALL, BY_INDEX

from tideline_locks.errors import LockTimeout
from tideline_table.action import roll_back_dead
from tideline_table.config import SHARED_METADATA
from tideline_table.errors import TransactionRolledBack, WriteConflict
from tideline_table.log.sharing import HudiLockKind, Sharing
from tideline_table.table import Table
from tideline_table.writer import Operation

KILLED_S = (1.0, 8.0)
"""So long after the begin of an attempt Apache Hudi's process is killed."""
ONE_KILL_IN = 6
"""Attempts: its process takes half a minute to start."""
HELD = ("nable to acquire", "heartbeat by concurrent writer")
"""A process that was killed holds the lock for a minute, and what it began in the metadata table until its heartbeat expires."""
SHARING = Sharing(HudiLockKind.FILE_SYSTEM, expire_min=1)
DEAD_EACH_S, SERVICE_EACH_S = 20.0, 4.0


class Long(Race):
    """A race that goes on until a moment."""

    def __init__(self, turns: Turns, minutes: float, seed: int) -> None:
        super().__init__(turns)
        self.draw = random.Random(seed)
        self.end = time.monotonic() + 60 * minutes
        self.kills: Counter[str] = Counter()

    @property
    def goes_on(self) -> bool:
        return time.monotonic() < self.end and not self.is_over

    def rest(self, duration_s: float) -> None:
        """Wait so long, or until the race ends."""
        until = time.monotonic() + duration_s
        while self.goes_on and time.monotonic() < until:
            time.sleep(0.2)


def until_the_end(race: Long, body: Callable[[Long], None]) -> None:
    """Run `body`; the race is over if it fails."""
    try:
        body(race)
    except BaseException:
        race.is_over = True
        raise


def hudi_writes(race: Long) -> None:
    """Count up; an attempt that loses or whose process is killed is made again, unless the table has it."""
    known = 0
    while race.goes_on or race.their_commits < COMMITS:
        assert not race.is_over, "another thread failed"
        rows, written = race.rows(THEIRS, race.their_commits + 1)
        process, is_killed = race.turns.peer.process_id, race.draw.randrange(ONE_KILL_IN) == 0
        if process != known:
            # One that compacts the metadata table before it has read it fails at each write (docs/design/shared-metadata.md).
            with contextlib.suppress(PeerFailed):  # a clean may be faster
                race.turns.peer.read(race.turns.path, metadata=True)
            known = process
        killer = threading.Timer(race.draw.uniform(*KILLED_S), os.killpg, (process, signal.SIGKILL))
        if is_killed:
            killer.start()
        try:
            race.turns.theirs(rows)
            is_done = True
        except PeerFailed as lost:
            gone = is_killed and not killer.is_alive()
            if not gone and not any(words in lost.message for words in (*LOST, *HELD)):
                raise
            is_done = gone and counted(Table.open(str(race.turns.path)), THEIRS) == {race.their_commits + 1: len(THEIRS)}
            race.kills["committed" if is_done else "before the commit"] += gone
            print(
                f"{time.monotonic() - race.end:.0f} s: {lost.message.splitlines()[-1][:200]}{' (killed)' if gone else ''}",
                flush=True,
            )
        finally:
            killer.cancel()
        if is_done:
            race.their_commits += 1
            race.acknowledged(written)
            assert counted(Table.open(str(race.turns.path)), THEIRS) == {race.their_commits: len(THEIRS)}
        else:
            race.conflicts += 1
        race.ended += 1


def tideline_writes(race: Long, seen: Counter[str]) -> None:
    """Count up."""
    while race.goes_on or seen["commits"] < COMMITS:
        rows, written = race.rows(OURS, seen["commits"] + 1)
        try:
            done = race.turns.write(race.turns.open(), rows)
        except (TransactionRolledBack, LockTimeout) as lost:  # its heartbeat ran out, or a dead process has the lock
            seen[type(lost).__name__] += 1
            continue
        race.acknowledged(written)
        seen["commits"] += 1
        seen["conflicts"] += done.attempts - 1
        assert counted(Table.open(str(race.turns.path)), OURS) == {seen["commits"]: len(OURS)}


def services_run(race: Long, done: Counter[str]) -> None:
    """One table service after the other, and the rollback of whichever process died."""
    for service in cycle(services_of(race.turns.kind)):
        if not race.goes_on:
            return
        table = race.turns.open()
        try:
            done["rolled back"] += len(roll_back_dead(table))
            done[service.__name__] += service(table) is not None
        except (WriteConflict, TransactionRolledBack, LockTimeout) as lost:
            done[type(lost).__name__] += 1
        race.rest(SERVICE_EACH_S)


def writers_die(race: Long, source: Path) -> None:
    """Now and then a writer of Tideline dies with its files written."""
    while race.goes_on:
        command = [sys.executable, "-m", "tests.conformance.crashing_writer", str(race.turns.path), str(source), ALL]
        died = subprocess.run(command, check=False, capture_output=True, text=True)
        assert died.returncode == DIED or LockTimeout.__name__ in died.stderr, died.stderr
        race.kills["of Tideline"] += died.returncode == DIED
        race.rest(DEAD_EACH_S)


def run(peer: ApacheHudi, folder: Path, version: int, kind: Kind, minutes: float, seed: int) -> None:
    """One race, and what both find at its end."""
    options = {**BY_INDEX, **{key: str(value) for key, value in BEATS.items()}}
    own = {**BEATS, **SERVICES, SHARED_METADATA.key: ALL}
    both_in_turn.SHARING = SHARING
    turns = Turns(peer, folder / "table", kind, options, own, metadata=True, version=version)
    turns.create_here()
    turns.ours(trips([*OURS, *THEIRS, *BOTH], 1, lambda _: -1.0), Operation.BULK_INSERT)
    turns.theirs(trips(THEIRS, 1, lambda _: -1.0))  # Apache Hudi makes the metadata table only while no other action is pending
    pq.write_table(trips([*OURS, *THEIRS, 99], 99), folder / "dying.parquet")
    race, seen, done = Long(turns, minutes, seed), Counter[str](), Counter[str]()
    bodies: list[Callable[[Long], None]] = [
        hudi_writes,
        lambda one: tideline_writes(one, seen),
        lambda one: services_run(one, done),
        lambda one: writers_die(one, folder / "dying.parquet"),
    ]
    with ThreadPoolExecutor(len(bodies)) as pool:
        threads = [pool.submit(until_the_end, race, body) for body in bodies]
        for thread in threads:
            with contextlib.suppress(Exception):
                thread.result()
    for thread in threads:
        thread.result()
    time.sleep(DEATH_S)
    roll_back_dead(turns.open())
    ended(race, seen, race.their_commits + race.conflicts)
    agree(turns, "the metadata table after the race", ALL)
    print(f"{minutes} minutes, version {version}, {kind}: {dict(seen)} here, {race.their_commits} there, {race.conflicts} lost")
    print(f"kills {dict(race.kills)}; services {dict(done)}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.walk.at_once", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--version", type=int, choices=[8, 9], default=9)
    parser.add_argument("--kind", type=Kind, choices=list(Kind), default=Kind.MOR)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    logging.basicConfig(level=logging.ERROR)
    with tempfile.TemporaryDirectory(prefix="tideline-at-once-") as folder, ApacheHudi() as peer:
        run(peer, Path(folder), given.version, given.kind, given.minutes, given.seed)


if __name__ == "__main__":
    main()
