"""Who asks: the person of a request, the sessions of those who signed in, and how often an address may try."""

from __future__ import annotations

import getpass
import hmac
import ipaddress
import secrets
import threading
from collections import OrderedDict, deque
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from pydantic import SecretStr
from starlette.requests import Request

from tideline_runtime.http import is_loopback
from tideline_table.clock import Clock

MOST_SESSIONS = 10_000
MOST_ADDRESSES = 10_000
TRIES, TRIES_S = 10, 60.0
"""Attempts of one address in so many seconds."""
_MOST_NAME = 200


@dataclass(frozen=True, slots=True)
class Person:
    """A person or program that may look, and if `is_operator` act. `name` goes into the record of actions; it is hostile input."""

    name: str
    is_operator: bool

    @property
    def role(self) -> str:
        """The role in words."""
        return "operator" if self.is_operator else "viewer"


class SignInRefused(Exception):
    """The console refuses a sign-in, because of the provider or of what it says. `status` is that of the answer."""

    def __init__(self, text: str, status: int = 403) -> None:
        super().__init__(text)
        self.status = status


def named(name: str, *, is_operator: bool) -> Person:
    """Return a person whose name is one short line."""
    return Person(" ".join("".join(c if c.isprintable() else " " for c in name).split())[:_MOST_NAME] or "unknown", is_operator)


def is_safe(address: str) -> bool:
    """Return whether an address is a URL of https, or of http on this machine."""
    where = urlsplit(address)
    return where.scheme == "https" or (where.scheme == "http" and is_loopback(where.hostname or ""))


def local_user() -> Person:
    """Return who acts where no one signs in: the user of the process, on a loopback address."""
    try:
        return Person(getpass.getuser(), is_operator=True)
    except (KeyError, OSError):
        return Person("unknown", is_operator=True)


def person_of(request: Request) -> Person | None:
    """Return the person who sent a request; None without a session."""
    return getattr(request.state, "person", None)


class Sessions:
    """The sessions that are open, in memory: after a restart everybody signs in again. Thread-safe."""

    def __init__(self, clock: Clock, length_s: float) -> None:
        self._clock, self._length_s = clock, length_s
        self._open: OrderedDict[str, tuple[Person, float, str]] = OrderedDict()
        self._guard = threading.Lock()

    def begin(self, person: Person, id_token: str = "") -> str:
        """Open a session, and return its id. `id_token` is the provider's. The oldest beyond `MOST_SESSIONS` end."""
        session_id = secrets.token_urlsafe(24)
        with self._guard:
            self._open[session_id] = person, self._clock.monotonic_s() + self._length_s, id_token
            while len(self._open) > MOST_SESSIONS:
                self._open.popitem(last=False)
        return session_id

    def person(self, session_id: object) -> Person | None:
        """Return whose session it is; None if it ended."""
        with self._guard:
            person, ends_s, _ = (self._open.get(session_id) if isinstance(session_id, str) else None) or (None, 0.0, "")
        return person if self._clock.monotonic_s() < ends_s else None

    def end(self, session_id: object) -> str:
        """End a session, and return the ID token that it began with; its cookie is worth nothing from now on."""
        with self._guard:
            ended = self._open.pop(session_id, None) if isinstance(session_id, str) else None
        return ended[2] if ended else ""


class Attempts:
    """Attempts to sign in that did not succeed, by address: `TRIES` in `TRIES_S`. Thread-safe."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._by_address: OrderedDict[str, deque[float]] = OrderedDict()
        self._guard = threading.Lock()

    def begin(self, address: str) -> float:
        """Count an attempt before its secret is compared. Returns 0, or the seconds until the address may try again."""
        name, now_s = _network(address), self._clock.monotonic_s()
        with self._guard:
            tried = self._by_address.setdefault(name, deque())
            self._by_address.move_to_end(name)
            while len(self._by_address) > MOST_ADDRESSES:
                self._by_address.popitem(last=False)
            while tried and now_s - tried[0] >= TRIES_S:
                tried.popleft()
            if len(tried) >= TRIES:
                return TRIES_S - (now_s - tried[0])
            tried.append(now_s)
            return 0.0

    def succeeded(self, address: str) -> None:
        """Take back the last attempt of an address: it was none. Those before still count, or a viewer could guess for ever."""
        with self._guard:
            tried = self._by_address.get(_network(address))
            if tried:
                tried.pop()


def _network(address: str) -> str:
    """Return the name under which attempts are counted: a client chooses freely among the last 64 bits of an IPv6 address."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    return str(ipaddress.ip_network((found, 64), strict=False)) if found.version == 6 else str(found)


def holder_of(given: str, tokens: Mapping[str, SecretStr | None]) -> str:
    """Return the role whose token `given` is, or an empty text. It takes the same time for every wrong token of a length."""
    found = ""
    for role, token in tokens.items():
        if token is not None and hmac.compare_digest(given.encode(errors="replace"), token.get_secret_value().encode()):
            found = role
    return found
