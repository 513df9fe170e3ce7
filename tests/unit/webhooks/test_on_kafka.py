"""Deliveries from a real Kafka: members of a group divide the tables, and one takes over when another ends."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.real.kafka import running_kafka
from tests.unit.services.fleet import write
from tests.unit.webhooks.conftest import Hooks

pytestmark = pytest.mark.real


def test_two_instances_divide_the_tables_and_one_goes_on_alone(hooks: Hooks, tmp_path: Path):
    receiver = hooks.receiver()
    hooks.subscribe({"name": "all", "url": receiver.url})
    tables = [hooks.create(f"t{n}") for n in range(4)]
    with running_kafka(tmp_path / "kafka") as node:
        hooks.event_log_url = node.url
        first, _ = hooks.run(shard_count=2, shard_index=0)
        second, _ = hooks.run(shard_count=2, shard_index=1)
        for table in tables:
            write(table, 0)
        hooks.publish()
        wanted = {(f"t{n}", sequence) for n in range(4) for sequence in (1, 2)}
        receiver.wait(lambda: {one.place for one in receiver.taken} == wanted, 120)
        hooks.stop(first)
        for table in tables:
            write(table, 10)
        hooks.publish()
        wanted |= {(f"t{n}", sequence) for n in range(4) for sequence in (3, 4)}
        receiver.wait(lambda: {one.place for one in receiver.taken} == wanted, 120)
        hooks.stop(second)
        for name in {name for name, _ in wanted}:
            # What was delivered before a rebalance may come again, nothing comes before what precedes it.
            order = list(dict.fromkeys(one.place[1] for one in receiver.taken if one.place[0] == name))
            assert order == [1, 2, 3, 4]
        hooks.stop(hooks.mirror)
