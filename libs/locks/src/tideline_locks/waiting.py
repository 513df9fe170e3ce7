"""Waiting for a lock with jittered backoff, on the injected clock."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from tenacity import RetryCallState, Retrying, retry_if_exception_type, retry_if_result, wait_exponential

from tideline_locks.errors import LockTimeout, LockUnreachable, StaleFence
from tideline_locks.port import Held
from tideline_table.clock import Clock

T = TypeVar("T")

MIN_PAUSE_S = 0.001
"""Prevents a busy loop on a rounding remainder before the deadline."""


REFRESH_BACKOFF = wait_exponential(multiplier=0.005, max=0.05)
"""Backoff of a waiter whose view of the table was rejected as old. Longer pauses would favour newcomers."""


@dataclass(frozen=True, slots=True)
class RandomSource:
    """The source of randomness of a provider, so that a simulation can replay it."""

    jitter: random.Random
    new_id: Callable[[], str]

    @classmethod
    def system(cls) -> RandomSource:
        """Return unpredictable ids and jitter."""
        return cls(random.SystemRandom(), lambda: uuid.uuid4().hex)


def attempt_until(
    attempt: Callable[[], T | Held],
    *,
    clock: Clock,
    deadline_s: float,
    backoff: wait_exponential,
    jitter: random.Random,
    through_outages: bool = True,
) -> T | Held:
    """Repeat `attempt` while it returns `Held` or the provider is unreachable, until `deadline_s` on the monotonic clock.

    Attempts at least once, and once more at the deadline. Pauses follow `backoff`, each shortened by up to a half at random. The
    last outcome is returned, or raised if it was `LockUnreachable`. Without `through_outages`, `LockUnreachable` is raised at once,
    for an attempt that itself waits as long as allowed.
    """

    def pause_s(state: RetryCallState) -> float:
        left_s = deadline_s - clock.monotonic_s()
        return max(MIN_PAUSE_S, min(backoff(state) * jitter.uniform(0.5, 1.0), left_s))

    def last_outcome(state: RetryCallState) -> T | Held:
        assert state.outcome is not None
        outcome: T | Held = state.outcome.result()
        return outcome

    held_off = retry_if_result(lambda outcome: isinstance(outcome, Held))
    retrying = Retrying(
        retry=held_off | retry_if_exception_type(LockUnreachable) if through_outages else held_off,
        stop=lambda _: clock.monotonic_s() >= deadline_s,
        wait=pause_s,
        sleep=clock.sleep,
        retry_error_callback=last_outcome,
    )
    return retrying(attempt)


def wait_for(
    name: str,
    wait: Callable[[float], T | Held],
    *,
    may_read: bool,
    wait_s: float,
    clock: Clock,
    jitter: random.Random,
) -> T:
    """Return the result of `wait`, which gets the deadline, as `LockProvider.acquire` specifies. Raises `LockTimeout`.

    If its view of the table was rejected as old, `wait` is called again if `may_read`; otherwise `StaleFence` is raised.
    """
    deadline_s = clock.monotonic_s() + wait_s
    stale: StaleFence | None = None
    behind: int | None = None

    def look() -> T | Held:
        nonlocal stale, behind
        refused, stale, behind = stale, None, None
        try:
            return wait(deadline_s)
        except StaleFence as error:
            if not may_read:
                raise
            stale = error
            # The same fence twice, with a read of the log in between: the granted entry never existed or is gone.
            behind = error.greatest if refused is not None and refused.greatest == error.greatest else None
            return Held(None, None)

    # Without a queue, each attempt may meet a newer fence. That is ordinary waiting.
    outcome = attempt_until(look, clock=clock, deadline_s=deadline_s, backoff=REFRESH_BACKOFF, jitter=jitter, through_outages=False)
    if isinstance(outcome, Held):
        raise LockTimeout(name, waited_s=wait_s, holder=outcome.owner, since=outcome.since, greatest=behind) from stale
    return outcome
