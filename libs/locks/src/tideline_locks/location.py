"""Opening of a `LockProvider` or of file-group reservations from a lock URL."""

from __future__ import annotations

import threading
from urllib.parse import urlsplit

from tideline_locks.hudi_file_lock import FileLockCell
from tideline_locks.hudi_lock import HudiLockProvider
from tideline_locks.hudi_storage_lock import LOCK_OBJECT, StorageLockCell
from tideline_locks.in_process import InProcessLockProvider, LeaseTable
from tideline_locks.port import HudiLocks, LockProvider, OnUnreachable
from tideline_locks.reservations import InProcessReservations, StorageReservations
from tideline_locks.storage_lease import StorageLockProvider
from tideline_table.clock import Clock
from tideline_table.coordination import Reservations
from tideline_table.errors import InvalidOption, UnsupportedTable
from tideline_table.extras import extra
from tideline_table.log import PLACES, HudiLockKind
from tideline_table.storage import LocalStorage, MemoryStorage, ObjectStorage, Storage, open_storage, root_uri, unwrapped

HUDI_FILE_SYSTEM, HUDI_STORAGE = "hudi-filesystem", "hudi-storage"
HUDI_ZOOKEEPER, HUDI_METASTORE, HUDI_DYNAMODB = "hudi-zookeeper", "hudi-metastore", "hudi-dynamodb"
_PLACED = {HUDI_ZOOKEEPER: HudiLockKind.ZOOKEEPER, HUDI_METASTORE: HudiLockKind.METASTORE, HUDI_DYNAMODB: HudiLockKind.DYNAMODB}
SERVICE_SCHEMES = frozenset({"http", "https"})
"""Of lock URLs that name a lock service. It keeps leases only: reservations are then beside each table."""
EXPECTED_URL = (
    "storage:<base path or file: URI>, redis://host:port/db, rediss://host:port/db, memory:<space>, "
    f"http://host:port or https://host:port of a lock service, {HUDI_FILE_SYSTEM}:<base path>, {HUDI_STORAGE}:<base path>, "
    f"{HUDI_ZOOKEEPER}://host:port,host:port/base/path/key, {HUDI_METASTORE}://host:port,host:port/database/table "
    f"or {HUDI_DYNAMODB}:region/table/key"
)

_spaces: dict[str, LeaseTable] = {}
_in_process: dict[tuple[str, str], InProcessReservations] = {}
_spaces_guard = threading.Lock()


def open_lock_provider(url: str, *, clock: Clock, on_unreachable: OnUnreachable = OnUnreachable.WAIT) -> LockProvider:
    """Open the lock provider of `url`.

    `storage:` leases are below the base path, in `.hoodie/.tideline/locks`.
    Only `redis:` and `rediss:` (TLS) support `on_unreachable` other than WAIT. STORAGE works as FAIL: `LockProviders` adds the
    leases in storage.
    `memory:` providers of one process share the leases of a space of the same name.
    `http:` and `https:` are the leases of a lock service (`HttpLockProvider`).
    `hudi-filesystem:` and `hudi-storage:` are the one lock of Hudi's writers for the table at that base path, under any lock name,
    and so are `hudi-zookeeper:`, `hudi-metastore:` and `hudi-dynamodb:` for the tables whose writers take the lock at that place.
    Raises `InvalidOption` for any other URL. A URL may contain a password, so no error contains the URL.
    """
    scheme, _, rest = url.partition(":")
    if scheme in ("redis", "rediss"):
        with extra("redis"):
            from tideline_locks.redis import RedisLockProvider

        return RedisLockProvider(_checked_redis(url), clock=clock, on_unreachable=on_unreachable)
    if on_unreachable is not OnUnreachable.WAIT:
        raise InvalidOption(f"on_unreachable={on_unreachable.value} for lock provider {scheme}:", expected="redis: or rediss:")
    if scheme in SERVICE_SCHEMES:
        from tideline_locks.http import HttpLockProvider

        return HttpLockProvider(url, clock=clock)
    if scheme == "storage" and rest:
        return StorageLockProvider(open_storage(rest), clock=clock)
    if scheme in (HUDI_FILE_SYSTEM, HUDI_STORAGE) and rest:
        storage = open_storage(rest)
        return hudi_file_lock(storage, clock=clock) if scheme == HUDI_FILE_SYSTEM else hudi_storage_lock(storage, clock=clock)
    if scheme in _PLACED:
        return hudi_lock_at(_PLACED[scheme], rest.removeprefix("//"), clock=clock)
    if scheme == "memory":
        with _spaces_guard:
            return InProcessLockProvider(clock=clock, table=_spaces.setdefault(rest, LeaseTable(clock)))
    raise InvalidOption(f"lock provider {scheme}:", expected=EXPECTED_URL)


def check_lock_url(url: str) -> None:
    """Raise `InvalidOption` for the URL of a `locks` setting that cannot be opened. Connects to nothing, and shows no password.

    `storage:` without a base path is valid: leases are beside each table.
    """
    scheme, colon, rest = url.partition(":")
    if scheme in ("redis", "rediss"):
        _checked_redis(url)
    elif scheme in SERVICE_SCHEMES:
        from tideline_locks.http import checked_service

        checked_service(url)
    elif scheme in _PLACED:
        PLACES[_PLACED[scheme]](rest.removeprefix("//"))
    elif scheme in ("storage", HUDI_FILE_SYSTEM, HUDI_STORAGE) and (rest or scheme == "storage") and colon:
        try:
            root_uri(rest or "/")
        except UnsupportedTable as error:
            raise InvalidOption(f"lock provider {scheme}: on {error.found}", expected=error.expected) from error
    elif scheme != "memory":
        raise InvalidOption(f"lock provider {scheme}:", expected=EXPECTED_URL)


def hudi_file_lock(storage: Storage, *, clock: Clock, expire_min: int = 0) -> HudiLockProvider:
    """Open the lock of Hudi's file-system based provider for a table. Raises `InvalidOption` unless it is on a local disk."""
    disk = unwrapped(storage)
    if not isinstance(disk, LocalStorage):
        raise InvalidOption(
            f"lock provider {HUDI_FILE_SYSTEM} for {storage.root}",
            expected="a table on a local disk, where files can be created exclusively",
            remedy=f"use {HUDI_STORAGE} (tideline share --lock-provider storage)",
        )
    base_path = disk.local_path(".hoodie").parent
    return HudiLockProvider(FileLockCell(lambda _: base_path, lambda: (), clock=clock, expire_min=expire_min), clock=clock)


def hudi_storage_lock(storage: Storage, *, clock: Clock, validity_s: float = 300.0) -> HudiLockProvider:
    """Open the lock of Hudi's storage based provider for a table. Raises `InvalidOption` for a table on a disk."""
    if not isinstance(unwrapped(storage), MemoryStorage | ObjectStorage):
        raise InvalidOption(
            f"lock provider {HUDI_STORAGE} for {storage.root}",
            expected="a table in an object store, the only storage for which Hudi has this lock",
            remedy=f"use {HUDI_FILE_SYSTEM} (tideline share --lock-provider filesystem)",
        )
    cell = StorageLockCell(storage, lambda _: LOCK_OBJECT, lambda: (), validity_s=validity_s)
    return HudiLockProvider(cell, clock=clock)


def hudi_lock_at(kind: HudiLockKind, place: str, *, clock: Clock) -> HudiLocks:
    """Open a lock of Hudi's writers that is not in the table's folder. Connects to nothing yet. Raises `InvalidOption`."""
    named = PLACES[kind](place)
    if kind is HudiLockKind.ZOOKEEPER:
        with extra("zookeeper"):
            from tideline_locks.hudi_zookeeper_lock import ZooKeeperLockProvider
            from tideline_locks.zookeeper_session import session_of

        hosts, base_path, key = named
        return ZooKeeperLockProvider(session_of(hosts), lambda _: f"{base_path}/{key}", lambda: (), clock=clock)
    if kind is HudiLockKind.METASTORE:
        with extra("catalogs"):
            from tideline_locks.hudi_metastore_lock import MetastoreLockProvider
            from tideline_locks.metastore_session import metastore_session_of

        hosts, database, table = named
        return MetastoreLockProvider(metastore_session_of(hosts), lambda _: (database, table), lambda: (), clock=clock)
    with extra("aws"):
        from tideline_locks.hudi_dynamodb_lock import DynamoDbLockCell, dynamodb_client

    endpoint, region, table, key = named
    cell = DynamoDbLockCell(dynamodb_client(region, endpoint), table, lambda _: key, lambda: (), clock=clock)
    return HudiLockProvider(cell, clock=clock)


def open_reservations(url: str, name: str, *, clock: Clock) -> Reservations:
    """Open the reservations of the table with lock `name`, beside the leases of `url`. Raises `InvalidOption` for other URLs."""
    scheme, _, rest = url.partition(":")
    if scheme in ("redis", "rediss"):
        with extra("redis"):
            from tideline_locks.redis_connection import RedisConnection
            from tideline_locks.redis_reservations import RedisReservations

        return RedisReservations(RedisConnection(_checked_redis(url)), name, clock)
    if scheme in ("storage", HUDI_FILE_SYSTEM, HUDI_STORAGE) and rest:
        return StorageReservations(open_storage(rest), clock)
    if scheme == "memory":
        with _spaces_guard:
            return _in_process.setdefault((rest, name), InProcessReservations())
    raise InvalidOption(f"lock provider {scheme}:", expected=EXPECTED_URL)


def _checked_redis(url: str) -> str:
    try:
        split = urlsplit(url)
        known = bool(split.hostname) and split.port != 0 and (split.path.strip("/") or "0").isdecimal() and not split.query
    except ValueError:
        known = False
    if not known:
        raise InvalidOption(
            "a Redis URL that cannot be parsed", expected=EXPECTED_URL, remedy="check host, port and database number"
        )
    return url
