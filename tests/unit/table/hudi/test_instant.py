from datetime import UTC, datetime, timedelta, timezone

import pytest
from tests.unit.table.tables import new_table, write

from tideline_table.errors import CorruptMetadata, IllegalTransition
from tideline_table.hudi.instant import (
    TRANSITIONS,
    Action,
    Instant,
    State,
    check_transition,
    instant_from_time,
    next_instant,
    time_from_instant,
)
from tideline_table.hudi.version6 import VERSION_6, parse_timeline_file_name

T = "20260131235959987"
HOUR_S = 3600.0
NAMES = {  # table 4.1 of the format reference
    Action.COMMIT: ("commit.requested", "inflight", "commit"),
    Action.DELTA_COMMIT: ("deltacommit.requested", "deltacommit.inflight", "deltacommit"),
    Action.REPLACE_COMMIT: ("replacecommit.requested", "replacecommit.inflight", "replacecommit"),
    Action.COMPACTION: ("compaction.requested", "compaction.inflight", "commit"),
    Action.LOG_COMPACTION: ("logcompaction.requested", "logcompaction.inflight", "deltacommit"),
    Action.CLEAN: ("clean.requested", "clean.inflight", "clean"),
    Action.ROLLBACK: ("rollback.requested", "rollback.inflight", "rollback"),
    Action.RESTORE: ("restore.requested", "restore.inflight", "restore"),
    Action.SAVEPOINT: (None, "savepoint.inflight", "savepoint"),
    Action.INDEXING: ("indexing.requested", "indexing.inflight", "indexing"),
}
STATES = (State.REQUESTED, State.INFLIGHT, State.COMPLETED)
CASES = [
    (Instant(T, action, state), f"{T}.{suffix}")
    for action, suffixes in NAMES.items()
    for state, suffix in zip(STATES, suffixes, strict=True)
    if suffix
]


def test_table_of_names_covers_every_action():
    assert set(NAMES) == set(Action) - {Action.ARCHIVAL}
    assert parse_timeline_file_name("20260101000000000.archival") is None


@pytest.mark.parametrize(("instant", "name"), CASES, ids=lambda v: v if isinstance(v, str) else "")
def test_file_name(instant, name):
    assert VERSION_6.timeline_file_name(instant) == name
    becomes = {Action.COMPACTION: Action.COMMIT, Action.LOG_COMPACTION: Action.DELTA_COMMIT}
    action = becomes.get(instant.action, instant.action) if instant.state is State.COMPLETED else instant.action
    assert parse_timeline_file_name(name) == Instant(T, action, instant.state)


@pytest.mark.parametrize(
    "name",
    [
        "hoodie.properties",
        f".{T}.commit.crc",
        f"{T}.commit.tmp",
        f"{T}.commit.0b0e8fd2-5d3f-4f0c-8b2e-000000000000",
        f"{T}.nonsense",
        f"{T}.none",
        f"{T}.requested",
        f"{T}.commit.completed",
        f"{T}.commit\n",
        "2026.commit",
        f"{T}",
        f"a{T}.commit",
        "",
    ],
)
def test_other_names_are_no_timeline_files(name):
    assert parse_timeline_file_name(name) is None


def test_old_and_metadata_table_instants_are_read():
    assert parse_timeline_file_name("20260131235959.commit").time == "20260131235959"
    assert parse_timeline_file_name(f"{T}001.commit").time == f"{T}001"


def test_instants_are_utc_with_milliseconds():
    moment = datetime(2026, 2, 1, 1, 59, 59, 987654, timezone(timedelta(hours=2)))
    assert instant_from_time(moment) == T
    assert time_from_instant(T) == datetime(2026, 1, 31, 23, 59, 59, 987000, UTC)
    assert time_from_instant("20260131235959") == datetime(2026, 1, 31, 23, 59, 59, 999000, UTC)


@pytest.mark.parametrize("text", ["", "20261331000000000", "2026013123595", "x0260131235959987", "20260131235959abc"])
def test_broken_instants_are_typed_errors(text):
    with pytest.raises(CorruptMetadata):
        time_from_instant(text)


def test_next_instant_never_goes_back():
    now = time_from_instant(T)
    assert next_instant(now, "") == T
    assert next_instant(now, "20260131235959986") == T
    assert next_instant(now, T) == "20260131235959988"
    assert next_instant(now - timedelta(days=3), T) == "20260131235959988"
    assert next_instant(now, "20261231235959999") == "20270101000000000"


def test_instants_rise_through_a_clock_that_goes_back():
    table, _, clock = new_table()
    seen = []
    for back in (0, -1.5, -0.4, 0):
        clock.advance(back)
        seen.append(write(table, [("a", "p", 1, "x")]).instant)
        clock.advance(-1)
    assert seen == sorted(set(seen))


def test_instants_rise_by_milliseconds_through_a_clock_that_goes_far_back():
    table, _, clock = new_table()
    first = write(table, [("a", "p", 1, "x")]).instant
    clock.advance(-HOUR_S)
    assert write(table, [("a", "p", 2, "y")]).instant == next_instant(clock.now(), first) == str(int(first) + 1)


@pytest.mark.parametrize("before", list(State))
@pytest.mark.parametrize("after", list(State))
def test_transitions(before, after):
    legal = {
        ("none", "requested"),
        ("none", "inflight"),
        ("requested", "inflight"),
        ("inflight", "inflight"),
        ("inflight", "completed"),
        ("requested", "rolledback"),
        ("inflight", "rolledback"),
    }
    assert ((before, after) in TRANSITIONS) == ((before.value, after.value) in legal)
    if (before.value, after.value) in legal:
        check_transition(T, Action.COMMIT, before, after)
    else:
        with pytest.raises(IllegalTransition):
            check_transition(T, Action.COMMIT, before, after)
