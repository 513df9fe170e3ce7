"""The checks of the fleet proof find what they are there for."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from tests.fleet import checks
from tests.fleet.checks import Interval
from tests.fleet.instances import value_in
from tests.fleet.policies import next_window
from tests.fleet.tables import GROUPS, KINDS, members
from tests.fleet.writer import WRITERS, batches, rows_of

from tideline_events import FindingEvent, TableIdentity, Transition, VerdictEvent

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
UID = "11111111-1111-1111-1111-111111111111"
PATH = "file:/lake/late/t1"
TABLE = TableIdentity(UID, PATH, "t1", "mor")
BASE = Transition(
    table=TABLE,
    instant="20260101120000000",
    action="compaction",
    operation="compact",
    from_state=None,
    to_state="requested",
    time=NOON,
    requested_time=NOON,
    sequence=1,
    writer_id="planner",
    observed_by="mirror",
    timeline_file="x",
)


def at(seconds: float, **other: object) -> Transition:
    return replace(BASE, time=NOON + timedelta(seconds=seconds), **other)


def done(seconds: float, action: str, **other: object) -> Transition:
    return at(seconds, action=action, to_state="completed", completion_time=NOON + timedelta(seconds=seconds), **other)


def test_a_plan_outside_of_its_window_is_found():
    window = {PATH: [Interval(NOON, NOON + timedelta(seconds=10))]}
    assert not checks.outside_of_windows([at(0), at(10)], window)
    assert len(checks.outside_of_windows([at(-1), at(11), at(11, action="clean")], window)) == 2
    assert not checks.outside_of_windows([at(11)], {})


def test_bytes_over_the_budget_are_found_and_those_after_it_was_lifted_are_not():
    events = [done(1, "compaction", bytes_added=60), done(2, "clustering", bytes_added=50), done(3, "commit", bytes_added=500)]
    lifted = NOON + timedelta(seconds=2)
    assert not checks.over_budget(events, [PATH], 100, lifted)
    assert checks.over_budget(events, [PATH], 100, lifted + timedelta(seconds=1)) == [f"{PATH} rewrote 110 bytes of 100"]


def test_pending_plans_are_counted_until_they_end_or_are_undone():
    other = "20260101120000001"
    events = [at(0), at(1, instant=other), done(2, "compaction"), at(3, instant="20260101120000002")]
    assert checks.most_pending(events) == 2
    undone = done(2, "rollback", instant="20260101120000009", undone_instant=other)
    assert checks.most_pending([at(0), at(1, instant=other), undone, at(3, instant="20260101120000002")]) == 2


def test_a_finding_must_begin_and_end():
    caused = {"backlog": "/lake/late/t1"}
    found = FindingEvent(UID, PATH, "backlog", "found", NOON, "much")
    cleared = FindingEvent(UID, PATH, "backlog", "cleared", NOON + timedelta(seconds=1))
    assert "no event" in checks.unheard([cleared], caused)[0]
    assert "end with 'found'" in checks.unheard([found], caused)[0]
    assert "end with 'found'" in checks.unheard([found, cleared, replace(found, time=NOON + timedelta(seconds=2))], caused)[0]
    assert not checks.unheard([cleared, found], caused)


def test_objectives_verdicts_and_work_that_are_missing():
    missed = FindingEvent(UID, PATH, "objective", "found", NOON, "9 small files")
    assert checks.missed_objectives([missed], [PATH]) == [f"{PATH}: 9 small files"]
    assert not checks.missed_objectives([missed], ["file:/lake/other"])
    held = VerdictEvent(UID, PATH, "clustering", "window", NOON)
    assert checks.never_held([held], {"window": [PATH], "budget": [PATH]}) == ["no table was held by budget"]
    assert checks.without_work([done(1, "compaction")], {PATH: ["compaction", "clustering"]}) == [
        f"{PATH} has no completed clustering"
    ]


def test_the_delay_of_a_plan_begins_with_the_commit_that_made_it_due():
    commits = [done(second, "deltacommit") for second in (1, 2, 3, 4)]
    assert checks.delays_s([*commits, at(5)], 3) == [2.0]
    assert checks.delays_s([*commits[:2], at(5)], 3) == []


def test_unfinished_work_is_found():
    document = {
        "base_path": PATH,
        "services": {"clustering": {"outcome": "due", "reason": "many"}, "compaction": {"outcome": "not_due", "reason": "few"}},
        "findings": [{"kind": "backlog", "text": "much"}],
        "pending": [{"service": "clean", "instant": "1"}],
    }
    assert len(checks.unfinished([document])) == 3
    off = {"outcome": "off", "reason": "switched off"}
    at_rest = {**document, "services": {"logcompaction": off}, "findings": [], "pending": []}
    assert checks.unfinished([at_rest]) == []
    assert len(checks.unfinished([{**at_rest, "services": {"clean": off}}])) == 1


def test_every_kind_of_table_gets_into_every_group_and_on_both_places():
    found = members(len(KINDS) * len(GROUPS) * 2, "file:/d", "s3://b")
    assert {(m.kind.name, m.base_path[:2]) for m in found[:16]} == {(k.name, place) for k in KINDS for place in ("fi", "s3")}
    assert {(m.kind.name, m.group) for m in found} == {(k.name, group) for k in KINDS for group in GROUPS}


def test_each_table_is_written_by_two_writers_in_a_round_and_no_rows_of_a_round_are_equal_in_order():
    tables = {f"t{n}": {} for n in range(3)}
    every = [batch for writer in range(WRITERS) for batch in batches(tables, writer, 2)]
    assert sorted((b.base_path, b.round) for b in every) == sorted((t, r) for t in tables for r in range(2) for _ in range(2))
    orders = [(b.base_path, rows_of(b)["n"][0].as_py()) for b in every]
    assert len(orders) == len(set(orders))


def test_a_window_of_a_minute_begins_late_enough():
    window = next_window(NOON + timedelta(seconds=1), 60.0)
    assert (window.opens, window.closes) == (NOON + timedelta(minutes=2), NOON + timedelta(minutes=3))


def test_values_of_a_metric_are_added_by_label():
    text = 'a_b{kind="x"} 1\na_b{kind="y"} 2\na_bc{kind="x"} 4\n'
    assert (value_in(text, "a_b", {"kind": "x"}), value_in(text, "a_b", {}), value_in(text, "z", {})) == (1.0, 3.0, None)
