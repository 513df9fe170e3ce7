"""The places where leases are kept: each adapter on something that several providers share."""

from __future__ import annotations

import itertools
import os
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import pytest
from tests.forked import Forked, parent_of
from tests.real.dynamodb import DYNAMODB_REGION, running_dynamodb
from tests.real.hive_metastore import HiveMetastoreServer, hive_metastore
from tests.real.object_store import ObjectStoreServer, running_object_store
from tests.real.redis import RedisServer, running_redis
from tests.real.zookeeper import ZooKeeperServer, running_zookeeper

from tideline_lock_service.api import LeaseApi
from tideline_lock_service.directory import LeaseDirectory
from tideline_lock_service.settings import LockServiceSettings
from tideline_locks import (
    HudiLockProvider,
    InProcessLockProvider,
    Lease,
    LockProvider,
    StorageLockProvider,
)
from tideline_locks.http import HttpLockProvider
from tideline_locks.hudi_dynamodb_lock import DynamoDbLockCell, dynamodb_client
from tideline_locks.hudi_file_lock import LOCK_FILE, FileLockCell
from tideline_locks.hudi_metastore_lock import TRUSTED_S, MetastoreLockProvider
from tideline_locks.hudi_storage_lock import StorageLockCell
from tideline_locks.hudi_zookeeper_lock import ZooKeeperLockProvider
from tideline_locks.in_process import LeaseTable
from tideline_locks.metastore_session import metastore_session_of
from tideline_locks.redis import RedisLockProvider
from tideline_locks.table_lock import LockProviders
from tideline_locks.waiting import RandomSource
from tideline_locks.zookeeper_session import SESSION_S, session_of
from tideline_runtime.contract import ServiceContext
from tideline_runtime.health import Health
from tideline_runtime.http import HttpServer, service_app
from tideline_runtime.metrics import Metrics
from tideline_table.clock import Clock, ManualClock, SystemClock
from tideline_table.storage import LocalStorage, MemoryStorage, Storage

CONTENDER = Path(__file__).with_name("contender.py")
WAIT_LIMIT_S = 300.0
BUCKET = "locks"
LOCK_TIMEOUT_S = 60
"""After which the metastore ends a lock without heartbeats."""
_NUMBERS = itertools.count()
_NAMES: dict[str, dict[str, str]] = {}
"""Of the tables of locks in a Hive metastore, by database."""


def wait_until(condition: Callable[[], bool], limit_s: float = WAIT_LIMIT_S) -> None:
    deadline_s = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline_s, "what was waited for did not happen"
        time.sleep(0.01)


@dataclass
class Place:
    """Where leases are kept. `make` opens it as one more process would; `url` opens it from a real one."""

    kind: str
    clock: Clock
    make: Callable[[Clock, RandomSource | None], LockProvider]
    short_ttl_s: float
    url: str | None = None
    opened: list[LockProvider] = field(default_factory=list)

    def shown_id(self, lease: Lease) -> str:
        """What a reader learns of the id of a lease: the lock service shows it to the holder only."""
        return "" if self.kind.startswith("service") else lease.lease_id

    @property
    def remembers(self) -> bool:
        """Whether a released lock still tells who had it: Hudi's lock file, node and request are gone then, with all they said."""
        return self.kind not in ("hudi_filesystem", "hudi_zookeeper", "hudi_metastore")

    def trusted_s(self, ttl_s: float) -> float:
        """For how long a holder trusts a lease of `ttl_s`: no longer than the server is sure to keep it without a renewal."""
        return min(ttl_s, {"hudi_zookeeper": SESSION_S, "hudi_metastore": TRUSTED_S}.get(self.kind, ttl_s))

    def provider(self, *, clock: Clock | None = None, randomness: RandomSource | None = None) -> LockProvider:
        provider = self.make(clock or self.clock, randomness)
        self.opened.append(provider)
        return provider

    def let_expire(self, provider: LockProvider, name: str) -> None:
        """Time passes until the lease on `name` has expired for everybody."""
        if isinstance(self.clock, ManualClock):
            self.clock.advance(self.short_ttl_s + 2.5)

        def expired() -> bool:
            state = provider.read(name)
            return state is None or state.expired

        wait_until(expired)


def hudi_file_locks(tables: Path, clock: Clock, randomness: RandomSource | None) -> HudiLockProvider:
    """Hudi's lock files of many tables: one for each name."""

    def known() -> list[str]:
        return [unquote(found.parent.parent.name) for found in tables.glob(f"*/{LOCK_FILE}")]

    return HudiLockProvider(
        FileLockCell(lambda name: tables / quote(name, safe=""), known, clock=clock), clock=clock, randomness=randomness
    )


def hudi_object_locks(store: Storage, clock: Clock, randomness: RandomSource | None) -> HudiLockProvider:
    """Hudi's lock objects of many tables: one for each name."""

    def known() -> list[str]:
        return [unquote(found.path.split("/")[0]) for found in store.list_objects("")]

    cell = StorageLockCell(store, lambda name: f"{quote(name, safe='')}/table_lock.json", known, validity_s=300)
    return HudiLockProvider(cell, clock=clock, randomness=randomness)


def hudi_zookeeper_locks(hosts: str, base_path: str, clock: Clock, randomness: RandomSource | None) -> ZooKeeperLockProvider:
    """Hudi's locks of many tables in ZooKeeper: one for each name."""
    session = session_of(hosts)

    def known() -> list[str]:
        session.ensure_path(base_path)
        return [unquote(found) for found in session.ask("listing locks", "get_children", base_path)]

    return ZooKeeperLockProvider(
        session, lambda name: f"{base_path}/{quote(name, safe='')}", known, clock=clock, randomness=randomness
    )


def hudi_metastore_locks(hosts: str, database: str, clock: Clock, randomness: RandomSource | None) -> MetastoreLockProvider:
    """Hudi's locks of many tables in a Hive metastore: one for each name."""
    names: dict[str, str] = _NAMES.setdefault(database, {})

    def place_of(name: str) -> tuple[str, str]:
        table = f"t{zlib.crc32(name.encode())}"  # names of tables are shorter than those of locks
        assert names.setdefault(table, name) == name
        return database, table

    return MetastoreLockProvider(
        metastore_session_of(hosts), place_of, lambda: list(names.values()), clock=clock, randomness=randomness
    )


def hudi_dynamodb_locks(endpoint: str, table: str, clock: Clock, randomness: RandomSource | None) -> HudiLockProvider:
    """Hudi's locks of many tables in DynamoDB: one for each name."""
    client = dynamodb_client(DYNAMODB_REGION, endpoint)

    def known() -> list[str]:
        try:
            return [str(item["key"]["S"]) for item in client.scan(TableName=table)["Items"]]
        except client.exceptions.ResourceNotFoundException:
            return []

    return HudiLockProvider(
        DynamoDbLockCell(client, table, lambda name: name, known, clock=clock), clock=clock, randomness=randomness
    )


@contextmanager
def lock_service(store: str, clock: Clock, folder: Path, token: str | None = None) -> Iterator[str]:
    """Serve the lease API over the leases of `store`; yields its URL."""
    settings = LockServiceSettings.load(environment={}, state_folder=str(folder / "state"), tables=(str(folder),), max_wait_s=5)
    context = ServiceContext("lock_service", clock, Metrics("lock_service"), Health(clock, 300))
    providers = LockProviders(store, clock)
    directory = LeaseDirectory(providers)
    directory.update({})
    app = service_app(
        context.name, context.health, context.metrics, routes=LeaseApi(directory, settings, context).routes(), token=token
    )
    server = HttpServer(app, "127.0.0.1", 0)
    server.start()
    try:
        yield f"http://127.0.0.1:{server.port}"
    finally:
        server.stop()
        providers.close()


def _outside(kind: str, make: Callable[[Clock, RandomSource | None], LockProvider], url: str) -> Place:
    """A server that Hudi's writers know, too, keeps the leases; `url` lacks the name of the lock."""
    return Place(kind, SystemClock(), make, 0.6, f"{url}/trips")


@contextmanager
def opened_place(kind: str, *, folder: Path, clock: Clock, server: Callable[[str], Any]) -> Iterator[Place]:
    """`server` gives the real one that a kind stands on."""
    serving = ExitStack()
    if kind == "in_process":
        table = LeaseTable(clock)
        place = Place(kind, clock, lambda c, randomness: InProcessLockProvider(clock=c, table=table, randomness=randomness), 10.0)
    elif kind == "storage_memory":
        storage = MemoryStorage(clock=clock)
        place = Place(kind, clock, lambda c, randomness: StorageLockProvider(storage, clock=c, randomness=randomness), 10.0)
    elif kind == "storage_local":
        place = Place(
            kind,
            clock,
            lambda c, randomness: StorageLockProvider(LocalStorage(folder / "locks"), clock=c, randomness=randomness),
            10.0,
            f"storage:{folder / 'locks'}",
        )
    elif kind.startswith("service"):
        store = server("redis").url if kind == "service_redis" else f"memory:{folder}"
        url = serving.enter_context(lock_service(store, SystemClock() if kind == "service_redis" else clock, folder))
        shared = SystemClock() if kind == "service_redis" else clock
        ttl_s = 0.3 if kind == "service_redis" else 10.0
        place = Place(kind, shared, lambda c, randomness: HttpLockProvider(url, clock=c, randomness=randomness), ttl_s, url)
    elif kind == "hudi_filesystem":
        place = Place(
            kind, clock, lambda c, randomness: hudi_file_locks(folder / "tables", c, randomness), 10.0, f"hudi-filesystem:{folder}"
        )
    elif kind == "hudi_storage":
        store = MemoryStorage(clock=clock)
        place = Place(kind, clock, lambda c, randomness: hudi_object_locks(store, c, randomness), 10.0)
    elif kind == "storage_minio":
        objects = server(kind)
        place = Place(
            kind,
            SystemClock(),
            lambda c, randomness: StorageLockProvider(objects, clock=c, randomness=randomness, skew_allowance_s=0.2),
            0.6,
        )
    elif kind == "hudi_minio":
        objects = server(kind)
        place = Place(kind, SystemClock(), lambda c, randomness: hudi_object_locks(objects, c, randomness), 0.6)
    elif kind == "hudi_zookeeper":
        hosts, base_path = server(kind).hosts, f"/run{next(_NUMBERS)}/locks"
        place = _outside(kind, partial(hudi_zookeeper_locks, hosts, base_path), f"hudi-zookeeper://{hosts}{base_path}")
    elif kind == "hudi_dynamodb":
        endpoint, name = server(kind), f"locks{next(_NUMBERS)}"
        place = _outside(kind, partial(hudi_dynamodb_locks, endpoint, name), f"hudi-dynamodb:{endpoint}/{DYNAMODB_REGION}/{name}")
    elif kind == "hudi_metastore":
        hosts, database = f"127.0.0.1:{server(kind).port}", f"run{next(_NUMBERS)}"
        place = _outside(kind, partial(hudi_metastore_locks, hosts, database), f"hudi-metastore://{hosts}/{database}")
    else:
        url = server(kind).url
        place = Place(kind, SystemClock(), lambda c, randomness: RedisLockProvider(url, clock=c, randomness=randomness), 0.3, url)
    with serving as stack:
        yield place
        for provider in place.opened:
            stack.callback(provider.close)


REAL = [
    pytest.param(kind, marks=pytest.mark.real)
    for kind in ("redis", "service_redis", "storage_minio", "hudi_minio", "hudi_dynamodb")
]
FENCED = ["in_process", "service", "storage_memory", "storage_local", "hudi_storage", *REAL]
"""Adapters that keep the greatest fence beyond a release. Hudi's lock file and node are gone then."""
ZOOKEEPER = pytest.param("hudi_zookeeper", marks=pytest.mark.real)
METASTORE = pytest.param("hudi_metastore", marks=pytest.mark.real)
ADAPTERS = [*FENCED, "hudi_filesystem", ZOOKEEPER, METASTORE]
REDIS = pytest.param("redis", marks=pytest.mark.real)
DYNAMODB = pytest.param("hudi_dynamodb", marks=pytest.mark.real)
ACROSS_PROCESSES = ["storage_local", "service", "hudi_filesystem", REDIS, ZOOKEEPER, METASTORE, DYNAMODB]


@pytest.fixture(scope="session")
def shared_redis() -> Iterator[RedisServer]:
    with running_redis() as server:
        yield server


@pytest.fixture
def own_redis() -> Iterator[RedisServer]:
    """For tests that stop, freeze or flush it."""
    with running_redis() as server:
        yield server


@pytest.fixture(scope="session")
def object_store() -> Iterator[ObjectStoreServer]:
    with running_object_store("minio") as server:
        server.make_bucket(BUCKET)
        yield server


@pytest.fixture(scope="session")
def dynamodb() -> Iterator[str]:
    with running_dynamodb() as endpoint:
        yield endpoint


@pytest.fixture(scope="session")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperServer]:
    with running_zookeeper(tmp_path_factory.mktemp("zookeeper")) as server:
        yield server
        # Its sessions, too: none is left to look for a server that is gone.
        session_of(server.hosts).stop()


@pytest.fixture(scope="session")
def metastore() -> Iterator[HiveMetastoreServer]:
    with hive_metastore(LOCK_TIMEOUT_S) as server:
        yield server
        metastore_session_of(f"127.0.0.1:{server.port}").stop()


def _servers(request: pytest.FixtureRequest) -> Callable[[str], Any]:
    def server(kind: str) -> Any:
        if kind == "hudi_zookeeper":
            return request.getfixturevalue("zookeeper")
        if kind == "hudi_dynamodb":
            return request.getfixturevalue("dynamodb")
        if kind == "hudi_metastore":
            return request.getfixturevalue("metastore")
        return _flushed(request) if kind == "redis" else _fresh(request)

    return server


def _fresh(request: pytest.FixtureRequest) -> Storage:
    server: ObjectStoreServer = request.getfixturevalue("object_store")
    return server.storage(BUCKET, f"run/{next(_NUMBERS)}")


def _flushed(request: pytest.FixtureRequest) -> RedisServer:
    import redis  # noqa: PLC0415 - runs without the redis client deselect this

    server: RedisServer = request.getfixturevalue("shared_redis")
    with redis.Redis.from_url(server.url) as client:
        client.flushall()
    return server


@pytest.fixture(params=ADAPTERS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """Injected time where the adapter has it."""
    with opened_place(request.param, folder=tmp_path, clock=ManualClock(), server=_servers(request)) as opened:
        yield opened


@pytest.fixture(params=FENCED)
def fenced_place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """As `place`, for adapters that keep fences."""
    with opened_place(request.param, folder=tmp_path, clock=ManualClock(), server=_servers(request)) as opened:
        yield opened


@pytest.fixture(params=ADAPTERS)
def real_time_place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """For threads that really wait for each other."""
    with opened_place(request.param, folder=tmp_path, clock=SystemClock(), server=_servers(request)) as opened:
        yield opened


@pytest.fixture(params=ACROSS_PROCESSES)
def process_place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """For real processes."""
    with opened_place(request.param, folder=tmp_path, clock=SystemClock(), server=_servers(request)) as opened:
        yield opened


class Contender:
    """A `contender.py` that is ready to go."""

    def __init__(self, url: str, folder: Path, rounds: int, name: str) -> None:
        argv = [str(CONTENDER), url, str(folder), str(rounds), name]
        self.process = Forked(parent_of(("tideline_locks", "tideline_locks.http", "tideline_locks.redis")), argv, os.environ)

    def hear(self, word: str) -> None:
        assert self.process.stdout.readline().strip() == word

    def go(self) -> None:
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def exit_code(self, limit_s: float = WAIT_LIMIT_S) -> int:
        code = self.process.wait(limit_s)
        if code:
            print(self.process.stderr.read())
        return code

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        self.kill()
        self.process.close()


@pytest.fixture
def contender(tmp_path: Path) -> Iterator[Callable[[str, int, str], Contender]]:
    """Starts contenders; those that still run at the end are killed."""
    started: list[Contender] = []

    def start(url: str, rounds: int, name: str) -> Contender:
        started.append(Contender(url, tmp_path, rounds, name))
        return started[-1]

    yield start
    for one in started:
        one.close()
