"""Metrics of `tideline-catalog`."""

from tideline_runtime.metrics import Counter, Gauge

SYNCS = Counter(
    "tideline_catalog_syncs_total",
    unit="syncs",
    doc="Tables brought up to date in a catalog, by outcome: `done`, `failed` (tried again), `refused` (until the next commit).",
    labels=("outcome",),
)
PARTITIONS = Counter(
    "tideline_catalog_partitions_total",
    unit="partitions",
    doc="Partitions of entries in a catalog, by what was done: `added`, `moved` or `dropped`.",
    labels=("change",),
)
WAITING = Gauge("tideline_catalog_waiting", unit="tables", doc="Tables with events that are not registered yet.")
REFUSED = Gauge("tideline_catalog_refused", unit="tables", doc="Tables that a catalog cannot hold, or that cannot be read.")
