"""Waiting for a lock with jittered backoff, in the injected clock's time."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from tenacity import RetryCallState, Retrying, retry_if_exception_type, retry_if_result

from tideline_locks.errors import LockTimeout, LockUnreachable, StaleFence
from tideline_locks.port import Held
from tideline_table.clock import Clock

T = TypeVar("T")

MIN_PAUSE_S = 0.001
"""Keeps a rounding remainder before the deadline from becoming a busy loop."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """Pauses grow from `first_s` to `cap_s`, twice as long each time; each is shortened by up to a half at random."""

    first_s: float
    cap_s: float

    def pause_s(self, attempt: int, jitter: random.Random) -> float:
        """Seconds to wait after the `attempt`-th failure, counted from 1."""
        longest_s = min(self.cap_s, self.first_s * 2.0 ** min(attempt - 1, 30))
        return longest_s * jitter.uniform(0.5, 1.0)


REFRESH_BACKOFF = Backoff(first_s=0.005, cap_s=0.05)
"""Between two looks of one who is told each time that its view of the table is old. Longer pauses would favour newcomers."""


@dataclass(frozen=True, slots=True)
class Chance:
    """Where a provider takes randomness from, so that a simulation can replay it."""

    jitter: random.Random
    new_id: Callable[[], str]

    @classmethod
    def system(cls) -> Chance:
        """Unpredictable ids and jitter."""
        return cls(random.SystemRandom(), lambda: uuid.uuid4().hex)


def attempt_until(
    attempt: Callable[[], T | Held],
    *,
    clock: Clock,
    deadline_s: float,
    backoff: Backoff,
    jitter: random.Random,
    through_outages: bool = True,
) -> T | Held:
    """`attempt()`, repeated while it is held off or the provider is unreachable, until `deadline_s` on the monotonic clock.

    At least once, and once more at the deadline. The last outcome counts: returned, or raised if it was `LockUnreachable`. Not
    `through_outages`, that is raised at once: for an attempt that waits itself as long as it may.
    """

    def pause_s(state: RetryCallState) -> float:
        left_s = deadline_s - clock.monotonic_s()
        return max(MIN_PAUSE_S, min(backoff.pause_s(state.attempt_number, jitter), left_s))

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
    """What `wait` gets until the deadline that it is given, as `LockProvider.acquire` promises it. Raises `LockTimeout`.

    When its view of the table was refused as old and it `may_read` again, it is asked once more; otherwise `StaleFence` is passed on.
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
            # Twice the same, with a look at the log in between: what was granted before has never been there, or is there no more.
            behind = error.greatest if refused is not None and refused.greatest == error.greatest else None
            return Held(None, None)

    # Where waiters are not queued, each look may meet a newer fence: that is waiting like any other.
    outcome = attempt_until(look, clock=clock, deadline_s=deadline_s, backoff=REFRESH_BACKOFF, jitter=jitter, through_outages=False)
    if isinstance(outcome, Held):
        raise LockTimeout(name, waited_s=wait_s, holder=outcome.owner, since=outcome.since, greatest=behind) from stale
    return outcome
