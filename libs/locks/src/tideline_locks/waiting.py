"""Waiting for a lock with jittered backoff, in the injected clock's time."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from tideline_locks.errors import LockUnreachable
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
    attempt: Callable[[], T | Held], *, clock: Clock, deadline_s: float, backoff: Backoff, jitter: random.Random
) -> T | Held:
    """`attempt()`, repeated while it is held off or the provider is unreachable, until `deadline_s` on the monotonic clock.

    At least once, and once more at the deadline. The last outcome counts: returned, or raised if it was `LockUnreachable`.
    """
    number = 0
    while True:
        number += 1
        unreachable: LockUnreachable | None = None
        try:
            outcome = attempt()
            if not isinstance(outcome, Held):
                return outcome
        except LockUnreachable as error:
            unreachable = error
        left_s = deadline_s - clock.monotonic_s()
        pause_s = max(MIN_PAUSE_S, min(backoff.pause_s(number, jitter), left_s))
        if left_s <= 0:
            if unreachable is not None:
                raise unreachable
            return outcome
        clock.sleep(pause_s)
