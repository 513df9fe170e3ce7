"""Metrics of the launcher."""

from tideline_service.metrics import Counter, Gauge, Histogram

APPLICATIONS = Counter(
    "tideline_launcher_applications_total",
    unit="applications",
    doc="Ended applications, by outcome: succeeded, yielded (to a writer), superseded (somebody else ended the plan), failed, given_up.",
    labels=("outcome",),
)
RUNNING = Gauge("tideline_launcher_running", unit="applications", doc="Spark applications running now.")
DURATION = Histogram("tideline_launcher_application_seconds", unit="seconds", doc="How long applications ran, whatever their end.")
