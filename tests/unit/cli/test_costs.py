"""`tideline status --cost`: requests that running services count, rewrites of the table logs, prices of the settings."""

import contextlib
from datetime import timedelta

import pytest
from pydantic import ValidationError

from tideline_cli.costs import Counted, counted_facts, table_cost
from tideline_runtime.errors import InvalidSetting
from tideline_runtime.health import Health
from tideline_runtime.http import HttpServer, service_app
from tideline_runtime.metrics import Metrics
from tideline_runtime.planning.ledger import DAY, rewriting_of
from tideline_runtime.prices import LIST_PRICES, REQUEST_KINDS, Usage
from tideline_runtime.running import Running, announce, running_file
from tideline_runtime.settings import ServiceSettings
from tideline_runtime.storage_requests import StorageRequests
from tideline_table.clock import ManualClock
from tideline_table.table import Table

EAGER = "--option=hoodie.compact.inline.max.delta.commits=1"


@contextlib.contextmanager
def served(metrics, token=None):
    server = HttpServer(service_app("planner", Health(ManualClock(), 300), metrics, token=token), "127.0.0.1", 0)
    server.start()
    try:
        yield server.port
    finally:
        server.stop()


@pytest.fixture
def settings(tmp_path):
    file = tmp_path / "settings.toml"
    file.write_text(f'state_folder = "{tmp_path}/state"\n[prices]\nlist = 1000.0\nprocessor = 3600.0\n')
    (tmp_path / "state").mkdir()
    return file


def test_requests_of_each_table_are_read_from_the_services_of_this_machine(done, filled, merging, settings, tmp_path):
    metrics = Metrics("planner")
    storage = StorageRequests(metrics, LIST_PRICES).open(str(merging))
    for _ in range(50):
        storage.list_folder("")
    storage.stat(".hoodie/hoodie.properties")
    with served(metrics) as port:
        announce(running_file(tmp_path / "state", "planner"), Running("planner", 1, "127.0.0.1", port, ""))
        document = done("status", merging, filled, "--cost", "--settings", settings, "--json").document
        text = done("status", merging, filled, "--cost", "--settings", settings).text
    costs = {found["table"]: found["cost"] for found in document["tables"]}
    weather, trips = costs["weather"]["requests_day"], costs["trips"]["requests_day"]
    assert weather["list"] == pytest.approx(50 * weather["head"], rel=0.01)
    assert weather["head"] > 0
    assert set(trips.values()) == {0}
    # A listing costs 1.
    assert costs["weather"]["month"] == pytest.approx(30 * weather["list"], rel=0.01)
    assert costs["trips"]["month"] == 0
    (service,) = document["services"]
    assert (service["service"], service["error"]) == ("planner", None)
    assert document["month"]["sum"] == pytest.approx(service["month"], rel=0.01)
    assert document["prices"] == {**LIST_PRICES, "list": 1000.0, "processor": 3600.0}
    assert text.splitlines()[0].split()[:2] == ["TABLE", "READ"]
    assert "planner: " in text


def test_without_services_requests_are_unknown_and_not_zero(done, merging, settings):
    document = done("status", merging, "--cost", "--settings", settings, "--json").document
    assert document["tables"][0]["cost"]["requests_day"] is None
    assert "no service answered" in done("status", merging, "--cost", "--settings", settings).text


def test_a_service_that_refuses_or_does_not_answer_is_named(done, merging, settings):
    with served(Metrics("planner"), token="a secret token") as port:
        call = ("status", merging, "--cost", "--settings", settings)
        (refused,) = done(*call, "--service", f"http://127.0.0.1:{port}", "--json").document["services"]
    assert refused["error"] == "status 401: set http_token"
    (gone,) = done(*call, "--service", f"http://127.0.0.1:{port}", "--json").document["services"]
    assert gone["error"].startswith("no answer")
    assert gone["month"] is None


def test_rewrites_of_the_last_day_are_read_from_the_log(done, merging, settings):
    done("plan", "compaction", merging, EAGER)
    done("run", "compaction", merging)
    (found,) = done("status", merging, "--cost", "--settings", settings, "--json").document["tables"]
    table = Table.open(str(merging))
    written = sum(one.size_bytes for one in table.state.latest_slices() if one.base_file)
    assert found["cost"]["rewritten_day_bytes"] == written > 0
    assert found["cost"]["processor_day_s"] > 0
    # A second of a processor costs 1.
    assert found["cost"]["month"] == pytest.approx(30 * found["cost"]["processor_day_s"], rel=0.01)
    later = table.clock.now() + DAY + timedelta(minutes=1)
    assert rewriting_of(table, later) == (0, 0.0)


def test_money_of_a_month():
    requests = {"read": 1_000_000.0, "list": 1000.0, "delete": 10**9}
    assert Usage(requests).month(LIST_PRICES) == pytest.approx(30 * (0.4 + 0.005))
    assert Usage(None, processor_s=86_400).month(LIST_PRICES) == pytest.approx(30 * 24 * 0.04048)
    assert Usage(None, rewritten_bytes=10**9).month({**LIST_PRICES, "rewritten": 0.02}) == pytest.approx(0.6)


def test_rates_are_those_since_the_start_of_each_service():
    metrics = Metrics("planner")
    StorageRequests(metrics, LIST_PRICES)
    started = metrics.registry.get_sample_value("process_start_time_seconds")
    assert counted_facts(metrics.render().decode(), started + 3600)["up_s"] == pytest.approx(3600, abs=0.1)
    counts = {"/t": {"list": 24}}
    services = [Counted("a", "", up_s=3600.0, by_table=counts), Counted("b", "", up_s=86_400.0, by_table=counts)]
    document = {"base_path": "/t", "usage": {"rewritten_day_bytes": 0, "processor_day_s": 0.0}}
    assert table_cost(document, services, LIST_PRICES)["requests_day"]["list"] == 24 * 24 + 24


def test_requests_of_a_kind_that_only_a_newer_service_counts_are_left_out():
    """They took `tideline status --cost` away, and the console's page of the table."""
    newer = [Counted("newer", "", up_s=86_400.0, by_table={"/t": {"list": 24, "of-a-newer-release": 7}})]
    document = {"base_path": "/t", "usage": {"rewritten_day_bytes": 0, "processor_day_s": 0.0}}
    asked = table_cost(document, newer, LIST_PRICES)["requests_day"]
    assert asked == {**dict.fromkeys(REQUEST_KINDS, 0.0), "list": 24.0}


@pytest.mark.parametrize("given", [{"lists": 1.0}, {"list": -1.0}, {"list": float("inf")}])
def test_unknown_names_and_negative_prices_are_refused(given):
    with pytest.raises((InvalidSetting, ValidationError), match="prices of at least 0, by the names read"):
        ServiceSettings.load(prices=given, environment={})
