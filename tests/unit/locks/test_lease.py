from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from datetime import UTC, datetime

import pytest

from tideline_locks import KeptLease, Lease, LeaseLost, LockUnreachable
from tideline_locks.lease import Grant
from tideline_table.clock import ManualClock, SystemClock

TTL_S = 9.0


class ScriptedStore:
    """A store that does what each test says: `renewals` and `releases` are answers, errors, or things to do before answering."""

    def __init__(self) -> None:
        self.renewals: list[bool | Exception | Callable[[], bool]] = []
        self.releases: list[bool | Exception] = []
        self.asked_to_renew = 0

    def renew_grant(self, grant: Grant) -> bool:
        self.asked_to_renew += 1
        answer = self.renewals.pop(0) if self.renewals else True
        if isinstance(answer, Exception):
            raise answer
        return answer() if callable(answer) else answer

    def release_grant(self, grant: Grant) -> bool:
        answer = self.releases.pop(0) if self.releases else True
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store() -> ScriptedStore:
    return ScriptedStore()


def lease_on(store: ScriptedStore, clock: ManualClock | SystemClock, ttl_s: float = TTL_S) -> Lease:
    return Lease(Grant("trips", "a", "id", 1, ttl_s, datetime(2026, 1, 1, tzinfo=UTC), clock.monotonic_s()), store, clock)


def test_lost_stays_lost_and_is_not_asked_for_again(store: ScriptedStore, clock: ManualClock) -> None:
    lease = lease_on(store, clock)
    clock.advance(TTL_S)
    assert lease.lost
    with pytest.raises(LeaseLost):
        lease.renew()
    assert store.asked_to_renew == 0
    assert lease.release() is False
    assert lease.lost


def test_time_spent_asking_counts(store: ScriptedStore, clock: ManualClock) -> None:
    lease = lease_on(store, clock)

    def slowly() -> bool:
        clock.advance(4)
        return True

    store.renewals = [slowly]
    lease.renew()
    assert lease.remaining_s == TTL_S - 4


def test_late_answer_does_not_undo_a_loss_that_was_seen(store: ScriptedStore, clock: ManualClock) -> None:
    lease = lease_on(store, clock)

    def after_the_end() -> bool:
        clock.advance(TTL_S)
        assert lease.lost
        return True

    store.renewals = [after_the_end]
    with pytest.raises(LeaseLost):
        lease.renew()
    assert lease.lost
    assert lease.remaining_s == 0


def test_late_answer_saves_a_lease_that_nobody_saw_lost(store: ScriptedStore, clock: ManualClock) -> None:
    lease = lease_on(store, clock)
    clock.advance(TTL_S - 1)

    def slowly() -> bool:
        clock.advance(2)
        return True

    store.renewals = [slowly]
    lease.renew()
    assert not lease.lost
    assert lease.remaining_s == TTL_S - 2


def test_release_under_a_renewal_is_no_loss(store: ScriptedStore, clock: ManualClock) -> None:
    lease = lease_on(store, clock)

    def released_meanwhile() -> bool:
        assert lease.release() is True
        return False

    store.renewals = [released_meanwhile]
    with pytest.raises(LeaseLost):
        lease.renew()
    assert not lease.lost
    assert lease.released


def test_release_may_be_tried_again(store: ScriptedStore, clock: ManualClock) -> None:
    lease = lease_on(store, clock)
    store.releases = [LockUnreachable("gone")]
    with pytest.raises(LockUnreachable):
        lease.release()
    assert not lease.released
    lease.renew()
    assert lease.release() is True


def test_context_does_not_turn_a_done_commit_into_a_failure(
    store: ScriptedStore, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    store.releases = [LockUnreachable("gone")]
    with lease_on(store, clock):
        pass
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


def test_renewer_asks_at_a_third_of_the_ttl(store: ScriptedStore, clock: ManualClock) -> None:
    assert KeptLease(lease_on(store, clock)).renew_once() == TTL_S / 3


@pytest.mark.parametrize("error", [LockUnreachable("gone"), RuntimeError("a bug")])
def test_renewer_survives_failures_until_the_ttl_has_passed(
    store: ScriptedStore, clock: ManualClock, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    lease = lease_on(store, clock)
    kept = KeptLease(lease)
    store.renewals = [error, True]
    assert kept.renew_once() == pytest.approx(TTL_S / 10)
    assert kept.last_error is error
    assert not lease.lost
    assert kept.renew_once() == TTL_S / 3
    assert kept.last_error is None
    store.renewals = [error] * 100
    pauses = 0
    while (pause_s := kept.renew_once()) is not None:
        pauses += 1
        clock.advance(pause_s)
    assert 9 <= pauses <= 11
    assert lease.lost
    assert [record.levelno for record in caplog.records].count(logging.ERROR) == 1


def test_refused_renewal_ends_the_renewals(store: ScriptedStore, clock: ManualClock, caplog: pytest.LogCaptureFixture) -> None:
    lease = lease_on(store, clock)
    store.renewals = [False]
    assert KeptLease(lease).renew_once() is None
    assert lease.lost
    assert "is lost" in caplog.text


def test_hanging_renewal_does_not_hide_the_loss(store: ScriptedStore, clock: ManualClock) -> None:
    """A slow heartbeat must not kill its timer (field notes)."""
    asked, goes_on = threading.Event(), threading.Event()

    def hang() -> bool:
        asked.set()
        return goes_on.wait(20)

    store.renewals = [hang]
    lease = lease_on(store, clock, ttl_s=0.3)
    with KeptLease(lease):
        assert asked.wait(120)
        clock.advance(0.3)
        assert lease.lost
        goes_on.set()
    assert lease.lost


def test_released_lease_is_not_reported_lost(caplog: pytest.LogCaptureFixture) -> None:
    lease = lease_on(ScriptedStore(), SystemClock(), ttl_s=30.0)
    with KeptLease(lease):
        pass
    assert lease.released
    assert not lease.lost
    assert caplog.records == []


def test_thread_ends_with_the_context() -> None:
    before = set(threading.enumerate())
    with KeptLease(lease_on(ScriptedStore(), SystemClock(), ttl_s=60.0)):
        assert len(set(threading.enumerate()) - before) == 1
    assert set(threading.enumerate()) - before == set()
