"""The JSON API: each answer fits the OpenAPI document, and says what the pages and `tideline status` say."""

from __future__ import annotations

import pytest
from jsonschema import Draft202012Validator
from starlette.testclient import TestClient
from tests.unit.console.conftest import ADDRESS
from tests.unit.services.fleet import begin, date_files_by, update, write

from tideline_console.openapi import OPENAPI
from tideline_console.web import console_app
from tideline_events.sqlite import SqliteTail


def fits(document, schema):
    whole = {"components": OPENAPI["components"], "$ref": f"#/components/schemas/{schema}"}
    Draft202012Validator(whole).validate(document)
    return document


@pytest.fixture
def client(consoles):
    trips = consoles.create("trips")
    write(trips, 0)
    update(trips, 0)
    begin(trips)
    (consoles.folder / "tables" / "damaged" / ".hoodie").mkdir(parents=True)
    (consoles.folder / "tables" / "damaged" / ".hoodie" / "hoodie.properties").write_text("nothing\n")
    return consoles.client()


def test_every_path_answers_as_described(client):
    (row, damaged) = sorted(fits(client.get("/api/v1/tables").json(), "Tables")["tables"], key=lambda r: r["name"] != "trips")
    addresses = {
        path: path.removeprefix("/api/v1").replace("{key}", row["key"]).replace("{id}", f"{row['uid']}/1")
        for path in OPENAPI["paths"]
    }
    for path, address in addresses.items():
        answer = client.get(f"/api/v1{address}")
        assert answer.status_code == 200, address
        name = OPENAPI["paths"][path]["get"]["responses"]["200"]["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
        assert fits(answer.json(), name)
    assert damaged["verdict"] == "cannot_open"
    assert client.get("/api/v1/openapi.json").json() == OPENAPI


def test_a_table_is_found_by_key_and_by_uid(client):
    row = next(r for r in client.get("/api/v1/tables").json()["tables"] if r["name"] == "trips")
    by_key, by_uid = (client.get(f"/api/v1/tables/{name}").json() for name in (row["key"], row["uid"]))
    assert by_key["key"] == by_uid["key"]
    assert by_key["status"]["base_path"] == row["base_path"]
    assert by_key["facts"]["slices"] == row["file_groups"]


def test_the_timeline_has_each_instant_once(client):
    row = next(r for r in client.get("/api/v1/tables").json()["tables"] if r["name"] == "trips")
    found = client.get(f"/api/v1/tables/{row['key']}/timeline").json()
    assert [one["outcome"] for one in found["instants"]] == ["running", "completed", "completed"]
    assert [one["rows_inserted"] for one in found["instants"]] == [None, 0, 5]
    assert found["instants"][1]["rows_updated"] == 5
    assert len(client.get(f"/api/v1/tables/{row['key']}/timeline?limit=1").json()["instants"]) == 1


def test_events_are_searched_and_paged(client):
    every = client.get("/api/v1/events").json()["events"]
    assert [one["time_s"] for one in every] == sorted((one["time_s"] for one in every), reverse=True)
    instant = every[-1]["instant"]
    assert {one["instant"] for one in client.get(f"/api/v1/events?q={instant}").json()["events"]} == {instant}
    older = client.get(f"/api/v1/events?before={every[0]['time_s']}").json()["events"]
    assert every[0]["id"] not in {one["id"] for one in older}
    assert client.get("/api/v1/events?kind=job").json()["events"] == []


def test_published_events_are_shown(consoles):
    write(consoles.create("trips"), 0)
    consoles.publish()
    found = consoles.client(events=True).get("/api/v1/events").json()["events"]
    assert {one["kind"] for one in found} >= {"step", "table"}
    created = next(one for one in found if one["kind"] == "table")
    assert (created["what"], created["name"]) == ("created", "trips")


def test_tables_have_the_lag_of_their_events(consoles, monkeypatch):
    date_files_by(consoles.clock, monkeypatch)
    trips, weather = consoles.create("trips"), consoles.create("weather")
    write(trips, 0)
    write(weather, 0)
    consoles.publish()
    consoles.clock.advance(600)
    follower, model, settings = consoles.follower(events=True)
    client = TestClient(console_app(settings, model, follower, consoles.clock), base_url=ADDRESS)

    def lags(query="?sort=lag") -> list[tuple[str, float | None]]:
        follower.turn()
        return [(row["name"], row["lag_s"]) for row in client.get(f"/api/v1/tables{query}").json()["tables"]]

    assert lags() == [("trips", None), ("weather", None)], "events of the past have none"
    write(weather, 10)
    consoles.clock.advance(7)
    consoles.publish()
    found = lags()
    assert [name for name, _ in found] == ["weather", "trips"]
    lag_s = found[0][1]
    assert lag_s >= 7.0
    assert lags("?lag_min=7") == [("weather", lag_s)]
    assert lags("?lag_min=1000") == []
    assert "≥ 7.0 s" in client.get("/tables?lag_min=7").text
    assert f",{lag_s}," in client.get("/tables.csv").text
    consoles.clock.advance(3600)
    consoles.publish_again()
    assert lags() == [("weather", lag_s), ("trips", None)], "their last steps are no news"


def test_events_of_the_past_that_an_event_log_gives_late_have_no_lag(consoles, monkeypatch):
    """A poll without records is not the end: that of Kafka has none until it is connected."""
    write(consoles.create("trips"), 0)
    consoles.publish()
    consoles.clock.advance(600)
    follower, model, _ = consoles.follower(events=True)
    polls, ends = [1, 2], [False]
    poll = SqliteTail.poll
    monkeypatch.setattr(SqliteTail, "poll", lambda tail, wait_s: [] if polls and polls.pop() else poll(tail, wait_s))
    monkeypatch.setattr(SqliteTail, "is_at_end", lambda _: ends[0])
    for _ in range(3):
        follower.turn()
    assert model.query("SELECT count(*) AS n FROM steps")[0]["n"]
    assert model.query("SELECT * FROM lags") == []
