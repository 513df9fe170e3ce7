from datetime import UTC, datetime, time, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.property.profile import few

from tideline_runtime.policy import Window, is_open, next_change

BERLIN = ZoneInfo("Europe/Berlin")
NIGHT = Window(time(22), time(5), BERLIN, frozenset({"fri", "sat"}))


def utc(text):
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


@pytest.mark.parametrize(
    ("at", "opened"),
    [
        ("2026-11-20T20:59", False),  # Friday, 21:59 in Berlin
        ("2026-11-20T21:00", True),
        ("2026-11-21T03:59", True),
        ("2026-11-21T04:00", False),
        ("2026-11-22T03:59", True),  # the night from Saturday
        ("2026-11-22T21:30", False),  # Sunday does not begin one
        ("2026-07-03T20:00", True),  # summer time
        ("2026-07-03T19:59", False),
    ],
)
def test_a_window_follows_the_clock_of_its_zone_and_belongs_to_the_day_on_which_it_begins(at, opened):
    assert is_open([NIGHT], utc(at)) is opened


def test_without_windows_every_time_is_open():
    assert is_open([], utc("2026-01-01T00:00"))
    assert next_change([], utc("2026-01-01T00:00")) is None


def test_windows_that_touch_or_overlap_count_as_one():
    evening, late = Window(time(18), time(22), BERLIN), Window(time(21), time(2), BERLIN)
    assert next_change([evening, late], utc("2026-11-20T18:00")) == utc("2026-11-21T01:00")


def test_the_night_of_a_clock_change_is_as_long_as_its_hours_on_the_clock():
    night = Window(time(22), time(5), BERLIN)
    for begin, hours in (("2026-03-28T21:00", 6), ("2026-10-24T20:00", 8), ("2026-11-20T21:00", 7)):
        assert next_change([night], utc(begin)) == utc(begin) + timedelta(hours=hours)


TIMES = st.times().map(lambda t: t.replace(second=0, microsecond=0))
WINDOWS = st.builds(
    Window,
    TIMES,
    TIMES,
    st.sampled_from(["UTC", "Europe/Berlin", "America/New_York", "Asia/Kolkata", "Pacific/Chatham"]).map(ZoneInfo),
    st.frozensets(st.sampled_from(["mon", "tue", "wed", "thu", "fri", "sat", "sun"]), min_size=1),
)


@few
@given(
    st.lists(WINDOWS, min_size=1, max_size=3),
    st.datetimes(datetime(2025, 1, 1), datetime(2028, 1, 1), timezones=st.just(UTC)),
    st.integers(0, 9),
)
def test_nothing_changes_before_the_next_change_and_something_does_then(windows, now, tenths):
    opened, change = is_open(windows, now), next_change(windows, now)
    if change is None:
        assert all(is_open(windows, now + timedelta(hours=h)) is opened for h in range(24 * 8))
        return
    assert change > now
    assert is_open(windows, change) is not opened
    between = now + (change - now) * (tenths / 10)
    assert is_open(windows, between) is opened
