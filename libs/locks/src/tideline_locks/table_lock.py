"""The table lock of the engine on a lock provider."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from tideline_locks.fallback import FallbackIntents, FallbackLockProvider, Outage
from tideline_locks.intents import StorageIntents
from tideline_locks.location import open_intent_board, open_lock_provider
from tideline_locks.port import LockProvider
from tideline_locks.redis import OnUnreachable
from tideline_locks.renewal import KeptLease
from tideline_table.clock import Clock
from tideline_table.config import LOCK_TTL_S, LOCK_UNREACHABLE, LOCK_WAIT_S
from tideline_table.errors import InvalidOption
from tideline_table.table import Table
from tideline_table.transaction.intents import IntentBoard, NoIntents

LOCKS_VARIABLE = "TIDELINE_LOCKS"
"""By which applications learn where table locks and intents live: the services' setting `locks`. Unset or empty: nowhere, the log alone decides."""
BESIDE_TABLE = "storage:"
"""The lock URL without a place: leases lie beside each table."""


class ProviderLock:
    """`TableLock` on a `LockProvider`: kept alive while held; a lost lease only loses efficiency, the log decides."""

    def __init__(
        self,
        provider: LockProvider,
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

    def hold(self, fence: Callable[[], int]) -> AbstractContextManager[object]:
        """See `TableLock.hold`. Raises `LockTimeout` after `wait_s`, however often others went first, and `LockUnreachable`."""
        return self._held(fence)

    @contextmanager
    def _held(self, fence: Callable[[], int]) -> Iterator[KeptLease]:
        lease = self._provider.acquire(self._name, owner=self._owner, ttl_s=self._ttl_s, wait_s=self._wait_s, fence=fence)
        with KeptLease(lease) as kept:
            yield kept


class LockProviders:
    """The providers behind one `locks` setting: one for all tables, or for `storage:` one beside each table. Thread-safe."""

    def __init__(self, url: str, clock: Clock) -> None:
        self._url = url
        self._clock = clock
        self._guard = threading.Lock()
        self._opened: dict[tuple[str, OnUnreachable], LockProvider] = {}
        self._outage = Outage(clock)

    @property
    def is_per_table(self) -> bool:
        """Whether each table has a provider of its own, which then knows only the lock of that table."""
        return self._url == BESIDE_TABLE

    def of(self, base_path: str, on_unreachable: OnUnreachable = OnUnreachable.WAIT) -> LockProvider:
        """The provider that keeps the lock of the table at `base_path`; with STORAGE it goes on with leases beside the table.

        Raises `InvalidOption` for a URL that no provider understands, and for an `on_unreachable` that does not go with it.
        """
        check_unreachable(self._url, on_unreachable)
        with self._guard:
            if on_unreachable is not OnUnreachable.STORAGE:
                return self._provider(self._place(base_path), on_unreachable)
            first = self._provider(self._url, OnUnreachable.FAIL)
            second = self._provider(f"{BESIDE_TABLE}{base_path}", OnUnreachable.WAIT)
            return FallbackLockProvider(first, second, clock=self._clock, outage=self._outage)

    def intents(self, base_path: str, name: str, on_unreachable: OnUnreachable = OnUnreachable.WAIT) -> IntentBoard:
        """The intents of the table at `base_path` whose lock is `name`, beside its leases. Raises as `of`."""
        check_unreachable(self._url, on_unreachable)
        first = open_intent_board(self._place(base_path), name, clock=self._clock)
        if on_unreachable is not OnUnreachable.STORAGE:
            return first
        return FallbackIntents(first, open_intent_board(f"{BESIDE_TABLE}{base_path}", name, clock=self._clock), self._outage)

    def attach(self, table: Table) -> None:
        """From now on `table` commits under its lock and posts its intents beside it, as its options `tideline.lock.*` say.

        A shared table gets a board for the intents of our writers alone: every step of it takes the lock that Hudi's writers take, and no other one
        may stand in for that. One that others write is left as it is. Raises as `of`; for a shared one `InvalidOption` for the URL only.
        """
        if table.is_shared:
            table.intents = self._advice(table)
        if not table.is_exclusive:
            return
        name, on_unreachable = lock_name(table.uid), OnUnreachable(table.options[LOCK_UNREACHABLE])
        table.lock = ProviderLock(
            self.of(table.base_path, on_unreachable),
            name,
            table.timeline.log.writer_id,
            ttl_s=table.options[LOCK_TTL_S],
            wait_s=table.options[LOCK_WAIT_S],
        )
        table.intents = self.intents(table.base_path, name, on_unreachable)

    def close(self) -> None:
        """Close every provider; safe to call twice."""
        with self._guard:
            opened, self._opened = self._opened, {}
        for provider in opened.values():
            provider.close()

    def _advice(self, table: Table) -> IntentBoard:
        """The board of a shared table. No lock waits for its server there, so a server that is away must not hold up write after write."""
        beside = StorageIntents(table.storage, self._clock)
        if self.is_per_table:
            return beside
        goes_on_beside = OnUnreachable(table.options[LOCK_UNREACHABLE]) is OnUnreachable.STORAGE
        board = open_intent_board(self._url, lock_name(table.uid), clock=self._clock)
        return FallbackIntents(board, beside if goes_on_beside else NoIntents(), self._outage)

    def _place(self, base_path: str) -> str:
        return f"{BESIDE_TABLE}{base_path}" if self.is_per_table else self._url

    def _provider(self, url: str, on_unreachable: OnUnreachable) -> LockProvider:
        key = (url, on_unreachable)
        if key not in self._opened:
            self._opened[key] = open_lock_provider(url, clock=self._clock, on_unreachable=on_unreachable)
        return self._opened[key]


def check_unreachable(url: str, on_unreachable: OnUnreachable) -> None:
    """Raises `InvalidOption` when `on_unreachable` says something that the locks behind `url` (empty: no lock) do not know."""
    scheme = url.partition(":")[0]
    if on_unreachable is not OnUnreachable.WAIT and scheme not in ("redis", "rediss"):
        raise InvalidOption(
            f"option {LOCK_UNREACHABLE.key!r} is {on_unreachable.value} with {f'locks on {scheme}:' if scheme else 'no lock'}",
            expected=f"{OnUnreachable.WAIT.value}, or locks on redis: or rediss:",
            remedy="name the Redis server where locks are set, or leave the option out",
        )


def lock_name(table_uid: str) -> str:
    """The name of a table's lock: by uid, so that renames and equal names never mix."""
    return f"table:{table_uid}"


def attach_lock(table: Table, url: str) -> None:
    """`LockProviders.attach` for who writes one table. Without a `url` there is no board, and no lock but the one of a shared table. Raises the same."""
    if url:
        LockProviders(url, table.clock).attach(table)
    elif table.is_exclusive:
        check_unreachable(url, OnUnreachable(table.options[LOCK_UNREACHABLE]))
