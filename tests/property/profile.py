"""Bounded and repeatable: the same examples on every run."""

from hypothesis import HealthCheck, settings

quick = settings(derandomize=True, deadline=None, database=None, max_examples=600, suppress_health_check=[HealthCheck.too_slow])
some = settings(quick, max_examples=200)
few = settings(quick, max_examples=60)
