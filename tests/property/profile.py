"""Bounded and repeatable: the same examples on every run. As many by default as say the numbers here, twice as many nightly, with
SAMPLE_STEP=1, and an eighth in `.ci/run`."""

from hypothesis import HealthCheck, settings
from tests.simulation.faults import SAMPLE_STEP


def _examples(count: int) -> int:
    return max(10, count * 2 // SAMPLE_STEP)


quick = settings(
    derandomize=True,
    deadline=None,
    database=None,
    max_examples=_examples(600),
    suppress_health_check=[HealthCheck.too_slow],
)
some = settings(quick, max_examples=_examples(200))
few = settings(quick, max_examples=_examples(60))
