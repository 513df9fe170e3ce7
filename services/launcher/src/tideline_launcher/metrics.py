"""Metrics of the launcher."""

from tideline_runtime.metrics import Counter, Gauge, Histogram

APPLICATIONS = Counter(
    "tideline_launcher_applications_total",
    unit="applications",
    doc="Ended attempts at plans, by outcome: succeeded, yielded (to a writer), superseded (another process ended the plan), "
    "failed, timed_out, out_of_memory, lost (the platform ended it), not_started; given_up counts plans. Several plans may have "
    "shared a Spark application.",
    labels=("outcome",),
)
RUNNING = Gauge("tideline_launcher_running", unit="applications", doc="Spark applications running now.")
PLANS = Gauge(
    "tideline_launcher_running_plans", unit="plans", doc="Plans of the Spark applications that run now; small ones share them."
)
WORKER_PLANS = Gauge("tideline_launcher_worker_plans", unit="plans", doc="Plans that resident workers run, and that wait for one.")
WORKER_ENDS = Counter(
    "tideline_launcher_worker_ends_total",
    unit="processes",
    doc="Resident workers that ended, by reason: idle, recycled (after workers.max_plans), out_of_memory, timed_out, died. The "
    "next plan starts a new one.",
    labels=("reason",),
)
EXECUTORS = Gauge("tideline_launcher_executors", unit="executors", doc="Executors that the running applications asked for.")
OBSTACLES = Gauge(
    "tideline_launcher_obstacles",
    unit="plans",
    doc="Plans whose application does not start, by obstacle: image, configuration, refused (permissions, Pod Security, "
    "quota), unschedulable.",
    labels=("obstacle",),
)
DURATION = Histogram("tideline_launcher_application_seconds", unit="seconds", doc="How long applications ran, whatever their end.")
