"""From a lock URL as people write it to a `LockProvider`."""

from __future__ import annotations

import threading
from urllib.parse import urlsplit

from tideline_locks.fallback import FallbackLockProvider
from tideline_locks.hudi_file_lock import FileLockCell
from tideline_locks.hudi_lock import HudiLockProvider
from tideline_locks.hudi_storage_lock import LOCK_OBJECT, StorageLockCell
from tideline_locks.in_process import InProcessLockProvider, LeaseTable
from tideline_locks.intents import InProcessIntents, RedisIntents, StorageIntents
from tideline_locks.port import LockProvider
from tideline_locks.redis import OnUnreachable, RedisLockProvider
from tideline_locks.redis_connection import RedisConnection
from tideline_locks.storage_lease import StorageLockProvider
from tideline_table.clock import Clock
from tideline_table.errors import InvalidOption
from tideline_table.storage import ConditionalStorage, LocalStorage, MemoryStorage, ObjectStorage, Storage, open_storage
from tideline_table.transaction.intents import IntentBoard

HUDI_FILE_SYSTEM, HUDI_STORAGE = "hudi-filesystem", "hudi-storage"
EXPECTED_URL = (
    "storage:<base path or file: URI>, redis://host:port/db, rediss://host:port/db, memory:<space>, "
    f"{HUDI_FILE_SYSTEM}:<base path> or {HUDI_STORAGE}:<base path>"
)

_spaces: dict[str, LeaseTable] = {}
_boards: dict[tuple[str, str], InProcessIntents] = {}
_spaces_guard = threading.Lock()


def open_lock_provider(
    url: str,
    *,
    clock: Clock,
    on_unreachable: OnUnreachable = OnUnreachable.WAIT,
    fallback_url: str | None = None,
    skew_allowance_s: float = 2.0,
) -> LockProvider:
    """The provider behind `url`.

    `storage:` leases lie below the base path, in `.hoodie/.tideline/locks`; `skew_allowance_s` is what clocks may differ by there.
    Only `redis:` and `rediss:` (TLS) can be told by `on_unreachable` what to do; with STORAGE, `fallback_url` names the storage to go on
    with, a `storage:` URL: no lock of Hudi's stands in for another one.
    `memory:` providers of one process share the leases of a space of the same name.
    `hudi-filesystem:` and `hudi-storage:` are the one lock of the table at that base path that Hudi's writers take, by whatever name it is
    asked for.
    Raises `InvalidOption` for anything else. A URL may carry a password: it appears in no error.
    """
    scheme, _, rest = url.partition(":")
    if (fallback_url is not None) != (on_unreachable is OnUnreachable.STORAGE):
        raise InvalidOption(
            f"on_unreachable={on_unreachable.value} {'with' if fallback_url is not None else 'without'} a fallback URL",
            expected="a fallback URL exactly with on_unreachable=storage",
        )
    if scheme in ("redis", "rediss"):
        primary = RedisLockProvider(_checked_redis(url), clock=clock, on_unreachable=on_unreachable)
        if fallback_url is None:
            return primary
        if not fallback_url.startswith("storage:"):
            raise InvalidOption("a fallback on another lock provider", expected="storage:<base path or file: URI>")
        secondary = open_lock_provider(fallback_url, clock=clock, skew_allowance_s=skew_allowance_s)
        return FallbackLockProvider(primary, secondary, clock=clock)
    if on_unreachable is not OnUnreachable.WAIT:
        raise InvalidOption(f"on_unreachable={on_unreachable.value} for lock provider {scheme}:", expected="redis: or rediss:")
    if scheme == "storage" and rest:
        return StorageLockProvider(open_storage(rest), clock=clock, skew_allowance_s=skew_allowance_s)
    if scheme in (HUDI_FILE_SYSTEM, HUDI_STORAGE) and rest:
        storage = open_storage(rest)
        return hudi_file_lock(storage, clock=clock) if scheme == HUDI_FILE_SYSTEM else hudi_storage_lock(storage, clock=clock)
    if scheme == "memory":
        with _spaces_guard:
            return InProcessLockProvider(clock=clock, table=_spaces.setdefault(rest, LeaseTable(clock)))
    raise InvalidOption(f"lock provider {scheme}:", expected=EXPECTED_URL)


def hudi_file_lock(storage: Storage, *, clock: Clock, expire_min: int = 0) -> HudiLockProvider:
    """The lock of Hudi's file-system based provider for the table in `storage`. Raises `InvalidOption` for one that is on no local disk."""
    if not isinstance(storage, LocalStorage):
        raise InvalidOption(
            f"lock provider {HUDI_FILE_SYSTEM} for {storage.root}",
            expected="a table on a local disk: only there a file is created exclusively",
            remedy=f"use {HUDI_STORAGE}",
        )
    base_path = storage.local_path(".hoodie").parent
    return HudiLockProvider(FileLockCell(lambda _: base_path, lambda: (), clock=clock, expire_min=expire_min), clock=clock)


def hudi_storage_lock(storage: Storage, *, clock: Clock, validity_s: float = 300.0) -> HudiLockProvider:
    """The lock of Hudi's storage based provider for the table in `storage`. Raises `InvalidOption` for one without conditional puts."""
    if not isinstance(storage, MemoryStorage | ObjectStorage):
        raise InvalidOption(
            f"lock provider {HUDI_STORAGE} for {storage.root}",
            expected="a table in an object store: Hudi has no such lock elsewhere",
            remedy=f"use {HUDI_FILE_SYSTEM}",
        )
    conditional: ConditionalStorage = storage
    cell = StorageLockCell(conditional, lambda _: LOCK_OBJECT, lambda: (), validity_s=validity_s)
    return HudiLockProvider(cell, clock=clock)


def open_intent_board(url: str, name: str, *, clock: Clock) -> IntentBoard:
    """The intents of the table whose lock is `name`, beside the leases of the provider behind `url`. Raises `InvalidOption` as above."""
    scheme, _, rest = url.partition(":")
    if scheme in ("redis", "rediss"):
        return RedisIntents(RedisConnection(_checked_redis(url)), name, clock)
    if scheme in ("storage", HUDI_FILE_SYSTEM, HUDI_STORAGE) and rest:
        return StorageIntents(open_storage(rest), clock)
    if scheme == "memory":
        with _spaces_guard:
            return _boards.setdefault((rest, name), InProcessIntents())
    raise InvalidOption(f"lock provider {scheme}:", expected=EXPECTED_URL)


def _checked_redis(url: str) -> str:
    try:
        split = urlsplit(url)
        known = bool(split.hostname) and split.port != 0 and (split.path.strip("/") or "0").isdecimal() and not split.query
    except ValueError:
        known = False
    if not known:
        raise InvalidOption(
            "a Redis URL that cannot be understood", expected=EXPECTED_URL, remedy="check host, port and database number"
        )
    return url
