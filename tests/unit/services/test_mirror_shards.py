"""Mirrors that divide the shards by leases, on an embedded event log: every commit one event, whichever process comes and goes."""

import random
import shutil

import pytest
from tests.unit.services.fleet import write
from tests.unit.services.test_mirror import published

from tideline_mirror.absent import CHECK_ABSENT_EVERY_S, DELETED_AFTER_S
from tideline_mirror.metrics import BACKLOG
from tideline_mirror.mirroring import MirrorService
from tideline_mirror.settings import MirrorSettings
from tideline_runtime.metrics import SHARD_MOVES
from tideline_runtime.shards import shard_of

TTL_S = 15.0
STEP_S = 5.0
COUNT = 6


class Mirrors:
    """Instances of the mirror with the same settings. Those that are running renew and tick whenever time passes."""

    def __init__(self, fleet, store):
        self.fleet = fleet
        self.leases = {"enabled": True, "store": store, "ttl_s": TTL_S}
        self.running = []
        self.contexts = {}

    def start(self):
        service, context = self.fleet.service(
            MirrorService, MirrorSettings, "mirror", shard_count=COUNT, shard_leases=self.leases, batch_entries=2
        )
        self.running.append(service)
        self.contexts[service] = context
        return service

    def stop(self, service):
        self.running.remove(service)
        self.fleet.stop(service)

    def pass_time(self, duration_s):
        for _ in range(round(duration_s / STEP_S)):
            self.fleet.clock.advance(STEP_S)
            for service in self.running:
                service._tables.shards.renew()
            self.tick()

    def tick(self):
        for service in self.running:
            while service.tick() == 0.0:
                pass

    def held(self):
        return [shard for service in self.running for shard in service._tables.shards.held()]


@pytest.fixture
def mirrors(fleet, tmp_path):
    return Mirrors(fleet, f"memory:{tmp_path}")


def check_published(fleet, tables):
    for table in tables:
        table.refresh()
        assert [event.sequence for event in published(fleet, table)] == list(range(1, table.state.sequence + 1))


def test_two_instances_divide_the_tables_and_publish_each_once(fleet, mirrors):
    tables = [fleet.create(f"t{n}") for n in range(4)]
    first, second = mirrors.start(), mirrors.start()
    mirrors.tick()
    mirrors.pass_time(2 * STEP_S)
    for table in tables:
        write(table, 0)
    mirrors.tick()
    mine = [set(service._tables.registry.tables()) for service in (first, second)]
    assert mine[0] | mine[1] == {table.storage.root for table in tables}
    assert not mine[0] & mine[1]
    assert sorted(mirrors.held()) == list(range(COUNT))
    check_published(fleet, tables)


def test_a_death_costs_a_lease_and_a_tick(fleet, mirrors):
    table = fleet.create()
    first, _ = mirrors.start(), mirrors.start()
    mirrors.tick()
    mirrors.pass_time(2 * STEP_S)
    mirrors.running.remove(first)
    write(table, 0)
    mirrors.pass_time(TTL_S + STEP_S)
    assert sorted(mirrors.held()) == list(range(COUNT))
    check_published(fleet, [table])


def test_a_mirror_that_was_paused_before_it_publishes_leaves_the_table_to_the_next_holder(fleet, mirrors, monkeypatch):
    """Its lease ended while it stood still: it sees that at the publication, and starts no publisher again."""
    table = fleet.create()
    paused, _ = mirrors.start(), write(table, 0)
    paused.tick()
    write(table, 10)
    record = paused._record

    def stand_still(*arguments):
        mirrors.running.remove(paused)
        mirrors.start()
        mirrors.pass_time(TTL_S + STEP_S)
        check_published(fleet, [table])
        return record(*arguments)

    monkeypatch.setattr(paused, "_record", stand_still)
    assert paused.tick() is None
    monkeypatch.undo()
    mirrors.running.append(paused)
    write(table, 20)
    mirrors.pass_time(2 * STEP_S)
    check_published(fleet, [table])


def test_a_mirror_that_was_paused_in_its_last_request_is_fenced_by_the_event_log(fleet, mirrors, monkeypatch):
    """Its lease was valid at the last check. The publisher of the next holder fences its request."""
    table = fleet.create()
    paused, _ = mirrors.start(), write(table, 0)
    paused.tick()
    write(table, 10)
    shard = shard_of(table.storage.root, COUNT)
    publisher = paused._publishers._opened[shard].publisher
    publish = publisher.publish_transitions

    def stand_still(*arguments):
        mirrors.running.remove(paused)
        mirrors.start()
        mirrors.pass_time(TTL_S + STEP_S)
        publish(*arguments)

    monkeypatch.setattr(publisher, "publish_transitions", stand_still)
    paused.tick()
    check_published(fleet, [table])
    lost = mirrors.contexts[paused].metrics.value(SHARD_MOVES, change="lost")
    assert lost >= 1
    mirrors.running.append(paused)
    write(table, 20)
    mirrors.pass_time(2 * STEP_S)
    check_published(fleet, [table])


def test_a_shard_that_comes_back_is_published_from_the_cursor_of_the_holder_in_between(fleet, mirrors):
    """The first holder still remembers its own cursor, which is outdated."""
    table = fleet.create()
    first, _ = mirrors.start(), write(table, 0)
    first.tick()
    mirrors.running.remove(first)
    second = mirrors.start()
    mirrors.pass_time(TTL_S + STEP_S)
    write(table, 10)
    mirrors.tick()
    mirrors.stop(second)
    mirrors.running.append(first)
    write(table, 20)
    mirrors.pass_time(2 * STEP_S)
    check_published(fleet, [table])


def test_tables_of_other_instances_and_tables_that_left_are_forgotten(fleet, mirrors):
    """They stayed in memory, open tables among them, and their backlog and delay in the metrics of the instance for ever."""
    tables = [fleet.create(f"t{n}") for n in range(4)]
    for table in tables:
        for n in range(3):
            write(table, 10 * n)
    first = mirrors.start()
    first.tick()
    assert mirrors.contexts[first].metrics.value(BACKLOG) == 16
    mirrors.running.remove(first)
    second = mirrors.start()
    mirrors.pass_time(TTL_S + STEP_S)
    first.tick()
    assert mirrors.contexts[first].metrics.value(BACKLOG) == 0
    assert remembered(first) == set()
    assert remembered(second) == {table.uid for table in tables}
    shutil.rmtree(fleet.path("t0"))
    mirrors.pass_time(DELETED_AFTER_S + 2 * CHECK_ABSENT_EVERY_S)
    assert remembered(second) == {table.uid for table in tables[1:]}
    check_published(fleet, tables[1:])


def remembered(service):
    """The uids of tables of which a mirror knows more than their last record in the event log."""
    of_tables = "_cursors", "_identities", "_backlog", "_waiting", "_partial", "_scrubbed_s"
    return {uid for name in of_tables for uid in getattr(service, name)} | set(service._absent._absent_since_s)


@pytest.mark.parametrize("seed", range(2))
def test_every_commit_is_one_event_in_sequence_while_instances_come_and_go(fleet, mirrors, seed):
    choose = random.Random(seed)
    tables = [fleet.create(f"t{n}") for n in range(3)]
    paused = []
    mirrors.start()
    for step in range(20):
        act = choose.choice(("start", "pause", "resume", "stop", "write", "write", "time", "time"))
        if act == "start" and len(mirrors.running) < 3:
            mirrors.start()
        elif act == "pause" and mirrors.running:
            paused.append(mirrors.running.pop(choose.randrange(len(mirrors.running))))
        elif act == "resume" and paused:
            mirrors.running.append(paused.pop(choose.randrange(len(paused))))
        elif act == "stop" and mirrors.running:
            mirrors.stop(choose.choice(mirrors.running))
        elif act == "write":
            write(choose.choice(tables), 10 * step)
        else:
            mirrors.pass_time(choose.choice((1, 2, 4)) * STEP_S)
        choose.shuffle(mirrors.running)
        mirrors.tick()
    if not mirrors.running:
        mirrors.start()
    mirrors.pass_time(TTL_S + 2 * STEP_S)
    assert sorted(mirrors.held()) == list(range(COUNT))
    check_published(fleet, tables)
