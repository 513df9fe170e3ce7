"""Points in time as callers name them: one parser, and the same answer at each entrance of the engine."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import pytest
from tests.unit.table.tables import new_table, write

from tideline_table.errors import InstantNotFound, InvalidOption
from tideline_table.hudi.instant import time_from_instant
from tideline_table.hudi.point import parse_as_of, parse_point
from tideline_table.table import HeldLease, take_lease

T = "20260131235959987"
MOMENT = datetime(2026, 1, 31, 23, 59, 59, 987_654, UTC)
NONSENSE = [
    "banana", "yesterday", "2026-13-01", "202601312359599", "2026-01-31T25:00:00", "2026", "20260131", "2026-W05-6", " ", "now()",
    "20261331235959987", "00000000000000", "0001-01-01T00:00:00+14:00", "\uff12026-01-31", "-5", True, 1.5,
]  # fmt: skip


@pytest.mark.parametrize(
    ("point", "expected"),
    [
        (T, T),
        (int(T), T),
        ("20260131235959", "20260131235959999"),
        ("2026-01-31", "20260131000000000"),
        ("0007-01-31", "00070131000000000"),
        ("2026-01-31 23:59:59", "20260131235959000"),
        ("2026-01-31 23:59:59.987", T),
        ("2026-01-31T23:59:59.987Z", T),
        ("2026-02-01T01:59:59.987+02:00", T),
        (MOMENT, T),
        (MOMENT.replace(tzinfo=None), T),
        (MOMENT.astimezone(timezone(timedelta(hours=-7))), T),
        (date(2026, 1, 31), "20260131000000000"),
    ],
)
def test_forms_of_a_point_in_time(point, expected):
    assert parse_as_of(point) == parse_point(point) == expected
    assert parse_as_of(parse_as_of(point)) == expected, "a parsed point stays as it is"


def test_points_of_a_table_whose_instants_are_times_of_another_zone():
    zone = ZoneInfo("Asia/Kolkata")
    assert parse_as_of(MOMENT, zone) == parse_as_of("2026-01-31 23:59:59.987", zone) == "20260201052959987"
    assert parse_as_of(T, zone) == T


@pytest.mark.parametrize("point", ["", *NONSENSE])
def test_text_that_names_no_time_is_refused(point):
    with pytest.raises(InvalidOption, match="yyyy-MM-dd"):
        parse_as_of(point)


@pytest.mark.parametrize(("point", "expected"), [(0, "0"), ("0", "0"), (12, "12"), ("9999999999999", "9999999999999")])
def test_sequences_are_no_instants(point, expected):
    assert parse_point(point) == expected
    with pytest.raises(InvalidOption):
        parse_as_of(point)


READS = {
    "slices": lambda table, point: table.slices(point),
    "snapshot": lambda table, point: table.snapshot(point).slices,
    "read": lambda table, point: table.read(["id"], as_of=point).to_pylist(),
    "scan": lambda table, point: [b.to_pylist() for b in table.scan(["id"], as_of=point)[1]],
    "look_up": lambda table, point: table.look_up(["a", "b"], ["id"], as_of=point).to_pylist(),
    "schema_at": lambda table, point: table.schema_at(point),
    "take_lease": lambda table, point: take_lease(table, point).instant,
}
CHANGES = {
    "incremental": lambda table, point: table.incremental(point).read(["id"]).to_pylist(),
    "incremental until": lambda table, point: table.incremental(until=point).read(["id"]).to_pylist(),
    "changes": lambda table, point: list(table.changes(point).scan()),
    "changes until": lambda table, point: list(table.changes(until=point).scan()),
    "first_write_after": lambda table, point: table.first_write_after(point),
    "sequence_of": lambda table, point: table.sequence_of(point),
    "take_lease after": lambda table, point: take_lease(table, after=point).instant,
}


@pytest.fixture
def history():
    """Three writes, 90 seconds apart; returns the table and the instant of the second one."""
    table, _, clock = new_table()
    done = []
    for key in "abc":
        done.append(write(table, [(key, "p", 1, "x")]).instant)
        clock.advance(90)
    return table, done[1]


def test_each_entrance_takes_all_forms_of_a_point(history):
    table, second = history
    moment = time_from_instant(second) + timedelta(seconds=1)  # its commit is over, and the next one has not begun
    for name, answer in {**READS, **CHANGES}.items():
        expected = answer(table, second)
        for point in (moment, moment.isoformat(), f"{moment:%Y-%m-%d %H:%M:%S.%f}", f"{moment:%Y%m%d%H%M%S}", int(second)):
            assert answer(table, point) == expected, (name, point)


def test_each_entrance_refuses_text_that_is_no_point(history):
    table, _ = history
    for answer in (*READS.values(), *CHANGES.values()):
        for point in NONSENSE:
            # Short numbers are sequences, of which the table has not so many.
            error, what = (InstantNotFound, "sequence") if point in ("2026", "20260131") else (InvalidOption, "point in time")
            with pytest.raises(error, match=what):
                answer(table, point)
    assert not table.storage.list_folder(".hoodie/.tideline/leases").objects


def test_a_held_lease_takes_a_time(history):
    table, second = history
    with HeldLease(table, time_from_instant(second)) as held:
        assert held.lease.instant == second
