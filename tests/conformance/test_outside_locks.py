"""Locks of Hudi in ZooKeeper, a Hive metastore, DynamoDB and files are ours, too: its own providers, holders that are killed.

The servers are real, but for DynamoDB, whose stand-in is moto's. Hudi's provider for DynamoDB can be had in release 0.15.0 only.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.artifacts import ensure_artifacts
from tests.conformance.peers.environment import HUDI_RELEASE, VIRTUAL_ENVIRONMENT, PeerEnvironment, prepare
from tests.real.dynamodb import DYNAMODB_REGION, running_dynamodb
from tests.real.hive_metastore import HiveMetastoreServer, hive_metastore
from tests.real.zookeeper import ZooKeeperServer, running_zookeeper

from tideline_locks.hudi_cell import HUDI_OWNER
from tideline_locks.hudi_file_lock import LOCK_FILE
from tideline_locks.location import hudi_file_lock, hudi_lock_at
from tideline_locks.metastore_session import metastore_session_of
from tideline_locks.port import HudiLocks
from tideline_locks.renewal import KeptLease
from tideline_locks.zookeeper_session import session_of
from tideline_table.clock import SystemClock
from tideline_table.hudi.formats import format_to_create
from tideline_table.log import HudiLockKind, Sharing
from tideline_table.storage import LocalStorage

HERE = Path(__file__)
CONTENDER = HERE.parents[1] / "contract/locks/contender.py"
PINS = HERE.with_name("dynamodb_jars.txt")
HAND_OVERS = int(os.environ.get("HAND_OVERS", "2"))
"""With kills, of each side; one takes as long as a session and the start of a process."""
LOCK_TIMEOUT_S = 6
"""After which the metastore ends the lock of a dead holder."""
KINDS = [HudiLockKind.ZOOKEEPER, HudiLockKind.METASTORE, HudiLockKind.DYNAMODB, HudiLockKind.FILE_SYSTEM]
RELEASES = {kind: [HUDI_RELEASE, "0.15.0"] for kind in KINDS} | {HudiLockKind.DYNAMODB: ["0.15.0"]}
OTHERS = {
    HudiLockKind.ZOOKEEPER: {"hoodie.write.lock.zookeeper.session_timeout_ms": "2000"},
    HudiLockKind.METASTORE: {"hoodie.write.lock.heartbeat_interval_ms": "1000"},
    HudiLockKind.DYNAMODB: {"hoodie.write.lock.wait_time_ms": "3000"},  # how long a lease lasts, of which a third is a heartbeat
    HudiLockKind.FILE_SYSTEM: {},
}
LIMIT_S = 120.0
COUNTED = 15


class Holder:
    """`hudi_lock_holder.py`, or a process of ours, which answers in lines."""

    def __init__(self, command: list[str]) -> None:
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True, cwd=HERE.parents[2]
        )

    def ask(self, line: str) -> str:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        return self.hear()

    def hear(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def exit_code(self) -> int:
        return self._process.wait(LIMIT_S)

    def kill(self) -> None:
        """kill -9, with its JVM."""
        if self._process.returncode is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()


@pytest.fixture(scope="module")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperServer]:
    with running_zookeeper(tmp_path_factory.mktemp("zookeeper")) as server:
        yield server
        session_of(server.hosts).stop()


@pytest.fixture(scope="module")
def metastore() -> Iterator[HiveMetastoreServer]:
    with hive_metastore(LOCK_TIMEOUT_S) as server:
        yield server
        metastore_session_of(_hosts(server)).stop()


@pytest.fixture(scope="module")
def dynamodb() -> Iterator[str]:
    with running_dynamodb() as endpoint:
        yield endpoint


def _hosts(server: HiveMetastoreServer) -> str:
    return server.url.removeprefix("hms://")


@dataclass(frozen=True)
class Lock:
    """A lock of its own for a test, as both sides name it."""

    sharing: Sharing
    provider: HudiLocks
    url: str
    release: str
    """Of Apache Hudi, which takes the lock, too."""
    folder: Path | None = None
    """The table of a lock file."""

    @property
    def is_queue(self) -> bool:
        return self.sharing.lock in (HudiLockKind.ZOOKEEPER, HudiLockKind.METASTORE)

    @property
    def has_trace(self) -> bool:
        return self.sharing.lock is not HudiLockKind.METASTORE

    def expire(self) -> None:
        """Age the lock file of a dead holder by more than the minute after which both sides take it over."""
        if self.folder is not None:
            os.utime(self.folder / LOCK_FILE, (time.time() - 90, time.time() - 90))


@pytest.fixture(params=[(kind, RELEASES[kind][0]) for kind in KINDS], ids=lambda one: str(one[0]))
def lock(request: pytest.FixtureRequest, tmp_path: Path) -> Lock:
    kind, release = request.param
    name = re.sub(r"[^a-z0-9]", "_", tmp_path.name)
    if kind is HudiLockKind.FILE_SYSTEM:
        folder = tmp_path / "trips"
        (folder / ".hoodie").mkdir(parents=True)
        provider = hudi_file_lock(LocalStorage(folder), clock=SystemClock(), expire_min=1)
        return Lock(Sharing(kind, expire_min=1), provider, f"hudi-filesystem:{folder}", release, folder)
    if kind is HudiLockKind.ZOOKEEPER:
        scheme, place = "hudi-zookeeper://", f"{request.getfixturevalue('zookeeper').hosts}/hudi/{name}/trips"
    elif kind is HudiLockKind.METASTORE:
        scheme, place = "hudi-metastore://", f"{_hosts(request.getfixturevalue('metastore'))}/lake/{name}"
    else:
        scheme, place = "hudi-dynamodb:", f"{request.getfixturevalue('dynamodb')}/{DYNAMODB_REGION}/hudi_locks/{name}"
    return Lock(Sharing(kind, place=place), hudi_lock_at(kind, place, clock=SystemClock()), f"{scheme}{place}", release)


@pytest.fixture
def started() -> Iterator[Callable[[list[str]], Holder]]:
    holders: list[Holder] = []

    def start(command: list[str]) -> Holder:
        holders.append(Holder(command))
        assert holders[-1].hear() == "ready"
        return holders[-1]

    yield start
    for holder in holders:
        holder.kill()


def hudis(environment: PeerEnvironment, lock: Lock) -> list[str]:
    """The command of a process that has exactly the options that `share` prints, and a short session."""
    options = lock.sharing.hudi_options(format_to_create(6)) | OTHERS[lock.sharing.lock]
    if lock.folder is not None:
        options["hoodie.base.path"] = str(lock.folder)  # as every writer of the table has it
    (jars,) = VIRTUAL_ENVIRONMENT.glob("lib/python*/site-packages/pyspark/jars")
    script = str(HERE.with_name("hudi_lock_holder.py"))
    class_path = f"{environment.bundle}:{jars}/*"
    if lock.sharing.lock is HudiLockKind.DYNAMODB:
        pins = dict(line.split() for line in PINS.read_text().splitlines() if not line.startswith("#"))
        class_path = ":".join([class_path, *map(str, ensure_artifacts(pins, java_home=environment.java_home))])
    return [str(environment.python), script, str(environment.java_home / "bin/java"), class_path, json.dumps(options)]


def ours(lock: Lock, folder: Path, rounds: int) -> list[str]:
    return [sys.executable, str(CONTENDER), lock.url, str(folder), str(rounds), "tideline"]


@pytest.mark.parametrize("lock", [(kind, release) for kind in KINDS for release in RELEASES[kind]], indirect=True, ids="-".join)
def test_lock_is_waited_for_in_both_directions(lock: Lock, started: Callable[[list[str]], Holder]) -> None:
    provider = lock.provider
    hudi = started(hudis(prepare(lock.release), lock))
    assert hudi.ask("take 10") == "yes"
    held = provider.read("table")
    assert held is not None
    assert (held.owner, held.expired) == (HUDI_OWNER, False)
    assert provider.try_acquire("table", owner="tideline", ttl_s=30) is None
    asked = threading.Timer(0.5, lambda: hudi.ask("give"))
    asked.start()
    lease = provider.acquire("table", owner="tideline", ttl_s=4, wait_s=60)
    asked.join()
    with KeptLease(lease):  # AWS's lock client waits as long as the lease that it meets lasts
        assert hudi.ask("take 0.5") == "no"
        later = threading.Timer(0.5, lease.release)
        later.start()
        assert hudi.ask("take 60") == "yes"
        later.join()
    assert lease.released
    assert provider.was_taken("table") is lock.has_trace, "Hudi has it"
    assert provider.try_acquire("table", owner="tideline", ttl_s=30) is None
    assert hudi.ask("give") == "given"
    assert provider.read("table") is None
    assert provider.was_taken("table") is lock.has_trace
    assert provider.acquire("table", owner="tideline", ttl_s=30, wait_s=0).release()
    assert not provider.was_taken("table")


def test_no_increment_is_lost_while_both_contend(lock: Lock, started: Callable[[list[str]], Holder], tmp_path: Path) -> None:
    (tmp_path / "counter").write_text("0")
    hudi = started(hudis(prepare(lock.release), lock))
    tideline = started(ours(lock, tmp_path, COUNTED))
    threads = [threading.Thread(target=tideline.ask, args=("go",))]
    threads[0].start()
    assert hudi.ask(f"count {COUNTED} {tmp_path}") == "yes"
    assert tideline.exit_code() == 0
    threads[0].join()
    assert (tmp_path / "counter").read_text() == str(2 * COUNTED)


def test_a_killed_holder_hands_over_to_the_other_side(lock: Lock, started: Callable[[list[str]], Holder], tmp_path: Path) -> None:
    """A side that is killed leaves the lock to the other one, which has it alone once the server ended the lock of the dead."""
    environment = prepare(lock.release)
    for _ in range(HAND_OVERS):
        hudi = started(hudis(environment, lock))
        tideline = started(ours(lock, tmp_path, 0))
        assert tideline.ask("go") == "held"
        if lock.is_queue:  # otherwise Hudi waits until the lease is over
            assert hudi.ask("take 0.2") == "no"
        tideline.kill()
        lock.expire()
        assert hudi.ask(f"take {LIMIT_S}") == "yes"
        assert lock.provider.try_acquire("table", owner="third", ttl_s=30) is None
        hudi.kill()
        lock.expire()
        lease = lock.provider.acquire("table", owner="tideline", ttl_s=30, wait_s=LIMIT_S)
        assert lease.release()
