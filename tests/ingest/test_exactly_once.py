"""Real Kafka, real processes: whatever ends them, the table holds every record once."""

from __future__ import annotations

import json
import os
import random
import signal
from typing import Any

import pytest
from tests.ingest.applications import Place, await_records, committed, contents, row
from tests.real.kafka import KafkaNode

from tideline_table.action import roll_back_dead
from tideline_table.table import Table

KEYS = 3000
KILLS = 12
REGIONS = ("north", "south")


def updates(count: int, seed: int, prefix: str = "k") -> list[tuple[dict[str, Any], int]]:
    """Rows with their partitions: each key has one partition, many versions, some of them late."""
    choose = random.Random(seed)
    found = []
    for number in range(count):
        key = choose.randrange(KEYS)
        ts = number if choose.random() < 0.9 else number - choose.randrange(1, 500)
        found.append((row(f"{prefix}{key}", REGIONS[key % 2], ts, number + 0.5), key % 4))
    return found


def expected_state(sent: list[tuple[dict[str, Any], int]]) -> list[tuple[Any, ...]]:
    """By key the largest `ts`, the later record on ties: record by record, in another way than the engine's."""
    state: dict[str, dict[str, Any]] = {}
    for found, _ in sent:
        if found["id"] not in state or found["ts"] >= state[found["id"]]["ts"]:
            state[found["id"]] = found
    return sorted(tuple(found.values()) for found in state.values())


def send(place: Place, topic: str, sent: list[tuple[dict[str, Any], int]]) -> None:
    place.send(topic, ((found["id"].encode(), json.dumps(found).encode(), partition) for found, partition in sent))


@pytest.mark.timeout(900)
def test_killed_again_and_again(place: Place) -> None:
    """20,000 records in four partitions, kill -9 at random moments until they are through."""
    topic, path = place.topic("killed"), place.create()
    sent = updates(20_000, seed=1)
    send(place, topic, sent)
    # Behind a writer that died over the same file groups the next one waits until its heartbeat is missed.
    options = {"hoodie.client.heartbeat.interval_in_ms": "1000"}
    application = place.application("killed", path, topic, batch_rows=200, options=options)
    table, choose = Table.open(path), random.Random(2)
    for _ in range(KILLS):
        process = application.start()
        # While it starts, in the middle of its work, or between two commits, on however busy a machine.
        heard = choose.choice(["", "offsets found", "committed"])
        if heard:
            application.await_said(heard)
        process.join(choose.random() * 0.6)
        assert process.exitcode is None
        application.kill(process)
    killed_at = committed(table, "killed")
    # Nobody kills the last one: what is left it may take in by larger steps.
    last = application.with_settings(batch_rows=2000)
    process = last.start()
    last.await_said("offsets found")  # from here on it knows what SIGTERM means
    await_records(table, "killed", len(sent))
    assert last.stop(process) == 0
    assert contents(table) == expected_state(sent)
    undone = roll_back_dead(Table.open(path, options={"hoodie.client.heartbeat.interval_in_ms": 100}))
    print(f"{killed_at} after {KILLS} kills, {len(undone)} dead writes, {len(table.state.completed_writes())} commits")
    assert contents(table) == expected_state(sent), "what dead instances left was no part of the table"


def numbered(first: int, count: int) -> list[tuple[dict[str, Any], int]]:
    """New keys only: written by inserts, a record that was ingested twice stands twice."""
    return [(row(f"n{n}", REGIONS[n % 2], n, n + 0.5), n % 4) for n in range(first, first + count)]


def test_instances_of_one_application_that_die_and_wake_up(place: Place) -> None:
    """Two at once; one is killed and comes back.

    The other one sleeps until all is done, then goes on from the offsets that it knew.
    """
    topic, path = place.topic("doubled"), place.create()
    sent = numbered(0, 6000)
    send(place, topic, sent[:1200])
    application = place.application("doubled", path, topic, batch_rows=400, operation="insert")
    sleeper = application.start()
    application.await_said("offsets found")
    mortal = application.start()
    table = Table.open(path)
    await_records(table, "doubled", 1200)
    os.kill(sleeper.pid, signal.SIGSTOP)
    send(place, topic, sent[1200:])
    application.kill(mortal)
    heir = application.start()
    application.await_said("offsets found")
    await_records(table, "doubled", len(sent))
    os.kill(sleeper.pid, signal.SIGCONT)
    application.await_line("ProgressMoved")
    assert [application.stop(process) for process in (sleeper, heir)] == [0, 0]
    assert contents(table) == expected_state(sent)


def test_two_applications_of_one_table(place: Place) -> None:
    """Updates of the same partitions from two topics at once; one of the applications dies in between."""
    path = place.create()
    sent = {name: updates(3000, seed, prefix=name) for seed, name in enumerate(("orders", "returns"))}
    running = []
    for name, found in sent.items():
        send(place, place.topic(name), found)
        application = place.application(name, path, name, batch_rows=600)
        running.append((application, application.start()))
    application, process = running[0]
    application.await_said("committed")
    application.kill(process)
    running[0] = (application, application.start())
    application.await_said("offsets found")
    table = Table.open(path)
    for name in sent:
        await_records(table, name, 3000)
    assert [application.stop(process) for application, process in running] == [0, 0]
    assert contents(table) == sorted(expected_state(sent["orders"]) + expected_state(sent["returns"]))


def test_the_broker_dies(place: Place, kafka_node: KafkaNode) -> None:
    topic, path = place.topic("broken"), place.create()
    sent = numbered(0, 4000)
    send(place, topic, sent)
    application = place.application("broken", path, topic, batch_rows=300, operation="insert", kafka_timeout_s=5)
    process = application.start()
    application.await_said("committed")
    kafka_node.kill()
    kafka_node.start()
    later = numbered(4000, 400)
    send(place, topic, later)
    table = Table.open(path)
    await_records(table, "broken", 4400)
    assert application.stop(process) == 0
    assert contents(table) == expected_state(sent + later)
