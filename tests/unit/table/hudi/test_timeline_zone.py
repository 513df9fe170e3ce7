"""Tables whose instants are in the zone of their writers: points in time, ages and times of actions, and sharing."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from tests.unit.table.shared import SHARING, put
from tests.unit.table.tables import contents, new_table, open_table, set_properties, write

from tideline_locks import open_hudi_lock
from tideline_table.action import Rules, examine
from tideline_table.clock import ManualClock
from tideline_table.errors import UnsupportedTable
from tideline_table.hudi import properties as p
from tideline_table.hudi.instant import time_from_instant
from tideline_table.hudi.properties import read_properties
from tideline_table.hudi.zone import LOCAL
from tideline_table.storage import MemoryStorage, Storage
from tideline_table.table import FindingKind, Table, share_table

TOKYO, NEW_YORK, BERLIN = "Asia/Tokyo", "America/New_York", "Europe/Berlin"


@pytest.fixture
def in_zone(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    def enter(name: str) -> None:
        monkeypatch.setenv("TZ", name)
        time.tzset()

    yield enter
    monkeypatch.undo()
    time.tzset()


def local_time(moment: datetime, zone: str) -> datetime:
    """The time that clocks of the zone show, as if it were UTC."""
    return moment.astimezone(ZoneInfo(zone)).replace(tzinfo=UTC)


def hudi_table(zone: str, declared: str = "LOCAL") -> tuple[Storage, ManualClock, list[datetime]]:
    """A table that Apache Hudi's writers of a zone wrote twice, an hour apart; and when."""
    clock = ManualClock()
    ours, written, times = new_table(ManualClock(local_time(clock.now(), zone)))[0], MemoryStorage(clock=clock), []
    for number in range(2):
        clock.advance(3600)
        ours.clock.advance(3599)  # `write` advances it, too
        write(ours, [(f"k{number}", "p", number, "x")])
        times.append(clock.now())
    for found in ours.storage.list_objects(""):
        if not found.path.startswith(".hoodie/.tideline"):
            written.put(found.path, ours.storage.read(found.path))
    set_properties(written, {**read_properties(written), p.TIMEZONE: declared})
    clock.advance(60)
    return written, clock, times


@pytest.mark.parametrize("zone", [TOKYO, NEW_YORK, BERLIN, "UTC"])
def test_points_in_time_are_those_of_the_writers_zone(in_zone: Callable[[str], None], zone: str) -> None:
    in_zone(zone)
    storage, clock, times = hudi_table(zone)
    table = open_table(storage, clock)
    between = times[1] - timedelta(minutes=1)
    for point in (between, between.isoformat(), between.replace(tzinfo=None), f"{between:%Y-%m-%d %H:%M:%S}"):
        assert [row[0] for row in contents(table, as_of=point)] == ["k0"]
        assert table.incremental(since=point).read().column("id").to_pylist() == ["k1"]
    assert contents(table, as_of=times[0] - timedelta(minutes=1)) == []
    last = max(table.state.actions.values(), key=lambda a: a.instant)
    assert abs(datetime.fromisoformat(last.since) - times[1]) < timedelta(seconds=10)
    status = examine(table, Rules())
    assert [f for f in status.findings if f.kind is FindingKind.CLOCK] == []


def test_a_timeline_in_utc_is_read_so_on_every_machine(in_zone: Callable[[str], None]) -> None:
    in_zone(TOKYO)
    storage, clock, times = hudi_table("UTC", "UTC")
    assert [row[0] for row in contents(open_table(storage, clock), as_of=times[1] - timedelta(minutes=1))] == ["k0"]


def test_writers_east_of_this_machine_are_not_blamed_on_ntp_alone(in_zone: Callable[[str], None]) -> None:
    in_zone("UTC")
    storage, clock, _ = hudi_table(TOKYO)
    (found,) = [f for f in examine(open_table(storage, clock), Rules()).findings if f.kind is FindingKind.CLOCK]
    assert f"{p.TIMEZONE} is LOCAL" in found.text
    assert "(TZ)" in found.text


@pytest.mark.parametrize("zone", [NEW_YORK, "UTC"])
@pytest.mark.parametrize("machine", [TOKYO, NEW_YORK, "UTC"])
def test_sharing_turns_the_timeline_to_utc(in_zone: Callable[[str], None], zone: str, machine: str) -> None:
    in_zone(machine)
    storage, clock, _ = hudi_table(zone)
    shared = share_table(open_table(storage, clock), SHARING, open_hudi_lock)
    assert read_properties(storage)[p.TIMEZONE] == "UTC"
    done = put(shared, [("new", "p", 1, "y")])
    assert abs(time_from_instant(done.instant) - clock.now()) < timedelta(seconds=10)
    assert done.instant == max(shared.state.actions)
    assert [row[0] for row in contents(shared)] == ["k0", "k1", "new"]
    assert [row[0] for row in contents(shared, as_of=clock.now() - timedelta(milliseconds=500))] != []


def test_sharing_waits_for_instants_ahead_of_utc_and_names_the_zone(in_zone: Callable[[str], None]) -> None:
    in_zone("UTC")
    storage, clock, _ = hudi_table(TOKYO)
    table = open_table(storage, clock)
    with pytest.raises(UnsupportedTable, match=f"{p.TIMEZONE} is LOCAL, and a writer's zone is east of UTC") as caught:
        share_table(table, SHARING, open_hudi_lock)
    assert "NTP" not in str(caught.value)
    assert read_properties(storage)[p.TIMEZONE] == "LOCAL"
    clock.advance(9 * 3600)
    shared = share_table(open_table(storage, clock), SHARING, open_hudi_lock)
    put(shared, [("new", "p", 1, "y")])
    assert len(contents(shared)) == 3


def test_another_zone_is_refused_by_name() -> None:
    storage, clock, _ = hudi_table("UTC", "Mars/Olympus")
    with pytest.raises(UnsupportedTable, match="timezone=Mars/Olympus"):
        open_table(storage, clock)


def test_tables_of_tideline_are_in_utc(in_zone: Callable[[str], None]) -> None:
    in_zone(TOKYO)
    table: Table = new_table()[0]
    done = write(table, [("k", "p", 1, "x")])
    assert time_from_instant(done.instant) <= table.clock.now()
    assert table.zone is UTC


def test_local_times_follow_summer_time(in_zone: Callable[[str], None]) -> None:
    in_zone(BERLIN)
    first = datetime(2026, 10, 25, 0, 30, tzinfo=UTC)
    for moment in (datetime(2026, 7, 1, 12, tzinfo=UTC), datetime(2026, 1, 1, 12, tzinfo=UTC), first, first + timedelta(hours=1)):
        local = moment.astimezone(LOCAL)
        assert local.astimezone(UTC) == moment
        assert local.replace(tzinfo=None) == moment.astimezone(ZoneInfo(BERLIN)).replace(tzinfo=None)
    # The hour occurs twice: an instant in it means the first one.
    assert time_from_instant("20261025023000000", LOCAL) == first
