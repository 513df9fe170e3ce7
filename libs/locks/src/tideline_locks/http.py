"""Locks through the lock service, for writers that may not reach its store: the lease API over HTTP."""

# ruff: noqa: D102 - the port documents these methods

from __future__ import annotations

import json
import os
import threading
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import urllib3
from tenacity import wait_exponential
from urllib3.exceptions import HTTPError, LocationParseError

from tideline_locks.errors import InvalidLease, LeaseLost, LockAccessDenied, LockTimeout, LockUnreachable, StaleFence
from tideline_locks.lease import Grant, Lease
from tideline_locks.port import (
    LOCK_NAME,
    TOKEN_FILE_VARIABLE,
    TOKEN_VARIABLE,
    Held,
    LeaseRequest,
    LeaseState,
    LogWanted,
    ReadFence,
    checked_name,
    checked_request,
    with_fence,
)
from tideline_locks.waiting import RandomSource, attempt_until, wait_for
from tideline_table.clock import Clock
from tideline_table.errors import InvalidOption

ANSWER_WITHIN_S = 5.0
"""Time that the service may take beside the waiting that a request asks for."""
RETRY_BACKOFF = wait_exponential(multiplier=0.05, max=1.0)
_BY = "tideline_locks"


class HttpLockProvider:
    """`LockProvider` on the lock service at `url` (`http:` or `https:`). Safe to share between threads.

    The caller chooses the lease id, so a request whose reply was lost is repeated and gets the same lease. A wait longer than the
    service allows is split into several requests, which keep the place in the queue of the service's store, if that has one. The
    deadline of a lease counts from the sending of the request plus the time that the service waited, so that it is never later
    than the service's. `read` and `list` show no lease ids, which are secrets of the holders.
    """

    def __init__(
        self, url: str, *, clock: Clock, randomness: RandomSource | None = None, answer_within_s: float = ANSWER_WITHIN_S
    ) -> None:
        self._base = checked_service(url).rstrip("/")
        self._place = f"lock service at {urlsplit(self._base).netloc.rpartition('@')[2]}"
        self._clock = clock
        self._randomness = randomness or RandomSource.system()
        self._answer_within_s = answer_within_s
        self._pool = urllib3.PoolManager(maxsize=8, retries=False)
        self._guard = threading.Lock()
        self._longest_wait_s: float | None = None

    def acquire(self, name: str, *, owner: str, ttl_s: float, wait_s: float, fence: int | ReadFence = 0) -> Lease:
        """See `LockProvider.acquire`. A service that does not answer is asked again until `wait_s` has passed."""
        wish = checked_request(name, owner=owner, lease_id=self._randomness.new_id(), ttl_s=ttl_s, wait_s=wait_s)

        def wait(deadline_s: float) -> Lease | Held:
            return attempt_until(
                lambda: self._stand_until(wish, fence, deadline_s),
                clock=self._clock,
                deadline_s=deadline_s,
                backoff=RETRY_BACKOFF,
                jitter=self._randomness.jitter,
            )

        try:
            may_read = not isinstance(fence, int)
            return wait_for(name, wait, may_read=may_read, wait_s=wait_s, clock=self._clock, jitter=self._randomness.jitter)
        except LockUnreachable:
            # A place in the queue, or a lease without a reply, expires.
            raise
        except BaseException:
            self._withdraw_quietly(wish)
            raise

    def try_acquire(self, name: str, *, owner: str, ttl_s: float, fence: int = 0) -> Lease | None:
        wish = checked_request(name, owner=owner, lease_id=self._randomness.new_id(), ttl_s=ttl_s, wait_s=0)
        outcome = self._ask(wish, with_fence(wish, fence).fence, 0.0)
        if isinstance(outcome, Lease):
            return outcome
        self._withdraw_quietly(wish)
        return None

    def read(self, name: str) -> LeaseState | None:
        found = self._call("GET", f"{_path(name)}")["lease"]
        return _state(found) if found else None

    def list(self, prefix: str = "") -> list[LeaseState]:
        """See `LockProvider.list`. The service shows at most 1,000 leases."""
        if prefix and not LOCK_NAME.fullmatch(prefix):
            return []
        query = f"?prefix={quote(prefix, safe='')}" if prefix else ""
        return [_state(lease) for lease in self._call("GET", f"/v1/leases{query}")["leases"]]

    def break_expired(self, name: str) -> LeaseState | None:
        broken = self._call("POST", f"{_path(name)}/break", {"owner": _BY})["broken"]
        return _state(broken) if broken else None

    def force_break(self, name: str, *, by: str, reason: str) -> LeaseState | None:
        """End the lease on `name`, expired or not; the service publishes who did it and why. Return the lease, or None."""
        broken = self._call("POST", f"{_path(name)}/break", {"owner": by, "force": True, "reason": reason})["broken"]
        return _state(broken) if broken else None

    def close(self) -> None:
        self._pool.clear()

    def renew_grant(self, grant: Grant) -> bool:
        body = {"owner": grant.owner, "lease_id": grant.lease_id, "ttl_s": grant.ttl_s}
        return self._still_held(f"{_path(grant.name)}/renew", body)

    def release_grant(self, grant: Grant) -> bool:
        return self._still_held(f"{_path(grant.name)}/release", {"owner": grant.owner, "lease_id": grant.lease_id})

    def _still_held(self, path: str, body: dict[str, Any]) -> bool:
        try:
            self._call("POST", path, body)
        except LeaseLost:
            return False
        return True

    def _stand_until(self, wish: LeaseRequest, fence: int | ReadFence, deadline_s: float) -> Lease | Held:
        seen = with_fence(wish, fence).fence if isinstance(fence, int) else None
        while True:
            left_s = max(0.0, deadline_s - self._clock.monotonic_s())
            outcome = self._ask(wish, seen, min(left_s, self._longest_wait()))
            if isinstance(outcome, LogWanted):
                assert not isinstance(fence, int), "a request that brings a fence is not asked for one"
                seen = with_fence(wish, fence()).fence
            elif isinstance(outcome, Lease) or self._clock.monotonic_s() >= deadline_s:
                return outcome

    def _ask(self, wish: LeaseRequest, fence: int | None, wait_s: float) -> Lease | Held | LogWanted:
        body = {"owner": wish.owner, "lease_id": wish.lease_id, "ttl_s": wish.ttl_s, "wait_s": wait_s, "fence": fence}
        asked_s = self._clock.monotonic_s()
        try:
            granted = self._call("POST", f"{_path(wish.name)}/acquire", body, wait_s)
        except LockTimeout as error:
            return Held(error.holder, error.since)
        except StaleFence as error:
            raise StaleFence(wish.name, fence=fence or 0, greatest=error.greatest) from None
        if "lease_id" not in granted:
            return LogWanted()
        # What is left of the lease, counted from when the service granted it at the earliest.
        began_s = asked_s + float(granted["waited_s"]) + float(granted["remaining_s"]) - wish.ttl_s
        acquired = datetime.fromisoformat(granted["acquired"])
        grant = Grant(wish.name, wish.owner, wish.lease_id, int(granted["token"]), wish.ttl_s, acquired, began_s)
        return Lease(grant, self, self._clock)

    def _longest_wait(self) -> float:
        with self._guard:
            if self._longest_wait_s is None:
                self._longest_wait_s = float(self._call("GET", "/v1/limits")["max_wait_s"])
            return self._longest_wait_s

    def _withdraw_quietly(self, wish: LeaseRequest) -> None:
        try:
            self._call("POST", f"{_path(wish.name)}/withdraw", {"owner": wish.owner, "lease_id": wish.lease_id})
        except LockUnreachable:
            # Its place in the queue expires. The caller must get the outcome of its wait.
            return

    def _call(self, method: str, path: str, body: dict[str, Any] | None = None, wait_s: float = 0.0) -> dict[str, Any]:
        headers = {"content-type": "application/json"}
        token = _token()
        if token:
            headers["authorization"] = f"Bearer {token}"
        timeout = urllib3.Timeout(connect=self._answer_within_s, read=wait_s + self._answer_within_s)
        try:
            reply = self._pool.request(
                method,
                self._base + path,
                body=None if body is None else json.dumps(body).encode(),
                headers=headers,
                timeout=timeout,
                redirect=False,
            )
        except HTTPError as error:
            raise LockUnreachable(f"{self._place}: {error}", remedy="check the service and the network, then retry") from error
        return self._answer(path, reply.status, reply.data)

    def _answer(self, path: str, status: int, data: bytes) -> dict[str, Any]:
        if status in (401, 403):
            raise LockAccessDenied(
                f"{self._place} answers {status}",
                expected="its bearer token",
                remedy=f"set {TOKEN_VARIABLE} or {TOKEN_FILE_VARIABLE} to the service's http_token",
            )
        try:
            reply = json.loads(data)
            if status < 300 and isinstance(reply, dict):
                return reply
            raise _refusal(path, reply)
        except (ValueError, TypeError, KeyError):
            raise LockUnreachable(
                f"{self._place} answers {path} with status {status} and no reply of the lease API",
                remedy="check that the URL is that of a lock service",
            ) from None


def checked_service(url: str) -> str:
    """Return the URL of a lock service. Raises `InvalidOption`, without showing the URL, if it cannot be one."""
    try:
        split = urlsplit(url)
        usable = bool(split.hostname) and split.port != 0 and not split.query and not split.fragment and not split.username
        urllib3.util.parse_url(url)
    except (ValueError, LocationParseError):
        usable = False
    if not usable:
        raise InvalidOption(
            "the URL of a lock service that cannot be used",
            expected="http://host:port or https://host:port",
            remedy=f"check host and port; the token belongs in {TOKEN_VARIABLE} or {TOKEN_FILE_VARIABLE}",
        )
    return url


def _token() -> str:
    path = os.environ.get(TOKEN_FILE_VARIABLE, "")
    if not path:
        return os.environ.get(TOKEN_VARIABLE, "")
    try:
        return Path(path).read_text().strip()
    except OSError as error:
        raise LockAccessDenied(f"{TOKEN_FILE_VARIABLE} names {path!r}: {error.strerror}", remedy="check the file") from error


def _path(name: str) -> str:
    return f"/v1/leases/{quote(checked_name(name), safe=':/@=+~')}"


def _state(shown: dict[str, Any]) -> LeaseState:
    acquired, expires = datetime.fromisoformat(shown["acquired"]), datetime.fromisoformat(shown["expires"])
    return LeaseState(shown["name"], shown["owner"], "", int(shown["token"]), acquired, expires, bool(shown["expired"]))


def _refusal(path: str, reply: dict[str, Any]) -> Exception:
    """Return the error that the service answered with, as an adapter in this process would raise it."""
    kind, found, expected, remedy = reply["error"], reply["found"], reply["expected"], reply["remedy"]
    name, detail = path.removeprefix("/v1/leases/").rpartition("/")[0], reply.get("detail", {})
    if kind == "LockTimeout":
        since = datetime.fromisoformat(detail["since"]) if detail["since"] else None
        return LockTimeout(name, waited_s=0.0, holder=detail["holder"], since=since, greatest=detail["greatest"])
    if kind == "StaleFence":
        return StaleFence(name, fence=0, greatest=int(detail["greatest"]))
    if kind in ("LeaseLost", "NotTheHolder"):
        return LeaseLost(name, owner="", reason=found)
    if kind in ("InvalidLease", "InvalidRequest", "UnknownLock", "RequestTooLarge"):
        return InvalidLease(found, expected=expected, remedy=remedy)
    if kind == "LockAccessDenied":
        return LockAccessDenied(found, expected=expected, remedy=remedy)
    return LockUnreachable(found, expected=expected, remedy=remedy or "retry")
