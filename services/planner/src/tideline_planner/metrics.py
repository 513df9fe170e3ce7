"""Metrics of the planner."""

from tideline_runtime.metrics import Counter, Gauge, Histogram

PLANS = Counter("tideline_planner_plans_total", unit="plans", doc="Plans published, by table service.", labels=("service",))
PLANNING = Histogram("tideline_planner_planning_seconds", unit="seconds", doc="Time to decide and plan for one table.")
VERDICTS = Gauge(
    "tideline_planner_verdicts",
    unit="tables",
    doc="Tables by table service and the planner's verdict: planned, or held by off, paused, not_due, backing_off, window, budget, "
    "fleet_budget, fleet_plans, refused.",
    labels=("service", "verdict"),
)
CHANGES = Counter(
    "tideline_planner_verdict_changes_total",
    unit="verdicts",
    doc="Verdicts about a service of a table that differ from the one before; each is logged.",
    labels=("service", "verdict"),
)
REWRITTEN = Gauge(
    "tideline_planner_rewritten_day_bytes",
    unit="bytes",
    doc="Bytes that clustering, compaction and log compaction of the tables of this shard rewrote in the last 24 hours, by the "
    "table logs. Tables without a budget count only if the fleet has one.",
)
FINDINGS = Gauge(
    "tideline_planner_findings",
    unit="tables",
    doc="Tables of this shard with a finding, by kind: dead_writer, stuck_plan, waiting_plan, given_up, backlog, objective, clock, "
    "cannot_open, cannot_plan, refused, damaged, hidden_commit, unlocked_writer, probation, gone, locks (also of a server of "
    "locks), no_table for patterns that match no table, and policy for policy files that are not valid. tideline status and the "
    "fleet API name them.",
    labels=("kind",),
)
STATES = Gauge(
    "tideline_planner_states",
    unit="tables",
    doc="Tables of this shard by state: managed, unmanaged, upgraded, moved, unreadable, gone. tideline status and the fleet API "
    "name them, with since and remedy.",
    labels=("state",),
)
