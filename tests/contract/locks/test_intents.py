"""The contract of intent boards: who is told to wait for whom."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tests.real.redis import RedisServer

from tideline_locks import open_intent_board
from tideline_locks.errors import LockUnreachable
from tideline_locks.intents import EXPIRY_S, StorageIntents
from tideline_table.clock import Clock, ManualClock, SystemClock
from tideline_table.coordination.reservations import MAX_GROUPS, Intent, IntentBoard
from tideline_table.storage import MemoryStorage

Open = Callable[..., IntentBoard]
REDIS = pytest.param("redis", marks=pytest.mark.real)


@pytest.fixture
def board(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    """Opens the board as one more process would."""
    kind = getattr(request, "param", "memory")
    storage = MemoryStorage(clock=ManualClock())

    def opened(clock: Clock | None = None, table: str = "t1") -> IntentBoard:
        if kind == "storage with a clock":
            return StorageIntents(storage, clock or ManualClock())
        url = {"memory": f"memory:{tmp_path}", "storage": f"storage:{tmp_path}"}.get(kind)
        if url is None:
            server: RedisServer = request.getfixturevalue("shared_redis")
            url = server.url
        return open_intent_board(url, f"{tmp_path.name}:{table}", clock=clock or SystemClock())

    return opened


everywhere = pytest.mark.parametrize("board", ["memory", "storage", REDIS], indirect=True)


def intent(instant: str, *groups: str, priority: bool = False) -> Intent:
    return Intent(instant, frozenset(groups), priority)


@everywhere
def test_the_first_is_active_and_later_ones_wait_for_it(board: Open) -> None:
    ours, theirs = board(), board()
    first, second = intent("2", "a", "b"), intent("1", "b", "c")
    assert ours.claim(first) == []
    assert theirs.claim(second) == [first], "the active one goes on whoever is older"
    assert theirs.claim(intent("3", "x")) == []
    ours.withdraw("2")
    assert theirs.claim(second) == []
    assert ours.claim(first) == [second]


@everywhere
def test_of_those_that_wait_the_older_goes_first_and_priority_before_all(board: Open) -> None:
    place = board()
    running, older, younger = intent("1", "a", "z"), intent("2", "a"), intent("3", "a")
    assert place.claim(running) == []
    assert place.claim(older) == [running]
    assert sorted(i.instant for i in place.claim(younger)) == ["1", "2"]
    urgent = intent("4", "a", priority=True)
    assert place.claim(urgent) == [running], "it waits for what runs, not for those that wait"
    place.withdraw("1")
    assert place.claim(older) == [urgent]
    assert place.claim(urgent) == []
    place.withdraw("4")
    assert place.claim(older) == []


@everywhere
def test_a_new_claim_takes_the_place_of_the_old_one(board: Open) -> None:
    place = board()
    place.claim(intent("1", "a"))
    place.claim(intent("1", "b"))
    assert place.claim(intent("2", "a")) == []
    assert place.claim(intent("3", "b")) == [intent("1", "b")]


@everywhere
def test_what_is_only_appended_to_counts_where_one_of_two_has_priority(board: Open) -> None:
    place = board()
    running, beside = Intent("1", frozenset("z"), appends=frozenset("ab")), Intent("2", frozenset("c"), appends=frozenset("b"))
    assert place.claim(running) == place.claim(beside) == place.claim(intent("3", "a")) == []
    assert sorted(found.intent.instant for found in board().posted()) == ["1", "2", "3"]
    urgent = Intent("4", frozenset(), has_priority=True, appends=frozenset("b"))
    assert sorted(i.instant for i in place.claim(urgent)) == ["1", "2"]
    place.withdraw("1")
    place.withdraw("2")
    assert board().claim(urgent) == []
    assert place.claim(beside) == place.claim(intent("5", "b")) == [urgent]


@everywhere
def test_one_of_very_many_file_groups_holds_nobody_up_until_it_has_priority(board: Open) -> None:
    place = board()
    many = intent("1", *(f"group {number}" for number in range(MAX_GROUPS + 1))).bounded()
    assert place.claim(many) == place.claim(intent("2", "group 1")) == []
    assert {found.intent for found in board().posted()} == {many, intent("2", "group 1")}
    assert not many.written, "as many as that would make the board slow"
    urgent = intent("3", "x", priority=True)
    assert place.claim(urgent) == [many]
    place.withdraw("1")
    assert place.claim(urgent) == []
    again = replace(many, instant="4", has_priority=True)
    assert sorted(i.instant for i in place.claim(again)) == ["2", "3"]
    assert place.claim(intent("5", "z")) == [again]
    place.withdraw("2")
    place.withdraw("3")
    assert board().claim(again) == []
    assert place.claim(intent("5", "z")) == [again]


@everywhere
def test_withdrawing_what_is_not_there(board: Open) -> None:
    mine = intent("1", "a")
    board().claim(mine)
    board().withdraw("20260101000000000")
    assert board().claim(intent("2", "a")) == [mine], "nobody else's went with it"


@pytest.mark.parametrize("board", ["memory", REDIS], indirect=True)
def test_tables_do_not_meet(board: Open) -> None:
    board().claim(intent("1", "a"))
    assert board(table="t2").claim(intent("2", "a")) == []


@pytest.mark.parametrize("board", ["storage with a clock", REDIS], indirect=True)
def test_what_a_dead_writer_left_goes_away(board: Open) -> None:
    early, late = ManualClock(), ManualClock()
    late.advance(EXPIRY_S + 2)
    board(early).claim(intent("1", "a"))
    assert board(early).claim(intent("2", "a")) != []
    assert board(late).claim(intent("3", "a")) == []


@everywhere
def test_many_at_once_are_active_one_after_the_other(board: Open) -> None:
    """Everybody gets its turn; that two are active at once is allowed, only not the rule."""
    done: list[str] = []

    def work(number: int) -> None:
        place, mine = board(), intent(str(number), "a")
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
    assert board().claim(intent("9", "a")) == []


@pytest.mark.real
def test_redis_that_is_gone_is_told_and_flushing_forgets(own_redis: RedisServer) -> None:
    place = open_intent_board(own_redis.url, "table:t1", clock=SystemClock())
    place.claim(intent("1", "a"))
    import redis  # noqa: PLC0415 - as in conftest

    with redis.Redis.from_url(own_redis.url) as client:
        client.flushall()
    assert place.claim(intent("2", "a")) == []
    own_redis.stop()
    with pytest.raises(LockUnreachable):
        place.claim(intent("3", "a"))
