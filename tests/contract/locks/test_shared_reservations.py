"""The reservations of a shared table on a real Redis: seen by every writer of Tideline, and missed for one look at most while
it does not answer."""

from __future__ import annotations

import time

import pytest
from tests.real.redis import RedisServer
from tests.unit.table.shared import opened, put, shared_table
from tests.unit.table.tables import contents

from tideline_locks.redis_connection import SOCKET_TIMEOUT_S
from tideline_locks.table_lock import LockProviders
from tideline_table.action.write.transaction import WriteTransaction
from tideline_table.coordination.reservations import Reservation

pytestmark = pytest.mark.real

ONE_LOOK_S = 2 * SOCKET_TIMEOUT_S
"""A request that nobody answers is sent twice."""


def test_a_server_that_hangs_costs_one_look_and_is_used_again_when_it_answers(own_redis: RedisServer) -> None:
    _, storage, clock = shared_table()
    # Two processes.
    writers = [opened(storage, clock, name) for name in ("ours", "other")]
    for writer in writers:
        LockProviders(own_redis.url, clock).attach(writer)
    ours, other = writers
    put(ours, [("a", "p", 0, "x")])
    other.refresh()
    begun = WriteTransaction.begin(other.timeline, other.lock, "UPSERT")
    reservation = Reservation(begun.instant, frozenset(s.group.file_id for s in other.slices()))
    assert other.reservations.claim(reservation) == []
    assert [p.reservation for p in ours.reservations.posted()] == [reservation]

    own_redis.freeze()
    before, began_s = clock.now(), time.monotonic()
    for number in range(1, 4):
        assert put(ours, [("a", "p", number, "y")]).attempts == 1
    assert time.monotonic() - began_s < 3 * ONE_LOOK_S, "each of them asked"
    assert (clock.now() - before).total_seconds() == 3, "it waited for nobody"
    own_redis.thaw()

    clock.advance(10)
    waited_from_s = clock.monotonic_s()
    put(ours, [("a", "p", 9, "z")], **{"tideline.write.intent.wait": "5"})
    assert clock.monotonic_s() - waited_from_s >= 5, "it did not see the other one's reservation"
    assert [p.reservation for p in other.reservations.posted()] == [reservation]
    assert contents(ours) == [("a", "p", 9, "z")]
    begun.roll_back()
