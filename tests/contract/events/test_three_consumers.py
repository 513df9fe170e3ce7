"""The story of three consumers: a pipeline, a cache and an alert, killed at random, while topics lose what they held.

`KILLS=100 pytest -m real tests/contract/events/test_three_consumers.py` kills as often as the page about events says.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

import pyarrow as pa
import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from tests.contract.events.conftest import Deployment
from tests.contract.events.consumer_program import SOURCE, TARGET
from tests.forked import Forked, parent_of
from tests.unit.services.fleet import Fleet

import tideline
from tideline_events import TIMELINE, open_event_log
from tideline_events.topics import TopicSettings
from tideline_events.transitions import backfill
from tideline_mirror.mirroring import CHECK_EVERY_S, MirrorService
from tideline_mirror.settings import MirrorSettings
from tideline_table.table import Table

PROGRAM = str(Path(__file__).with_name("consumer_program.py"))
PYTHON_PATH = (("PYTHONPATH", str(Path(__file__).parents[3])),)
NAMES = ("a", "b", "c")
KINDS = {"pipeline-0": "pipeline", "pipeline-1": "pipeline", "cache-0": "cache", "alert-0": "alert", "alert-1": "alert"}
IDS = 12
STEP_S = 0.05
PATIENCE_S = 600.0


@dataclass
class Story:
    """Sources, the mirrors of two fleets, and the processes of the consumers."""

    url: str
    folder: Path
    fleet: Fleet
    chance: random.Random = field(default_factory=lambda: random.Random(35))
    running: dict[str, Forked] = field(default_factory=dict)
    kills: int = 0
    versions: dict[str, dict[int, int]] = field(default_factory=lambda: {name: {} for name in NAMES})

    def __post_init__(self) -> None:
        for name in NAMES:
            tideline.create(self.fleet.path(name), schema=SOURCE, key="id", name=name)
            tideline.create(self.folder / "targets" / name, schema=TARGET, key="id", name=name)
        self.mirrors = [
            self.fleet.service(
                MirrorService, MirrorSettings, f"mirror-{own}", fleet=f"{own}-{self.folder.name}", event_log=self.url, tables=tables
            )[0]
            for own, tables in (("one", (self.fleet.path("a"), self.fleet.path("b"))), ("two", (self.fleet.path("c"),)))
        ]

    def write(self) -> None:
        """One commit to one source: new rows, new versions of rows, or deletions; and its publication."""
        name = self.chance.choice(NAMES)
        rows = self.versions[name]
        ids = self.chance.sample(range(IDS), 3)
        table = tideline.open(self.fleet.path(name))
        if self.chance.random() < 0.3 and rows.keys() & set(ids):
            table.delete([n for n in ids if rows.pop(n, None)])
        else:
            rows |= {n: rows.get(n, 0) + 1 for n in ids}
            table.upsert(pa.table({"id": ids, "version": [rows[n] for n in ids]}, SOURCE))
        self.publish()

    def publish(self) -> None:
        for mirror in self.mirrors:
            while mirror.tick() == 0.0:
                pass

    def start(self, name: str) -> None:
        # Half of the members keep their name over restarts; the tables of the others go to another member, and back.
        member = f"{name}-{self.folder.name}" if name.endswith("0") else ""
        parent = parent_of(("tests.contract.events.consumer_program", "tideline_events.kafka"), environment=PYTHON_PATH)
        self.running[name] = Forked(parent, [PROGRAM, KINDS[name], self.url, str(self.folder), name, member], os.environ)

    def kill(self, name: str) -> None:
        process = self.running.pop(name)
        process.kill()
        process.wait()
        process.close()
        self.kills += 1

    def kill_some(self, count: int) -> None:
        """Kill processes that have received events, each in the middle of its work, and start each again."""
        upto = self.kills + count
        waited_s = 0.0
        while self.kills < upto:
            busy = [name for name, process in self.running.items() if self._handled(name, process)]
            if not busy:
                self._pause()
                waited_s += STEP_S
                assert waited_s < PATIENCE_S, self.logs()
                if waited_s % 1 < STEP_S:
                    self.write()
                continue
            name = self.chance.choice(busy)
            self.write()
            self.kill(name)
            self.start(name)

    def await_end(self) -> None:
        """Wait until every consumer has everything. Raises what is missing otherwise."""
        waited_s = 0.0
        while True:
            try:
                self.check()
            except (AssertionError, FileNotFoundError):
                if waited_s > PATIENCE_S:
                    print(self.logs())
                    raise
            else:
                return
            self.publish()
            self._pause()
            waited_s += STEP_S

    def check(self) -> None:
        cache = json.loads((self.folder / "cache.json").read_text())
        lines = (self.folder / "alerts").read_text().splitlines()
        for name, rows in self.versions.items():
            table = Table.open(self.fleet.path(name))
            changed = [e.sequence for e in backfill(table, 1, table.state.sequence) if e.datachange]
            told = [int(line.split()[1]) for line in lines if line.startswith(f"{name} ")]
            assert set(told) == set(changed), f"alerts of {name}"
            assert {int(n): version for n, version in cache["rows"].get(name, {}).items()} == rows, f"cache of {name}"
            found = tideline.open(self.folder / "targets" / name).read().to_pylist()
            assert {row["id"]: row["version"] for row in found} == rows, f"target of {name}"
            assert {row["id"]: row["applied"] for row in found} == rows, f"versions applied to the target of {name}"
        assert (cache["twice"], cache["gaps"]) == (0, 0)
        assert cache["positions"].keys() == {Table.open(self.fleet.path(name)).uid for name in NAMES}

    def forget_events(self) -> None:
        """Delete all events, as retention does."""
        if self.url.startswith("sqlite:"):
            with closing(sqlite3.connect(self.url.removeprefix("sqlite://"))) as connection, connection:
                connection.execute("DELETE FROM records WHERE topic = ?", (TIMELINE.name,))
            return
        admin, topic = self._admin()
        count = len(admin.list_topics(topic, timeout=30).topics[topic].partitions)
        ends = [TopicPartition(topic, n, -1) for n in range(count)]  # -1: up to the end
        for future in admin.delete_records(ends).values():
            future.result(300)

    def delete_topic(self) -> None:
        """Delete the topic while consumers read it; the mirrors make it again and publish what it held."""
        admin, topic = self._admin()
        admin.delete_topics([topic])[topic].result(300)
        self.fleet.clock.advance(CHECK_EVERY_S + 1)
        for _ in range(round(PATIENCE_S / STEP_S)):
            self._pause()
            with contextlib.suppress(tideline.errors.Unavailable):
                self.publish()
                return
        raise AssertionError("the mirror did not make the topic again")

    def logs(self) -> str:
        return "\n".join(f"{path.name}: {path.read_text()[-6000:]}" for path in sorted(self.folder.glob("*.log")))

    def _admin(self) -> tuple[AdminClient, str]:
        """A client of the broker, and the topic of transitions there."""
        parts = urlsplit(self.url)
        topics = TopicSettings(dict(parse_qsl(parts.query))["prefix"])
        return AdminClient({"bootstrap.servers": parts.netloc}), topics.name(TIMELINE.name)

    def _handled(self, name: str, process: Forked) -> bool:
        if process.poll() is not None:
            # It may end when its topic is away; whoever runs it starts it again.
            process.close()
            self.start(name)
            return False
        path = self.folder / f"handled-{name}-{process.pid}"
        return path.exists() and path.stat().st_size > 0

    def _pause(self) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            next(iter(self.running.values())).wait(STEP_S)


@pytest.fixture
def story(among_processes: Deployment, tmp_path: Path) -> Iterator[Story]:
    folder = tmp_path / f"story{random.randrange(1 << 32):x}"
    folder.mkdir()
    # Topics of its own: the broker also has events of tables that these consumers may not read.
    url = among_processes.url + (f"?prefix={folder.name}.&partitions=4" if among_processes.url.startswith("kafka:") else "")
    open_event_log(url).ensure_topics()
    with closing(Fleet(tmp_path)) as fleet:
        made = Story(url, folder, fleet)
        try:
            yield made
        finally:
            for name in list(made.running):
                made.kill(name)


@pytest.mark.timeout(3000)
def test_targets_equal_sources_and_nothing_comes_twice_or_is_missed(story: Story) -> None:
    kills = int(os.environ.get("KILLS", "3" if story.url.startswith("sqlite:") else "12"))
    story.write()
    for name in KINDS:
        story.start(name)
    story.kill_some(kills // 3)
    for _ in range(3 * len(NAMES)):
        story.write()
    story.await_end()
    # Down for longer than events are kept.
    for name in KINDS:
        story.kill(name)
    for _ in range(2 * len(NAMES)):
        story.write()
    story.forget_events()
    story.write()
    for name in KINDS:
        story.start(name)
    story.kill_some(kills // 3)
    if not story.url.startswith("sqlite:"):
        story.delete_topic()
    story.kill_some(kills - 2 * (kills // 3))
    story.await_end()
    cache = json.loads((story.folder / "cache.json").read_text())
    assert 1 <= cache["snapshots"] <= len(NAMES), "no table begins twice"
    _, ended, why = story.logs().partition("Traceback")
    assert not ended, f"a program ended: {why[:4000]}"
    told = (story.folder / "alerts").read_text().splitlines()
    print(f"{story.kills} kills; {len(set(told))} changes, {len(told) - len(set(told))} of them told again")
