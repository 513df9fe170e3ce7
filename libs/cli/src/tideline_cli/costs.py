"""What tables and services cost: requests that running services count, rewrites in the table logs, prices of the settings."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import urllib3
from prometheus_client.parser import text_string_to_metric_families
from urllib3.exceptions import HTTPError

from tideline_cli.report import print_json, print_line, print_listing, size_text
from tideline_runtime.prices import DAY_S, REQUEST_KINDS, Usage
from tideline_runtime.running import Running, read_running
from tideline_runtime.settings import ServiceSettings

ANSWER_S = 5.0
"""Time that a service has to answer."""
STORAGE_REQUESTS = "tideline_runtime_storage_requests_total"


@dataclass(frozen=True, slots=True)
class Counted:
    """What one service counted since its start, `up_s` ago. `failure` says why nothing is known of it."""

    name: str
    address: str
    failure: str = ""
    up_s: float = 0.0
    processor_s: float = 0.0
    requests: Mapping[str, float] = field(default_factory=dict)
    by_table: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Requests by base path and kind. Those of searches for tables are under the folder that is searched."""

    def day(self) -> Usage:
        """Return what the service uses in a day at the rate since its start."""
        by_day = {kind: self._of_day(count) for kind, count in self.requests.items()}
        return Usage(by_day, processor_s=self._of_day(self.processor_s))

    def requests_day(self, base_path: str) -> dict[str, float]:
        """Return the requests for one table in a day at the rate since the start, by kind. Leaves out kinds of newer releases."""
        asked = self.by_table.get(base_path, {})
        return {kind: self._of_day(asked[kind]) for kind in REQUEST_KINDS if kind in asked}

    def _of_day(self, amount: float) -> float:
        return amount * DAY_S / max(1.0, self.up_s)


def counted_facts(metrics: str, now_s: float) -> dict[str, Any]:
    """Return `up_s`, `processor_s` and `requests` from the metrics of a service at the Unix time `now_s`.

    Raises `ValueError` for text that is no metrics.
    """
    requests: dict[str, float] = {}
    of_process: dict[str, float] = {}
    for family in text_string_to_metric_families(metrics):
        for sample in family.samples:
            if sample.name == STORAGE_REQUESTS:
                kind = sample.labels.get("kind", "")
                requests[kind] = requests.get(kind, 0.0) + sample.value
            elif sample.name in ("process_start_time_seconds", "process_cpu_seconds_total"):
                of_process[sample.name] = sample.value
    started = of_process.get("process_start_time_seconds", now_s)
    return {
        "up_s": max(0.0, now_s - started),
        "processor_s": of_process.get("process_cpu_seconds_total", 0.0),
        "requests": {kind: requests[kind] for kind in REQUEST_KINDS if kind in requests},
    }


def ask_services(settings: ServiceSettings, addresses: Sequence[str]) -> list[Counted]:
    """Ask the services at `addresses` or, without any, those that are announced in the state folder. Never raises for an answer."""
    token = settings.http_token.get_secret_value() if settings.http_token is not None else ""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    places = [(address, address.rstrip("/")) for address in addresses] or list(_announced(settings))
    with (
        urllib3.PoolManager(timeout=ANSWER_S, retries=False, headers=headers) as pool,
        ThreadPoolExecutor(8, "services") as threads,
    ):
        return list(threads.map(lambda place: _asked(pool, *place), places))


def _announced(settings: ServiceSettings) -> Iterable[tuple[str, str]]:
    for file in sorted(settings.state_folder.glob("*.json")):
        running = read_running(file)
        if isinstance(running, Running):
            yield running.service, running.url


def _asked(pool: urllib3.PoolManager, name: str, address: str) -> Counted:
    try:
        metrics, tables = pool.request("GET", f"{address}/metrics"), pool.request("GET", f"{address}/requests")
        if metrics.status != 200 or tables.status != 200:
            return Counted(name, address, f"status {metrics.status}" + (": set http_token" if metrics.status == 401 else ""))
        document = json.loads(tables.data)
        facts = counted_facts(metrics.data.decode(), time.time())
        by_table = {str(path): {str(k): int(n) for k, n in count.items()} for path, count in document["tables"].items()}
        return Counted(str(document["service"]), address, by_table=by_table, **facts)
    except (HTTPError, ValueError, KeyError, TypeError, AttributeError) as error:
        return Counted(name, address, f"no answer: {type(error).__name__}")


def table_cost(document: Mapping[str, Any], services: Sequence[Counted], prices: Mapping[str, float]) -> dict[str, Any] | None:
    """Return the cost of a table with `usage` in its document; None for a table without.

    `requests_day` is None if no service answered.
    """
    found = document["usage"]
    if found is None:
        return None
    answered = [one for one in services if not one.failure]
    requests: dict[str, float] | None = dict.fromkeys(REQUEST_KINDS, 0.0) if answered else None
    for one in answered:
        for kind, count in one.requests_day(document["base_path"]).items():
            assert requests is not None
            requests[kind] += count
    usage = Usage(requests, found["rewritten_day_bytes"], found["processor_day_s"])
    shown = None if requests is None else {kind: round(count, 1) for kind, count in requests.items()}
    return {"requests_day": shown, **found, "month": round(usage.month(prices), 4)}


def service_cost(one: Counted, prices: Mapping[str, float]) -> dict[str, Any]:
    """Return the document of a service: its requests and processor seconds of a day, and the money of a month."""
    usage = one.day()
    return {
        "service": one.name,
        "address": one.address,
        "error": one.failure or None,
        "up_s": round(one.up_s, 1),
        "requests_day": {kind: round(count, 1) for kind, count in (usage.requests or {}).items()},
        "processor_day_s": round(usage.processor_s, 1),
        "month": None if one.failure else round(usage.month(prices), 4),
    }


def show(settings: ServiceSettings, documents: Sequence[Mapping[str, Any]], addresses: Sequence[str], *, as_json: bool) -> None:
    """Print the costs of tables, by the documents of `Fleet.status_and_usage`, and of the services that answer."""
    services, prices = ask_services(settings, addresses), settings.prices
    tables = [(document, table_cost(document, services, prices)) for document in documents]
    asked = [service_cost(one, prices) for one in services]
    # Requests for tables are in the figures of the services, too.
    rewriting = sum(Usage(None, c["rewritten_day_bytes"], c["processor_day_s"]).month(prices) for _, c in tables if c)
    of_services = sum(one["month"] or 0.0 for one in asked)
    month = {"services": round(of_services, 4), "rewriting": round(rewriting, 4), "sum": round(of_services + rewriting, 4)}
    if as_json:
        named = [{**{k: d[k] for k in ("table", "uid", "base_path", "error")}, "cost": cost} for d, cost in tables]
        print_json({"tables": named, "services": asked, "month": month, "prices": prices})
        return
    columns = ("TABLE", *(kind.upper() for kind in REQUEST_KINDS), "REWRITTEN", "RAN S", "MONTH")
    rows = [[d["table"], *_cells(cost)] for d, cost in tables]
    print_listing(columns, rows, right=columns[1:])
    for document, _ in tables:
        if document["error"]:
            print_line(f"{document['table']}: {document['error']}")
    for one in asked:
        what = one["error"] or f"{_count(one['processor_day_s'])} processor seconds a day, {one['month']:.2f} a month"
        since = "" if one["error"] else f", counted for {one['up_s'] / 3600:.1f} h"
        print_line(f"{one['service']}: {what}{since}")
    if not any(not one.failure for one in services):
        print_line("no service answered, so that requests are not known: name the services with --service URL")
    print_line(f"all: {month['sum']:.2f} a month: services {month['services']:.2f}, rewriting {month['rewriting']:.2f}")


def _cells(cost: Mapping[str, Any] | None) -> list[object]:
    if cost is None:
        return [None] * (len(REQUEST_KINDS) + 3)
    requests = cost["requests_day"]
    counts = [None if requests is None else _count(requests[kind]) for kind in REQUEST_KINDS]
    return [*counts, size_text(cost["rewritten_day_bytes"]), _count(cost["processor_day_s"]), f"{cost['month']:.2f}"]


def _count(number: float) -> str:
    return f"{number:,.0f}"
