"""The table lock of the engine on a lock provider."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import tenacity

from tideline_locks import KeptLease, LockProvider, StaleFence, open_lock_provider
from tideline_table.clock import Clock

LOCK_TTL_S = 30.0
LOCK_WAIT_S = 60.0
BESIDE_TABLE = "storage:"
"""The lock URL without a place: leases lie beside each table."""
_FENCES = 20
"""How often a newcomer may be told that its view of the table is old before it gives up."""


class ProviderLock:
    """`TableLock` on a `LockProvider`: kept alive while held; a lost lease only loses efficiency, the log decides."""

    def __init__(
        self, provider: LockProvider, name: str, owner: str, *, ttl_s: float = LOCK_TTL_S, wait_s: float = LOCK_WAIT_S
    ) -> None:
        self._provider = provider
        self._name = name
        self._owner = owner
        self._ttl_s = ttl_s
        self._wait_s = wait_s

    def hold(self, fence: Callable[[], int]) -> AbstractContextManager[object]:
        """See `TableLock.hold`. Raises `LockTimeout` and `LockUnreachable`."""
        return self._held(fence)

    @contextmanager
    def _held(self, fence: Callable[[], int]) -> Iterator[KeptLease]:
        retrying = tenacity.Retrying(
            stop=tenacity.stop_after_attempt(_FENCES), retry=tenacity.retry_if_exception_type(StaleFence), reraise=True
        )
        lease = retrying(
            lambda: self._provider.acquire(self._name, owner=self._owner, ttl_s=self._ttl_s, wait_s=self._wait_s, fence=fence())
        )
        with KeptLease(lease) as kept:
            yield kept


class LockProviders:
    """The providers behind one `locks` setting: one for all tables, or for `storage:` one beside each table. Thread-safe."""

    def __init__(self, url: str, clock: Clock) -> None:
        self._url = url
        self._clock = clock
        self._guard = threading.Lock()
        self._opened: dict[str, LockProvider] = {}

    @property
    def is_per_table(self) -> bool:
        """Whether each table has a provider of its own, which then knows only the lock of that table."""
        return self._url == BESIDE_TABLE

    def of(self, base_path: str) -> LockProvider:
        """The provider that keeps the lock of the table at `base_path`. Raises `InvalidOption` for a URL that no provider understands."""
        url = f"{BESIDE_TABLE}{base_path}" if self.is_per_table else self._url
        with self._guard:
            if url not in self._opened:
                self._opened[url] = open_lock_provider(url, clock=self._clock)
            return self._opened[url]

    def close(self) -> None:
        """Close every provider; safe to call twice."""
        with self._guard:
            opened, self._opened = self._opened, {}
        for provider in opened.values():
            provider.close()


def lock_name(table_uid: str) -> str:
    """The name of a table's lock: by uid, so that renames and equal names never mix."""
    return f"table:{table_uid}"


def open_table_lock(url: str, base_path: str, table_uid: str, owner: str, clock: Clock) -> ProviderLock:
    """The lock of one table. `storage:` alone means beside the table."""
    return ProviderLock(LockProviders(url, clock).of(base_path), lock_name(table_uid), owner)
