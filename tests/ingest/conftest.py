"""One real Kafka for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from tests.ingest.applications import Place
from tests.real.kafka import KafkaNode, running_kafka
from tests.real.schema_registry import RegistryServer, running_registry


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.real)


@pytest.fixture(scope="session")
def kafka_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaNode]:
    with running_kafka(tmp_path_factory.mktemp("kafka")) as node:
        yield node


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RegistryServer]:
    with running_registry(tmp_path_factory.mktemp("registry")) as made:
        yield made


@pytest.fixture
def place(kafka_node: KafkaNode, tmp_path: Path) -> Iterator[Place]:
    with closing(Place(kafka_node.bootstrap_servers, tmp_path)) as made:
        yield made
