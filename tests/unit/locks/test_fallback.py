from __future__ import annotations

from typing import Any

import pytest

from tideline_locks import FallbackLockProvider, InProcessLockProvider, Lease, LockTimeout, LockUnreachable, StaleFence
from tideline_locks.fallback import Outage
from tideline_table.clock import ManualClock

LONG_S = 60.0


class Switched(InProcessLockProvider):
    """A provider that can be cut off; each refused call costs a second."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock=clock)
        self.clock = clock
        self.up = True
        self.asked = 0

    def _check(self) -> None:
        self.asked += 1
        if not self.up:
            self.clock.advance(1)
            raise LockUnreachable("cut off")

    def acquire(self, *args: Any, **kwargs: Any) -> Lease:
        self._check()
        return super().acquire(*args, **kwargs)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def primary(clock: ManualClock) -> Switched:
    return Switched(clock)


@pytest.fixture
def secondary(clock: ManualClock) -> InProcessLockProvider:
    return InProcessLockProvider(clock=clock)


@pytest.fixture
def provider(primary: Switched, secondary: InProcessLockProvider, clock: ManualClock) -> FallbackLockProvider:
    return FallbackLockProvider(primary, secondary, clock=clock, outage=Outage(clock))


def test_primary_alone_while_it_answers(
    provider: FallbackLockProvider, primary: Switched, secondary: InProcessLockProvider
) -> None:
    lease = provider.acquire("trips", owner="a", ttl_s=LONG_S, wait_s=0, fence=3)
    assert secondary.read("trips") is None
    # A refusal is an answer, no outage.
    with pytest.raises(LockTimeout):
        provider.acquire("trips", owner="b", ttl_s=LONG_S, wait_s=0, fence=3)
    with pytest.raises(StaleFence):
        provider.acquire("trips", owner="b", ttl_s=LONG_S, wait_s=0, fence=2)
    assert secondary.read("trips") is None
    assert lease.release() is True
    assert primary.read("trips") is None


def test_outage_is_probed_again_only_after_a_pause(provider: FallbackLockProvider, primary: Switched, clock: ManualClock) -> None:
    primary.up = False
    for name in ("a", "b", "c"):
        provider.acquire(name, owner="x", ttl_s=LONG_S, wait_s=10)
    assert primary.asked == 1
    primary.up = True
    clock.advance(5)
    provider.acquire("d", owner="x", ttl_s=LONG_S, wait_s=0)
    assert primary.asked == 2
    assert primary.read("d") is not None


def test_time_lost_on_the_primary_counts(
    provider: FallbackLockProvider, primary: Switched, secondary: InProcessLockProvider, clock: ManualClock
) -> None:
    secondary.acquire("trips", owner="holder", ttl_s=LONG_S, wait_s=0)
    primary.up = False
    with pytest.raises(LockTimeout):
        provider.acquire("trips", owner="x", ttl_s=LONG_S, wait_s=3)
    assert 3 <= clock.monotonic_s() < 3.1
