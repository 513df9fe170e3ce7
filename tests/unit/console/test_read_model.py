"""The read model: built anew it says what it said while the fleet lived, by events or by looks at the tables."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import threading
from contextlib import closing
from pathlib import Path

import pytest
from starlette.testclient import TestClient
from tests.unit.console.conftest import ADDRESS
from tests.unit.services.fleet import HEARTBEAT_GONE_S, date_files_by, die, update, write

from tideline_console import queries
from tideline_console.follower import Follower
from tideline_console.instants import KeptInstants, instants_of
from tideline_console.model import step_row
from tideline_console.one_table import table_context
from tideline_console.queries import table_by_key
from tideline_console.table_page import KeptFiles
from tideline_console.web import console_app
from tideline_events import EventLogUnavailable
from tideline_events.transitions import backfill
from tideline_table.action import create_savepoint, roll_back_dead
from tideline_table.config import SMALL_FILE_LIMIT


def told(model):
    """What a model says, without ages, which differ between two looks, also those in texts of findings."""

    def timeless(value):
        if isinstance(value, dict):
            return {name: timeless(each) for name, each in value.items() if name not in {"age_s", "ends_in_s", "oldest_log_s"}}
        if isinstance(value, str):
            return re.sub(r"\d+ s\b", "N s", value)
        return [timeless(each) for each in value] if isinstance(value, list) else value

    tables = model.query("SELECT * FROM tables JOIN documents USING (base_path) ORDER BY base_path")
    shown = [{**row, "document": timeless(json.loads(row["document"])), "examined_s": 0} for row in tables]
    return shown, *(model.query(f"SELECT * FROM {name} ORDER BY 1, 2, 3") for name in ("steps", "open_writes", "writers", "hours"))


def live(consoles, monkeypatch, after_each):
    """A short life of two tables; `after_each` runs after each step."""
    date_files_by(consoles.clock, monkeypatch)
    trips = consoles.create("trips")
    after_each()
    for number in range(3):
        write(trips, 10 * number)
        after_each()
    fares = consoles.create("fares")
    write(fares, 0)
    create_savepoint(fares, user="someone", comment="before")
    after_each()
    update(trips, 0)
    die(trips)
    after_each()
    consoles.clock.advance(HEARTBEAT_GONE_S)
    trips.refresh()
    roll_back_dead(trips)
    after_each()


@pytest.mark.parametrize("events", [False, True])
def test_rebuilt_is_lived(consoles, monkeypatch, events):
    follower, lived, _ = consoles.follower(events=events)

    def after_each():
        if events:
            consoles.publish()
        follower.turn()

    live(consoles, monkeypatch, after_each)
    rebuilder, rebuilt, _ = consoles.follower(events=events)
    rebuilder.turn()
    assert told(lived) == told(rebuilt)
    tables, steps, *_ = told(lived)
    assert [row["name"] for row in tables] == ["fares", "trips"]
    assert [step["action"] for step in steps if step["undone"]] != []


def test_events_and_tables_say_the_same(consoles, monkeypatch):
    live(consoles, monkeypatch, consoles.publish)
    by_events, told_by_events, _ = consoles.follower(events=True)
    by_tables, told_by_tables, _ = consoles.follower(events=False)
    by_events.turn()
    by_tables.turn()
    for by_event, by_look in zip(told(told_by_events), told(told_by_tables), strict=True):
        assert by_event == by_look


def test_steps_that_the_event_log_has_lost_come_from_the_table_log(consoles):
    trips = consoles.create("trips")
    write(trips, 0)
    consoles.publish()
    follower, model, _ = consoles.follower(events=True)
    follower.turn()
    write(trips, 10)  # never published
    consoles.clock.advance(100)
    follower.turn()
    steps = model.query("SELECT sequence FROM steps ORDER BY sequence")
    assert [step["sequence"] for step in steps] == list(range(1, trips.refresh().sequence + 1))


def test_gap_in_the_known_steps_is_filled(consoles):
    trips = consoles.create("trips")
    for number in range(3):
        write(trips, 10 * number)
    follower, model, _ = consoles.follower()
    follower.turn()
    model._write(("DELETE FROM steps WHERE sequence = ?", [(3,)]))
    consoles.clock.advance(100)
    follower.turn()
    assert len(model.query("SELECT 1 FROM steps")) == trips.refresh().sequence


def test_a_table_that_is_gone_is_forgotten(consoles):
    consoles.create("trips")
    consoles.create("fares")
    follower, model, _ = consoles.follower()
    follower.turn()
    shutil.rmtree(consoles.path("fares"))
    consoles.clock.advance(100)
    follower.turn()
    assert [row["name"] for row in model.query("SELECT name FROM tables")] == ["trips"]


@pytest.mark.parametrize("events", [False, True])
def test_a_table_that_was_created_again_is_the_new_one(consoles, events):
    for number in range(3):
        write(consoles.create("trips") if number == 0 else consoles.open(), 10 * number)
    follower, model, _ = consoles.follower(events=events, examine_interval_s=60.0)
    follower.turn()
    shutil.rmtree(consoles.path("trips"))
    again = consoles.create("trips")
    write(again, 0)
    assert follower.opened(again.storage.root).uid == again.uid
    consoles.clock.advance(61)
    follower.turn()
    (row,) = model.query("SELECT uid, sequence FROM tables")
    assert row == {"uid": again.uid, "sequence": again.refresh().sequence}


def test_changed_policies_are_those_of_open_tables(consoles):
    write(consoles.create("trips"), 0)
    policies = consoles.folder / "policies.yaml"
    policies.write_text("version: 1\nrules: []\n")
    follower, model, _ = consoles.follower(policy_file=policies, examine_interval_s=3600.0)
    follower.turn()
    match = f"{{tables: ['{consoles.path('trips')}']}}"
    policies.write_text(f"version: 1\nrules:\n  - name: all\n    match: {match}\n    options: {{{SMALL_FILE_LIMIT.key}: 12345}}\n")
    for _ in range(3):
        follower.turn()
        consoles.clock.advance(30)
    assert follower.policy_refusal == ""
    assert follower.opened(model.query("SELECT base_path FROM tables")[0]["base_path"]).options[SMALL_FILE_LIMIT] == 12345


def test_a_table_that_breaks_a_look_hides_no_other(consoles):
    """A table that Apache Hudi bootstrapped, whose only instant names no time, and a search that fails."""
    write(consoles.create("bootstrapped"), 0)
    consoles.create("fares")
    folder = Path(consoles.path("bootstrapped")) / ".hoodie"
    shutil.rmtree(folder / ".tideline")
    for file in folder.glob("20*"):
        file.rename(folder / f"00000000000001{file.name[17:]}")
    follower, model, _ = consoles.follower()
    follower.turn()
    assert [row["verdict"] for row in model.query("SELECT verdict FROM tables ORDER BY name")] == ["unmanaged", "idle"]
    shutil.copytree(os.fsencode(consoles.path("fares")), os.fsencode(consoles.path("")) + b"/not \xff UTF-8")
    consoles.clock.advance(100)
    follower.turn()
    names = {row["name"] for row in model.query("SELECT name FROM tables")}
    assert {"bootstrapped", "fares"} < names


def test_halves_of_characters_are_marks(consoles):
    follower, model, settings = consoles.follower()
    event = {"id": "1", "uid": "u", "base_path": "", "kind": "job", "what": "", "instant": "", "text": "\ud800!", "time_s": 1.0}
    model.add_events([{**event, "document": {"reason": "\ud800"}}])
    client = TestClient(console_app(settings, model, follower, consoles.clock), base_url=ADDRESS)
    assert client.get("/api/v1/events").json()["events"][0]["text"] == "?!"
    assert client.get("/api/v1/events/1").json() == {"reason": "\ud800"}
    assert "reason&#34;: &#34;?&#34;" in client.get("/events/1").text


def test_numbers_beside_lists_are_those_of_all_rows(consoles):
    trips = consoles.create("trips")
    follower, model, settings = consoles.follower()
    follower.turn()
    now_s = consoles.clock.now().timestamp()
    cleaned = {**step_row(next(backfill(trips, 1, write(trips, 0).sequence))), "action": "clean", "to_state": "completed"}
    for number in range(250):
        row = tuple({**cleaned, "sequence": 1000 + number, "time_s": now_s - number}.values())
        model._write((f"INSERT INTO steps VALUES ({', '.join('?' * len(cleaned))})", [row]))
    client = TestClient(console_app(settings, model, follower, consoles.clock), base_url=ADDRESS)
    assert "250 done in 7 days" in client.get("/work").text


def test_ages_on_a_page_grow_since_the_examination(consoles, monkeypatch):
    date_files_by(consoles.clock, monkeypatch)
    trips = consoles.create("trips")
    die(trips)
    consoles.clock.advance(HEARTBEAT_GONE_S)
    trips.refresh()
    roll_back_dead(trips)
    follower, model, _ = consoles.follower()
    follower.turn()
    consoles.clock.advance(7200)
    (row,) = model.query("SELECT key FROM tables")
    kept, files, now_s = KeptInstants(model), KeptFiles(), consoles.clock.now().timestamp()
    context = table_context(table_by_key(model, row["key"]), kept, files, follower, {}, now_s)
    assert 7200 <= context["document"]["services"]["rollback"]["last_run"]["age_s"] < 7260


def test_steps_are_those_of_the_table_not_of_its_copy(consoles):
    trips = consoles.create("trips")
    write(trips, 0)
    shutil.copytree(consoles.path("trips"), consoles.path("a copy"))
    write(trips, 10)
    follower, model, settings = consoles.follower()
    follower.turn()
    client = TestClient(console_app(settings, model, follower, consoles.clock), base_url=ADDRESS)
    assert {event["name"] for event in client.get("/api/v1/events").json()["events"]} == {"trips"}
    keys = {row["name"]: row["key"] for row in client.get("/api/v1/tables").json()["tables"]}
    assert client.get(f"/api/v1/tables/{trips.uid}").json()["key"] == keys["trips"]
    totals = {name: client.get(f"/api/v1/tables/{key}/timeline").json()["total"] for name, key in keys.items()}
    assert totals == {"trips": 2, "a copy": 1}
    assert client.get(f"/tables/{keys['a copy']}").status_code == 200


@pytest.mark.parametrize("events", [False, True])
def test_a_turn_beats_and_ends_when_a_stop_is_asked_for(consoles, monkeypatch, events):
    monkeypatch.setattr("tideline_console.follower._STEPS", 2)
    for number in range(4):
        write(consoles.create("trips") if number == 0 else consoles.open(), 10 * number)
    consoles.publish()
    _, model, settings = consoles.follower()
    stopping, beats = threading.Event(), []

    def beat():
        beats.append(1)
        stopping.set()

    log = (lambda: consoles.event_log) if events else None
    with closing(Follower(settings, model, consoles.clock, log, beat, stopping)) as follower:
        follower.turn()
        assert beats
        assert not follower.is_complete
        assert len(model.query("SELECT 1 FROM steps")) == (0 if events else 2)
    with closing(Follower(settings, model, consoles.clock, log)) as follower:
        follower.turn()
        assert len(model.query("SELECT 1 FROM steps")) == consoles.open().state.sequence


def test_kept_instants_are_those_of_the_steps(consoles, monkeypatch):
    monkeypatch.setattr("tideline_console.instants.KEPT_TABLES", 1)
    follower, model, _ = consoles.follower()
    kept = KeptInstants(model)
    tables = [consoles.create("trips"), consoles.create("fares")]
    for number in range(3):
        for table in tables:
            write(table, 10 * number)
            follower.turn()
            first = kept.of(table.uid)
            assert first == instants_of(model, table.uid)
            assert kept.of(table.uid) is first


def test_a_commit_is_seen_by_the_next_look(consoles):
    trips = consoles.create("trips")
    follower, model, _ = consoles.follower(examine_interval_s=3600.0)
    follower.turn()
    before = model.query("SELECT sequence FROM tables")[0]["sequence"]
    write(trips, 0)
    follower.turn()
    assert model.query("SELECT sequence FROM tables")[0]["sequence"] == trips.refresh().sequence > before


def test_the_document_is_that_of_tideline_status(consoles):
    write(consoles.create("trips"), 0)
    follower, model, _ = consoles.follower()
    follower.turn()
    (shown,) = queries.documents(model)
    asked = follower.fleet().status(shown["base_path"])
    assert {name: shown[name] for name in ("verdict", "sequence", "backlog", "pending")} == {
        name: asked[name] for name in ("verdict", "sequence", "backlog", "pending")
    }


def test_history_begins_where_the_setting_says(consoles):
    trips = consoles.create("trips")
    for number in range(4):
        write(trips, 10 * number)
    follower, model, _ = consoles.follower(history_steps=3)
    follower.turn()
    last = trips.refresh().sequence
    assert [s["sequence"] for s in model.query("SELECT sequence FROM steps ORDER BY sequence")] == [last - 2, last - 1, last]


def test_an_event_log_that_is_away_leaves_the_tables(consoles):
    trips = consoles.create("trips")
    follower, model, _ = consoles.follower(events=True, examine_interval_s=3600.0)

    def away():
        raise EventLogUnavailable("the event log", expected="an answer")

    follower._open_log = away
    follower.turn()
    write(trips, 0)
    follower.turn()
    assert "event log" in follower.events_failure
    assert model.query("SELECT sequence FROM tables")[0]["sequence"] == trips.refresh().sequence
    follower._open_log = lambda: consoles.event_log
    while follower.events_failure:
        follower.turn()


def test_a_turn_does_not_wait_for_an_event_log_that_does_not_answer(consoles, monkeypatch):
    monkeypatch.setattr("tideline_console.follower.PATIENCE_S", 0.05)
    trips = consoles.create("trips")
    follower, model, _ = consoles.follower(events=True, examine_interval_s=3600.0)
    follower.turn()
    answers, asked = threading.Event(), []

    def opened():
        asked.append(len(asked))
        answers.wait(30)
        return consoles.event_log

    follower._open_log = opened
    follower._drop_tail()
    try:
        for number in range(3):
            write(trips, 10 * number)
            follower.turn()
            assert follower.events_failure == "It does not answer."
            assert model.query("SELECT sequence FROM tables")[0]["sequence"] == trips.refresh().sequence
        assert asked == [0], "one thread waits"
    finally:
        answers.set()
    while follower.events_failure:
        follower.turn()
    consoles.publish()
    follower.turn()
    assert model.last_sequence(trips.uid) == trips.refresh().sequence


def test_writes_that_run_do_not_depend_on_the_order_of_steps(consoles, monkeypatch):
    date_files_by(consoles.clock, monkeypatch)
    trips = consoles.create("trips")
    write(trips, 0)
    die(trips)
    (undone,) = [action.instant for action in trips.refresh().pending()]
    consoles.clock.advance(HEARTBEAT_GONE_S)
    roll_back_dead(trips)
    write(trips, 10)
    die(trips)
    (left,) = [action.instant for action in trips.refresh().pending()]
    assert left != undone
    steps = list(backfill(trips, 1, trips.state.sequence))
    for seed in range(20):
        _, model, _ = consoles.follower()
        for step in random.Random(seed).sample(steps, len(steps)):
            model.add_steps([step])
        assert [row["instant"] for row in model.query("SELECT * FROM open_writes")] == [left], seed
        model.add_steps(steps)
        assert [row["instant"] for row in model.query("SELECT * FROM open_writes")] == [left], seed
