"""The event logs: the embedded one in a new file per test, the simulator's in memory, Kafka once per session with a new table
uid per test."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import tenacity
from tests.contract.events.samples import new_uid
from tests.real.kafka import KafkaNode, running_kafka
from tests.real.schema_registry import RegistryServer, running_registry
from tests.simulation.event_log import Broker, MemoryEventLog

from tideline_events import EventLog, EventLogUnavailable, Publisher, Record, Subscription, open_event_log
from tideline_table.clock import SystemClock

PARTITION_COUNT = 4
DRAIN_TIMEOUT_S = 300
AGAIN = tenacity.Retrying(
    retry=tenacity.retry_if_exception_type(EventLogUnavailable),
    wait=tenacity.wait_fixed(0.2),
    stop=tenacity.stop_after_delay(DRAIN_TIMEOUT_S),
    reraise=True,
)
"""Partitions of topics that were just made have no leader yet; who reads them is told to try again."""


@dataclass
class Deployment:
    """An event log that several processes use; `stack` closes what the test opened."""

    url: str
    stack: ExitStack
    clock: SystemClock = field(default_factory=SystemClock)

    def log(self) -> EventLog:
        """As a newly started process would open it."""
        return self.stack.enter_context(closing(open_event_log(self.url)))

    def publisher(self, writer_id: str) -> Publisher:
        return self.stack.enter_context(closing(self.log().publisher(writer_id)))

    def subscription(self, topics: list[str], group: str | None = None, *, from_beginning: bool = True) -> Subscription:
        log, group = self.log(), group or f"group-{new_uid()}"
        opened = AGAIN(log.subscribe, topics, group, from_beginning=from_beginning)
        return self.stack.enter_context(closing(opened))

    def run(self, script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """A process of its own that works on the same log; `log` is there when `script` begins."""
        process = self.spawn(script, *arguments)
        out, err = process.communicate(timeout=DRAIN_TIMEOUT_S)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def spawn(self, script: str, *arguments: str) -> subprocess.Popen[str]:
        head = (
            "import os, sys\nfrom tideline_events import *\nfrom tests.contract.events.samples import *\nlog = "
            "open_event_log(sys.argv[1])\n"
        )
        command = [sys.executable, "-W", "error", "-c", head + script, self.url, *arguments]
        process = subprocess.Popen(
            command, cwd=Path(__file__).parents[3], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.stack.callback(_reap, process)
        return process

    def drain(self, subscription: Subscription, uid: str, count: int) -> list[Record]:
        """The next `count` records of a table, others dropped; fewer only if they do not come."""
        found: list[Record] = []
        deadline_s = self.clock.monotonic_s() + DRAIN_TIMEOUT_S
        while len(found) < count and self.clock.monotonic_s() < deadline_s:
            found += [record for record in subscription.poll(1.0) if record.key == uid.encode()]
        return found


@dataclass
class InMemory(Deployment):
    """The event log of simulated clusters, which lives in one process."""

    broker: Broker = field(default_factory=Broker)

    def log(self) -> EventLog:
        return MemoryEventLog(self.broker, self.clock)


def _reap(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        process.kill()
        process.communicate()


@pytest.fixture(scope="session")
def kafka_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaNode]:
    with running_kafka(tmp_path_factory.mktemp("kafka")) as node:
        open_event_log(f"{node.url}?partitions={PARTITION_COUNT}").ensure_topics()
        yield node


@pytest.fixture(scope="session")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RegistryServer]:
    with running_registry(tmp_path_factory.mktemp("registry")) as server:
        yield server


@pytest.fixture(params=["sqlite", "memory", pytest.param("kafka", marks=pytest.mark.real)])
def deployment(request: pytest.FixtureRequest) -> Iterator[Deployment]:
    with ExitStack() as stack:
        yield InMemory("", stack) if request.param == "memory" else Deployment(_url(request), stack)


@pytest.fixture(params=["sqlite", pytest.param("kafka", marks=pytest.mark.real)])
def among_processes(request: pytest.FixtureRequest) -> Iterator[Deployment]:
    """For tests with processes of their own."""
    with ExitStack() as stack:
        yield Deployment(_url(request), stack)


@pytest.fixture
def embedded(tmp_path: Path) -> Iterator[Deployment]:
    with ExitStack() as stack:
        yield Deployment(f"sqlite://{tmp_path}/events.db", stack)


@pytest.fixture
def on_kafka(kafka_node: KafkaNode) -> Iterator[Deployment]:
    with ExitStack() as stack:
        yield Deployment(kafka_node.url, stack)


def _url(request: pytest.FixtureRequest) -> str:
    if request.param == "sqlite":
        return f"sqlite://{request.getfixturevalue('tmp_path')}/events.db"
    node: Any = request.getfixturevalue("kafka_node")
    return str(node.url)
