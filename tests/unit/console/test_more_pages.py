"""The pages Writers, Policies and Health: what they say about real tables, policies and services."""

from __future__ import annotations

import json
import re
import socket
import time
from contextlib import closing
from functools import partial

import pyarrow as pa
import pytest
from tests.contract.events.samples import new_uid, transition
from tests.unit.console.test_pages import Parsed, key_of
from tests.unit.services.fleet import HEARTBEAT_GONE_S, date_files_by, die, rows, update, write

from tideline_console import health, table_page, web
from tideline_console.conflicts import conflict_of
from tideline_console.text import bytes_text
from tideline_events import Heartbeat, JobEvent, encode
from tideline_ingest.metrics import LAG as INGEST_LAG
from tideline_launcher.job_logs import keep_job_log
from tideline_launcher.log_files import local_file
from tideline_launcher.names import application_name
from tideline_runtime.health import Health
from tideline_runtime.http import HttpServer, service_app
from tideline_runtime.metrics import STORAGE_REQUESTS, TABLES, Metrics
from tideline_runtime.planning.ledger import Ledgers
from tideline_runtime.running import Running, announce, running_file
from tideline_runtime.state_folder import open_log_file
from tideline_table.action import (
    SERVICES,
    TableService,
    pending_bytes,
    request_compaction,
    roll_back_dead,
    run_clustering,
    run_compaction,
    write_rows,
)
from tideline_table.action.write.transaction import WriteTransaction
from tideline_table.table import Table, TableType
from tideline_table.writer import Operation


def test_writers_are_those_that_committed(consoles):
    trips, weather = consoles.create("trips"), consoles.create("weather")
    write(trips, 0)
    write(trips, 10)
    write(weather, 0)
    text = Parsed(consoles.client().get("/writers").text).text
    assert "1 writer committed in 7 days" in text
    assert "trips" in text
    assert "weather" in text
    assert "No write runs" in text
    assert "Nothing was undone" in text


def test_writes_that_run_and_that_were_undone(consoles, monkeypatch):
    date_files_by(consoles.clock, monkeypatch)
    trips = consoles.create("trips")
    instant = die(trips)
    client = consoles.client()
    assert instant in client.get("/writers").text.partition("What was undone")[0]
    consoles.clock.advance(HEARTBEAT_GONE_S)
    trips.refresh()
    assert roll_back_dead(trips)
    page = consoles.client().get("/writers").text
    running, _, undone = page.partition("What was undone")
    assert instant not in running
    assert instant in undone


def test_policies_show_rules_tables_and_pauses(consoles):
    for name in ("trips", "weather"):
        write(consoles.create(name), 0)
    file = consoles.folder / "policy.yaml"
    pause = {"reason": "migration <b>", "until": "2099-12-01T06:00:00+01:00"}
    rules = [
        {"name": "all of them", "match": {"paths": [consoles.path("*")]}, "priority": 80},
        {"name": "stopped", "match": {"tables": [consoles.path("trips")]}, "pause": pause},
        {"name": "nobody", "match": {"paths": ["/nowhere/*"]}, "priority": 10},
    ]
    file.write_text(json.dumps({"version": 1, "rules": rules}, indent=1))
    page = consoles.client(policy_file=file).get("/policies").text
    paused, _, listed = Parsed(page).text.partition("the narrowest rule decides")
    assert "migration <b>" in paused
    assert "stopped" in paused
    assert "weather" not in paused
    assert listed.count("weather") == 1
    assert "matches no table" in listed.partition("nobody")[2]
    assert "migration &lt;b&gt;" in page


def test_rules_that_contradict_each_other_are_named(consoles):
    write(consoles.create("trips"), 0)
    file = consoles.folder / "policy.yaml"
    rules = [{"name": f"r{n}", "match": {"tables": [consoles.path("trips")]}, "priority": n} for n in (1, 2)]
    file.write_text(json.dumps({"version": 1, "rules": rules}))
    assert "Rules contradict each other" in consoles.client(policy_file=file).get("/policies").text


@pytest.fixture
def served(consoles):
    """A service with its HTTP server, announced in the state folder: its health and metrics."""
    health, metrics = Health(consoles.clock, 300), Metrics("planner")
    server = HttpServer(service_app("planner", health, metrics), "127.0.0.1", 0)
    server.start()
    folder = consoles.folder / "state"
    announce(running_file(folder, "planner"), Running("planner", 1, "127.0.0.1", server.port, "2026-11-28T12:00:00+00:00"))
    announce(running_file(folder, "launcher"), Running("launcher", 1, "127.0.0.1", 1, "2026-11-28T12:00:00+00:00"))
    try:
        yield health, metrics
    finally:
        server.stop()


def test_health_asks_the_services(consoles, served):
    health, metrics = served
    metrics.set(TABLES, 1234)
    for partition in ("0", "1"):
        metrics.set(INGEST_LAG, 2500, topic="orders", partition=partition)
    text = Parsed(consoles.client().get("/health").text).text
    assert "0 of 2 services ready" in text
    assert "not started yet" in text
    assert "no answer" in text
    assert "1,234" in text
    assert "5,000 records" in text
    health.clear("start")
    assert "1 of 2 services ready" in Parsed(consoles.client().get("/health").text).text


def test_health_shows_the_last_heartbeat_of_each_shard(consoles):
    now = consoles.clock.now()
    with closing(consoles.event_log.publisher("mirror-of-2")) as publisher:
        for shard, behind in ((0, 7), (1, 0), (0, 3)):
            publisher.publish(encode(Heartbeat("", shard, 2, now, now, 5.0, 40, behind, instance="<i>one")))
    client = consoles.client(events=True)
    text = Parsed(client.get("/health").text).text
    assert "0 of 2" in text
    assert "<i>one" in text
    assert "late" not in text.partition("Shards of the mirror")[2]
    consoles.clock.advance(60)
    assert "late" in client.get("/health").text.partition("Shards of the mirror")[2]


def test_health_has_what_the_services_cost_a_month(consoles, served):
    _, metrics = served
    for _ in range(1000):
        metrics.increment(STORAGE_REQUESTS, kind="list")
    text = Parsed(consoles.client(prices={"list": 3_000_000.0, "processor": 0.0}).get("/health").text).text
    head = text.partition("a month at the rate since each started")[0]
    # 1,000 listings cost 3,000,000, and this process is at least a second and at most a day old.
    assert float(head.rpartition(";")[2]) >= 30 * 3_000_000


def test_a_table_has_the_requests_that_services_count_for_it(consoles, served, monkeypatch):
    _, metrics = served
    trips = consoles.create("trips")
    write(trips, 0)
    client = consoles.client(prices={"list": 1e6})
    address = f"/tables/{key_of(client, 'trips')}"
    metrics.requests_by_table[trips.storage.root] = {"list": 3}
    monkeypatch.setattr(web, "PATIENCE_S", 10.0)
    text = " ".join(Parsed(client.get(address).text.partition('id="cost"')[2].partition("</p>")[0]).text.split())
    asked = re.search(r"list ([\d,]+)", text)[1]
    assert int(asked.replace(",", "")) >= 3
    assert "read 0" in text


def test_facts_of_files_are_found_once_for_each_state(consoles, monkeypatch):
    trips = consoles.create("trips")
    write(trips, 0)
    found, files_of = [], table_page._files_of
    monkeypatch.setattr(table_page, "_files_of", lambda table: (found.append(table), files_of(table))[1])
    client = consoles.client()
    (row,) = client.get("/api/v1/tables").json()["tables"]
    for address in (f"/tables/{row['key']}", f"/api/v1/tables/{row['key']}", f"/tables/{row['key']}?window=all"):
        assert client.get(address).status_code == 200
    assert len(found) == 1
    write(trips, 10)
    assert client.get(f"/api/v1/tables/{row['key']}").json()["facts"]["rows"] == 10
    assert len(found) == 2


def test_a_table_of_many_partitions_says_how_many_are_drawn(consoles, monkeypatch):
    monkeypatch.setattr(table_page, "MOST_PARTITIONS", 3)
    trips = consoles.create("trips")
    write_rows(trips, rows(0, 3, "oslo"), Operation.INSERT)
    client = consoles.client()
    (row,) = client.get("/api/v1/tables").json()["tables"]
    assert "are drawn" not in client.get(f"/tables/{row['key']}").text
    for number in range(4):
        write_rows(trips, rows(10 * number + 10, 2, f"city{number}"), Operation.INSERT)
    assert "5; the 3 largest are drawn" in client.get(f"/tables/{row['key']}").text


def test_the_overview_says_which_tables_were_written_most(consoles):
    trips, weather = consoles.create("trips"), consoles.create("weather")
    consoles.create("idle")
    write(weather, 0)
    for number in range(3):
        write(trips, number * 10)
    listed = consoles.client().get("/").text.partition('id="movers"')[2]
    assert re.findall(r'class="name">(\w+)</bdi></a></td><td class="num">(\d+)</td><td class="num">(\d+)</td>', listed) == [
        ("trips", "3", "15"),
        ("weather", "1", "5"),
    ]
    empty = consoles.client(tables=(consoles.path("idle"),))
    assert 'id="movers"' not in empty.get("/").text


def test_the_overview_shows_what_is_used_of_budgets(consoles):
    trips, weather = consoles.create("trips"), consoles.create("weather")
    for number in range(3):
        write(trips, number * 10)
    write(weather, 0)
    file = consoles.folder / "policy.yaml"
    file.write_text("version: 1\n")
    assert "No budget is set" in consoles.client(policy_file=file).get("/").text
    rules = [{"name": "small", "match": {"tables": [consoles.path("trips")]}, "budget": {"bytes_per_day": 500}}]
    file.write_text(json.dumps({"version": 1, "fleet": {"bytes_per_day": "1 GiB", "pending_plans": 1}, "rules": rules}))

    def shown() -> str:
        return Parsed(consoles.client(policy_file=file).get("/").text.partition('id="budgets"')[2].partition("</section>")[0]).text

    assert "1 table with a budget" in shown()
    assert "0 of 1" in shown()
    instant = SERVICES[TableService.CLUSTERING].plan(trips)
    assert isinstance(instant, str)
    reserved = pending_bytes(trips.state)
    assert reserved > 500
    assert "1 of 1" in shown()
    assert f"tables/trips{bytes_text(reserved)} of 500 B" in shown()
    run_clustering(trips, instant)
    ledger = Ledgers().of(trips, consoles.clock.now())
    assert f"tables/trips{bytes_text(ledger.spent(consoles.clock.now()))} of 500 B" in shown()
    assert f"planned{bytes_text(ledger.spent(consoles.clock.now()))} of 1.0 GiB" in shown()
    assert "0 of 1" in shown()


def test_the_overview_shows_services_and_their_shards(consoles, served):
    now = consoles.clock.now()
    with closing(consoles.event_log.publisher("mirror-of-2")) as publisher:
        for shard in (0, 1):
            publisher.publish(encode(Heartbeat("", shard, 2, now, now, 5.0, 40, 0, instance="one")))
    client = consoles.client(events=True)
    client.get("/health")  # Which waits for services: the overview shows what they answered before.
    shown = client.get("/").text.partition('id="services"')[2]
    assert re.findall(r"<bdi>(\w+)</bdi></td><td><span[^>]*>.*?</svg>([^<]+)<", shown) == [
        ("launcher", "no answer"),
        ("planner", "not ready"),
    ]
    assert re.findall(r'aria-label="(\d of 2: \w+)"', shown) == ["0 of 2: beats", "1 of 2: beats"]
    consoles.clock.advance(60)
    assert "0 of 2: late" in client.get("/").text


def test_the_overview_does_not_wait_for_services_that_do_not_answer(consoles):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        client = consoles.client(service_addresses=(address,))
        began_s = time.monotonic()
        page = client.get("/").text
        assert time.monotonic() < began_s + health.ANSWER_S
        assert 'id="services"' not in page
        client.get("/health")  # Which waits.
        assert "no answer" in client.get("/").text.partition('id="services"')[2]


def lose_a_conflict(consoles, monkeypatch) -> tuple[str, str]:
    """Let `slow <b>` lose its first attempt to `fast`, and write again: the instants that lost and won."""
    write(consoles.create("trips"), 0)
    slow, fast = (Table.open(consoles.path("trips"), clock=consoles.clock, writer_id=name) for name in ("slow <b>", "fast"))
    began, commit = [], WriteTransaction.commit

    def late(self, *given, **named):
        began.append(self.instant)
        won = update(fast, 0) if len(began) == 1 else None
        began.extend([won.instant] if won is not None else [])
        return commit(self, *given, **named)

    monkeypatch.setattr(WriteTransaction, "commit", late)
    update(slow, 0)
    lost, won = began[0], began[2]
    assert began[1] == won
    assert len(began) == 4, "slow began again"
    return lost, won


def test_both_sides_of_a_conflict_are_shown(consoles, monkeypatch):
    date_files_by(consoles.clock, monkeypatch)
    lost, won = lose_a_conflict(consoles, monkeypatch)
    client = consoles.client()
    page = client.get("/writers").text
    assert "slow &lt;b&gt;" in page
    row = Parsed(page.partition('id="conflicts"')[2].partition("</tbody>")[0]).text
    for text in ("fast", "oslo", lost, won):
        assert text in row
    shown = client.get(f"/tables/{key_of(client, 'trips')}?instant={lost}").text.partition('id="instant"')[2]
    shown = Parsed(shown.partition("</dl></div>")[0]).text
    assert f"{won} commit by fast" in " ".join(shown.split())
    assert "both wrote file group" in shown


def test_a_write_that_lost_to_the_plan_of_a_compaction_names_it(consoles, monkeypatch):
    date_files_by(consoles.clock, monkeypatch)
    trips = consoles.create("trips", type=TableType.MOR)
    write(trips, 0)
    update(trips, 0)
    slow, planner = (Table.open(consoles.path("trips"), clock=consoles.clock, writer_id=name) for name in ("slow", "planner-3"))
    began, commit = [], WriteTransaction.commit

    def late(self, *given, **named):
        began.append(self.instant)
        if len(began) == 1:
            began.append(request_compaction(planner, {"hoodie.compact.inline.max.delta.commits": 1}))
        return commit(self, *given, **named)

    monkeypatch.setattr(WriteTransaction, "commit", late)
    update(slow, 0)
    lost, planned, _ = began
    monkeypatch.undo()
    date_files_by(consoles.clock, monkeypatch)
    assert "No write lost a conflict" in consoles.client().get("/writers").text
    planner.refresh()
    assert run_compaction(planner, planned).instant == planned
    page = consoles.client().get("/writers").text
    row = Parsed(page.partition('id="conflicts"')[2].partition("</tbody>")[0]).text
    for text in ("slow", "planner-3 compaction", "oslo", lost, planned):
        assert text in row


def test_a_dead_writer_lost_no_conflict(consoles, monkeypatch):
    date_files_by(consoles.clock, monkeypatch)
    trips = consoles.create("trips")
    die(trips)
    write(consoles.open("trips"), 0)
    consoles.clock.advance(HEARTBEAT_GONE_S)
    trips.refresh()
    assert roll_back_dead(trips)
    assert "No write lost a conflict" in consoles.client().get("/writers").text


def test_jobs_of_apache_hudi_have_one_name_so_who_lost_among_them_is_not_known(consoles):
    lost = "20260301123000000"
    undo = {"instant": "20260301130000000", "action": "rollback", "undone_instant": lost}
    _, model, _ = consoles.follower()
    for writer, is_shown in (("apache-hudi", False), ("ingest-1", True)):
        uid = new_uid()
        of_job = partial(transition, uid, partitions=("oslo",))
        steps = [
            of_job(1, instant=lost, action="commit", to_state="inflight", writer_id=writer),
            of_job(2, instant="20260301124000000", action="commit"),
            of_job(3, to_state="inflight", writer_id=writer, **undo),
            of_job(4, writer_id=writer, **undo),
        ]
        model.add_steps(steps)
        assert (conflict_of(model, uid, lost) is not None) == is_shown


def test_the_history_of_the_schema_says_what_each_write_changed(consoles):
    trips = consoles.create("trips")
    write(trips, 0)
    assert 'id="schema-history"' not in consoles.client().get(f"/tables/{key_of(consoles.client(), 'trips')}").text
    wider = rows(10).append_column("tip", pa.array([1.0] * 5))
    changed = write_rows(trips, wider, Operation.INSERT, options={"tideline.write.schema.evolution": "evolve"}, parallelism=1)
    client = consoles.client()
    page = client.get(f"/tables/{key_of(client, 'trips')}").text
    history = Parsed(page.partition('id="schema-history"')[2].partition("</section>")[0]).text
    assert changed.instant in history
    assert "+ tip" in history
    found = client.get(f"/api/v1/tables/{key_of(client, 'trips')}").json()["facts"]["schema_changes"]
    assert found[0]["added"] == ["tip double"]


def job_of(consoles, table, name, state="running"):
    now = consoles.clock.now()
    with closing(consoles.event_log.publisher("launcher")) as publisher:
        publisher.publish(encode(JobEvent(table.uid, name, PLAN, "clustering", state, now)))


PLAN = "20260101120000000"


def test_the_log_of_running_work_and_of_an_attempt_that_failed(consoles):
    trips = consoles.create("trips")
    write(trips, 0)
    name = application_name("trips", trips.storage.root, PLAN, 2)
    job_of(consoles, trips, name)
    client = consoles.client(events=True, turns=2)
    address = re.search(r'href="(/tables/[0-9a-f]+/log/[^"]+)"', client.get("/work").text)[1]
    assert "No log is here" in client.get(address).text
    keep_job_log(trips.storage, name, b"old lines\nfailed <script>", 3)
    assert "failed &lt;script&gt;" in client.get(address).text
    with open_log_file(local_file(consoles.folder / "state", name, "log")) as log:
        log.write(b"x" * 100_000 + b"\nreads kafka://user:pass-word@broker:9092\n")
    text = client.get(address).text
    assert "@broker:9092" in text
    assert "pass-word" not in text
    assert "failed" not in text
    assert text.count("x") < 70_000, "only its end"
    other = application_name("trips", "/elsewhere/trips", PLAN, 2)
    for wrong in (other, "..%2F..%2Fconsole.db", "x"):
        assert client.get(address.rpartition("/")[0] + f"/{wrong}").status_code == 404


def test_partitions_are_counted_by_their_size(consoles):
    trips = consoles.create("trips")
    for first, cities in ((0, 9), (100, 1)):
        places = pa.table(
            {"id": [f"k{first + n}" for n in range(40 * cities)], "city": [f"c{n % cities}" for n in range(40 * cities)]}
        )
        write_rows(trips, places.append_column("fare", pa.array([1.0] * 40 * cities)), Operation.INSERT, parallelism=1)
    client = consoles.client()
    page = client.get(f"/tables/{key_of(client, 'trips')}").text
    chart = page.partition('aria-label="Number of partitions by size"')[2].partition("</svg>")[0]
    assert sum(int(count) for count in re.findall(r"<title>(\d+) partitions of", chart)) == 9
