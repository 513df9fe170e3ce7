"""The page of health: the services of this machine or of the setting `service_addresses`, shards of mirrors, storage requests."""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import httpx2
from prometheus_client.parser import text_string_to_metric_families

from tideline_cli.costs import Counted, counted_facts
from tideline_console.model import ReadModel, Row
from tideline_console.settings import ConsoleSettings
from tideline_console.shared import Watch
from tideline_runtime.prices import MONTH_DAYS, REQUEST_KINDS, Usage
from tideline_runtime.running import Running, read_running

ANSWER_S = 2.0
"""Time that a service has to answer."""
KEPT_S = 5.0
"""Age that the answers may have, because many viewers ask for the page."""
PATIENCE_S = 0.2
"""Time that the overview waits for services; it then shows what they answered before."""
LATE = 3
"""Intervals without a heartbeat after which a shard of the mirror is late."""
LISTED = 50
"""Tables whose requests the page lists, the dearest ones."""


@dataclass(frozen=True, slots=True)
class Service:
    """A service as its HTTP server describes it. `outcome` is `ready`, `not ready`, or `no answer`."""

    name: str
    address: str
    outcome: str
    reasons: tuple[str, ...] = ()
    version: str = ""
    started: str = ""
    tables: float | None = None
    requests: tuple[tuple[str, float], ...] = ()
    """Requests to storage since the start, by kind."""
    lag_s: float | None = None
    """Mean time from a log entry to its publication."""
    records: float | None = None
    """Records of Kafka after the committed offsets of an ingestion."""
    month: float | None = None
    """Money of a month for its requests and processor seconds, at the rate since its start and the console's setting `prices`."""


class HealthWatch:
    """Asks services how they are. Thread-safe; answers are kept for `KEPT_S`."""

    def __init__(self, settings: ConsoleSettings) -> None:
        self._settings = settings
        self._watch = Watch(self._asked, list[Service](), KEPT_S)
        token = settings.http_token
        self._headers = {"Authorization": f"Bearer {token.get_secret_value()}"} if token is not None else {}

    def services(self, now_s: float, patience_s: float | None = None) -> list[Service]:
        """Return the services, those that are not ready first; if one does not answer within `patience_s`, as they were before."""
        return self._watch.of(now_s, patience_s)

    def _asked(self) -> list[Service]:
        places = [*self._announced(), *((address, address, "") for address in self._settings.service_addresses)]
        with (
            httpx2.Client(headers=self._headers, timeout=ANSWER_S, trust_env=False) as client,
            ThreadPoolExecutor(8, "health") as pool,
        ):
            found = list(pool.map(lambda place: asked(client, self._settings.prices, *place), places))
        return sorted(found, key=lambda one: (one.outcome == "ready", one.name, one.address))

    def _announced(self) -> Iterable[tuple[str, str, str]]:
        for file in sorted(self._settings.state_folder.glob("*.json")):
            running = read_running(file)
            if isinstance(running, Running):
                yield running.service, running.url, running.started


def asked(client: httpx2.Client, prices: Mapping[str, float], name: str, address: str, started: str) -> Service:
    """Return how the service at an address is. Never raises for what the service answers."""
    try:
        ready = client.get(f"{address}/readyz")
        body = ready.json() if ready.content else {}
        reasons = tuple(str(one) for one in (*body.get("reasons", ()), *body.get("conditions", ())))
        version = client.get(f"{address}/version")
        about = version.json() if version.status_code == 200 else {}
        metrics = client.get(f"{address}/metrics")
        facts = facts_of(metrics.text, prices) if metrics.status_code == 200 else {}
    except (httpx2.HTTPError, ValueError, AttributeError) as error:
        return Service(name, address, "no answer", (f"{type(error).__name__}: {error}",), started=started)
    if metrics.status_code == 401:
        reasons += ("its metrics need the token of the setting http_token",)
    outcome = "ready" if ready.status_code == 200 else "not ready"
    return Service(about.get("service", name), address, outcome, reasons, about.get("version", ""), started, **facts)


def facts_of(text: str, prices: Mapping[str, float]) -> dict[str, Any]:
    """Return `tables`, `requests`, `lag_s`, `records` and `month` of the metrics of a service.

    Raises `ValueError` for text that is no metrics.
    """
    tables: float | None = None
    records: float | None = None
    lag: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name == "tideline_runtime_tables":
                tables = (tables or 0.0) + sample.value
            elif sample.name == "tideline_ingest_lag_records":
                records = (records or 0.0) + sample.value
            elif sample.name in ("tideline_mirror_lag_seconds_sum", "tideline_mirror_lag_seconds_count"):
                lag[sample.name[-3:]] = lag.get(sample.name[-3:], 0.0) + sample.value
    mean = lag["sum"] / lag["unt"] if lag.get("unt") else None
    counted = Counted("", "", **counted_facts(text, time.time()))
    month = counted.day().month(prices)
    requests = tuple(sorted(counted.requests.items()))
    return {"tables": tables, "requests": requests, "lag_s": mean, "records": records, "month": month}


def health_context(watch: HealthWatch, model: ReadModel, now_s: float, patience_s: float | None = None) -> dict[str, Any]:
    """Return what the page of health shows, and the overview of it."""
    shards = []
    for row in model.query("SELECT * FROM shards ORDER BY service, fleet, shard"):
        document = json.loads(row["document"])
        age_s = max(0.0, now_s - row["time_s"])
        shards.append({**row, **document, "age_s": age_s, "is_late": age_s > LATE * document["interval_s"]})
    services = watch.services(now_s, patience_s)
    kinds = sorted({kind for one in services for kind, _ in one.requests})
    month = sum(one.month or 0.0 for one in services)
    return {"title": "Health", "services": services, "shards": shards, "kinds": kinds, "month": month}


def table_requests(model: ReadModel, counts: Sequence[Counted], prices: Mapping[str, float]) -> dict[str, Any]:
    """Return for the tables whose requests cost most, the dearest first: requests of an hour by kind, and what they cost.

    Requests are those of all services that answered, at the rate since each started. Those of searches for tables are under the
    folder that is searched, which has no `key`.
    """
    days: dict[str, dict[str, float]] = defaultdict(lambda: dict.fromkeys(REQUEST_KINDS, 0.0))
    for one in counts:
        for path in one.by_table:
            asked = one.requests_day(path)
            days[path] = {kind: before + asked.get(kind, 0.0) for kind, before in days[path].items()}
    months = {path: Usage(found).month(prices) for path, found in days.items()}
    dearest = sorted(days, key=lambda path: (-months[path], -sum(days[path].values()), path))[:LISTED]
    named = "SELECT base_path, key, name, folder FROM tables WHERE base_path IN (SELECT value FROM json_each(?))"
    known = {row["base_path"]: row for row in model.query(named, json.dumps(dearest))}
    rows: list[Row] = [
        {
            **known.get(path, {"base_path": path, "key": "", "name": path, "folder": ""}),
            "hour": {kind: count / 24 for kind, count in days[path].items()},
            "month": months[path],
            "price": months[path] / MONTH_DAYS / 24,
        }
        for path in dearest
    ]
    return {"rows": rows, "total": len(days), "kinds": [kind for kind in REQUEST_KINDS if any(row["hour"][kind] for row in rows)]}
