"""The drawing of a timeline: lanes, looks, dense writers, ranges of time."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest
from tests.unit.console.test_pages import Parsed
from tests.unit.services.fleet import HEARTBEAT_GONE_S, date_files_by, die, write

from tideline_console import api, instants, one_table
from tideline_console.instants import DONE, PLANNED, RUNNING, UNDONE, Instant, instants_of
from tideline_console.timeline import ALL, Kept, Span, choose_span, draw, length_of
from tideline_table.action import create_savepoint, restore_to_savepoint, roll_back_dead

NOW_S = 1_800_000_000.0


def instant(at_s, *, action="commit", outcome=DONE, length_s=1.0, writer="w", name="", undone=""):
    ended = at_s + length_s if outcome in (DONE, UNDONE) else None
    return Instant(name or f"{at_s:017.0f}", action, "", outcome, at_s, ended, writer, undone=undone)


def hour(*instants, kept=()):
    return draw(instants, kept, Span(NOW_S - 3600, NOW_S + 216, NOW_S))


def test_bars_lie_where_their_times_are():
    drawing = hour(instant(NOW_S - 1800, length_s=360))
    (mark,) = drawing.marks
    assert abs(mark.x - 1800 / 3816 * 100) < 0.01
    assert abs(mark.width - 360 / 3816 * 100) < 0.01
    assert drawing.marks[0].look == "write"


def test_each_outcome_has_a_look_of_its_own():
    drawing = hour(
        instant(NOW_S - 3000, outcome=UNDONE),
        instant(NOW_S - 2000, action="clustering"),
        instant(NOW_S - 1500, action="compaction", outcome=PLANNED),
        instant(NOW_S - 1000, action="clean", outcome=RUNNING),
        instant(NOW_S - 500, action="rollback"),
    )
    assert [mark.look for mark in drawing.marks] == ["lost", "service", "planned", "running", "bad"]
    running = drawing.marks[3]
    assert abs(running.x + running.width - drawing.now_x) < 0.01


def test_a_rollback_is_tied_to_what_it_undid():
    drawing = hour(instant(NOW_S - 3000, outcome=UNDONE, name="1"), instant(NOW_S - 500, action="rollback", name="2", undone="1"))
    (tie,) = drawing.ties
    assert tie.y1 < tie.y2


def test_dense_writers_cost_few_marks():
    many = [instant(NOW_S - 3600 + n * 0.036, length_s=0.02) for n in range(100_000)]
    began_s = time.process_time()  # other processes do not count
    drawing = draw(many, (), Span(NOW_S - 3600, NOW_S, NOW_S))
    assert len(drawing.marks) < 1000
    assert sum(mark.count for mark in drawing.marks) == 100_000
    assert time.process_time() - began_s < 10


def test_many_writers_share_a_lane():
    drawing = hour(*(instant(NOW_S - 60 * n - 60, writer=f"w{n}") for n in range(40)))
    labels = [lane.label for lane in drawing.lanes]
    assert "35 other writers" in labels
    assert len(labels) < 16


def test_what_is_kept_reaches_to_its_end():
    holds = (
        Kept("Savepoints", "before", NOW_S - 1800, None, "1"),
        Kept("Reader leases", "report", NOW_S - 900, NOW_S + 100, "2"),
    )
    savepoint, lease = hour(instant(NOW_S - 2000), kept=holds).marks[1:]
    assert abs(savepoint.x + savepoint.width - hour().now_x) < 0.01
    assert lease.x + lease.width > hour().now_x


def test_range_is_the_shortest_that_shows_a_dozen():
    recent = [instant(NOW_S - 10 * n) for n in range(20)]
    assert choose_span(recent, "", NOW_S)[0] == "5min"
    assert choose_span([instant(NOW_S - 500_000)], "", NOW_S)[0] == "7d"
    assert choose_span([], "", NOW_S)[0] == "5min"
    assert choose_span([], "90", NOW_S, NOW_S - 60)[1].begin_s == NOW_S - 150
    assert [length_of(text) for text in ("90", "0", "-5", "1e3", "٣", "9" * 40)] == [90.0, *[None] * 5]
    window, span = choose_span([instant(NOW_S - 90 * 86_400)], ALL, NOW_S)
    assert (window, span.begin_s < NOW_S - 90 * 86_400) == (ALL, True)


def test_undone_and_restored_writes_are_told_from_kept_ones(consoles, monkeypatch):
    date_files_by(consoles.clock, monkeypatch)
    trips = consoles.create("trips")
    kept = write(trips, 0).instant
    create_savepoint(trips, user="someone", comment="before")
    later = [write(trips, 10).instant, write(trips, 20).instant]
    dead = die(trips)
    consoles.clock.advance(HEARTBEAT_GONE_S)
    trips.refresh()
    roll_back_dead(trips)
    restore_to_savepoint(trips, kept)
    follower, model, _ = consoles.follower()
    follower.turn()
    outcomes = {one.instant: one.outcome for one in instants_of(model, trips.uid) if one.is_write}
    assert {name for name, outcome in outcomes.items() if outcome == UNDONE} == {*later, dead}
    assert list(outcomes.values()).count(DONE) == 1


@pytest.mark.parametrize("first", ["00000000000001", "00010101000000000", "99991231235959999"])
def test_instants_without_a_time_do_not_take_the_page_away(consoles, first):
    write(consoles.create("trips"), 0)
    folder = Path(consoles.path("trips")) / ".hoodie"
    shutil.rmtree(folder / ".tideline")
    for suffix in ("commit", "commit.requested", "inflight"):
        (folder / f"{first}.{suffix}").write_text("{}")
    client = consoles.client()
    key = client.get("/api/v1/tables").json()["tables"][0]["key"]
    for address in ("", "?window=all", "?window=30d", "?window=30d&until=1", "?window=all&until=1"):
        assert first in client.get(f"/tables/{key}{address}").text or "until" in address
    found = client.get(f"/api/v1/tables/{key}/timeline").json()["instants"]
    assert len(found) == 2
    assert all(one["begun_s"] > 1e9 for one in found)


def test_a_table_with_more_instants_than_are_drawn_says_so(consoles, monkeypatch):
    trips = consoles.create("trips")
    for number in range(4):
        write(trips, number * 10)
    client = consoles.client()
    key = client.get("/api/v1/tables").json()["tables"][0]["key"]
    text = Parsed(client.get(f"/tables/{key}").text).text
    assert "4 instants known" in text
    newest = client.get(f"/api/v1/tables/{key}/timeline").json()["instants"][:3]
    for module in (instants, one_table, api):
        monkeypatch.setattr(module, "MOST_INSTANTS", 3)
    write(trips, 90)
    client = consoles.client()
    assert "the newest 3 instants" in Parsed(client.get(f"/tables/{key}?window=all").text).text
    shown = client.get(f"/api/v1/tables/{key}/timeline", params={"limit": 1000}).json()["instants"]
    assert [one["instant"] for one in shown[1:]] == [one["instant"] for one in newest[:2]]
