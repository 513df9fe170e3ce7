"""A real Hive metastore, which the tests of a process share."""

from collections.abc import Iterator
from contextlib import closing

import pytest
from tests.real.hive_metastore import HiveMetastoreServer, hive_metastore

from tideline_catalogs import Catalog, open_catalog


@pytest.fixture(scope="session")
def server() -> Iterator[HiveMetastoreServer]:
    with hive_metastore() as running:
        yield running


@pytest.fixture
def catalog(server: HiveMetastoreServer) -> Iterator[Catalog]:
    with closing(open_catalog(server.url)) as opened:
        yield opened
