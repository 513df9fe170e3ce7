"""HudiTable resources beside the policy file: their tables, their values, and what the pages say of them."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field

from starlette.testclient import TestClient
from tests.unit.console.conftest import ADDRESS
from tests.unit.console.test_pages import Parsed
from tests.unit.services.fleet import write

from tideline_console.follower import Follower
from tideline_console.web import console_app
from tideline_runtime.errors import DependencyDown
from tideline_runtime.policy.resolution import Requested
from tideline_table.action import TableService
from tideline_table.config import CLEANER_COMMITS_RETAINED

ALL = frozenset(("mirror", "planner", "launcher", "cleaner", "lock-service"))


@dataclass
class Named:
    """What resources ask, as an API server would tell; None: it does not answer."""

    asked: Mapping[str, Requested] | None = field(default_factory=dict)
    closed: bool = False

    def requested(self) -> Mapping[str, Requested]:
        if self.asked is None:
            raise DependencyDown("the API server does not answer")
        return self.asked

    def close(self) -> None:
        self.closed = True


class House:
    """A console whose tables come from resources alone."""

    def __init__(self, consoles) -> None:
        self.consoles, self.source = consoles, Named()
        _, self.model, settings = consoles.follower(tables=())
        self.follower = Follower(settings, self.model, consoles.clock, source=self.source)
        self.client = TestClient(console_app(settings, self.model, self.follower, consoles.clock), base_url=ADDRESS)

    def page(self, name: str) -> str:
        (row,) = self.model.query("SELECT key FROM tables WHERE name = ?", name)
        return Parsed(self.client.get(f"/tables/{row['key']}").text).text

    def rows(self) -> dict[str, str]:
        return {row["name"]: row["verdict"] for row in self.model.query("SELECT name, verdict FROM tables")}


def test_tables_of_resources_are_shown_with_their_values(consoles):
    trips = consoles.create("trips")
    write(trips, 0)
    house = House(consoles)
    with closing(house.follower):
        house.follower.turn()
        assert house.rows() == {}
        options = {CLEANER_COMMITS_RETAINED.key: "7"}
        house.source.asked = {
            trips.storage.root: Requested("trips-<b>", ALL, options),
            f"{trips.storage.root}-not": Requested("gone", ALL),
        }
        house.follower.turn()
        assert house.rows() == {"trips": "idle", "trips-not": "cannot_open"}
        assert house.follower.fleet().options_of(trips.storage)[CLEANER_COMMITS_RETAINED.key] == "7"
        text = house.page("trips")
        assert "kubectl edit huditable trips-<b>" in text
        assert "HudiTable trips-<b>" in text.partition("commits.retained")[2]
        policies = Parsed(house.client.get("/policies").text).text
        assert "trips-<b>" in policies.partition("HudiTable resources")[2]
        house.source.asked = {}
        house.follower.turn()
        assert house.rows() == {}
    assert house.source.closed


def test_services_that_a_resource_does_not_want_are_off(consoles):
    trips = consoles.create("trips")
    for number in range(3):
        write(trips, number * 10)
    house = House(consoles)
    with closing(house.follower):
        house.source.asked = {trips.storage.root: Requested("trips", ALL - {"planner"})}
        house.follower.turn()
        policy = house.follower.policies().of(trips.storage.root, trips.uid)
        assert {service for service in TableService if not policy.is_on(service)} == {
            TableService.CLUSTERING,
            TableService.COMPACTION,
            TableService.LOG_COMPACTION,
        }
        house.source.asked = {trips.storage.root: Requested("trips", ALL, {"hoodie.x": "1"}, problem="hoodie.x is not known")}
        house.follower.turn()
        policy = house.follower.policies().of(trips.storage.root, trips.uid)
        assert not any(policy.is_on(service) for service in TableService)
        assert policy.options == {}
        assert "hoodie.x is not known" in house.page("trips")
        assert "not accepted" in house.client.get("/policies").text


def test_resources_that_do_not_answer_are_a_finding_and_the_last_ones_hold(consoles):
    trips = consoles.create("trips")
    house = House(consoles)
    with closing(house.follower):
        house.source.asked = {trips.storage.root: Requested("trips", ALL)}
        house.follower.turn()
        house.source.asked = None
        house.follower.turn()
        assert house.rows().keys() == {"trips", "HudiTable resources"}
        assert "the API server does not answer" in Parsed(house.client.get("/").text).text
        house.source.asked = {trips.storage.root: Requested("trips", ALL)}
        house.follower.turn()
        assert house.rows().keys() == {"trips"}
