"""The contract of file-group reservations: which writer waits for which."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tests.real.redis import RedisServer

from tideline_locks import open_reservations
from tideline_locks.errors import LockUnreachable
from tideline_locks.reservations import EXPIRY_S, StorageReservations
from tideline_table.clock import Clock, ManualClock, SystemClock
from tideline_table.coordination.reservations import MAX_GROUPS, Reservation, Reservations
from tideline_table.storage import MemoryStorage

Open = Callable[..., Reservations]
REDIS = pytest.param("redis", marks=pytest.mark.real)


@pytest.fixture
def opens(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    """Opens the reservations as one more process would."""
    kind = getattr(request, "param", "memory")
    storage = MemoryStorage(clock=ManualClock())

    def opened(clock: Clock | None = None, table: str = "t1") -> Reservations:
        if kind == "storage with a clock":
            return StorageReservations(storage, clock or ManualClock())
        url = {"memory": f"memory:{tmp_path}", "storage": f"storage:{tmp_path}"}.get(kind)
        if url is None:
            server: RedisServer = request.getfixturevalue("shared_redis")
            url = server.url
        return open_reservations(url, f"{tmp_path.name}:{table}", clock=clock or SystemClock())

    return opened


everywhere = pytest.mark.parametrize("opens", ["memory", "storage", REDIS], indirect=True)


def reservation(instant: str, *groups: str, priority: bool = False) -> Reservation:
    return Reservation(instant, frozenset(groups), priority)


@everywhere
def test_the_first_is_active_and_later_ones_wait_for_it(opens: Open) -> None:
    ours, theirs = opens(), opens()
    first, second = reservation("2", "a", "b"), reservation("1", "b", "c")
    assert ours.claim(first) == []
    assert theirs.claim(second) == [first], "the active one goes on whoever is older"
    assert theirs.claim(reservation("3", "x")) == []
    ours.withdraw("2")
    assert theirs.claim(second) == []
    assert ours.claim(first) == [second]


@everywhere
def test_of_those_that_wait_the_older_goes_first_and_priority_before_all(opens: Open) -> None:
    place = opens()
    running, older, younger = reservation("1", "a", "z"), reservation("2", "a"), reservation("3", "a")
    assert place.claim(running) == []
    assert place.claim(older) == [running]
    assert sorted(i.instant for i in place.claim(younger)) == ["1", "2"]
    urgent = reservation("4", "a", priority=True)
    assert place.claim(urgent) == [running], "it waits for what runs, not for those that wait"
    place.withdraw("1")
    assert place.claim(older) == [urgent]
    assert place.claim(urgent) == []
    place.withdraw("4")
    assert place.claim(older) == []


@everywhere
def test_a_new_claim_takes_the_place_of_the_old_one(opens: Open) -> None:
    place = opens()
    place.claim(reservation("1", "a"))
    place.claim(reservation("1", "b"))
    assert place.claim(reservation("2", "a")) == []
    assert place.claim(reservation("3", "b")) == [reservation("1", "b")]


@everywhere
def test_what_is_only_appended_to_counts_where_one_of_two_has_priority(opens: Open) -> None:
    place = opens()
    running, beside = (
        Reservation("1", frozenset("z"), appends=frozenset("ab")),
        Reservation("2", frozenset("c"), appends=frozenset("b")),
    )
    assert place.claim(running) == place.claim(beside) == place.claim(reservation("3", "a")) == []
    assert sorted(found.reservation.instant for found in opens().posted()) == ["1", "2", "3"]
    urgent = Reservation("4", frozenset(), has_priority=True, appends=frozenset("b"))
    assert sorted(i.instant for i in place.claim(urgent)) == ["1", "2"]
    place.withdraw("1")
    place.withdraw("2")
    assert opens().claim(urgent) == []
    assert place.claim(beside) == place.claim(reservation("5", "b")) == [urgent]


@everywhere
def test_one_of_very_many_file_groups_holds_nobody_up_until_it_has_priority(opens: Open) -> None:
    place = opens()
    many = reservation("1", *(f"group {number}" for number in range(MAX_GROUPS + 1))).bounded()
    assert place.claim(many) == place.claim(reservation("2", "group 1")) == []
    assert {found.reservation for found in opens().posted()} == {many, reservation("2", "group 1")}
    assert not many.written, "as many as that would make the store slow"
    urgent = reservation("3", "x", priority=True)
    assert place.claim(urgent) == [many]
    place.withdraw("1")
    assert place.claim(urgent) == []
    again = replace(many, instant="4", has_priority=True)
    assert sorted(i.instant for i in place.claim(again)) == ["2", "3"]
    assert place.claim(reservation("5", "z")) == [again]
    place.withdraw("2")
    place.withdraw("3")
    assert opens().claim(again) == []
    assert place.claim(reservation("5", "z")) == [again]


@everywhere
def test_withdrawing_what_is_not_there(opens: Open) -> None:
    mine = reservation("1", "a")
    opens().claim(mine)
    opens().withdraw("20260101000000000")
    assert opens().claim(reservation("2", "a")) == [mine], "nobody else's went with it"


@pytest.mark.parametrize("opens", ["memory", REDIS], indirect=True)
def test_tables_do_not_meet(opens: Open) -> None:
    opens().claim(reservation("1", "a"))
    assert opens(table="t2").claim(reservation("2", "a")) == []


@pytest.mark.parametrize("opens", ["storage with a clock", REDIS], indirect=True)
def test_what_a_dead_writer_left_goes_away(opens: Open) -> None:
    early, late = ManualClock(), ManualClock()
    late.advance(EXPIRY_S + 2)
    opens(early).claim(reservation("1", "a"))
    assert opens(early).claim(reservation("2", "a")) != []
    assert opens(late).claim(reservation("3", "a")) == []


@everywhere
def test_many_at_once_are_active_one_after_the_other(opens: Open) -> None:
    """Everybody gets its turn; that two are active at once is allowed, only not the rule."""
    done: list[str] = []

    def work(number: int) -> None:
        place, mine = opens(), reservation(str(number), "a")
        while place.claim(mine):
            pass
        done.append(mine.instant)
        place.withdraw(mine.instant)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(done) == [str(n) for n in range(6)]
    assert opens().claim(reservation("9", "a")) == []


@pytest.mark.real
def test_redis_that_is_gone_is_told_and_flushing_forgets(own_redis: RedisServer) -> None:
    place = open_reservations(own_redis.url, "table:t1", clock=SystemClock())
    place.claim(reservation("1", "a"))
    import redis  # noqa: PLC0415 - as in conftest

    with redis.Redis.from_url(own_redis.url) as client:
        client.flushall()
    assert place.claim(reservation("2", "a")) == []
    own_redis.stop()
    with pytest.raises(LockUnreachable):
        place.claim(reservation("3", "a"))
