"""Metrics of the webhooks."""

from tideline_runtime.metrics import Counter, Gauge, Histogram

DELIVERIES = Counter(
    "tideline_webhooks_deliveries_total",
    unit="deliveries",
    doc="Attempts to deliver an event, by outcome: taken, retried (the endpoint did not answer, or asked for another attempt) or "
    "refused.",
    labels=("subscription", "outcome"),
)
DEAD_LETTERS = Counter(
    "tideline_webhooks_dead_letters_total",
    unit="events",
    doc="Events that were given up and written to the topic of dead letters.",
    labels=("subscription",),
)
OLDEST = Gauge(
    "tideline_webhooks_oldest_seconds",
    unit="seconds",
    doc="Age of the oldest event that a subscription has read and not delivered; 0 if there is none.",
    labels=("subscription",),
)
WAITING = Gauge(
    "tideline_webhooks_waiting_tables",
    unit="tables",
    doc="Tables with events that a subscription has not delivered.",
    labels=("subscription",),
)
REQUEST_TIME = Histogram("tideline_webhooks_request_seconds", unit="seconds", doc="Time from a request to the end of its answer.")
