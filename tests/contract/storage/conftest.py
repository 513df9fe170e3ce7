"""Every storage adapter on what it really stands on: memory, a disk, and two object stores that know nothing of each other."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.real.object_store import ObjectStoreServer, running_object_store

from tideline_table.clock import SystemClock
from tideline_table.storage import LocalStorage, MemoryStorage, Storage, StorageWrapper

BUCKET = "contract"
_prefixes = (f"run/{number:04d} é%2F" for number in itertools.count())

REAL = [pytest.param(kind, marks=pytest.mark.real) for kind in ("minio", "seaweedfs")]
ADAPTERS = ["memory", "local", "wrapped", *REAL]


def _server(kind: str) -> Iterator[ObjectStoreServer]:
    with running_object_store(kind) as server:
        server.make_bucket(BUCKET)
        yield server


@pytest.fixture(scope="session")
def minio() -> Iterator[ObjectStoreServer]:
    yield from _server("minio")


@pytest.fixture(scope="session")
def seaweedfs() -> Iterator[ObjectStoreServer]:
    yield from _server("seaweedfs")


@pytest.fixture
def tmp_path(disk_path: Path) -> Path:
    """Take a disk: these tests are about what it does."""
    return disk_path


@pytest.fixture
def prefix() -> str:
    """A place of its own for each test, with a name that has to be quoted."""
    return next(_prefixes)


@pytest.fixture(params=ADAPTERS)
def opened(request: pytest.FixtureRequest, tmp_path: Path, prefix: str) -> Callable[[], Storage]:
    """Opens the test's place once more, as another process would."""
    if request.param == "memory":
        storage = MemoryStorage()
        return lambda: storage
    if request.param == "local":
        return lambda: LocalStorage(tmp_path / "root")
    if request.param == "wrapped":
        return lambda: StorageWrapper(LocalStorage(tmp_path / "root"))
    server: ObjectStoreServer = request.getfixturevalue(request.param)
    return lambda: server.storage(BUCKET, prefix)


@pytest.fixture
def storage(opened: Callable[[], Storage]) -> Storage:
    return opened()


@pytest.fixture(params=REAL)
def server(request: pytest.FixtureRequest) -> ObjectStoreServer:
    found: ObjectStoreServer = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def local(tmp_path: Path) -> LocalStorage:
    return LocalStorage(tmp_path / "root")


@pytest.fixture
def clock() -> SystemClock:
    return SystemClock()
