"""Pages over many tables: what they ask of the read model does not grow with the number of tables and steps."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor

import pytest
from starlette.testclient import TestClient
from tests.unit.console.conftest import ADDRESS
from tests.unit.console.test_pages import Parsed
from tests.unit.services.fleet import date_files_by, write

from tideline_console import follower as follower_module
from tideline_console import queries
from tideline_console.model import URGENCY, key_of, step_row
from tideline_console.web import console_app
from tideline_events.transitions import backfill
from tideline_runtime.policy import Policies

TABLES, STEPS = 2000, 20
INSTRUCTIONS = 1_000_000
"""Instructions of SQLite for one page."""
ROWS = 800
"""Rows that a page may read."""
VERDICTS = tuple(URGENCY)


def generated(consoles, model, now_s):
    trips = consoles.create("trips")
    (step,) = [step_row(one) for one in backfill(trips, 1, write(trips, 0).sequence)][-1:]
    steps = []
    for number in range(TABLES):
        path, verdict = f"file:/lake/{number % 20}/t{number}", VERDICTS[number % len(VERDICTS)]
        finding = {"kind": "dead_writer", "text": "a writer died", "age_s": 5.0 + number, "ends_in_s": None}
        job = {"instant": "20260101000000000", "service": "clean", "state": "requested", "age_s": 1.0 + number, "is_running": False}
        due = {"service": "clean", "outcome": "due", "reason": "much", "until": ""}
        document = {
            "table": f"t{number}",
            "findings": [finding] if verdict == "attention" else [],
            "pending": [{**job, "writer_id": "planner"}] if verdict == "working" else [],
            "services": {"clean": due} if verdict == "due" else {},
        }
        numbers = dict.fromkeys(("size_bytes", "file_groups", "small_files", "log_files", "log_bytes"), number)
        model.put_table(
            {"base_path": path, "uid": f"u{number}", "name": f"t{number}", "folder": str(number % 20), "type": "mor", "version": 6}
            | {"mode": "exclusive", "verdict": verdict, "urgency": URGENCY[verdict], "state": None, "sequence": 1, **numbers}
            | {"pending": len(document["pending"]), "due": len(document["services"]), "findings": len(document["findings"])}
            | {"last_write_s": now_s, "tags": "", "examined_s": now_s, "document": document}
        )
        for at in range(STEPS):
            changed = {
                "uid": f"u{number}",
                "sequence": at,
                "action": "clean" if at % 4 == 0 else "commit",
                "time_s": now_s - at * 900,
            }
            steps.append(tuple({**step, **changed}.values()))
    model._write((f"INSERT INTO steps VALUES ({', '.join('?' * len(step))})", steps))


@pytest.fixture
def many(consoles):
    follower, model, settings = consoles.follower()
    generated(consoles, model, consoles.clock.now().timestamp())
    return TestClient(console_app(settings, model, follower, consoles.clock), base_url=ADDRESS), model


def test_pages_of_many_tables_read_little(many, monkeypatch):
    client, model = many
    counted = {"instructions": 0, "rows": 0}
    asked = model.query

    def query(sql, *values):
        rows = asked(sql, *values)
        counted["rows"] += len(rows)
        return rows

    def step():
        counted["instructions"] += 1000

    monkeypatch.setattr(model, "query", query)
    model._connection.set_progress_handler(step, 1000)
    found = {}
    table = key_of("file:/lake/7/t7")
    searches = (f"/events?table={table}", "/events?q=t77", "/events?q=commit+completed", f"/events?q=completed&table={table}")
    for address in ("/", "/tables", "/tables?sort=size", "/work", "/events", *searches):
        counted |= {"instructions": 0, "rows": 0}
        assert client.get(address).status_code == 200
        found[address] = dict(counted)
    assert {address: one for address, one in found.items() if one["instructions"] > INSTRUCTIONS or one["rows"] > ROWS} == {}
    assert found["/work"]["instructions"] < INSTRUCTIONS / 8, "documents of services that are not shown were read"


def test_lists_and_series_of_many_tables_are_those_of_the_rows(many):
    client, _ = many
    overview, work = client.get("/api/v1/overview").json(), client.get("/api/v1/work").json()
    ages = [one["age_s"] for one in work["pending"]]
    assert (len(ages), ages) == (100, sorted(ages, reverse=True))
    assert ages[0] == pytest.approx(1.0 + max(n for n in range(TABLES) if VERDICTS[n % len(VERDICTS)] == "working"), abs=60)
    assert {one["name"] for one in overview["findings"]} <= {f"t{n}" for n in range(TABLES) if VERDICTS[n % 6] == "attention"}
    assert sum(overview["hours"]["commits"]) == TABLES * 15
    assert sum(overview["hours"]["services"]) == TABLES * 5
    page = client.get("/work").text
    assert f"{sum(v % 6 == 2 for v in range(TABLES))} pending" in page


def test_work_counts_no_more_than_a_page_can_say(many, monkeypatch):
    client, _ = many
    monkeypatch.setattr(queries, "MOST_COUNTED", TABLES * 5)
    assert f"{TABLES * 5:,} done in 7 days" in client.get("/work").text
    monkeypatch.setattr(queries, "MOST_COUNTED", 700)
    assert "more than 700 done in 7 days" in client.get("/work").text


def test_a_search_of_events_finds_names_texts_and_instants(many):
    client, _ = many

    def found(**given):
        return [(one["name"], one["what"]) for one in client.get("/api/v1/events", params=given).json()["events"]]

    names = {name for name, _ in found(q="t777", limit=1000)}
    assert names == {"t777"}
    assert found(q="T777", limit=1000) == found(q="t777", limit=1000)
    assert {what for _, what in found(q="clean comp")} == {"clean completed"}
    assert found(q="nothing-has-this") == []
    assert found(q="t777", kind="job") == []
    assert found(q="%") == found(q="_7") == []
    key = key_of("file:/lake/7/t7")
    assert {name for name, _ in found(table=key, limit=1000)} == {"t7"}
    assert len(found(table=key, limit=1000)) == STEPS
    assert len(found(table=key, q="clean", limit=1000)) == STEPS // 4
    newest = client.get("/api/v1/events", params={"limit": 3}).json()["events"]
    older = client.get("/api/v1/events", params={"limit": 3, "before": newest[-1]["time_s"]}).json()["events"]
    assert all(one["time_s"] < newest[-1]["time_s"] for one in older)


def test_one_table_with_many_steps_makes_no_other_page_slow(many):
    client, model = many
    now_s, counted = model.query("SELECT max(time_s) AS s FROM steps")[0]["s"], [0]
    (step,) = model.query("SELECT * FROM steps WHERE uid = 'u0' ORDER BY sequence LIMIT 1")
    changes = [
        {"sequence": 1000 + at, "instant": f"{20260101000000000 + at}", "time_s": now_s + at, "action": action, "undone": undone}
        for at in range(30_000)
        for action, undone in [("rollback", f"{20260101000000000 + at - 1}") if at % 3 == 0 else ("clean", None)]
    ]
    model._write((f"INSERT INTO steps VALUES ({', '.join('?' * len(step))})", [tuple((step | one).values()) for one in changes]))
    model._connection.set_progress_handler(lambda: counted.__setitem__(0, counted[0] + 1000), 1000)
    found = {}
    for address in ("/", "/work", "/writers"):
        counted[0] = 0
        assert client.get(address).status_code == 200
        found[address] = counted[0]
    assert {address: one for address, one in found.items() if one > INSTRUCTIONS} == {}


def test_rules_are_matched_once_for_each_table_and_reading_of_the_file(consoles, monkeypatch):
    file = consoles.folder / "policies.yaml"
    text = "version: 1\nrules:\n  - name: all\n    match: {{paths: ['file:/lake/{}/*']}}\n    priority: 7\n"
    file.write_text(text.format(7))
    follower, model, settings = consoles.follower(policy_file=str(file))
    generated(consoles, model, consoles.clock.now().timestamp())
    client = TestClient(console_app(settings, model, follower, consoles.clock), base_url=ADDRESS)
    asked, rules_for = [], Policies.rules_for
    monkeypatch.setattr(Policies, "rules_for", lambda own, path, uid: (asked.append(path), rules_for(own, path, uid))[1])
    assert f"and {TABLES // 20 - 5:,} more" in " ".join(Parsed(client.get("/policies").text).text.split())
    assert len(asked) == TABLES
    client.get("/policies")
    assert len(asked) == TABLES
    file.write_text(text.format("*"))
    follower.policies()
    consoles.clock.advance(60)
    assert f"and {TABLES - 5:,} more" in " ".join(Parsed(client.get("/policies").text).text.split())


def test_a_turn_at_rest_looks_at_no_table(consoles, monkeypatch):
    tables = [consoles.create(name) for name in ("one", "two", "three")]
    consoles.publish()
    follower, model, _ = consoles.follower(events=True, examine_interval_s=3600, tables_rescan_s=3600)
    follower.turn()
    looked, look = [], follower._looked
    monkeypatch.setattr(follower, "_looked", lambda fleet, path, **more: (looked.append(path), look(fleet, path, **more)))
    follower.turn()
    assert looked == []
    write(tables[1], 0)
    consoles.publish()
    follower.turn()
    assert [path.rpartition("/")[2] for path in looked] == ["two"]
    assert [row["name"] for row in model.query("SELECT name FROM tables WHERE last_write_s IS NOT NULL")] == ["two"]


@pytest.mark.parametrize("events", [True, False])
def test_what_changed_does_not_wait_for_what_is_only_looked_at_again(consoles, monkeypatch, events):
    date_files_by(consoles.clock, monkeypatch)
    monkeypatch.setattr(follower_module, "MOST_AGAIN", 2)
    tables = [consoles.create(f"t{number}") for number in range(5)]
    follower, model, _ = consoles.follower(events=events, examine_interval_s=60.0, tables_rescan_s=1e6)
    follower.turn()

    def examined() -> dict[str, float]:
        return {row["name"]: row["examined_s"] for row in model.query("SELECT name, examined_s FROM tables")}

    consoles.clock.advance(61.0)
    began_s, named = consoles.clock.now().timestamp(), set()
    for turn in range(3):
        write(tables[4], 10 * turn)
        follower.hint(tables[4].storage.root)
        follower.turn()
        assert model.query("SELECT sequence FROM tables WHERE name = 't4'")[0]["sequence"] == tables[4].refresh().sequence
        again = {name for name, at_s in examined().items() if at_s >= began_s} - {"t4"}
        assert named < again or len(again) == 4
        assert len(again) <= 2 * (turn + 1)
        named = again
    assert len(named) == 4


def test_live_pages_are_rendered_once_for_all_who_look(many, monkeypatch):
    client, _ = many
    asked, verdicts = [], queries.verdicts
    monkeypatch.setattr(queries, "verdicts", lambda model: (asked.append(1), verdicts(model))[1])
    refresh = {"hx-request": "true"}
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: client.get("/work", headers=refresh), range(24)))
    assert {(answer.status_code, answer.headers["vary"]) for answer in answers} == {(200, "Accept-Encoding")}
    assert len(asked) <= 24 // 2
    whole, live = client.get("/work").text, answers[0].text
    parts = re.compile(r'<div id="live".*</main>', re.DOTALL)
    ages = re.compile(r">[^<>]*(?:\d (?:s|min|h|d|ms))[^<>]*<")
    assert ages.sub("", parts.findall(live)[0]) == ages.sub("", parts.findall(whole)[0])
    plain = client.get("/work", headers=refresh | {"accept-encoding": "identity"})
    assert "content-encoding" not in plain.headers
