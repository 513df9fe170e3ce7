"""Hudi's lock in ZooKeeper and ours are one: a real server, Hudi's own provider, holders that are killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.conformance.peers.environment import HUDI_RELEASE, VIRTUAL_ENVIRONMENT, PeerEnvironment, prepare
from tests.real.zookeeper import ZooKeeperServer, running_zookeeper

from tideline_locks.hudi_cell import HUDI_OWNER
from tideline_locks.location import hudi_zookeeper_lock
from tideline_locks.port import HudiLocks
from tideline_locks.zookeeper_session import session_of
from tideline_table.clock import SystemClock
from tideline_table.hudi.formats import format_to_create
from tideline_table.log import HudiLockKind, Sharing

HERE = Path(__file__)
CONTENDER = HERE.parents[1] / "contract/locks/contender.py"
HAND_OVERS = int(os.environ.get("HAND_OVERS", "2"))
"""With kills, of each side; one takes as long as a session and the start of a process."""
OTHERS = {"hoodie.write.lock.zookeeper.session_timeout_ms": "2000"}
LIMIT_S = 120.0
COUNTED = 15


class Holder:
    """`zookeeper_holder.py`, or a process of ours, which answers in lines."""

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


@pytest.fixture
def place(zookeeper: ZooKeeperServer, tmp_path: Path) -> str:
    return f"{zookeeper.hosts}/hudi/{tmp_path.name}/trips"


@pytest.fixture
def provider(place: str) -> HudiLocks:
    return hudi_zookeeper_lock(place, clock=SystemClock())


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


def hudis(environment: PeerEnvironment, place: str) -> list[str]:
    """The command of a process that has exactly the options that `share` prints, and a short session."""
    options = Sharing(HudiLockKind.ZOOKEEPER, place=place).hudi_options(format_to_create(6)) | OTHERS
    (jars,) = VIRTUAL_ENVIRONMENT.glob("lib/python*/site-packages/pyspark/jars")
    script = str(HERE.with_name("zookeeper_holder.py"))
    class_path = f"{environment.bundle}:{jars}/*"
    return [str(environment.python), script, str(environment.java_home / "bin/java"), class_path, json.dumps(options)]


def ours(place: str, folder: Path, rounds: int) -> list[str]:
    return [sys.executable, str(CONTENDER), f"hudi-zookeeper://{place}", str(folder), str(rounds), "tideline"]


@pytest.mark.parametrize("release", [HUDI_RELEASE, "0.15.0"])
def test_zookeeper_lock_is_waited_for_in_both_directions(
    release: str, place: str, provider: HudiLocks, started: Callable[[list[str]], Holder]
) -> None:
    hudi = started(hudis(prepare(release), place))
    assert hudi.ask("take 10") == "yes"
    held = provider.read("table")
    assert held is not None
    assert (held.owner, held.expired) == (HUDI_OWNER, False)
    assert provider.try_acquire("table", owner="tideline", ttl_s=30) is None
    asked = threading.Timer(0.5, lambda: hudi.ask("give"))
    asked.start()
    lease = provider.acquire("table", owner="tideline", ttl_s=30, wait_s=60)
    asked.join()
    assert hudi.ask("take 0.5") == "no"
    lease.renew()
    later = threading.Timer(0.5, lease.release)
    later.start()
    assert hudi.ask("take 60") == "yes"
    later.join()
    assert lease.released
    assert not provider.was_taken("table"), "Hudi has it, and waited for it before the release"
    assert provider.try_acquire("table", owner="tideline", ttl_s=30) is None
    assert hudi.ask("give") == "given"
    assert provider.read("table") is None
    assert provider.was_taken("table")
    assert provider.acquire("table", owner="tideline", ttl_s=30, wait_s=0).release()
    assert not provider.was_taken("table")


def test_no_increment_is_lost_while_both_contend(place: str, started: Callable[[list[str]], Holder], tmp_path: Path) -> None:
    (tmp_path / "counter").write_text("0")
    hudi = started(hudis(prepare(), place))
    tideline = started(ours(place, tmp_path, COUNTED))
    threads = [threading.Thread(target=tideline.ask, args=("go",))]
    threads[0].start()
    assert hudi.ask(f"count {COUNTED} {tmp_path}") == "yes"
    assert tideline.exit_code() == 0
    threads[0].join()
    assert (tmp_path / "counter").read_text() == str(2 * COUNTED)


def test_a_killed_holder_hands_over_to_the_other_side(
    place: str, provider: HudiLocks, started: Callable[[list[str]], Holder], tmp_path: Path
) -> None:
    """Whoever is killed, the other side has the lock, alone, after the session of the dead."""
    environment = prepare()
    for _ in range(HAND_OVERS):
        hudi = started(hudis(environment, place))
        tideline = started(ours(place, tmp_path, 0))
        assert tideline.ask("go") == "held"
        assert hudi.ask("take 0.2") == "no"
        tideline.kill()
        assert hudi.ask(f"take {LIMIT_S}") == "yes"
        assert provider.try_acquire("table", owner="third", ttl_s=30) is None
        hudi.kill()
        lease = provider.acquire("table", owner="tideline", ttl_s=30, wait_s=LIMIT_S)
        assert lease.release()
