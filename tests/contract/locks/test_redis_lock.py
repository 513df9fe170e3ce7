"""What the Redis lock promises beyond the port: fair queueing, and what happens when Redis forgets, hangs or is gone."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import redis
from tests.contract.locks.conftest import Contender, wait_until
from tests.contract.locks.lossy_proxy import LossyProxy
from tests.real.redis import RedisServer

from tideline_locks import (
    KeptLease,
    Lease,
    LeaseLost,
    LockAccessDenied,
    LockTimeout,
    LockUnreachable,
    OnUnreachable,
    StaleFence,
    open_lock_provider,
)
from tideline_locks.port import LeaseRequest, LogWanted
from tideline_locks.redis import RedisLockProvider, _Sight
from tideline_locks.redis_scripts import COMMANDS
from tideline_locks.table_lock import LockProviders, ProviderLock
from tideline_table.clock import Clock, SystemClock

pytestmark = pytest.mark.real

CLOCK = SystemClock()
LONG_S = 60.0
SOON_S = 30.0
"""On however busy a machine, and before the end of anything that takes `LONG_S`."""
SLEEPY: dict[str, float] = {"waiter_ttl_s": 3 * LONG_S, "socket_timeout_s": 2 * LONG_S}
"""Of a waiter that asks again after `LONG_S` if nobody wakes it."""
QUEUE = "tideline:lock:{trips}:queue"


@pytest.fixture
def server(shared_redis: RedisServer, admin: redis.Redis) -> RedisServer:
    return shared_redis


@pytest.fixture
def admin(shared_redis: RedisServer) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(shared_redis.url, decode_responses=True) as client:
        client.flushall()
        yield client


@pytest.fixture
def make() -> Iterator[Callable[..., RedisLockProvider]]:
    opened: list[RedisLockProvider] = []

    def open_one(url: str, clock: Clock = CLOCK, **options: Any) -> RedisLockProvider:
        opened.append(RedisLockProvider(url, clock=clock, **options))
        return opened[-1]

    yield open_one
    for provider in opened:
        provider.close()


class Patience(SystemClock):
    """The clock of one that waits until it is told that its time is over."""

    def __init__(self) -> None:
        self._over = threading.Event()

    def monotonic_s(self) -> float:
        return LONG_S if self._over.is_set() else 0.0

    def end(self) -> None:
        self._over.set()


def queued(admin: redis.Redis, count: int) -> None:
    wait_until(lambda: admin.zcard(QUEUE) == count)


def test_waiters_are_served_in_order_of_arrival(
    server: RedisServer, admin: redis.Redis, make: Callable[..., RedisLockProvider]
) -> None:
    provider = make(server.url)
    lease = provider.acquire("trips", owner="holder", ttl_s=LONG_S, wait_s=0)
    served: list[int] = []

    def wait(number: int) -> None:
        with provider.acquire("trips", owner=f"w{number}", ttl_s=LONG_S, wait_s=LONG_S):
            served.append(number)

    with ThreadPoolExecutor(8) as pool:
        waiting = []
        for number in range(8):
            waiting.append(pool.submit(wait, number))
            queued(admin, number + 1)
        lease.release()
        for one in waiting:
            one.result(SOON_S)
    assert served == list(range(8))
    # Nothing but the fence stays behind.
    assert [key for key in admin.keys("*") if ":" in str(key).rpartition("}")[2]] == []


def test_nobody_overtakes_the_queue(server: RedisServer, admin: redis.Redis, make: Callable[..., RedisLockProvider]) -> None:
    provider = make(server.url)
    lease = provider.acquire("trips", owner="holder", ttl_s=LONG_S, wait_s=0)
    # A waiter that has its place but has not come back yet: what a process in a garbage collection pause looks like.
    admin.zadd(QUEUE, {"paused-waiter": 0})
    admin.zadd("tideline:lock:{trips}:alive", {"paused-waiter": (time.time() + 60) * 1000})
    lease.release()
    assert provider.try_acquire("trips", owner="b", ttl_s=LONG_S) is None
    with pytest.raises(LockTimeout) as caught:
        provider.acquire("trips", owner="b", ttl_s=LONG_S, wait_s=0.1)
    assert caught.value.holder is None
    assert admin.zrange(QUEUE, 0, -1) == ["paused-waiter"]


def test_dead_waiter_does_not_block(
    server: RedisServer, admin: redis.Redis, make: Callable[..., RedisLockProvider], contender: Callable[[str, int, str], Contender]
) -> None:
    provider = make(server.url)
    held = provider.acquire("contended", owner="holder", ttl_s=LONG_S, wait_s=0)
    dead = contender(server.url, 0, "dead")
    dead.hear("ready")
    dead.go()
    queue = "tideline:lock:{contended}:queue"
    wait_until(lambda: admin.zcard(queue) == 1)
    dead.kill()
    with ThreadPoolExecutor(1) as pool:
        got = pool.submit(provider.acquire, "contended", owner="next", ttl_s=LONG_S, wait_s=LONG_S)
        wait_until(lambda: admin.zcard(queue) >= 1 and admin.hget("tideline:lock:{contended}", "tickets") == "2")
        released_s = time.monotonic()
        held.release()
        assert got.result(SOON_S).owner == "next"
    assert time.monotonic() - released_s < SOON_S


def test_waiter_that_gives_up_wakes_the_next(
    server: RedisServer, admin: redis.Redis, make: Callable[..., RedisLockProvider]
) -> None:
    provider, patience = make(server.url, **SLEEPY), Patience()
    lease = provider.acquire("trips", owner="holder", ttl_s=LONG_S, wait_s=0)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(make(server.url, patience).acquire, "trips", owner="impatient", ttl_s=LONG_S, wait_s=0.5)
        queued(admin, 1)
        second = pool.submit(provider.acquire, "trips", owner="patient", ttl_s=LONG_S, wait_s=LONG_S)
        queued(admin, 2)
        patience.end()
        with pytest.raises(LockTimeout):
            first.result(SOON_S)
        lease.release()
        # Well before it would have woken by itself.
        assert second.result(SOON_S).owner == "patient"


def test_waiter_with_a_stale_fence_leaves_the_queue(
    server: RedisServer, admin: redis.Redis, make: Callable[..., RedisLockProvider]
) -> None:
    provider = make(server.url)
    lease = provider.acquire("trips", owner="holder", ttl_s=LONG_S, wait_s=0, fence=1)
    with ThreadPoolExecutor(2) as pool:
        old = pool.submit(provider.acquire, "trips", owner="old", ttl_s=LONG_S, wait_s=LONG_S, fence=1)
        queued(admin, 1)
        # Its turn would come, but by then another process has been granted a greater fence.
        admin.hset("tideline:lock:{trips}", "fence", "2")
        new = pool.submit(provider.acquire, "trips", owner="new", ttl_s=LONG_S, wait_s=LONG_S, fence=2)
        with pytest.raises(StaleFence):
            old.result(SOON_S)
        queued(admin, 1)
        lease.release()
        assert new.result(SOON_S).token == 2


def test_writers_read_the_log_once_and_are_served_in_order_while_it_moves(
    server: RedisServer, admin: redis.Redis, make: Callable[..., RedisLockProvider]
) -> None:
    """Each commits, so that whatever those behind it saw when they came is old at their turn."""
    provider = make(server.url)
    head = [10]
    reads: list[int] = []
    served: list[tuple[int, int]] = []

    def read(number: int) -> int:
        reads.append(number)
        return head[-1]

    def write(number: int) -> None:
        with ProviderLock(provider, "trips", f"w{number}", wait_s=LONG_S).hold(lambda: read(number)):
            state = provider.read("trips")
            served.append((number, state.token if state is not None else -1))
            # Who is next reads while this one works.
            wait_until(lambda: number == 5 or number + 1 in reads)
            head.append(head[-1] + 3)

    lease = provider.acquire("trips", owner="holder", ttl_s=LONG_S, wait_s=0, fence=10)
    with ThreadPoolExecutor(6) as pool:
        writing = []
        for number in range(6):
            writing.append(pool.submit(write, number))
            queued(admin, number + 1)
        wait_until(lambda: reads == [0])
        lease.release()
        for one in writing:
            one.result(SOON_S)
    assert reads == list(range(6))
    assert served == [(0, 10), (1, 10), (2, 13), (3, 16), (4, 19), (5, 22)]


def test_waiter_told_that_its_fence_is_old_is_served_before_one_that_came_later(
    server: RedisServer, admin: redis.Redis, make: Callable[..., RedisLockProvider]
) -> None:
    provider = make(server.url)
    lease = provider.acquire("trips", owner="holder", ttl_s=LONG_S, wait_s=0, fence=1)
    reads, served = [0], []

    def early_fence() -> int:
        reads[0] += 1
        # The second time another process that came later has all the time to pass.
        time.sleep(0.3 if reads[0] > 1 else 0)
        return reads[0]

    def wait(owner: str, fence: int | Callable[[], int]) -> None:
        with provider.acquire("trips", owner=owner, ttl_s=LONG_S, wait_s=LONG_S, fence=fence) as granted:
            served.append((owner, granted.token))

    with ThreadPoolExecutor(3) as pool:
        early = pool.submit(wait, "early", early_fence)
        wait_until(lambda: reads[0] == 1)
        # Another process was granted a greater fence past the queue: as when Redis came back with an older state.
        admin.hset("tideline:lock:{trips}", "fence", "2")
        late = [pool.submit(wait, "late", 2), pool.submit(wait, "later", lambda: 2)]
        queued(admin, 3)
        lease.release()
        for one in (early, *late):
            one.result(SOON_S)
    assert served[0] == ("early", 2)
    assert dict(served) == {"early": 2, "late": 2, "later": 2}
    assert admin.hget("tideline:lock:{trips}", "tickets") == "3"


@pytest.mark.parametrize("sight", [_Sight.UNREAD, _Sight.READ])
def test_waiter_that_never_comes_back_from_the_log_blocks_as_long_as_a_dead_one(
    server: RedisServer, admin: redis.Redis, make: Callable[..., RedisLockProvider], sight: _Sight
) -> None:
    provider = make(server.url)
    provider.acquire("trips", owner="holder", ttl_s=LONG_S, wait_s=0, fence=5).release()
    gone = LeaseRequest("trips", "gone", "gone", LONG_S, fence=4)

    def ask(waiter_ttl_s: float) -> None:
        waiter_ttl_ms = int(waiter_ttl_s * 1000)
        if sight is _Sight.UNREAD:
            assert provider._attempt(gone, sight, waiter_ttl_ms=waiter_ttl_ms)[0] == LogWanted()
        else:
            with pytest.raises(StaleFence):
                provider._attempt(gone, sight, waiter_ttl_ms=waiter_ttl_ms)

    ask(LONG_S)
    assert provider.try_acquire("trips", owner="b", ttl_s=LONG_S, fence=5) is None
    # Asked twice, as when the first reply got lost: one ticket, and the last one counts.
    asked_s = time.monotonic()
    ask(0.7)
    assert admin.hget("tideline:lock:{trips}", "tickets") == "1"
    assert provider.acquire("trips", owner="b", ttl_s=LONG_S, wait_s=LONG_S, fence=5).owner == "b"
    assert 0.7 - 0.01 < time.monotonic() - asked_s < SOON_S
    assert not admin.exists(QUEUE)


def test_waiter_that_gives_up_lets_the_next_read_the_log_while_the_lock_is_held(
    server: RedisServer, admin: redis.Redis, make: Callable[..., RedisLockProvider]
) -> None:
    provider, patience = make(server.url, **SLEEPY), Patience()
    lease = provider.acquire("trips", owner="holder", ttl_s=LONG_S, wait_s=0)
    read = threading.Event()
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(make(server.url, patience).acquire, "trips", owner="impatient", ttl_s=LONG_S, wait_s=0.5)
        queued(admin, 1)
        second = pool.submit(provider.acquire, "trips", owner="b", ttl_s=LONG_S, wait_s=LONG_S, fence=lambda: read.set() or 3)
        queued(admin, 2)
        patience.end()
        with pytest.raises(LockTimeout):
            first.result(SOON_S)
        # Well before it would have woken by itself.
        assert read.wait(SOON_S)
        lease.release()
        assert second.result(SOON_S).token == 3


@pytest.mark.parametrize("leaving", ["gives up", "stale"])
def test_first_waiter_that_leaves_a_free_lock_wakes_the_next(
    server: RedisServer, admin: redis.Redis, make: Callable[..., RedisLockProvider], leaving: str
) -> None:
    provider = make(server.url, **SLEEPY)
    provider.acquire("trips", owner="holder", ttl_s=LONG_S, wait_s=0, fence=5).release()
    admin.zadd(QUEUE, {"first": 0})
    admin.zadd("tideline:lock:{trips}:alive", {"first": (time.time() + 60) * 1000})
    with ThreadPoolExecutor(1) as pool:
        second = pool.submit(provider.acquire, "trips", owner="second", ttl_s=LONG_S, wait_s=LONG_S, fence=5)
        queued(admin, 2)
        first = LeaseRequest("trips", "first", "first", LONG_S, fence=4)
        if leaving == "stale":
            with pytest.raises(StaleFence):
                provider._attempt(first, _Sight.FIXED, waiter_ttl_ms=60000)
        else:
            provider._withdraw_wish(first)
        # Well before it would have woken by itself.
        assert second.result(SOON_S).owner == "second"


def test_reply_lost_after_a_grant_for_a_fence_that_was_read(server: RedisServer, make: Callable[..., RedisLockProvider]) -> None:
    proxy = LossyProxy(server.port)
    fences = iter([3, 4])

    def read() -> int:
        proxy.lose_next(b"EVALSHA")
        return next(fences)

    try:
        provider = make(f"redis://127.0.0.1:{proxy.port}/0")
        provider.acquire("other", owner="a", ttl_s=LONG_S, wait_s=0).release()
        lease = provider.acquire("trips", owner="a", ttl_s=LONG_S, wait_s=5, fence=read)
        state = provider.read("trips")
        assert state is not None
        assert (proxy.lost, lease.token, state.token) == (1, 3, 3)
        assert lease.release() is True
    finally:
        proxy.close()


def test_who_asks_again_knows_how_old_its_lease_is(server: RedisServer, make: Callable[..., RedisLockProvider]) -> None:
    provider = make(server.url)
    wish = LeaseRequest("trips", "a", "mine", LONG_S, 0)
    began_s = time.monotonic()
    for age_s in (0.0, 1.0):
        time.sleep(age_s)
        asked_s = time.monotonic()
        lease, _ = provider._attempt(wish, _Sight.FIXED, waiter_ttl_ms=0)
        took_s = time.monotonic() - asked_s
        assert isinstance(lease, Lease)
        left_s = lease.remaining_s
        assert LONG_S - (time.monotonic() - began_s) - took_s - 0.1 < left_s <= LONG_S - age_s


@pytest.mark.parametrize("call", ["acquire", "renew", "release"])
def test_reply_lost_after_success(server: RedisServer, make: Callable[..., RedisLockProvider], call: str) -> None:
    proxy = LossyProxy(server.port)
    try:
        provider = make(f"redis://127.0.0.1:{proxy.port}/0", on_unreachable=OnUnreachable.FAIL)
        # Loads the scripts: afterwards each call is one EVALSHA.
        provider.acquire("other", owner="a", ttl_s=LONG_S, wait_s=0).release()
        if call == "acquire":
            proxy.lose_next(b"EVALSHA")
        lease = provider.acquire("trips", owner="a", ttl_s=LONG_S, wait_s=0)
        if call == "renew":
            lease.renew()
            proxy.lose_next(b"EVALSHA")
        lease.renew()
        if call == "release":
            proxy.lose_next(b"EVALSHA")
        assert lease.release() is True
        assert proxy.lost == 1
        provider.close()
    finally:
        proxy.close()


def test_flushed_redis_costs_the_holder_its_lease_at_the_next_renewal(
    server: RedisServer, admin: redis.Redis, make: Callable[..., RedisLockProvider]
) -> None:
    provider = make(server.url)
    lease = provider.acquire("trips", owner="a", ttl_s=LONG_S, wait_s=0, fence=9)
    admin.flushall()
    # The lock can be had, even with an older fence: what is lost is efficiency, the table log refuses who comes late.
    other = provider.acquire("trips", owner="b", ttl_s=LONG_S, wait_s=0, fence=8)
    with pytest.raises(LeaseLost):
        lease.renew()
    assert lease.lost
    assert lease.release() is False
    other.renew()
    assert other.release() is True


def test_waiters_survive_a_flush(server: RedisServer, admin: redis.Redis, make: Callable[..., RedisLockProvider]) -> None:
    provider = make(server.url)
    provider.acquire("trips", owner="holder", ttl_s=LONG_S, wait_s=0)
    with ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(provider.acquire, "trips", owner=f"w{n}", ttl_s=0.2, wait_s=LONG_S) for n in range(2)]
        queued(admin, 2)
        admin.flushall()
        assert sorted(one.result(SOON_S).owner for one in waiting) == ["w0", "w1"]


def test_restarted_redis_is_told_to_the_holder(own_redis: RedisServer, make: Callable[..., RedisLockProvider]) -> None:
    provider = make(own_redis.url)
    lease = provider.acquire("trips", owner="a", ttl_s=3.0, wait_s=0)
    own_redis.stop()
    own_redis.start()
    # The scripts are gone with the server, too.
    other = provider.acquire("trips", owner="b", ttl_s=LONG_S, wait_s=SOON_S)
    with KeptLease(lease) as kept:
        wait_until(lambda: isinstance(kept.last_error, LeaseLost))
        assert lease.lost
    assert other.release() is True


def test_single_failed_renewals_do_not_cost_the_lease(own_redis: RedisServer, make: Callable[..., RedisLockProvider]) -> None:
    provider = make(own_redis.url, socket_timeout_s=0.5)
    lease = provider.acquire("trips", owner="a", ttl_s=9.0, wait_s=0)
    with KeptLease(lease) as kept:
        own_redis.freeze()
        wait_until(lambda: isinstance(kept.last_error, LockUnreachable))
        own_redis.thaw()
        wait_until(lambda: kept.last_error is None)
        assert not lease.lost
    assert lease.release() is True


def test_unreachable_until_the_end_of_the_lease_is_told(own_redis: RedisServer, make: Callable[..., RedisLockProvider]) -> None:
    provider = make(own_redis.url, socket_timeout_s=0.5)
    lease = provider.acquire("trips", owner="a", ttl_s=1.0, wait_s=0)
    with KeptLease(lease):
        own_redis.freeze()
        wait_until(lambda: lease.lost)
        assert lease.remaining_s == 0
        own_redis.thaw()


def test_unreachable_fail(own_redis: RedisServer, make: Callable[..., RedisLockProvider]) -> None:
    provider = make(own_redis.url, on_unreachable=OnUnreachable.FAIL)
    own_redis.stop()
    start_s = time.monotonic()
    with pytest.raises(LockUnreachable) as caught:
        provider.acquire("trips", owner="a", ttl_s=LONG_S, wait_s=LONG_S)
    assert time.monotonic() - start_s < SOON_S
    assert str(own_redis.port) in str(caught.value)
    for ask in (provider.read, provider.break_expired, provider.list):
        with pytest.raises(LockUnreachable):
            ask("trips")


def test_frozen_fail(own_redis: RedisServer, make: Callable[..., RedisLockProvider]) -> None:
    provider = make(own_redis.url, on_unreachable=OnUnreachable.FAIL, socket_timeout_s=0.2)
    own_redis.freeze()
    start_s = time.monotonic()
    with pytest.raises(LockUnreachable):
        provider.acquire("trips", owner="a", ttl_s=LONG_S, wait_s=LONG_S)
    assert time.monotonic() - start_s < SOON_S


def test_unreachable_wait_ends_after_wait_s(own_redis: RedisServer, make: Callable[..., RedisLockProvider]) -> None:
    provider = make(own_redis.url, on_unreachable=OnUnreachable.WAIT)
    own_redis.stop()
    start_s = time.monotonic()
    with pytest.raises(LockUnreachable):
        provider.acquire("trips", owner="a", ttl_s=LONG_S, wait_s=0.7)
    assert 0.7 <= time.monotonic() - start_s < SOON_S
    with pytest.raises(LockUnreachable):
        provider.try_acquire("trips", owner="a", ttl_s=LONG_S)


def test_unreachable_wait_gets_it_when_redis_is_back(own_redis: RedisServer, make: Callable[..., RedisLockProvider]) -> None:
    provider = make(own_redis.url, on_unreachable=OnUnreachable.WAIT)
    own_redis.stop()
    with ThreadPoolExecutor(1) as pool:
        got = pool.submit(provider.acquire, "trips", owner="a", ttl_s=LONG_S, wait_s=LONG_S)
        own_redis.start()
        assert got.result(SOON_S).release() is True


def test_unreachable_storage_goes_on_with_storage_alone(own_redis: RedisServer, tmp_path: Path) -> None:
    providers = LockProviders(own_redis.url, CLOCK)
    provider = providers.of(str(tmp_path), OnUnreachable.STORAGE)
    storage = open_lock_provider(f"storage:{tmp_path}", clock=CLOCK)
    with provider.acquire("trips", owner="a", ttl_s=LONG_S, wait_s=0):
        assert storage.read("trips") is None
    own_redis.stop()
    lease = provider.acquire("trips", owner="b", ttl_s=LONG_S, wait_s=5)
    state = storage.read("trips")
    assert state is not None
    assert state.lease_id == lease.lease_id
    with pytest.raises(LockTimeout):
        provider.acquire("trips", owner="c", ttl_s=LONG_S, wait_s=0)
    own_redis.start()
    # A lease stays with who granted it, also when Redis is back.
    lease.renew()
    assert lease.release() is True
    assert storage.read("trips") is None
    providers.close()


def test_wrong_password_is_no_outage(own_redis: RedisServer, make: Callable[..., RedisLockProvider]) -> None:
    with redis.Redis.from_url(own_redis.url) as admin:
        admin.config_set("requirepass", "right")
    provider = make(own_redis.url.replace("//", "//:wr0ng-secret@"), on_unreachable=OnUnreachable.WAIT)
    with pytest.raises(LockAccessDenied) as caught:
        provider.acquire("trips", owner="a", ttl_s=LONG_S, wait_s=LONG_S)
    assert "wr0ng-secret" not in str(caught.value)
    allowed = make(own_redis.url.replace("//", "//:right@"))
    assert allowed.acquire("trips", owner="a", ttl_s=LONG_S, wait_s=0).release() is True


def test_user_limited_to_the_prefix_and_the_commands_used(own_redis: RedisServer, make: Callable[..., RedisLockProvider]) -> None:
    with redis.Redis.from_url(own_redis.url) as admin:
        rules = [f"+{command}" for command in COMMANDS]
        admin.execute_command("ACL", "SETUSER", "locks", "on", ">secret", "resetkeys", "~tideline:lock:*", "-@all", *rules)
    provider = make(own_redis.url.replace("//", "//locks:secret@"))
    lease = provider.acquire("trips", owner="a", ttl_s=LONG_S, wait_s=0)
    with pytest.raises(LockTimeout):
        provider.acquire("trips", owner="b", ttl_s=LONG_S, wait_s=0.02)
    lease.renew()
    assert lease.release() is True
    provider.acquire("trips", owner="a", ttl_s=0.2, wait_s=0)
    wait_until(lambda: any(state.expired for state in provider.list("tr")))
    assert provider.break_expired("trips") is not None
    assert provider.acquire("trips", owner="b", ttl_s=LONG_S, wait_s=0).release() is True
