"""Apache Hudi, in its own process, and Tideline write one table at the same time: overlapping file groups, one file lock.

Each of the two has keys of its own in every file group, and counts them up with each commit: whichever process reads after an
acknowledged commit and before the next one has to find exactly that count. So a lost update shows, whichever side lost it.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.conformance.both_in_turn import Turns, trips
from tests.conformance.crashing_writer import DIED
from tests.conformance.matrix import Comparison, Kind
from tests.conformance.peers.apache_hudi import ApacheHudi, PeerFailed
from tests.conformance.test_shared_metadata import OFTEN, WITH_METADATA, agree
from tests.conformance.test_shared_versions_metadata import ALL, BY_INDEX
from tests.plans import schedule_clean, schedule_clustering, schedule_compaction
from tests.simulation.faults import SAMPLE_STEP

from tideline_table.action import roll_back_dead, run_clean, run_clustering, run_compaction
from tideline_table.action.write.transaction import WriteTransaction
from tideline_table.config import SHARED_METADATA
from tideline_table.errors import TransactionRolledBack, WriteConflict
from tideline_table.hudi.instant import State
from tideline_table.table import BucketIndex, Table
from tideline_table.writer import Operation

pytestmark = [pytest.mark.timeout(900), pytest.mark.usefixtures("alone")]

COMMITS = 4
"""Of each side at least; two of each three are to collide on purpose."""
COLLISIONS = 2
"""How often one of them has to lose against the other, or nothing is shown."""
SERVED = 3
"""Table services that have to come to an end between them."""
ATTEMPTS = 40
FREE_ATTEMPTS = 12
"""Attempts of Hudi before each one waits for a table service."""
WAIT_S = 400.0
OURS, THEIRS, BOTH = range(8), range(10, 18), range(20, 24)
LOST = ("onflict", "clustering file group")
"""In what Hudi says when others went first, or cluster what it would write."""
BEATS = {"hoodie.client.heartbeat.interval_in_ms": 1000, "hoodie.client.heartbeat.tolerable.misses": 8}
"""Of all writers, so that the dead are known while the living still write."""
DEATH_S = 8.5
SERVICES: dict[str, object] = {
    "hoodie.clustering.plan.strategy.small.file.limit": 10**9,
    "hoodie.clustering.plan.strategy.target.file.max.bytes": 10**9,
    "hoodie.compact.inline.max.delta.commits": 1,
    "hoodie.cleaner.commits.retained": 3,
}
SERVED_TABLES = [(6, Kind.COW), (6, Kind.MOR), (9, Kind.MOR), *([(9, Kind.COW), (8, Kind.MOR)] if SAMPLE_STEP == 1 else [])]


def counted(table: Table, keys: range) -> Counter[int]:
    """How often each count stands at these keys. Fails for a key that stands twice."""
    rows = table.read(["id", "price", "ts"]).to_pylist()
    assert max(Counter(r["id"] for r in rows).values()) == 1
    wanted = {f"k{n:04}" for n in keys}
    return Counter(int(r["price"]) for r in rows if r["id"] in wanted)


class Race:
    """The table, and what both sides know of each other: which attempt of Hudi runs, and how the last ones ended."""

    def __init__(self, turns: Turns) -> None:
        self.turns = turns
        self.clock = threading.Lock()
        self.tick = 1
        self.ended = 0
        self.conflicts = 0
        """Of Hudi."""
        self.lost = ""
        """Why its last attempt failed."""
        self.own_conflicts = 0
        self.is_over = False
        self.their_commits = 0
        self.done: Counter[str] | None = None
        """What table services did; None where there are none."""
        self.is_waiting = False
        """Whether Hudi begins no attempt before the table service that follows the last one has ended."""
        self.served = -1
        """As of which end of an attempt of Hudi's the last one of them had its turn."""
        self.latest: dict[int, int] = {}

    def rows(self, own: range, count: int) -> tuple[pa.Table, dict[int, int]]:
        """Own keys at `count`, shared ones at the next tick, and one new key of this commit."""
        with self.clock:
            self.tick += 1
            tick = self.tick
        new = [own.start * 100 + 1000 + count]
        rows = pa.concat_tables([trips([*own, *new], tick, lambda _: count - tick), trips(BOTH, tick, float)])
        return rows, dict.fromkeys(BOTH, tick)

    def acknowledged(self, written: dict[int, int]) -> None:
        with self.clock:
            for number, tick in written.items():
                self.latest[number] = max(self.latest.get(number, 0), tick)

    def until(self, happened: Callable[[], bool]) -> None:
        deadline = time.monotonic() + WAIT_S
        while not happened() and not self.is_over:
            assert time.monotonic() < deadline, "the other side did not move"
            time.sleep(0.05)

    @property
    def has_collided(self) -> bool:
        """Whether the two were in each other's way often enough."""
        return self.conflicts + self.own_conflicts >= COLLISIONS

    @property
    def is_served(self) -> bool:
        """Whether table services have done enough: which of them lose depends on who is how fast."""
        return self.done is None or (self.done["_cluster"] > 0 and sum(self.done[s.__name__] for s in ALL_SERVICES) >= SERVED)

    def peer_is_writing(self) -> bool:
        return any(a.is_by_hudi for a in Table.open(str(self.turns.path)).state.pending())


def hudi_writes(race: Race) -> int:
    """Count up `COMMITS` times, until both have collided and table services have done enough.

    An attempt that loses is made again.
    """
    try:
        return _hudi_writes(race)
    finally:
        race.is_over = True


def _hudi_writes(race: Race) -> int:
    count = attempts = 0
    while count < COMMITS or not ((race.is_served and race.has_collided) or race.is_over):
        if race.done is not None and (attempts >= FREE_ATTEMPTS or (count >= COMMITS and not race.is_served)):
            race.is_waiting = True
            race.until(lambda: race.served >= race.ended)
        attempts += 1
        assert attempts < ATTEMPTS, (race.done, race.lost, Table.open(str(race.turns.path)).state.pending())
        rows, written = race.rows(THEIRS, count + 1)
        try:
            race.turns.theirs(rows)
        except PeerFailed as lost:
            if not any(words in lost.message for words in LOST):
                raise
            race.conflicts += 1
            race.lost = next(line for line in lost.message.splitlines() if any(words in line for words in LOST))
        else:
            race.their_commits = count = count + 1
            race.acknowledged(written)
            assert counted(Table.open(str(race.turns.path)), THEIRS) == {count: len(THEIRS)}
        race.ended += 1
    return attempts


def tideline_writes(race: Race, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count up for as long as the other side does: in the middle of its attempts, between them, and around them."""
    seen: Counter[str] = Counter()
    original = WriteTransaction.commit
    held = threading.Event()

    def commit(self: WriteTransaction, *arguments: object, **more: object) -> object:
        if held.is_set():
            held.clear()
            # The attempt that runs may have been before us; the one after it is not, so one of the two loses.
            ended = race.ended + 1
            race.until(lambda: race.ended > ended)
        return original(self, *arguments, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(WriteTransaction, "commit", commit)
    count = 0
    while not race.is_over or count < COMMITS:
        ended = race.ended + 1  # one attempt at least has nobody in its way
        manner = ("amid", "after", "around")[count % 3]
        if manner == "amid":
            race.until(race.peer_is_writing)
        elif manner == "after":
            race.until(lambda at=ended: race.ended > at)  # type: ignore[misc]
        else:
            held.set()
        count += 1
        rows, written = race.rows(OURS, count)
        table = race.turns.open()
        done = race.turns.write(table, rows)
        race.acknowledged(written)
        assert counted(Table.open(str(race.turns.path)), OURS) == {count: len(OURS)}
        seen["commits"] += 1
        seen["conflicts"] += done.attempts - 1
        race.own_conflicts = seen["conflicts"]
    return seen


def tideline_arranges(race: Race) -> Counter[str]:
    """One table service of Tideline after each attempt of Hudi, and the rollback of whichever process died; what was done."""
    try:
        return _tideline_arranges(race)
    finally:
        race.is_over = True  # one that failed is waited for by nobody


def _tideline_arranges(race: Race) -> Counter[str]:
    done = race.done
    assert done is not None
    looked = -1
    for service in cycle(services_of(race.turns.kind)):
        if race.is_over:
            break
        race.until(lambda at=looked: race.ended > at)  # type: ignore[misc]
        looked = race.ended
        table = race.turns.open()
        try:
            race.until(lambda at=table: _may_begin(race, done, at))  # type: ignore[misc]
            done[service.__name__] += service(table) is not None
        except WriteConflict:
            done["yielded"] += 1
        except TransactionRolledBack:  # a busy machine let its heartbeat run out
            done["undone"] += 1
        race.served = looked
    return done


def _may_begin(race: Race, done: Counter[str], table: Table) -> bool:
    """Roll back the dead. Return whether a table service can do something, as far as it can be made sure.

    Plans are made between Hudi's writes, and one that lost stands until its heartbeat has run out. Without waiting for that, a fast
    machine ends all attempts before the services.
    """
    done["rolled back"] += len(roll_back_dead(table))
    return not race.is_waiting or not any(a.is_by_hudi for a in table.refresh().pending())


def services_of(kind: Kind) -> list[Callable[[Table], object]]:
    """The services that run beside the writers of a table."""
    return [_cluster, *([_compact] if kind is Kind.MOR else []), _clean]


def _cluster(table: Table) -> object:
    schedule_clustering(table)
    return run_clustering(table)


def _compact(table: Table) -> object:
    schedule_compaction(table)
    return run_compaction(table)


def _clean(table: Table) -> object:
    schedule_clean(table)
    return run_clean(table)


def ended(race: Race, ours: Counter[str], attempts: int) -> None:
    """Judge what both readers find at the end."""
    assert ours["commits"] >= COMMITS
    assert attempts == race.their_commits + race.conflicts
    end = race.turns.agree(Comparison(), "the end")
    rows = {r["id"]: r for r in end.to_pylist()}
    assert len(rows) == end.num_rows == len(OURS) + len(THEIRS) + len(BOTH) + ours["commits"] + race.their_commits
    assert {n: rows[f"k{n:04}"]["ts"] for n in BOTH} == race.latest
    assert {int(rows[f"k{n:04}"]["price"]) for n in THEIRS} == {race.their_commits}
    assert {int(rows[f"k{n:04}"]["price"]) for n in OURS} == {ours["commits"]}
    print(f"{race.turns.kind}: {ours}, Apache Hudi lost {race.conflicts} of {attempts} attempts")


BUCKETS = "buckets"
"""A bucket index instead of a metadata table."""


@pytest.mark.parametrize(
    ("version", "kind", "partitions"),
    [
        (6, Kind.COW, ""),
        (6, Kind.MOR, ""),
        (6, Kind.COW, "bloom_filters,column_stats,files"),
        (9, Kind.MOR, ALL),
        *([(9, Kind.MOR, BUCKETS), (8, Kind.COW, BUCKETS)] if SAMPLE_STEP == 1 else []),
    ],
)
def test_no_acknowledged_update_is_lost(
    apache_hudi: ApacheHudi, workdir: Path, version: int, kind: Kind, partitions: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = BY_INDEX if version == 9 else {**WITH_METADATA, **OFTEN}
    request, partitions = ({"index": BucketIndex(2)}, "") if partitions == BUCKETS else ({}, partitions)
    options, kept = (given, {SHARED_METADATA.key: partitions}) if partitions else ({}, {})
    turns = Turns(apache_hudi, workdir / "table", kind, options, kept, metadata=bool(partitions), version=version, request=request)
    turns.create_here()
    turns.ours(trips([*OURS, *THEIRS, *BOTH], 1, lambda _: -1.0), Operation.BULK_INSERT)
    if partitions:  # Apache Hudi makes it only while no other action is pending
        turns.theirs(trips(THEIRS, 1, lambda _: -1.0))
    race = Race(turns)
    with ThreadPoolExecutor(1) as pool:
        theirs = pool.submit(hudi_writes, race)
        try:
            ours = tideline_writes(race, monkeypatch)
        finally:
            race.is_over = race.is_over or theirs.done()
        attempts = theirs.result(WAIT_S)
    assert race.has_collided, "the two never collided: nothing was shown"
    ended(race, ours, attempts)
    if partitions:
        agree(turns, "the metadata table after the race", partitions)


@pytest.mark.parametrize(("version", "kind"), SERVED_TABLES)
def test_table_services_and_the_death_of_a_writer_beside_both(
    apache_hudi: ApacheHudi, workdir: Path, version: int, kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    beats = {key: str(value) for key, value in BEATS.items()}
    turns = Turns(apache_hudi, workdir / "table", kind, beats, {**BEATS, **SERVICES}, version=version)
    turns.create_here()
    for keys in (OURS, THEIRS, BOTH):
        turns.ours(trips(keys, 1, lambda _: -1.0), Operation.BULK_INSERT)
    pq.write_table(trips([*OURS, *THEIRS, 99], 99), workdir / "dying.parquet")
    race = Race(turns)
    race.done = Counter()
    with ThreadPoolExecutor(3) as pool:
        theirs, arranged = pool.submit(hudi_writes, race), pool.submit(tideline_arranges, race)
        dying = pool.submit(_dies, turns.path, workdir / "dying.parquet")
        try:
            ours = tideline_writes(race, monkeypatch)
        finally:
            race.is_over = race.is_over or theirs.done()
        done, attempts, dead = arranged.result(WAIT_S), theirs.result(WAIT_S), dying.result(WAIT_S)
    assert race.is_served, done
    turns.wait_for_death(dead, DEATH_S)
    roll_back_dead(turns.open())
    assert turns.open().state.actions[dead].state is State.ROLLED_BACK
    ended(race, ours, attempts)
    print(done)


ALL_SERVICES = (_cluster, _compact, _clean)


def _dies(table: Path, rows: Path) -> str:
    """A writer of Tideline in a process of its own, which ends with all its files written and none of them committed.

    Its instant.
    """
    command = [sys.executable, "-m", "tests.conformance.crashing_writer", str(table), str(rows)]
    died = subprocess.run(command, check=False, timeout=WAIT_S, stdout=subprocess.PIPE, text=True)
    assert died.returncode == DIED
    return died.stdout.strip()
