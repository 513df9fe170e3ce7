"""The table lock on a lock provider."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tideline_locks.fallback import FallbackLockProvider, FallbackReservations, Outage
from tideline_locks.location import SERVICE_SCHEMES, check_lock_url, open_lock_provider, open_reservations
from tideline_locks.port import LeaseSource, LockProvider, OnUnreachable
from tideline_locks.renewal import KeptLease
from tideline_locks.reservations import StorageReservations
from tideline_table.clock import Clock
from tideline_table.config import LOCK_TTL_S, LOCK_UNREACHABLE, LOCK_WAIT_S
from tideline_table.coordination import NoReservations, Reservations
from tideline_table.errors import InvalidOption
from tideline_table.table import Table

LOCKS_VARIABLE = "TIDELINE_LOCKS"
"""Environment variable with the lock URL, as the services' setting `locks`."""
NO_LOCK = ""
"""The lock URL where nothing names one: commits take no lock, since the table log decides; reservations are beside each table."""
BESIDE_TABLE = "storage:"
"""The lock URL without a location: leases are stored beside each table."""


class ProviderLock:
    """`TableLock` on a `LeaseSource`, renewed while held. A lost lease costs only efficiency, because the table log decides."""

    def __init__(
        self,
        provider: LeaseSource,
        name: str,
        owner: str,
        *,
        ttl_s: float = LOCK_TTL_S.default,
        wait_s: float = LOCK_WAIT_S.default,
    ) -> None:
        self._provider = provider
        self._name = name
        self._owner = owner
        self._ttl_s = ttl_s
        self._wait_s = wait_s

    @contextmanager
    def hold(self, fence: Callable[[], int]) -> Iterator[KeptLease]:
        """See `TableLock.hold`. Raises `LockTimeout` after `wait_s` in total, and `LockUnreachable`."""
        lease = self._provider.acquire(self._name, owner=self._owner, ttl_s=self._ttl_s, wait_s=self._wait_s, fence=fence)
        with KeptLease(lease) as kept:
            yield kept


class LockProviders:
    """The providers of one `locks` setting: one for all tables, or one beside each table. Thread-safe."""

    def __init__(self, url: str, clock: Clock) -> None:
        self._url = url
        self._clock = clock
        self._guard = threading.Lock()
        self._opened: dict[tuple[str, OnUnreachable], LockProvider] = {}
        self._outage = Outage(clock)

    @property
    def is_per_table(self) -> bool:
        """Whether each table has its own provider, which knows only the lock of that table."""
        return self._url in (NO_LOCK, BESIDE_TABLE)

    @property
    def _keeps_leases_only(self) -> bool:
        return self._url.partition(":")[0] in SERVICE_SCHEMES

    def of(self, base_path: str, on_unreachable: OnUnreachable = OnUnreachable.WAIT) -> LeaseSource:
        """Return the lock provider of the table at `base_path`. With STORAGE it falls back to leases beside the table.

        Raises `InvalidOption` for a URL that no provider supports, and for an `on_unreachable` that the URL does not support.
        """
        check_unreachable(self._url, on_unreachable)
        with self._guard:
            if on_unreachable is not OnUnreachable.STORAGE:
                return self._provider(self._place(base_path), on_unreachable)
            first = self._provider(self._url, OnUnreachable.FAIL)
            second = self._provider(f"{BESIDE_TABLE}{base_path}", OnUnreachable.WAIT)
            return FallbackLockProvider(first, second, clock=self._clock, outage=self._outage)

    def reservations(self, base_path: str, name: str, on_unreachable: OnUnreachable = OnUnreachable.WAIT) -> Reservations:
        """Return the reservations of the table at `base_path` with the lock `name`, beside its leases. Raises as `of`."""
        check_unreachable(self._url, on_unreachable)
        place = f"{BESIDE_TABLE}{base_path}" if self._keeps_leases_only else self._place(base_path)
        first = open_reservations(place, name, clock=self._clock)
        if on_unreachable is not OnUnreachable.STORAGE:
            return first
        return FallbackReservations(first, open_reservations(f"{BESIDE_TABLE}{base_path}", name, clock=self._clock), self._outage)

    def attach(self, table: Table) -> None:
        """Make `table` post its reservations and commit under its lock, if there is one, by its options `tideline.lock.*`.

        A shared table gets only the reservations of Tideline's writers: its steps take the lock of Hudi's writers, which nothing
        replaces. A table that only Hudi writes is unchanged. Raises as `of`; for a shared table `InvalidOption` for the URL only.
        """
        if not table.capabilities.queues_writers:
            if table.capabilities.keeps_log:
                table.reservations = self._shared_reservations(table)
            return
        name, on_unreachable = lock_name(table.uid), OnUnreachable(table.options[LOCK_UNREACHABLE])
        table.reservations = self.reservations(table.base_path, name, on_unreachable)
        if self._url:
            table.lock = ProviderLock(
                self.of(table.base_path, on_unreachable),
                name,
                table.timeline.log.writer_id,
                ttl_s=table.options[LOCK_TTL_S],
                wait_s=table.options[LOCK_WAIT_S],
            )

    def close(self) -> None:
        """Close every provider. Safe to call twice."""
        with self._guard:
            opened, self._opened = self._opened, {}
        for provider in opened.values():
            provider.close()

    def _shared_reservations(self, table: Table) -> Reservations:
        """Return the reservations of a shared table. Its lock does not need their server, so an outage must not delay writes."""
        beside = StorageReservations(table.storage, self._clock)
        if self.is_per_table or self._keeps_leases_only:
            return beside
        falls_back = OnUnreachable(table.options[LOCK_UNREACHABLE]) is OnUnreachable.STORAGE
        primary = open_reservations(self._url, lock_name(table.uid), clock=self._clock)
        return FallbackReservations(primary, beside if falls_back else NoReservations(), self._outage)

    def _place(self, base_path: str) -> str:
        return f"{BESIDE_TABLE}{base_path}" if self.is_per_table else self._url

    def _provider(self, url: str, on_unreachable: OnUnreachable) -> LockProvider:
        key = (url, on_unreachable)
        if key not in self._opened:
            self._opened[key] = open_lock_provider(url, clock=self._clock, on_unreachable=on_unreachable)
        return self._opened[key]


def check_unreachable(url: str, on_unreachable: OnUnreachable) -> None:
    """Raise `InvalidOption` if the locks of `url` (empty: no lock) do not support `on_unreachable`."""
    scheme = url.partition(":")[0]
    if on_unreachable is not OnUnreachable.WAIT and scheme not in ("redis", "rediss"):
        raise InvalidOption(
            f"option {LOCK_UNREACHABLE.key!r} is {on_unreachable.value} with {f'locks on {scheme}:' if scheme else 'no lock'}",
            expected=f"{OnUnreachable.WAIT.value}, or locks on redis: or rediss:",
            remedy="set the lock URL to a Redis server, or remove the option",
        )


def lock_name(table_uid: str) -> str:
    """Return the name of a table's lock. It contains the uid, so that renamed tables and equal names never conflict."""
    return f"table:{table_uid}"


def lock_url(given: str | None) -> str:
    """Return the URL of the locks that a caller gives, by default that in `TIDELINE_LOCKS`; empty for no lock.

    Raises `InvalidOption` for a URL that no lock provider supports.
    """
    found = os.environ.get(LOCKS_VARIABLE, NO_LOCK) if given is None else given
    if found:
        check_lock_url(found)
    return found


def attach_lock(table: Table, url: str | None = None) -> None:
    """Call `LockProviders.attach` with the locks of `lock_url(url)`. Raises as both."""
    LockProviders(lock_url(url), table.clock).attach(table)
