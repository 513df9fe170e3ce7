"""Nodes of Hudi's lock in ZooKeeper whose requests ended while the ensemble did not answer. Their session lives on."""

from __future__ import annotations

import threading
from itertools import count

import pytest
from kazoo.exceptions import NoNodeError
from kazoo.handlers.threading import KazooTimeoutError

from tideline_locks import LockUnreachable, zookeeper_session
from tideline_locks.hudi_zookeeper_lock import ZooKeeperLockProvider
from tideline_locks.zookeeper_session import ZooKeeperSession
from tideline_table.clock import ManualClock

PATH = "/locks/trips"


class Ensemble:
    """Answers requests of one client from memory, unless it is away."""

    def __init__(self) -> None:
        self.is_away = False
        self.nodes = {}
        self.numbers = count()
        self.is_gone = threading.Event()

    def add_listener(self, listener):
        self.listener = listener

    def start(self, timeout):
        pass

    def __getattr__(self, name):
        class Answer:
            def get(_, timeout):  # noqa: N805
                if self.is_away:
                    raise KazooTimeoutError
                return answer

        def request(path, *arguments, **named):
            nonlocal answer
            if not self.is_away:
                answer = getattr(self, "_" + name.removesuffix("_async"))(path, *arguments, **named)
            return Answer()

        answer = None
        if not name.endswith("_async"):
            raise AttributeError(name)
        return request

    def _get_children(self, path):
        return [node.rpartition("/")[2] for node in self.nodes]

    def _create(self, path, content, **_):
        self.nodes[f"{path}{next(self.numbers):010}"] = content

    def _get(self, path):
        if path not in self.nodes:
            raise NoNodeError
        return self.nodes[path], type("Stat", (), {"ctime": 0, "version": 0})

    def _set(self, path, content):
        self.nodes[path] = content

    def _delete(self, path):
        if self.nodes.pop(path, None) is None:
            raise NoNodeError
        self.is_gone.set()


@pytest.fixture
def ensemble(monkeypatch):
    made = Ensemble()
    monkeypatch.setattr(zookeeper_session, "KazooClient", lambda **_: made)
    return made


def provider(clock):
    return ZooKeeperLockProvider(ZooKeeperSession("zk.test:2181"), lambda _: PATH, tuple, clock=clock)


@pytest.mark.parametrize("tells", ["connected", "answers"])
def test_a_lease_released_while_zookeeper_was_away_blocks_nobody_when_it_is_back(ensemble, tells):
    """Its node was never deleted: Hudi's writers waited for the end of the process."""
    locks = provider(ManualClock())
    lease = locks.try_acquire("trips", owner="writer", ttl_s=10)
    ensemble.is_away = True
    with pytest.raises(LockUnreachable):
        lease.release()
    assert len(ensemble.nodes) == 1
    ensemble.is_away = False
    if tells == "connected":
        ensemble.listener("CONNECTED")
    else:
        locks.read("trips")
    assert ensemble.is_gone.wait(10)
    assert ensemble.nodes == {}


def test_a_request_that_ended_while_zookeeper_was_away_leaves_the_queue(ensemble):
    class Clock(ManualClock):
        def sleep(self, duration_s):
            ensemble.is_away = True
            super().sleep(duration_s)

    ensemble.nodes[f"{PATH}/_c_other-lock-{next(ensemble.numbers):010}"] = b""
    with pytest.raises(LockUnreachable):
        provider(Clock()).acquire("trips", owner="writer", ttl_s=10, wait_s=1)
    assert len(ensemble.nodes) == 2
    ensemble.is_away = False
    ensemble.listener("CONNECTED")
    assert ensemble.is_gone.wait(10)
    assert [node.partition("/_c_")[2][:5] for node in ensemble.nodes] == ["other"]


def test_an_ensemble_that_cannot_be_reached_is_one_error_without_a_warning_for_each_attempt(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(zookeeper_session, "ANSWER_S", 0.5)
    with pytest.raises(LockUnreachable, match="check the ensemble"):
        zookeeper_session.ZooKeeperSession("nobody.invalid:2181").ask("reading", "get", "/locks")
    assert caplog.records == []
