"""Locks on one Redis server: fast, and fair by a queue. Each change of a lock is one Lua script that uses the server's time."""

# ruff: noqa: D102 - the port documents these methods

from __future__ import annotations

import enum
import math
import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

from tenacity import wait_exponential

from tideline_locks import redis_scripts
from tideline_locks.errors import LockUnreachable, StaleFence
from tideline_locks.lease import Grant, Lease
from tideline_locks.port import (
    Held,
    LeaseRequest,
    LeaseState,
    LogWanted,
    OnUnreachable,
    ReadFence,
    checked_name,
    checked_request,
    with_fence,
)
from tideline_locks.redis_connection import KEY_PREFIX, RedisConnection
from tideline_locks.waiting import RandomSource, attempt_until, wait_for
from tideline_table.clock import Clock

_LOCK_KEY = re.compile(re.escape(KEY_PREFIX) + r"\{(?P<name>[^{}]+)\}")

RETENTION_MS = 7 * 24 * 3600 * 1000
"""How long an unused lock keeps its fence. Losing it is safe: the table log rejects a late writer."""

UNREACHABLE_BACKOFF = wait_exponential(multiplier=0.05, max=1.0)
LIST_BATCH = 500


class _Sight(enum.Enum):
    """What a waiter knows about the table log."""

    FIXED = "fixed"
    """A fence that was given with the request and does not change."""
    UNREAD = "unread"
    """No fence yet: the waiter reads the log when it is next."""
    READ = "read"
    """A fence that the waiter read and may read again."""


class _Waiter:
    """A waiting request with its current fence. A repeated request repeats the fence, because the lease may be granted with it."""

    def __init__(self, wish: LeaseRequest, fence: int | ReadFence) -> None:
        self._fence = fence
        self.wish = with_fence(wish, fence) if isinstance(fence, int) else wish
        self.sight = _Sight.FIXED if isinstance(fence, int) else _Sight.UNREAD

    @classmethod
    def standing(cls, wish: LeaseRequest, fence: int | None) -> _Waiter:
        """Return a waiter of another process: it has read the log if it brings a fence, and can read it again."""
        waiter = cls(wish, fence or 0)
        waiter.sight = _Sight.UNREAD if fence is None else _Sight.READ
        return waiter

    def read_fence(self) -> bool:
        """Read the fence from the log. Return False if only another process can do that."""
        if isinstance(self._fence, int):
            return False
        self.wish, self.sight = with_fence(self.wish, self._fence()), _Sight.READ
        return True


class RedisLockProvider:
    """`LockProvider` on one Redis server.

    Waiters are served in order of arrival. A waiter that sends no request for `waiter_ttl_s` loses its place. A waiter with a
    callable fence reads it when it is next, usually while the holder before it works. So it has seen no more of the log than the
    waiters behind it will see, and no waiter is rejected as stale because it waited. Waiting happens on the server in real time,
    independent of `clock`, which measures `wait_s` and the holder's `remaining_s`. Connecting and answering may take
    `socket_timeout_s` each; a request is sent at most twice.
    """

    def __init__(
        self,
        url: str,
        *,
        clock: Clock,
        on_unreachable: OnUnreachable = OnUnreachable.WAIT,
        waiter_ttl_s: float = 3.0,
        socket_timeout_s: float = 2.0,
        randomness: RandomSource | None = None,
    ) -> None:
        self._clock = clock
        self._fails_fast = on_unreachable is not OnUnreachable.WAIT
        self._waiter_ttl_ms = _milliseconds(waiter_ttl_s)
        # A waiter sends three requests within its ttl, and never sleeps longer than its socket timeout.
        self._longest_sleep_s = min(waiter_ttl_s / 3, socket_timeout_s / 2)
        self._randomness = randomness or RandomSource.system()
        self._connection = RedisConnection(url, socket_timeout_s)
        self._acquire = self._connection.client.register_script(redis_scripts.ACQUIRE)
        self._renew = self._connection.client.register_script(redis_scripts.RENEW)
        self._release = self._connection.client.register_script(redis_scripts.RELEASE)
        self._withdraw = self._connection.client.register_script(redis_scripts.WITHDRAW)
        self._break = self._connection.client.register_script(redis_scripts.BREAK)

    def acquire(self, name: str, *, owner: str, ttl_s: float, wait_s: float, fence: int | ReadFence = 0) -> Lease:
        wish = checked_request(name, owner=owner, lease_id=self._randomness.new_id(), ttl_s=ttl_s, wait_s=wait_s)
        may_read = not isinstance(fence, int)

        def wait(deadline_s: float) -> Lease | Held:
            return self._wait(_Waiter(wish, fence), deadline_s)

        try:
            return wait_for(name, wait, may_read=may_read, wait_s=wait_s, clock=self._clock, jitter=self._randomness.jitter)
        except (LockUnreachable, StaleFence):
            # Unreachable: the server's state of this waiter expires. Stale: the script has removed it.
            raise
        except BaseException:
            self._withdraw_wish(wish)
            raise

    def stand(self, wish: LeaseRequest, *, fence: int | None, wait_s: float) -> Lease | Held | LogWanted:
        """See `RemoteLeases.stand`. The place is kept for `waiter_ttl_s` after the reply."""
        return self._queue_until(_Waiter.standing(wish, fence), self._clock.monotonic_s() + wait_s)

    def withdraw(self, wish: LeaseRequest) -> None:
        with self._connection.translated():
            self._withdraw(keys=_keys(wish.name), args=[wish.lease_id])

    def try_acquire(self, name: str, *, owner: str, ttl_s: float, fence: int = 0) -> Lease | None:
        """See `LockProvider.try_acquire`. Raises `LockUnreachable` at once, independent of `on_unreachable`."""
        wish = checked_request(name, owner=owner, lease_id=self._randomness.new_id(), ttl_s=ttl_s, wait_s=0)
        outcome, _ = self._attempt(with_fence(wish, fence), _Sight.FIXED, waiter_ttl_ms=0)
        return outcome if isinstance(outcome, Lease) else None

    def read(self, name: str) -> LeaseState | None:
        return next(iter(self._states([checked_name(name)])), None)

    def list(self, prefix: str = "") -> list[LeaseState]:
        """See `LockProvider.list`. Scans the keys of the database: for people and the lock service, not for every commit."""
        glob = KEY_PREFIX + "{" + re.sub(r"([*?\[\]\\^-])", r"\\\1", prefix) + "*}"
        with self._connection.translated():
            keys = list(self._connection.client.scan_iter(match=glob, count=LIST_BATCH))
        names = sorted({found["name"] for key in keys if (found := _LOCK_KEY.fullmatch(key))})
        batches = (names[at : at + LIST_BATCH] for at in range(0, len(names), LIST_BATCH))
        return [state for batch in batches for state in self._states(batch)]

    def break_expired(self, name: str) -> LeaseState | None:
        return self._broken(name, "expired")

    def force_break(self, name: str) -> LeaseState | None:
        return self._broken(name, "any")

    def close(self) -> None:
        self._connection.client.close()

    def renew_grant(self, grant: Grant) -> bool:
        ttl_ms = _milliseconds(grant.ttl_s)
        with self._connection.translated():
            return bool(self._renew(keys=_keys(grant.name), args=[grant.lease_id, ttl_ms, _retention_ms(ttl_ms)]))

    def release_grant(self, grant: Grant) -> bool:
        with self._connection.translated():
            return bool(self._release(keys=_keys(grant.name), args=[grant.lease_id]))

    def _broken(self, name: str, which: str) -> LeaseState | None:
        with self._connection.translated():
            found = self._break(keys=_keys(checked_name(name)), args=[which])
        if not found:
            return None
        lease_id, owner, acquired_ms, expires_ms, fence, expired = found
        return LeaseState(
            name, owner, lease_id, int(fence), _instant(acquired_ms), _instant(expires_ms), expired=expired == "expired"
        )

    def _wait(self, waiter: _Waiter, deadline_s: float) -> Lease | Held:
        def queue() -> Lease | Held:
            outcome = self._queue_until(waiter, deadline_s)
            assert not isinstance(outcome, LogWanted), "a waiter of this process reads the log itself"
            return outcome

        if self._fails_fast:
            return queue()
        return attempt_until(
            queue,
            clock=self._clock,
            deadline_s=deadline_s,
            backoff=UNREACHABLE_BACKOFF,
            jitter=self._randomness.jitter,
        )

    def _queue_until(self, waiter: _Waiter, deadline_s: float) -> Lease | Held | LogWanted:
        while True:
            outcome, sleep_s = self._attempt(waiter.wish, waiter.sight, waiter_ttl_ms=self._waiter_ttl_ms)
            left_s = deadline_s - self._clock.monotonic_s()
            if isinstance(outcome, LogWanted):
                if waiter.read_fence():
                    continue
                return outcome
            if not isinstance(outcome, Held) or left_s <= 0:
                return outcome
            # A release wakes the first waiter. The sleep is short enough to notice an expiry or a dead waiter ahead.
            with self._connection.translated():
                self._connection.client.blpop(
                    [f"{_keys(waiter.wish.name)[0]}:wake:{waiter.wish.lease_id}"],
                    timeout=_block_s(sleep_s, left_s, self._longest_sleep_s),
                )

    def _attempt(self, wish: LeaseRequest, sight: _Sight, *, waiter_ttl_ms: int) -> tuple[Lease | Held | LogWanted, float]:
        """Return the outcome, and after how many seconds to ask again if not woken."""
        ttl_ms = _milliseconds(wish.ttl_s)
        asked_s = self._clock.monotonic_s()
        with self._connection.translated():
            reply = self._acquire(
                keys=_keys(wish.name),
                args=[wish.lease_id, wish.owner, ttl_ms, wish.fence, waiter_ttl_ms, _retention_ms(ttl_ms), sight.value],
            )
        if reply[0] == "look":
            return LogWanted(), 0.0
        if reply[0] == "stale":
            raise StaleFence(wish.name, fence=wish.fence, greatest=int(reply[1]))
        if reply[0] == "granted":
            asked_s -= int(reply[2]) / 1000  # an earlier request, whose reply was lost, was granted: the lease started then
            grant = Grant(wish.name, wish.owner, wish.lease_id, wish.fence, wish.ttl_s, _instant(reply[1]), asked_s)
            return Lease(grant, self, self._clock), 0.0
        _, owner, acquired_ms, sleep_ms = reply
        return Held(owner, _instant(acquired_ms) if acquired_ms else None), int(sleep_ms) / 1000

    def _withdraw_wish(self, wish: LeaseRequest) -> None:
        try:
            self.withdraw(wish)
        except LockUnreachable:
            # Its place in the queue expires with the waiter's ttl. The caller must get the outcome of its wait.
            return

    def _states(self, names: Sequence[str]) -> Iterator[LeaseState]:
        with self._connection.translated(), self._connection.client.pipeline(transaction=False) as pipeline:
            pipeline.time()
            for name in names:
                pipeline.hgetall(_keys(name)[0])
            (seconds, microseconds), *hashes = pipeline.execute()
        now_ms = int(seconds) * 1000 + int(microseconds) // 1000
        for name, fields in zip(names, hashes, strict=True):
            if "lease_id" in fields:
                expires_ms = int(fields["expires_ms"])
                yield LeaseState(
                    name,
                    fields["owner"],
                    fields["lease_id"],
                    int(fields["fence"]),
                    _instant(fields["acquired_ms"]),
                    _instant(expires_ms),
                    expired=expires_ms <= now_ms,
                )


def _keys(name: str) -> list[str]:
    lock = f"{KEY_PREFIX}{{{name}}}"
    return [lock, f"{lock}:queue", f"{lock}:alive"]


def _milliseconds(duration_s: float) -> int:
    # One more than requested: the server truncates its time, and the holder's deadline must not be later than the server's.
    return math.ceil(duration_s * 1000) + 1


def _retention_ms(ttl_ms: int) -> int:
    return max(RETENTION_MS, 2 * ttl_ms)


def _block_s(sleep_s: float, left_s: float, longest_s: float) -> float:
    # Never 0, which Redis treats as no timeout.
    return max(0.001, min(sleep_s, left_s, longest_s))


def _instant(milliseconds: Any) -> datetime:
    return datetime.fromtimestamp(int(milliseconds) / 1000, UTC)
