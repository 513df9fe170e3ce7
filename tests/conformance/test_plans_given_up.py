"""Table services of Apache Hudi that are killed at their commit, on tables that we share: we end what they left, and both go on."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from tests.conformance.both_in_turn import Turns, trips
from tests.conformance.matrix import Comparison, Kind
from tests.conformance.peers.apache_hudi import ApacheHudi, PeerFailed
from tests.plans import schedule_clustering, schedule_compaction

from tideline_locks import open_hudi_lock
from tideline_table.action import roll_back_dead, run_clustering, run_compaction
from tideline_table.errors import WriteConflict
from tideline_table.hudi.instant import State, time_from_instant
from tideline_table.log.action import ActionRecord
from tideline_table.table import Table
from tideline_table.writer import Operation

pytestmark = [pytest.mark.timeout(900), pytest.mark.usefixtures("alone"), pytest.mark.ends_hudi(1)]

WAIT_S = 400.0
SILENCE_S = 61.0
THRESHOLD = "hoodie.clustering.expiration.threshold.mins"
SOON: dict[str, object] = {
    THRESHOLD: 1,
    "hoodie.client.heartbeat.interval_in_ms": 1000,
    "hoodie.clustering.plan.strategy.small.file.limit": 10**9,
    "hoodie.clustering.plan.strategy.target.file.max.bytes": 10**9,
    "hoodie.compact.inline.max.delta.commits": 1,
}


def killed_at_its_commit(turns: Turns, procedure: str) -> ActionRecord:
    """Hudi runs a pending plan and dies with all files written: it waits for the lock that we hold."""
    table = turns.open()
    assert table.sharing is not None
    lock = open_hudi_lock(table.storage, table.sharing, "holder", table.clock, table.options)
    process = turns.peer.process_id
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(turns.call, procedure)
        until(lambda: begun(turns.path) is not None, running)
        with lock.hold():
            until(lambda: written(turns.path), running)
            os.killpg(process, signal.SIGKILL)
            with pytest.raises(PeerFailed):
                running.result(WAIT_S)
    [left] = turns.open().refresh().pending()
    assert left.is_by_hudi
    assert left.state is State.INFLIGHT
    return left


def until(happened: Callable[[], bool], running: Future[None]) -> None:
    """Wait while Hudi runs."""
    deadline = time.monotonic() + WAIT_S
    while not happened():
        assert not running.done(), running.result()
        assert time.monotonic() < deadline
        time.sleep(0.01)


def begun(path: Path) -> str | None:
    """The instant of the plan that runs."""
    inflight = [*path.glob(".hoodie/*.replacecommit.inflight"), *path.glob(".hoodie/*.compaction.inflight")]
    return inflight[0].name.partition(".")[0] if inflight else None


def written(path: Path) -> bool:
    """Whether each file that the plan announced is there, with its end: one in each partition."""
    folder = path / ".hoodie/.temp" / str(begun(path))
    announced = [m.relative_to(folder) for m in folder.rglob("*.marker.*") if m.suffix != ".crc"]
    files = [path / m.parent / m.name.partition(".marker.")[0] for m in announced]
    return len({f.parent for f in files}) == 2 and all(f.exists() and f.read_bytes()[-4:] == b"PAR1" for f in files)


def grow_old(path: Path, instant: str) -> None:
    """Until the instant is older than the threshold.

    The files that are signs of life of its executor are as old as that at once.
    """
    signs = [f for folder in (".hoodie", ".hoodie/.heartbeat") for f in (path / folder).glob(f"{instant}*") if f.is_file()]
    markers = [f for f in (path / ".hoodie/.temp" / instant).rglob("*") if f.is_file()]
    assert any(f.name.endswith(".inflight") for f in signs)
    assert markers
    for sign in (*signs, *markers):
        found = sign.stat()
        os.utime(sign, (found.st_atime - SILENCE_S, found.st_mtime - SILENCE_S))
    time.sleep(max(0.0, time_from_instant(instant).timestamp() + SILENCE_S - time.time()))


@pytest.fixture
def tables(apache_hudi: ApacheHudi, workdir: Path) -> dict[Kind, Turns]:
    """One table of each kind, shared, with two commits of each side."""
    made = {kind: Turns(apache_hudi, workdir / kind.name, kind, own_options=SOON) for kind in Kind}
    for turns in made.values():
        turns.create_here()
        turns.ours(trips(range(10), 1), Operation.BULK_INSERT)
        turns.theirs(trips(range(10, 20), 1), "insert")
        turns.ours(trips(range(5), 2))
        turns.theirs(trips(range(15, 18), 2))
    return made


def test_what_killed_services_left_is_ended_by_us(tables: dict[Kind, Turns]) -> None:
    clustered, compacted = tables[Kind.COW], tables[Kind.MOR]
    clustering, compaction = schedule_clustering(clustered.open()), schedule_compaction(compacted.open())
    left = killed_at_its_commit(clustered, f"run_clustering(path => '{clustered.path}', op => 'execute')")
    assert left.instant == clustering
    left = killed_at_its_commit(compacted, f"run_compaction(path => '{compacted.path}', op => 'run')")
    assert left.instant == compaction

    # Nobody can tell yet whether they are dead: however slow the machine is, not as long as an hour.
    hour = {**SOON, THRESHOLD: 60}
    clustered_yet, compacted_yet = replace(clustered, own_options=hour), replace(compacted, own_options=hour)
    assert roll_back_dead(clustered_yet.open()) == []
    assert run_clustering(clustered_yet.open()) is None
    assert run_compaction(compacted_yet.open()) is None
    with pytest.raises(WriteConflict, match="lets no writer pass"):
        clustered_yet.ours(trips([1], 3), **{"tideline.write.conflict.retries": 0})
    compacted_yet.ours(trips([1], 3))

    grow_old(clustered.path, clustering)
    grow_old(compacted.path, compaction)
    assert roll_back_dead(clustered.open()) == [clustering]
    done = run_compaction(compacted.open())
    assert done is not None
    assert done.instant == compaction
    for turns, ts in ((clustered, 3), (compacted, 4)):
        turns.ours(trips([1], ts))
        turns.theirs(trips([2], ts))
        found = turns.agree(Comparison(), f"{turns.kind}: both wrote on", 20)
        assert {r["id"]: r["ts"] for r in found.to_pylist() if r["id"] in ("k0001", "k0002")} == {"k0001": ts, "k0002": ts}
        assert not list(Table.open(str(turns.path)).state.pending())
    again = schedule_clustering(clustered.open())
    clustered.call(f"run_clustering(path => '{clustered.path}', op => 'execute')")
    assert clustered.open().refresh().actions[again].state is State.COMPLETED
    clustered.agree(Comparison(), "they cluster after all", 20)
