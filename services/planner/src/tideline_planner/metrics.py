"""Metrics of the planner."""

from tideline_service.metrics import Counter, Histogram

PLANS = Counter("tideline_planner_plans_total", unit="plans", doc="Plans published, by table service.", labels=("service",))
PLANNING = Histogram("tideline_planner_planning_seconds", unit="seconds", doc="How long deciding and planning for one table took.")
