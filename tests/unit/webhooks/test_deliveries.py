"""What endpoints get of the events of tables: real tables, a real event log, real sockets."""

from __future__ import annotations

import threading
from collections import Counter

import pytest
from tests.unit.services.fleet import write
from tests.unit.webhooks.conftest import Hooks
from tests.unit.webhooks.receiver import Answer

from tideline_events import DEAD_LETTER
from tideline_webhooks import courier
from tideline_webhooks.metrics import DEAD_LETTERS, DELIVERIES


def by_table(received):
    found: dict[str, list[int]] = {}
    for one in received:
        name, sequence = one.place
        found.setdefault(name, []).append(sequence)
    return found


def test_each_step_of_each_table_arrives_once_and_in_order(hooks: Hooks):
    receiver = hooks.receiver()
    hooks.subscribe({"name": "all", "url": receiver.url})
    tables = [hooks.create(name) for name in ("a", "b")]
    for n in range(3):
        for table in tables:
            write(table, 10 * n)
    hooks.publish()
    service, context = hooks.run()
    receiver.wait(lambda: len(receiver.taken) == 12)
    hooks.stop(service)
    assert by_table(receiver.taken) == {"a": [1, 2, 3, 4, 5, 6], "b": [1, 2, 3, 4, 5, 6]}
    first = receiver.taken[0]
    assert first.headers["content-type"] == "application/cloudevents+json"
    assert first.headers["webhook-id"] == first.json["id"]
    assert first.json["specversion"] == "1.0"
    assert first.json["type"] == "tideline.timeline.transition.v1"
    assert first.json["source"] == f"/tables/{first.json['data']['table']['uid']}"
    assert len({one.headers["webhook-id"] for one in receiver.taken}) == 12
    assert context.metrics.value(DELIVERIES, subscription="all", outcome="taken") == 12


def test_the_next_life_goes_on_where_the_last_one_stopped(hooks: Hooks):
    receiver = hooks.receiver()
    hooks.subscribe({"name": "all", "url": receiver.url})
    busy, quiet = hooks.create("busy"), hooks.create("quiet")
    write(busy, 0)
    write(quiet, 0)
    hooks.publish()
    service, _ = hooks.run()
    receiver.wait(lambda: len(receiver.taken) == 4)
    hooks.stop(service)
    write(busy, 10)
    hooks.publish()
    hooks.run()
    receiver.wait(lambda: len(receiver.taken) == 6)
    assert by_table(receiver.taken) == {"busy": [1, 2, 3, 4], "quiet": [1, 2]}


def test_a_new_subscription_begins_with_what_is_published_after_its_start(hooks: Hooks):
    receiver = hooks.receiver()
    hooks.subscribe({"name": "all", "url": receiver.url, "start": "now"})
    old = hooks.create("old")
    write(old, 0)
    hooks.publish()
    service, _ = hooks.run()
    while not hooks.event_log.positions("webhooks.all"):
        threading.Event().wait(0.01)
    hooks.stop(service)
    write(old, 10)
    write(hooks.create("new"), 0)
    hooks.publish()
    hooks.run()
    receiver.wait(lambda: len(receiver.taken) == 4)
    assert by_table(receiver.taken) == {"old": [3, 4], "new": [1, 2]}


def test_tables_kinds_and_fields_are_chosen(hooks: Hooks):
    receiver = hooks.receiver()
    fields = {"to_state": "completed", "datachange": True, "partitions": ["bergen"]}
    some = {"exclude": [f"{hooks.folder}/tables/b"], "filter": fields}
    hooks.subscribe({"name": "some", "url": receiver.url, **some}, {"name": "states", "url": receiver.url, "events": ["state"]})
    for name in ("a", "b"):
        table = hooks.create(name)
        write(table, 0, city="oslo")
        write(table, 10, city="bergen")
    hooks.publish()
    hooks.run()
    receiver.wait(lambda: len(receiver.taken) == 3)
    kinds = Counter(one.json["type"] for one in receiver.taken)
    assert kinds == {"tideline.tables.state.v1": 2, "tideline.timeline.transition.v1": 1}
    (chosen,) = [one for one in receiver.taken if one.json["type"] == "tideline.timeline.transition.v1"]
    assert chosen.place == ("a", 4)
    assert chosen.json["data"]["partitions"] == ["bergen"]


@pytest.mark.parametrize("status", [408, 425, 429, 500, 503])
def test_a_delivery_is_tried_again_with_the_same_id_until_it_is_taken(hooks: Hooks, status: int):
    tries: Counter[str] = Counter()

    def answer(received):
        tries[received.headers["webhook-id"]] += 1
        return Answer(status if tries[received.headers["webhook-id"]] < 3 else 204)

    receiver = hooks.receiver(answer)
    hooks.subscribe({"name": "all", "url": receiver.url})
    write(hooks.create("a"), 0)
    hooks.publish()
    service, context = hooks.run()
    receiver.wait(lambda: len(receiver.taken) == 2)
    hooks.stop(service)
    assert [one.place[1] for one in receiver.got] == [1, 1, 1, 2, 2, 2]
    assert list(tries.values()) == [3, 3]
    assert context.metrics.value(DELIVERIES, subscription="all", outcome="retried") == 4


def test_an_endpoint_says_when_to_try_again(hooks: Hooks):
    asked = Answer(503, (("retry-after", "3000"),))
    receiver = hooks.receiver(lambda _: asked if len(receiver.got) < 1 else Answer())
    hooks.subscribe({"name": "all", "url": receiver.url})
    write(hooks.create("a"), 0)
    hooks.publish()
    service, context = hooks.run()
    receiver.wait(lambda: len(receiver.got) == 1)
    (courier,) = service._couriers
    while not courier.trouble.endpoint:
        threading.Event().wait(0.01)
    (lane,) = courier._lanes
    assert 2900 < lane.due_s - hooks.clock.monotonic_s() <= 3000
    service.tick()
    assert "status 503" in context.health.ready().conditions["subscription all"]
    hooks.clock.advance(3000)
    receiver.wait(lambda: len(receiver.taken) == 2)


def test_what_an_endpoint_refuses_becomes_a_dead_letter_and_the_table_goes_on(hooks: Hooks):
    receiver = hooks.receiver(lambda received: Answer(422 if received.place == ("a", 2) else 204))
    hooks.subscribe({"name": "all", "url": receiver.url})
    table = hooks.create("a")
    write(table, 0)
    write(table, 10)
    hooks.publish()
    service, context = hooks.run()
    receiver.wait(lambda: len(receiver.taken) == 3)
    hooks.stop(service)
    assert [one.place[1] for one in receiver.got] == [1, 2, 3, 4]
    (letter,) = hooks.events(DEAD_LETTER.name)
    assert (letter.group, letter.reason, letter.key) == ("webhooks.all", "subscription all: status 422", table.uid.encode())
    assert context.metrics.value(DEAD_LETTERS, subscription="all") == 1
    assert hooks.event_log.positions("webhooks.all")[table.uid] == 4


def test_what_is_not_taken_for_long_becomes_a_dead_letter(hooks: Hooks):
    receiver = hooks.receiver(lambda received: Answer(503 if received.place == ("a", 1) else 204))
    hooks.subscribe({"name": "all", "url": receiver.url, "give_up_after_s": 3600})
    write(hooks.create("a"), 0)
    hooks.publish()
    service, _ = hooks.run()
    receiver.wait(lambda: len(receiver.got) >= 2)
    assert hooks.events(DEAD_LETTER.name) == []
    hooks.clock.advance(3600)
    receiver.wait(lambda: len(receiver.taken) == 1)
    hooks.stop(service)
    (letter,) = hooks.events(DEAD_LETTER.name)
    assert letter.reason == "subscription all: status 503"


def test_a_refused_event_holds_its_table_and_no_other(hooks: Hooks):
    is_mended = threading.Event()
    receiver = hooks.receiver(lambda received: Answer(400 if received.place == ("a", 2) and not is_mended.is_set() else 204))
    hooks.subscribe({"name": "all", "url": receiver.url, "on_failure": "hold"})
    tables = [hooks.create(name) for name in ("a", "b")]
    for table in tables:
        for n in range(8):
            write(table, 10 * n)
    hooks.publish()
    service, _ = hooks.run(queue_events=30)  # 3 for each table
    receiver.wait(lambda: len(receiver.taken) == 17)
    assert by_table(receiver.taken) == {"a": [1], "b": list(range(1, 17))}
    (courier,) = service._couriers
    assert courier._lanes.waiting <= 3
    is_mended.set()
    receiver.wait(lambda: len(receiver.taken) == 32)
    assert by_table(receiver.taken) == {"a": list(range(1, 17)), "b": list(range(1, 17))}
    assert hooks.events(DEAD_LETTER.name) == []


def test_an_instance_that_is_behind_moves_no_position_back(hooks: Hooks, monkeypatch: pytest.MonkeyPatch):
    """What another instance had delivered was delivered again after the next start."""
    monkeypatch.setattr(courier, "STORE_EVERY_S", 1000.0)
    asked, free = threading.Event(), threading.Event()

    def answer(received):
        if received.place == ("a", 3) and not asked.is_set():
            asked.set()
            return Answer(500 if free.wait(60) else 204)
        return Answer()

    receiver = hooks.receiver(answer)
    hooks.subscribe({"name": "all", "url": receiver.url, "timeout_s": 100})
    table = hooks.create("a")
    write(table, 0)
    write(table, 10)
    hooks.publish()
    slow, _ = hooks.run()
    assert asked.wait(60)
    quick, _ = hooks.run()
    receiver.wait(lambda: ("a", 4) in [one.place for one in receiver.taken])
    hooks.stop(quick)
    assert hooks.event_log.positions("webhooks.all")[table.uid] == 4
    slow._couriers[0]._stopping.set()
    free.set()
    hooks.stop(slow)
    assert hooks.event_log.positions("webhooks.all")[table.uid] == 4


def test_a_stuck_endpoint_delays_no_other_subscription(hooks: Hooks):
    free = threading.Event()
    stuck = hooks.receiver(lambda _: Answer() if free.wait(60) else Answer(500))
    other = hooks.receiver()
    hooks.subscribe({"name": "stuck", "url": stuck.url, "timeout_s": 100}, {"name": "other", "url": other.url})
    for name in ("a", "b", "c"):
        write(hooks.create(name), 0)
    hooks.publish()
    hooks.run(workers=2)
    other.wait(lambda: len(other.taken) == 6)
    assert stuck.taken == []
    free.set()
    stuck.wait(lambda: len(stuck.taken) == 6)
    assert by_table(stuck.taken) == by_table(other.taken)
