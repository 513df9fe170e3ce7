"""A real Kafka that is killed while people look, and comes back: pages say so, go on with the tables, and read events again."""

from __future__ import annotations

from collections.abc import Callable

import httpx
import pytest
from tests.contract.table_resources.conftest import wait_until
from tests.real.kafka import running_kafka
from tests.unit.console.test_pages import Parsed
from tests.unit.services.conftest import fleet
from tests.unit.services.fleet import write

from tideline_console.service import ConsoleService
from tideline_console.settings import ConsoleSettings
from tideline_mirror.mirroring import MirrorService
from tideline_mirror.settings import MirrorSettings

__all__ = ["fleet"]
pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]
LIMIT_S = 300.0


def test_pages_go_on_without_kafka_and_with_it_again(fleet, tmp_path, monkeypatch):
    # It is noticed by the connections that end, not by the question of each quarter of a minute.
    monkeypatch.setattr("tideline_events.kafka_tail.CHECK_EVERY_S", 1e6)
    trips = fleet.create("trips")
    with running_kafka(tmp_path / "kafka") as node:
        own = {"event_log": node.url, "examine_interval_s": 3600.0, "tables_rescan_s": 3600.0}
        console, _ = fleet.service(ConsoleService, ConsoleSettings, "console", **own, listen_port=0)

        def shows(wanted: Callable[[str], bool]) -> bool:
            console.tick()
            return wanted(Parsed(httpx.get(console.address, timeout=60).raise_for_status().text).text)

        def sequence() -> int:
            console.tick()
            return console._model.query("SELECT sequence FROM tables")[0]["sequence"]

        def is_away(text: str) -> bool:
            return "The event log cannot be read." in text

        wait_until(lambda: shows(lambda text: not is_away(text) and console._follower._tail is not None), LIMIT_S)
        node.kill()
        write(trips, 0)
        wait_until(lambda: shows(is_away), LIMIT_S)
        # Each turn looks at the tables, although none gets an answer of Kafka, which would take half a minute.
        for number in range(1, 4):
            write(trips, 10 * number)
            assert sequence() == trips.refresh().sequence
            assert shows(is_away)
        node.start()
        wait_until(lambda: shows(lambda text: not is_away(text)), LIMIT_S)
        assert sequence() == trips.refresh().sequence
        write(trips, 100)
        mirror, _ = fleet.service(MirrorService, MirrorSettings, "mirror", event_log=node.url)
        wait_until(lambda: [mirror.tick()] and sequence() == trips.refresh().sequence, LIMIT_S)
