"""Metrics of the lock service."""

from tideline_runtime.metrics import Counter, Gauge, Histogram

REQUESTS = Counter(
    "tideline_lock_service_requests_total",
    unit="requests",
    doc="Requests of the lease API, by operation and HTTP status.",
    labels=("operation", "status"),
)
WAIT = Histogram("tideline_lock_service_acquire_seconds", unit="seconds", doc="Duration of requests for a lease, granted or not.")
WAITING = Gauge("tideline_lock_service_waiting", unit="requests", doc="Requests that wait for a lock now.")
LEASES = Gauge("tideline_lock_service_leases", unit="leases", doc="Table leases held at the last poll.")
EVENTS = Counter(
    "tideline_lock_service_events_total",
    unit="events",
    doc="Lock events, by kind: acquired, renewed_after_pause, expired, released, taken_over, heartbeat_lost or force_released.",
    labels=("kind",),
)
