"""The lease API: `/v1/leases`. Errors are JSON objects of error, found, expected and remedy; some have `detail` for programs.

A lease id is a secret of the holder. Only `acquire` returns it, never `read` or `list`.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from queue import SimpleQueue
from typing import Any, TypeVar

import anyio
from anyio.to_thread import run_sync

from tideline_lock_service.directory import LeaseDirectory
from tideline_lock_service.errors import InvalidRequest, NotTheHolder, RequestTooLarge, ServiceBusy, UnknownLock
from tideline_lock_service.metrics import REQUESTS, WAIT, WAITING
from tideline_lock_service.requests import AcquireRequest, BreakRequest, ReleaseRequest, RenewRequest, WithdrawRequest, parsed
from tideline_lock_service.settings import LockServiceSettings
from tideline_lock_service.wait_queue import WaitQueue
from tideline_locks import InvalidLease, Lease, LeaseLost, LeaseState, LockAccessDenied, LockTimeout, StaleFence
from tideline_locks.lease import Grant
from tideline_locks.port import MIN_TTL_S, Held, LogWanted, checked_name, checked_request
from tideline_runtime.contract import ServiceContext
from tideline_runtime.http import Call, Reply, Route
from tideline_runtime.logging import get_logger
from tideline_table.errors import Recovery, TidelineError

_log = get_logger(__name__)
T = TypeVar("T")
Answer = tuple[int, dict[str, Any]]

MAX_LISTED = 1000
NUDGE_INTERVAL_S = 1.0
SHORT_REQUESTS = 8
"""Maximum number of concurrent lock store requests, not counting requests that wait for a lock."""

_STATUS: tuple[tuple[type[TidelineError], int], ...] = (
    (RequestTooLarge, 413),
    (InvalidRequest, 400),
    (InvalidLease, 400),
    (UnknownLock, 404),
    (NotTheHolder, 409),
    (LeaseLost, 409),
    (StaleFence, 409),
    (LockTimeout, 423),
    (LockAccessDenied, 502),
)


@dataclass(frozen=True, slots=True)
class ForcedRelease:
    """A lease that `by` ended by force at `time`, with the reason."""

    lease: LeaseState
    by: str
    reason: str
    time: datetime


class LeaseApi:
    """Handlers of the API. Blocking calls have threads with separate limits: requests that wait for locks delay no probe."""

    def __init__(self, directory: LeaseDirectory, settings: LockServiceSettings, context: ServiceContext) -> None:
        self._directory = directory
        self._settings = settings
        self._context = context
        self._waiting = anyio.CapacityLimiter(settings.max_waiting)
        self._short = anyio.CapacityLimiter(SHORT_REQUESTS)
        self._nudged_at_s = context.clock.monotonic_s() - NUDGE_INTERVAL_S
        self._queue = WaitQueue()
        self.forced: SimpleQueue[ForcedRelease] = SimpleQueue()
        """Leases that were broken by force and whose event is not queued yet."""

    def routes(self) -> list[Route]:
        """Return the routes for `ServiceContext.add_routes`."""
        lease = "/v1/leases/(?P<name>.+)"
        return [
            Route("GET", "/v1/limits", self._answering("limits", self._limits)),
            Route("GET", "/v1/leases", self._answering("list", self._list)),
            Route("POST", f"{lease}/acquire", self._answering("acquire", self._acquire)),
            Route("POST", f"{lease}/renew", self._answering("renew", self._renew)),
            Route("POST", f"{lease}/release", self._answering("release", self._release)),
            Route("POST", f"{lease}/withdraw", self._answering("withdraw", self._withdraw)),
            Route("POST", f"{lease}/break", self._answering("break", self._break)),
            Route("GET", lease, self._answering("read", self._read)),
        ]

    async def _list(self, call: Call) -> Answer:
        unknown = call.request.query_arguments.keys() - {"prefix"}
        if unknown:
            raise InvalidRequest(f"query {sorted(unknown)}", expected="prefix or nothing")
        prefix = call.get_query_argument("prefix", "", strip=False)
        if prefix:
            checked_name(prefix)
        leases = await self._in_thread(self._directory.list, prefix, MAX_LISTED + 1)
        return 200, {"leases": [_shown(lease) for lease in leases[:MAX_LISTED]], "truncated": len(leases) > MAX_LISTED}

    async def _read(self, call: Call) -> Answer:
        name = checked_name(call.path_kwargs["name"])
        lease = await self._in_thread(lambda: self._directory.provider(name).read(name))
        return 200, {"name": name, "lease": _shown(lease) if lease is not None else None, "waiting": self._queue.shown(name)}

    async def _limits(self, _call: Call) -> Answer:
        return 200, {"max_wait_s": self._settings.max_wait_s, "max_ttl_s": self._settings.max_ttl_s}

    async def _acquire(self, call: Call) -> Answer:
        name, wish = checked_name(call.path_kwargs["name"]), parsed(AcquireRequest, bytes(call.body))
        self._check_bounds(wish.ttl_s, wish.wait_s)
        if self._context.stopping.is_set():
            raise ServiceBusy("the service is stopping", remedy="retry, or use another instance")
        asked_s = self._context.clock.monotonic_s()
        if not wish.wait_s:
            lease = await self._in_thread(self._granted, name, wish)
        elif not self._queue.has_place(name, self._settings.max_waiting):
            raise ServiceBusy(f"too many requests wait for lock {name!r} or for all locks", remedy="retry in a moment")
        else:
            with self._context.metrics.timed(WAIT), self._queue.waits(name, wish.owner, self._context.clock.now()):
                lease = await self._in_thread(self._granted, name, wish, limiter=self._waiting)
        if isinstance(lease, LogWanted):
            return 202, {"name": name, "wanted": "fence"}
        if call.is_gone and wish.lease_id is None:
            # The client is gone and cannot use the lease. Release it, so that other clients need not wait until it expires.
            await self._in_thread(lease.release_quietly)
        self._nudge()
        return 201, {
            "name": name,
            "owner": lease.owner,
            "lease_id": lease.lease_id,
            "token": lease.token,
            "acquired": lease.acquired.isoformat(),
            "ttl_s": lease.ttl_s,
            "remaining_s": lease.remaining_s,
            "waited_s": self._context.clock.monotonic_s() - asked_s,
        }

    def _granted(self, name: str, wish: AcquireRequest) -> Lease | LogWanted:
        provider = self._directory.provider(name)
        if wish.lease_id is None:
            return provider.acquire(name, owner=wish.owner, ttl_s=wish.ttl_s, wait_s=wish.wait_s, fence=wish.fence or 0)
        request = checked_request(name, owner=wish.owner, lease_id=wish.lease_id, ttl_s=wish.ttl_s, wait_s=wish.wait_s)
        outcome = provider.stand(request, fence=wish.fence, wait_s=wish.wait_s)
        if isinstance(outcome, Held):
            raise LockTimeout(name, waited_s=wish.wait_s, holder=outcome.owner, since=outcome.since)
        return outcome

    async def _withdraw(self, call: Call) -> Answer:
        name, wish = checked_name(call.path_kwargs["name"]), parsed(WithdrawRequest, bytes(call.body))
        request = checked_request(name, owner=wish.owner, lease_id=wish.lease_id, ttl_s=MIN_TTL_S, wait_s=0)
        await self._in_thread(lambda: self._directory.provider(name).withdraw(request))
        self._nudge()
        return 200, {"name": name, "withdrawn": True}

    async def _break(self, call: Call) -> Answer:
        name, wish = checked_name(call.path_kwargs["name"]), parsed(BreakRequest, bytes(call.body))
        if wish.force and not wish.reason.strip():
            raise InvalidRequest("a forced release without a reason", expected="reason: why the holder must lose its lease")
        ended = await self._in_thread(self._broken, name, wish)
        if ended is not None and wish.force:
            self.forced.put(ForcedRelease(ended, wish.owner, wish.reason, self._context.clock.now()))
            self._context.wake()
            _log.warning("lease broken by force", lock=name, holder=ended.owner, by=wish.owner, reason=wish.reason)
        return 200, {"name": name, "broken": _shown(ended) if ended is not None else None}

    def _broken(self, name: str, wish: BreakRequest) -> LeaseState | None:
        provider = self._directory.provider(name)
        return provider.force_break(name) if wish.force else provider.break_expired(name)

    async def _renew(self, call: Call) -> Answer:
        name, wish = checked_name(call.path_kwargs["name"]), parsed(RenewRequest, bytes(call.body))
        self._check_bounds(wish.ttl_s, 0)
        lease = await self._in_thread(self._renewed, name, wish)
        return 200, {"name": name, "lease": _shown(lease)}

    def _renewed(self, name: str, wish: RenewRequest) -> LeaseState:
        provider = self._directory.provider(name)
        held = _own(provider.read(name), name, wish.owner, wish.lease_id)
        if held is not None and provider.renew_grant(_grant(held, wish.ttl_s)):
            after = _own(provider.read(name), name, wish.owner, wish.lease_id)
            if after is not None:
                return after
        raise LeaseLost(name, owner=wish.owner, reason="it expired, was released or taken over, or the lock store lost it")

    async def _release(self, call: Call) -> Answer:
        name, wish = checked_name(call.path_kwargs["name"]), parsed(ReleaseRequest, bytes(call.body))
        await self._in_thread(self._released, name, wish)
        self._nudge()
        return 200, {"name": name, "released": True}

    def _released(self, name: str, wish: ReleaseRequest) -> None:
        provider = self._directory.provider(name)
        _own(provider.read(name), name, wish.owner, wish.lease_id)
        now = self._context.clock.now()
        # Called even if nothing is held: a client that lost the reply to its release gets the same reply again.
        grant = Grant(name, wish.owner, wish.lease_id, 0, 0.0, now, 0.0)
        if not provider.release_grant(grant):
            raise LeaseLost(name, owner=wish.owner, reason="it expired, was taken over, or the lock store lost it")

    def _nudge(self) -> None:
        # A wake-up lets the tick see leases shorter than a poll interval. The limit keeps many requests from causing a busy loop.
        now_s = self._context.clock.monotonic_s()
        if now_s - self._nudged_at_s >= NUDGE_INTERVAL_S:
            self._nudged_at_s = now_s
            self._context.wake()

    def _check_bounds(self, ttl_s: float, wait_s: float) -> None:
        settings = self._settings
        if ttl_s > settings.max_ttl_s:
            raise InvalidRequest(f"ttl_s of {ttl_s:g}", expected=f"at most {settings.max_ttl_s:g}")
        if wait_s > settings.max_wait_s:
            raise InvalidRequest(
                f"wait_s of {wait_s:g}", expected=f"at most {settings.max_wait_s:g}", remedy="use a smaller wait_s, and retry"
            )

    async def _in_thread(self, call: Callable[..., T], *arguments: Any, limiter: anyio.CapacityLimiter | None = None) -> T:
        return await run_sync(functools.partial(call, *arguments), limiter=limiter or self._short)

    def _answering(self, operation: str, act: Callable[[Call], Awaitable[Answer]]) -> Callable[[Call], Awaitable[Reply]]:
        async def answer(call: Call) -> Reply:
            metrics = self._context.metrics
            try:
                status, content = await act(call)
            except TidelineError as error:
                status, content = status_of(error), error_body(error)
                if status >= 500:
                    _log.warning("request failed", operation=operation, status=status, reason=str(error))
            finally:
                metrics.set(WAITING, self._waiting.borrowed_tokens)
            metrics.increment(REQUESTS, operation=operation, status=str(status))
            return Reply(content, status, {"retry-after": "1"} if status == 503 else {})

        return answer


def status_of(error: TidelineError) -> int:
    """Return the HTTP status of an error: the one listed for its class, else 503 if a retry can succeed, else 500."""
    for kind, status in _STATUS:
        if isinstance(error, kind):
            return status
    return 503 if error.recovery is not Recovery.STOP else 500


def error_body(error: TidelineError) -> dict[str, Any]:
    """Return the JSON body of an error.

    `detail` has the fields of a `LockTimeout` or `StaleFence`, so that a client can rebuild it.
    """
    body = {"error": type(error).__name__, "found": error.found, "expected": error.expected, "remedy": error.remedy}
    if isinstance(error, LockTimeout):
        since = error.since.isoformat() if error.since else None
        return {**body, "detail": {"holder": error.holder, "since": since, "greatest": error.greatest}}
    return {**body, "detail": {"greatest": error.greatest}} if isinstance(error, StaleFence) else body


def _own(held: LeaseState | None, name: str, owner: str, lease_id: str) -> LeaseState | None:
    """Return `held` if it is the caller's lease, or None if no lease is held. Raises `NotTheHolder`."""
    if held is not None and (held.owner != owner or held.lease_id != lease_id):
        raise NotTheHolder(
            f"lock {name!r} is held by {held.owner!r} under another lease",
            expected=f"owner {owner!r} with the lease id that acquire returned",
            remedy="acquire the lock again, and read the table log",
        )
    return held


def _grant(held: LeaseState, ttl_s: float) -> Grant:
    return Grant(held.name, held.owner, held.lease_id, held.token, ttl_s, held.acquired, 0.0)


def _shown(lease: LeaseState) -> dict[str, Any]:
    return {
        "name": lease.name,
        "owner": lease.owner,
        "token": lease.token,
        "acquired": lease.acquired.isoformat(),
        "expires": lease.expires.isoformat(),
        "expired": lease.expired,
    }
