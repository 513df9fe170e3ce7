"""Metrics of the planner."""

from tideline_runtime.metrics import Counter, Histogram

PLANS = Counter("tideline_planner_plans_total", unit="plans", doc="Plans published, by table service.", labels=("service",))
PLANNING = Histogram("tideline_planner_planning_seconds", unit="seconds", doc="Time to decide and plan for one table.")
