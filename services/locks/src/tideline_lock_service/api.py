"""The lease API: `/v1/leases`. Errors are JSON objects of error, found, expected and remedy.

A lease id is the holder's secret: it is told to who acquires, never to who looks.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import anyio
from anyio.to_thread import run_sync
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from tideline_lock_service.directory import LeaseDirectory
from tideline_lock_service.errors import InvalidRequest, NotTheHolder, RequestTooLarge, ServiceBusy, UnknownLock
from tideline_lock_service.metrics import REQUESTS, WAIT, WAITING
from tideline_lock_service.requests import AcquireRequest, ReleaseRequest, RenewRequest, parsed
from tideline_lock_service.settings import LockServiceSettings
from tideline_locks import InvalidLease, Lease, LeaseLost, LeaseState, LockAccessDenied, LockTimeout, StaleFence
from tideline_locks.lease import Grant
from tideline_locks.port import checked_name
from tideline_service.contract import ServiceContext
from tideline_service.logging import get_logger
from tideline_table.errors import Recovery, TidelineError

_log = get_logger(__name__)
T = TypeVar("T")
Answer = tuple[int, dict[str, Any]]

MAX_LISTED = 1000
NUDGE_INTERVAL_S = 1.0
SHORT_REQUESTS = 8
"""Most requests that ask a lock store at once without waiting for a lock."""

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


class LeaseApi:
    """Handlers of the API. What blocks runs in threads of its own limits, so that waiting for locks never delays a probe."""

    def __init__(self, directory: LeaseDirectory, settings: LockServiceSettings, context: ServiceContext) -> None:
        self._directory = directory
        self._settings = settings
        self._context = context
        self._waiting = anyio.CapacityLimiter(settings.max_waiting)
        self._short = anyio.CapacityLimiter(SHORT_REQUESTS)
        self._nudged_at_s = context.clock.monotonic_s() - NUDGE_INTERVAL_S

    def routes(self) -> list[BaseRoute]:
        """For `ServiceContext.add_routes`."""
        lease = "/v1/leases/{name:path}"
        return [
            Route("/v1/leases", self._answering("list", self._list), methods=["GET"]),
            Route(f"{lease}/acquire", self._answering("acquire", self._acquire), methods=["POST"]),
            Route(f"{lease}/renew", self._answering("renew", self._renew), methods=["POST"]),
            Route(f"{lease}/release", self._answering("release", self._release), methods=["POST"]),
            Route(lease, self._answering("read", self._read), methods=["GET"]),
        ]

    async def _list(self, request: Request) -> Answer:
        strangers = request.query_params.keys() - {"prefix"}
        if strangers:
            raise InvalidRequest(f"query {sorted(strangers)}", expected="prefix or nothing")
        prefix = request.query_params.get("prefix", "")
        if prefix:
            checked_name(prefix)
        leases = await self._in_thread(self._directory.list, prefix, MAX_LISTED + 1)
        return 200, {"leases": [_shown(lease) for lease in leases[:MAX_LISTED]], "truncated": len(leases) > MAX_LISTED}

    async def _read(self, request: Request) -> Answer:
        name = checked_name(request.path_params["name"])
        lease = await self._in_thread(lambda: self._directory.provider(name).read(name))
        return 200, {"name": name, "lease": _shown(lease) if lease is not None else None}

    async def _acquire(self, request: Request) -> Answer:
        name, wish = checked_name(request.path_params["name"]), parsed(AcquireRequest, await request.body())
        self._check_bounds(wish.ttl_s, wish.wait_s)
        if self._context.stopping.is_set():
            raise ServiceBusy("the service is stopping", remedy="ask another instance, or again in a moment")
        if self._waiting.available_tokens < 1:
            raise ServiceBusy(f"{self._settings.max_waiting} requests wait for locks", remedy="ask again in a moment")
        with self._context.metrics.timed(WAIT):
            lease = await self._in_thread(self._granted, name, wish, limiter=self._waiting)
        if await request.is_disconnected():
            # Nobody would hear of the lease; others need not wait for its end.
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
        }

    def _granted(self, name: str, wish: AcquireRequest) -> Lease:
        provider = self._directory.provider(name)
        return provider.acquire(name, owner=wish.owner, ttl_s=wish.ttl_s, wait_s=wish.wait_s, fence=wish.fence)

    async def _renew(self, request: Request) -> Answer:
        name, wish = checked_name(request.path_params["name"]), parsed(RenewRequest, await request.body())
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
        raise LeaseLost(name, owner=wish.owner, why="it ran out, was released, taken over or forgotten")

    async def _release(self, request: Request) -> Answer:
        name, wish = checked_name(request.path_params["name"]), parsed(ReleaseRequest, await request.body())
        await self._in_thread(self._released, name, wish)
        self._nudge()
        return 200, {"name": name, "released": True}

    def _released(self, name: str, wish: ReleaseRequest) -> None:
        provider = self._directory.provider(name)
        _own(provider.read(name), name, wish.owner, wish.lease_id)
        now = self._context.clock.now()
        # Asked also when nothing is held: a release whose answer got lost is answered again as it was.
        grant = Grant(name, wish.owner, wish.lease_id, 0, 0.0, now, 0.0)
        if not provider.release_grant(grant):
            raise LeaseLost(name, owner=wish.owner, why="it ran out, was taken over or forgotten")

    def _nudge(self) -> None:
        # Leases that last less than a poll interval are seen too, but many requests must not make the ticks a busy loop.
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
                f"wait_s of {wait_s:g}", expected=f"at most {settings.max_wait_s:g}", remedy="wait less, and ask again"
            )

    async def _in_thread(self, call: Callable[..., T], *arguments: Any, limiter: anyio.CapacityLimiter | None = None) -> T:
        return await run_sync(functools.partial(call, *arguments), limiter=limiter or self._short)

    def _answering(self, operation: str, act: Callable[[Request], Awaitable[Answer]]) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            metrics = self._context.metrics
            try:
                status, content = await act(request)
            except TidelineError as error:
                status, content = status_of(error), error_body(error)
                if status >= 500:
                    _log.warning("request failed", operation=operation, status=status, reason=str(error))
            finally:
                metrics.set(WAITING, self._waiting.borrowed_tokens)
            metrics.increment(REQUESTS, operation=operation, status=str(status))
            return JSONResponse(content, status_code=status, headers={"retry-after": "1"} if status == 503 else None)

        return answer


def status_of(error: TidelineError) -> int:
    """The HTTP status of an error: 503 for whatever a retry may cure, 500 for the rest, unless its kind has one of its own."""
    for kind, status in _STATUS:
        if isinstance(error, kind):
            return status
    return 503 if error.recovery is not Recovery.STOP else 500


def error_body(error: TidelineError) -> dict[str, Any]:
    """The JSON body of an error."""
    return {"error": type(error).__name__, "found": error.found, "expected": error.expected, "remedy": error.remedy}


def _own(held: LeaseState | None, name: str, owner: str, lease_id: str) -> LeaseState | None:
    """`held` if it is the caller's lease, None if there is none. Raises `NotTheHolder`."""
    if held is not None and (held.owner != owner or held.lease_id != lease_id):
        raise NotTheHolder(
            f"lock {name!r} is held by {held.owner!r} under another lease",
            expected=f"owner {owner!r} with the lease id that it was given",
            remedy="acquire it again, and read the table log",
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
