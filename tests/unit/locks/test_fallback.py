from __future__ import annotations

from typing import Any

import pytest

from tideline_locks import FallbackLockProvider, InProcessLockProvider, Lease, LeaseState, LockTimeout, LockUnreachable, StaleFence
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

    def read(self, name: str) -> LeaseState | None:
        self._check()
        return super().read(name)

    def list(self, prefix: str = "") -> list[LeaseState]:
        self._check()
        return super().list(prefix)

    def break_expired(self, name: str) -> LeaseState | None:
        self._check()
        return super().break_expired(name)


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
    return FallbackLockProvider(primary, secondary, clock=clock)


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


def test_leases_of_both_are_shown_and_broken(
    provider: FallbackLockProvider, primary: Switched, secondary: InProcessLockProvider, clock: ManualClock
) -> None:
    primary.acquire("a", owner="old", ttl_s=1, wait_s=0)
    secondary.acquire("a", owner="new", ttl_s=LONG_S, wait_s=0)
    secondary.acquire("b", owner="other", ttl_s=1, wait_s=0)
    clock.advance(2)
    shown = provider.read("a")
    assert shown is not None
    assert shown.owner == "new"
    assert [(s.name, s.owner) for s in provider.list()] == [("a", "new"), ("b", "other")]
    broken = provider.break_expired("a")
    assert broken is not None
    assert broken.owner == "old"
    assert provider.break_expired("a") is None
    assert provider.break_expired("b") is not None
    primary.up = False
    assert [s.owner for s in provider.list()] == ["new"]
