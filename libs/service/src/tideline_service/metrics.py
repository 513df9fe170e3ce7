"""Metrics: each declared once as a documented literal, recorded through one `Metrics` per service, served as Prometheus text.

A declaration is a module constant in `tideline_<member>.metrics`:
`ENTRIES = Counter("tideline_mirror_entries_total", unit="entries", doc="Table log entries published.", labels=("table",))`.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock
from typing import ClassVar

import prometheus_client as prometheus
from prometheus_client.process_collector import ProcessCollector

from tideline_service.errors import InvalidDeclaration

CONTENT_TYPE = prometheus.CONTENT_TYPE_PLAIN_1_0_0
OVERFLOW = "(more)"
"""Label value that stands for all label sets beyond a metric's bound."""

SECONDS_BUCKETS = (0.005, 0.025, 0.1, 0.5, 1.0, 2.5, 5.0, 15.0, 60.0, 300.0, 1800.0)
MAX_SERIES = 20_000
"""Label sets of one metric: two for each of the 10,000 tables of a fleet."""

_NAME = re.compile(r"tideline_[a-z0-9]+(_[a-z0-9]+)+")


@dataclass(frozen=True, slots=True)
class Metric:
    """What all kinds of metrics declare. `unit` is what a value counts; times are `seconds` and sizes `bytes`, in the name too.

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
            raise InvalidDeclaration(f"metric {self.name!r} is declared twice with different contents")


@dataclass(frozen=True, slots=True)
class Counter(Metric):
    """Only grows."""

    kind: ClassVar[str] = "counter"


@dataclass(frozen=True, slots=True)
class Gauge(Metric):
    """Goes up and down."""

    kind: ClassVar[str] = "gauge"


@dataclass(frozen=True, slots=True)
class Histogram(Metric):
    """Distribution over `buckets`: upper ends, included."""

    buckets: tuple[float, ...] = SECONDS_BUCKETS

    kind: ClassVar[str] = "histogram"


_declared: dict[str, Metric] = {}


def declared_metrics() -> tuple[Metric, ...]:
    """Every metric whose module was imported, by name."""
    return tuple(_declared[name] for name in sorted(_declared))


_Instrument = prometheus.Counter | prometheus.Gauge | prometheus.Histogram


class Metrics:
    """The values of one service's metrics. Thread-safe; a metric appears with its first value or when it is exposed."""

    def __init__(self, service: str, *exposed: Metric, max_series: int = MAX_SERIES) -> None:
        self.registry = prometheus.CollectorRegistry()
        self._service = service
        self._max_series = max_series
        self._instruments: dict[str, _Instrument] = {}
        self._series: dict[str, set[tuple[str, ...]]] = {}
        self._lock = Lock()
        ProcessCollector(registry=self.registry)
        self.expose(*exposed)

    def expose(self, *metrics: Metric) -> None:
        """Show these from now on; those without labels at zero."""
        for metric in metrics:
            self._instrument(metric)

    def increment(self, metric: Counter, amount: float = 1, **labels: str) -> None:
        """Add `amount` (not negative)."""
        instrument = self._labelled(metric, labels)
        assert isinstance(instrument, prometheus.Counter)
        instrument.inc(amount)

    def set(self, metric: Gauge, value: float, **labels: str) -> None:
        """The value is now `value`."""
        instrument = self._labelled(metric, labels)
        assert isinstance(instrument, prometheus.Gauge)
        instrument.set(value)

    def observe(self, metric: Histogram, value: float, **labels: str) -> None:
        """One more observation."""
        instrument = self._labelled(metric, labels)
        assert isinstance(instrument, prometheus.Histogram)
        instrument.observe(value)

    @contextmanager
    def timed(self, metric: Histogram, **labels: str) -> Iterator[None]:
        """Observe the seconds that the context takes, also when it ends with an error."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.observe(metric, time.perf_counter() - began, **labels)

    def forget(self, metric: Metric, **labels: str) -> None:
        """Drop the series with these labels, for example of a table that is gone; unknown ones are no error."""
        key = _label_values(metric, labels)
        with self._lock:
            series = self._series.get(metric.name, set())
            if key and key in series:
                series.remove(key)
                self._instruments[metric.name].remove(*key)

    def value(self, metric: Metric, **labels: str) -> float:
        """The value now (of a histogram: the number of observations), 0 if there is none."""
        suffix = "_count" if isinstance(metric, Histogram) else ""
        return self.registry.get_sample_value(metric.name + suffix, dict(labels)) or 0.0

    def render(self) -> bytes:
        """All values in the Prometheus text format, to be served as `CONTENT_TYPE`."""
        return prometheus.generate_latest(self.registry)

    def _instrument(self, metric: Metric) -> _Instrument:
        with self._lock:
            found = self._instruments.get(metric.name)
            if found is None:
                found = self._instruments[metric.name] = self._created(metric)
            return found

    def _created(self, metric: Metric) -> _Instrument:
        if isinstance(metric, Histogram):
            return prometheus.Histogram(metric.name, metric.doc, metric.labels, registry=self.registry, buckets=metric.buckets)
        kind = prometheus.Counter if isinstance(metric, Counter) else prometheus.Gauge
        return kind(metric.name, metric.doc, metric.labels, registry=self.registry)

    def _labelled(self, metric: Metric, labels: dict[str, str]) -> _Instrument:
        instrument = self._instrument(metric)
        key = _label_values(metric, labels)
        if not key:
            return instrument
        with self._lock:
            series = self._series.setdefault(metric.name, set())
            if key not in series:
                if len(series) >= self._max_series:
                    return instrument.labels(*(OVERFLOW for _ in key))
                series.add(key)
            return instrument.labels(*key)


def _label_values(metric: Metric, labels: dict[str, str]) -> tuple[str, ...]:
    if set(labels) != set(metric.labels):
        raise InvalidDeclaration(f"labels {sorted(labels)} for metric {metric.name!r}", expected=f"exactly {sorted(metric.labels)}")
    return tuple(labels[name] for name in metric.labels)


# --- metrics of the service library itself ---------------------------------------------------------------------------------

TICKS = Counter(
    "tideline_service_ticks_total",
    unit="ticks",
    doc="Ticks of the main loop, by outcome: done, retry (a retry may cure it) or failed (it cannot).",
    labels=("outcome",),
)
TICK_TIME = Histogram("tideline_service_tick_seconds", unit="seconds", doc="How long a tick of the main loop took.")
CONSECUTIVE_FAILURES = Gauge(
    "tideline_service_consecutive_failures", unit="ticks", doc="Ticks that failed in a row up to now; 0 after one that succeeded."
)
READY = Gauge(
    "tideline_service_ready", unit="boolean", doc="1 while the service is started and its last tick did not fail for good."
)
TABLES = Gauge("tideline_service_tables", unit="tables", doc="Tables that this shard of the service looks after.")
TABLE_SCAN_FAILURES = Counter(
    "tideline_service_table_scan_failures_total", unit="look-ups", doc="Look-ups of table patterns that storage did not answer."
)
SHARED_METRICS: tuple[Metric, ...] = (TICKS, TICK_TIME, CONSECUTIVE_FAILURES, READY)
