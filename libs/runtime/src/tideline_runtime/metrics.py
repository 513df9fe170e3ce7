"""Metrics: each declared once as a documented literal, recorded through one `Metrics` per service, served as Prometheus text.

A declaration is a module constant in `tideline_<member>.metrics`:
`ENTRIES = Counter("tideline_mirror_entries_total", unit="entries", doc="Table log entries published.", labels=("table",))`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from threading import Lock
from typing import Any, ClassVar, TypeVar

import prometheus_client as prometheus
from prometheus_client.process_collector import ProcessCollector

from tideline_runtime.errors import InvalidDeclaration

CONTENT_TYPE = prometheus.CONTENT_TYPE_PLAIN_1_0_0
OVERFLOW = "(more)"
"""Label value of all label sets beyond a metric's bound."""

SECONDS_BUCKETS = (0.005, 0.025, 0.1, 0.5, 1.0, 2.5, 5.0, 15.0, 60.0, 300.0, 1800.0)
MAX_SERIES = 20_000
"""Label sets of one metric: two for each of the 10,000 tables of a fleet."""

_NAME = re.compile(r"tideline_[a-z0-9]+(_[a-z0-9]+)+")


@dataclass(frozen=True, slots=True)
class Metric:
    """The declaration of a metric.

    `unit` is what a value counts. Times are in `seconds` and sizes in `bytes`, which the name says too.

    Raises `InvalidDeclaration` for a name outside the convention, a missing text, or a name declared twice with other contents.
    """

    name: str
    unit: str
    doc: str
    labels: tuple[str, ...] = ()

    kind: ClassVar[str] = "metric"

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise InvalidDeclaration(f"metric {self.name!r}", expected="a name such as tideline_mirror_entries_total")
        if not self.unit or not self.doc.endswith("."):
            raise InvalidDeclaration(
                f"metric {self.name!r} without unit or sentence", expected="a unit, and a doc that ends with a full stop"
            )
        if self.unit in ("seconds", "bytes") and f"_{self.unit}" not in self.name:
            raise InvalidDeclaration(f"metric {self.name!r} in {self.unit}", expected=f"the unit in its name: ..._{self.unit}")
        if (self.kind == "counter") != self.name.endswith("_total"):
            raise InvalidDeclaration(f"{self.kind} {self.name!r}", expected="counters, and only they, end with _total")
        if _declared.setdefault(self.name, self) != self:
            raise InvalidDeclaration(
                f"metric {self.name!r} is declared twice with different contents", expected="one declaration for each name"
            )


@dataclass(frozen=True, slots=True)
class Counter(Metric):
    """A value that only grows."""

    kind: ClassVar[str] = "counter"


@dataclass(frozen=True, slots=True)
class Gauge(Metric):
    """A value that can grow and shrink."""

    kind: ClassVar[str] = "gauge"


@dataclass(frozen=True, slots=True)
class Histogram(Metric):
    """A distribution over `buckets`, which are inclusive upper bounds."""

    buckets: tuple[float, ...] = SECONDS_BUCKETS

    kind: ClassVar[str] = "histogram"


Count = Callable[[], None]
_declared: dict[str, Metric] = {}


def declared_metrics() -> tuple[Metric, ...]:
    """Return every metric whose module was imported, sorted by name."""
    return tuple(_declared[name] for name in sorted(_declared))


_Instrument = prometheus.Counter | prometheus.Gauge | prometheus.Histogram
_InstrumentT = TypeVar("_InstrumentT", prometheus.Counter, prometheus.Gauge, prometheus.Histogram)
_KINDS: dict[str, type[_Instrument]] = {"counter": prometheus.Counter, "gauge": prometheus.Gauge, "histogram": prometheus.Histogram}


class Metrics:
    """The values of one service's metrics. Thread-safe. A metric appears with its first value, or when it is exposed.

    Label sets of a metric beyond `max_series` are counted together, under `OVERFLOW`. Methods that record a value raise
    `InvalidDeclaration` for other labels than the declared ones.
    """

    def __init__(self, service: str, *exposed: Metric, max_series: int = MAX_SERIES) -> None:
        self.registry = prometheus.CollectorRegistry()
        self._service = service
        self._max_series = max_series
        self._instruments: dict[str, _Instrument] = {}
        self._series: dict[str, set[tuple[str, ...]]] = {}
        self._described: dict[tuple[str, str], tuple[str, ...]] = {}
        self._lock = Lock()
        self.requests_by_table: dict[str, dict[str, int]] = {}
        """Requests to storage by base path and kind, served at `/requests`. As labels, they would be too many series."""
        ProcessCollector(registry=self.registry)
        self.expose(*exposed)

    def expose(self, *metrics: Metric) -> None:
        """Show these metrics from now on. A metric without labels begins with the value 0."""
        for metric in metrics:
            self._instrument(metric)

    def increment(self, metric: Counter, amount: float = 1, **labels: str) -> None:
        """Add `amount` (not negative)."""
        self._labelled(prometheus.Counter, metric, labels).inc(amount)

    def counting(self, metric: Counter, **labels: str) -> Count:
        """Return a function that adds 1 without looking up the labels, for frequent events. The value is shown from now on."""
        return self._labelled(prometheus.Counter, metric, labels).inc

    def set(self, metric: Gauge, value: float, **labels: str) -> None:
        """Set the value to `value`."""
        self._labelled(prometheus.Gauge, metric, labels).set(value)

    def describe(self, metric: Gauge, **labels: str) -> None:
        """Show a series of value 1, and no longer the one that had the same first label and others beside it."""
        key = _label_values(metric, labels)
        with self._lock:
            before = self._described.get((metric.name, key[0]), key)
            self._described[metric.name, key[0]] = key
            if before != key and before in self._series[metric.name]:
                self._series[metric.name].remove(before)
                self._instruments[metric.name].remove(*before)
        self.set(metric, 1, **labels)

    def observe(self, metric: Histogram, value: float, **labels: str) -> None:
        """Record one observation."""
        self._labelled(prometheus.Histogram, metric, labels).observe(value)

    def timed(self, metric: Histogram, **labels: str) -> AbstractContextManager[object]:
        """Observe the seconds that the context takes, also when it ends with an error."""
        return self._labelled(prometheus.Histogram, metric, labels).time()

    def value(self, metric: Metric, **labels: str) -> float:
        """Return the current value (of a histogram: the number of observations), 0 if there is none."""
        suffix = "_count" if isinstance(metric, Histogram) else ""
        return self.registry.get_sample_value(metric.name + suffix, dict(labels)) or 0.0

    def render(self) -> bytes:
        """Return all values in the Prometheus text format, to be served as `CONTENT_TYPE`."""
        return prometheus.generate_latest(self.registry)

    def _instrument(self, metric: Metric) -> _Instrument:
        with self._lock:
            if metric.name not in self._instruments:
                more: dict[str, Any] = {"buckets": metric.buckets} if isinstance(metric, Histogram) else {}
                made = _KINDS[metric.kind](metric.name, metric.doc, metric.labels, registry=self.registry, **more)
                self._instruments[metric.name] = made
            return self._instruments[metric.name]

    def _labelled(self, kind: type[_InstrumentT], metric: Metric, labels: dict[str, str]) -> _InstrumentT:
        instrument = self._instrument(metric)
        assert isinstance(instrument, kind)
        key = _label_values(metric, labels)
        if not key:
            return instrument
        with self._lock:
            series = self._series.setdefault(metric.name, set())
            if key not in series and len(series) >= self._max_series:
                return instrument.labels(*(OVERFLOW for _ in key))
            series.add(key)
            return instrument.labels(*key)


def _label_values(metric: Metric, labels: dict[str, str]) -> tuple[str, ...]:
    if set(labels) != set(metric.labels):
        raise InvalidDeclaration(f"labels {sorted(labels)} for metric {metric.name!r}", expected=f"exactly {sorted(metric.labels)}")
    return tuple(labels[name] for name in metric.labels)


# --- metrics of the service library itself ---------------------------------------------------------------------------------

TICKS = Counter(
    "tideline_runtime_ticks_total",
    unit="ticks",
    doc="Ticks of the main loop, by outcome: done, retry (a retry may cure it) or failed (it cannot).",
    labels=("outcome",),
)
TICK_TIME = Histogram("tideline_runtime_tick_seconds", unit="seconds", doc="Duration of a tick of the main loop.")
CONSECUTIVE_FAILURES = Gauge(
    "tideline_runtime_consecutive_failures",
    unit="ticks",
    doc="Number of ticks that failed in a row; 0 after a tick that succeeded.",
)
READY = Gauge(
    "tideline_runtime_ready", unit="boolean", doc="1 while the service is started and its last tick did not fail for good."
)
TABLES = Gauge("tideline_runtime_tables", unit="tables", doc="Tables of the shards that this instance of the service holds.")
SHARDS_HELD = Gauge("tideline_runtime_shards_held", unit="shards", doc="Shards that this instance holds by lease.")
SHARD_MEMBERS = Gauge(
    "tideline_runtime_shard_members", unit="instances", doc="Instances of the service among which shards are divided by leases."
)
SHARD_MOVES = Counter(
    "tideline_runtime_shard_moves_total",
    unit="shards",
    doc="Shards that came to this instance or left it, by change: taken, given (back) or lost (the lease ended, or another "
    "instance publishes).",
    labels=("change",),
)
TABLE_SCAN_FAILURES = Counter(
    "tideline_runtime_table_scan_failures_total",
    unit="searches",
    doc="Searches for tables that failed because storage, or the API server with the HudiTable resources, did not answer.",
)
TABLE_TROUBLE = Gauge(
    "tideline_runtime_table_trouble",
    unit="boolean",
    doc="1 while the service can work on no table, by kind: search (every search for tables fails) or open (no table that was "
    "found can be opened).",
    labels=("kind",),
)
STORAGE_REQUESTS = Counter(
    "tideline_runtime_storage_requests_total",
    unit="requests",
    doc="Requests of the service to the storage of its tables, and of its search for them, by kind: read, head, list, open (a data "
    "file is opened to be read; its reads are not counted), write or delete. A listing of more than 1,000 objects, an upload in "
    "parts and a request that the client repeats count once.",
    labels=("kind",),
)
REQUEST_PRICE = Gauge(
    "tideline_runtime_storage_request_price",
    unit="money",
    doc="Price of one request to storage by kind, from the setting `prices`. Multiplied with the rate of "
    "tideline_runtime_storage_requests_total, it gives money per second.",
    labels=("kind",),
)
PROCESSOR_PRICE = Gauge(
    "tideline_runtime_processor_price",
    unit="money",
    doc="Price of a second of one processor, from the setting `prices`. Multiplied with the rate of process_cpu_seconds_total, it "
    "gives money per second.",
)
POLICY_RELOADS = Counter(
    "tideline_runtime_policy_reloads_total",
    unit="files",
    doc="Contents of the policy file that a service looked at, by outcome: read (in force) or refused (not valid).",
    labels=("outcome",),
)
POLICY_VALID = Gauge(
    "tideline_runtime_policy_valid",
    unit="boolean",
    doc="0 while the policy file is not valid, so that the last good content stays in force.",
)
SHARED_METRICS: tuple[Metric, ...] = (TICKS, TICK_TIME, CONSECUTIVE_FAILURES, READY)
