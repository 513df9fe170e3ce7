"""Finds the provider that keeps the lock of a name: one provider for all names, or one beside each table."""

from __future__ import annotations

from collections.abc import Mapping

from tideline_lock_service.errors import ServiceBusy, UnknownLock
from tideline_locks import InProcessLockProvider, LeaseState, StorageLockProvider
from tideline_locks.port import RemoteLeases
from tideline_locks.redis import RedisLockProvider
from tideline_locks.table_lock import LockProviders, lock_name
from tideline_table.errors import InvalidOption

_REMOTE = RedisLockProvider | StorageLockProvider | InProcessLockProvider


class LeaseDirectory:
    """The locks of this shard. The tick sets the tables; the API reads them from other threads.

    The option `tideline.lock.unreachable` (for writers while Redis is down) has no effect here, because a lease is renewed in
    the store that granted it.
    """

    def __init__(self, providers: LockProviders) -> None:
        self._providers = providers
        self._base_paths: Mapping[str, str] | None = None

    def update(self, base_paths: Mapping[str, str]) -> None:
        """Replace the tables by `base_paths`: uid → base path."""
        # The mapping is replaced as a whole and never changed, so readers in other threads need no lock.
        self._base_paths = {lock_name(uid): base_path for uid, base_path in base_paths.items()}

    def knows(self, name: str) -> bool:
        """Return whether `name` is the lock of a table of this shard. Raises `ServiceBusy` before the first `update`."""
        return name in self._known()

    def provider(self, name: str) -> RemoteLeases:
        """Return the provider of the lock `name`. Raises `UnknownLock`, or `ServiceBusy` before the first `update`."""
        known = self._known()
        if not self._providers.is_per_table:
            return _checked(self._providers, "")
        if name not in known:
            raise UnknownLock(
                f"lock {name!r}",
                expected="table:<uid> of a table of this service",
                remedy="check the uid and the setting 'tables'; new tables are found within 'tables_rescan_s'",
            )
        return _checked(self._providers, known[name])

    def provider_beside(self, base_path: str) -> RemoteLeases:
        """Return the provider of the lock of the table at `base_path`.

        Raises `InvalidOption` for a kind of provider without remote leases.
        """
        return _checked(self._providers, base_path)

    def list(self, prefix: str, limit: int) -> list[LeaseState]:
        """Return the first `limit` leases, by name, whose name starts with `prefix`. Storage needs one request per lock."""
        known = self._known()
        if not self._providers.is_per_table:
            return _checked(self._providers, "").list(prefix)[:limit]
        found: list[LeaseState] = []
        for name, base_path in sorted(known.items()):
            if len(found) >= limit:
                break
            lease = _checked(self._providers, base_path).read(name) if name.startswith(prefix) else None
            if lease is not None:
                found.append(lease)
        return found

    def _known(self) -> Mapping[str, str]:
        if self._base_paths is None:
            raise ServiceBusy("the tables are not known yet, because the service is starting", remedy="retry in a moment")
        return self._base_paths


def _checked(providers: LockProviders, base_path: str) -> RemoteLeases:
    provider = providers.of(base_path)
    if not isinstance(provider, _REMOTE):
        raise InvalidOption(f"a lock provider of kind {type(provider).__name__}", expected="Redis, storage or memory")
    return provider
