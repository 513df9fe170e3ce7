"""The charts of a table over time: what the console saw of its size, and what its writes say."""

from __future__ import annotations

import pytest
from starlette.testclient import TestClient
from tests.unit.console.conftest import ADDRESS
from tests.unit.console.test_pages import Parsed, key_of
from tests.unit.services.fleet import date_files_by, update, write

from tideline_console.history import SLOTS, UPKEEP_DAYS, trends_of, upkeep_of, usage_of
from tideline_console.instants import KeptInstants
from tideline_console.model import MOST_SIZES
from tideline_console.web import console_app
from tideline_runtime.planning.ledger import rewriting_of
from tideline_table.action import SERVICES, TableService, run_clustering


def trends(consoles, model):
    (row,) = model.query("SELECT * FROM tables")
    now_s = consoles.clock.now().timestamp()
    return {one.heading: one for one in trends_of(model, row, KeptInstants(model).of(row["uid"]), now_s)}


def last_title(trend):
    return trend.chart.bars[-1].title


def test_size_and_file_groups_grow_with_the_table(consoles, monkeypatch):
    date_files_by(consoles.clock, monkeypatch)
    table = consoles.create("trips")
    write(table, 0)
    follower, model, _ = consoles.follower()
    follower.turn()
    for first in (10, 20, 30):
        consoles.clock.advance(600)
        write(table, first)
        follower.turn()
    consoles.clock.advance(600)
    follower.turn()
    samples = model.query("SELECT * FROM sizes ORDER BY at_s")
    assert [one["file_groups"] for one in samples] == [1, 2, 3, 4], "a look that saw the same adds nothing"
    found = trends(consoles, model)
    groups = found["File groups"].chart.bars
    heights = [bar.height for bar in groups]
    assert len(heights) == SLOTS
    assert heights == sorted(heights)
    assert len(set(heights)) == 4
    assert last_title(found["File groups"]).endswith(": 4")
    assert heights.count(heights[-1]) == pytest.approx(SLOTS / 4, abs=1), "each value lasts as long as it held"
    assert "Log to base, in %" not in found


def test_rows_bytes_and_durations_are_those_of_the_steps(consoles):
    table = consoles.create("trips")
    first, second = write(table, 0), write(table, 10)
    update(table, 0)
    follower, model, _ = consoles.follower()
    follower.turn()
    found = trends(consoles, model)
    assert [bar.title for bar in found["Rows"].chart.bars][:2] == [f"{first.instant}: 5", f"{second.instant}: 10"]
    assert last_title(found["Rows"]).endswith(": 10"), "an update adds none"
    assert found["Rows"].aside == "the last 3 writes"
    steps = {row["instant"]: row for row in model.query("SELECT * FROM steps WHERE to_state = 'completed'")}
    assert len(found["Bytes written"].chart.bars) == len(found["Duration of writes, in ms"].chart.bars) == 3
    assert steps[first.instant]["bytes_added"] > 0


def test_without_old_steps_rows_say_so(consoles):
    table = consoles.create("trips")
    for at in range(6):
        write(table, 10 * at)
    follower, model, _ = consoles.follower(history_steps=6)
    follower.turn()
    assert trends(consoles, model)["Rows"].aside.endswith("without rows of older ones")


def test_sizes_of_a_restless_table_are_bounded_and_reach_back(consoles):
    write(consoles.create("trips"), 0)
    follower, model, _ = consoles.follower()
    follower.turn()
    (row,) = model.query("SELECT * FROM tables JOIN documents USING (base_path)")
    begin_s = row["examined_s"]
    del row["key"]
    for number in range(5 * MOST_SIZES):
        document = {"table": "t", "findings": [], "pending": [], "services": {}}
        model.put_table({**row, "document": document, "size_bytes": number, "examined_s": begin_s + number})
    kept = [one["at_s"] for one in model.query("SELECT at_s FROM sizes ORDER BY at_s")]
    assert MOST_SIZES / 2 <= len(kept) <= MOST_SIZES
    assert kept[0] == begin_s
    assert kept[-1] >= begin_s + 5 * MOST_SIZES - 2


def test_the_page_draws_them(consoles):
    write(consoles.create("trips"), 0)
    client = consoles.client()
    page = Parsed(client.get(f"/tables/{key_of(client, 'trips')}").text)
    labels = {given.get("aria-label") for name, given in page.tags if name == "svg"}
    assert {"Size over time", "File groups over time", "Rows after each of the last writes", "Bytes of the last writes"} <= labels


def test_a_table_that_is_empty_or_gone_has_no_charts_and_no_error(consoles):
    consoles.create("trips")
    client = consoles.client()
    assert client.get(f"/tables/{key_of(client, 'trips')}").status_code == 200


def test_the_cost_of_maintenance_is_what_services_wrote_beside_writers(consoles):
    table = consoles.create("trips")
    for first in (0, 10, 20):
        write(table, first)
    instant = SERVICES[TableService.CLUSTERING].plan(table)
    run_clustering(table, instant)
    follower, model, settings = consoles.follower()
    follower.turn()
    instants, now_s = KeptInstants(model).of(table.uid), consoles.clock.now().timestamp()
    steps = {row["instant"]: row for row in model.query("SELECT * FROM steps WHERE to_state = 'completed'")}
    found = upkeep_of(instants, now_s)
    assert {name: one["runs"] for name, one in found.items()} == {"writers": 3, "clustering": 1}
    assert found["clustering"]["bytes"] == steps.pop(instant)["bytes_added"] > 0
    assert found["writers"]["bytes"] == sum(row["bytes_added"] for row in steps.values())
    assert found["clustering"]["fewer"] == 2, "one file replaced three groups"
    assert 0 < found["clustering"]["ran_s"] <= found["clustering"]["lasted_s"]
    used = usage_of(instants, now_s)
    assert used == {"rewritten_day_bytes": found["clustering"]["bytes"], "processor_day_s": found["clustering"]["ran_s"]}
    assert used["processor_day_s"] == pytest.approx(rewriting_of(table, consoles.clock.now())[1], abs=0.002)
    assert upkeep_of(instants, now_s + UPKEEP_DAYS * 86_400) == {}
    client = TestClient(console_app(settings, model, follower, consoles.clock), base_url=ADDRESS)
    text = Parsed(client.get(f"/tables/{table.uid}").text).text
    ratio = found["clustering"]["bytes"] / found["writers"]["bytes"]
    assert f"services wrote {ratio:.1f} bytes for each byte of writers" in text.partition("Cost of maintenance")[2]
