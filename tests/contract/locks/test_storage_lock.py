"""What the storage lock promises when the storage answers late, wrongly or not at all, and when clocks differ."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest

from tideline_locks import Lease, LeaseLost, LockTimeout, LockUnreachable, StorageLockProvider
from tideline_locks.storage_lease import KEPT_EPOCHS, LOCKS_PREFIX
from tideline_table.clock import ManualClock
from tideline_table.errors import CorruptMetadata, ObjectExists, StorageError
from tideline_table.storage import Folder, MemoryStorage

LONG_S = 60.0


class TroubledStorage(MemoryStorage):
    """Storage with one planned trouble per put: called with the path and the real put, it decides what happens."""

    def __init__(self) -> None:
        super().__init__()
        self.troubles: list[Callable[[str, Callable[[], None]], None]] = []
        self.lists_fail = 0
        self.deletes_fail = False

    def put_if_absent(self, path: str, data: bytes) -> None:
        def real() -> None:
            super(TroubledStorage, self).put_if_absent(path, data)

        if self.troubles:
            self.troubles.pop(0)(path, real)
        else:
            real()

    def list_folder(self, path: str, after: str = "") -> Folder:
        if self.lists_fail:
            self.lists_fail -= 1
            raise StorageError("503 slow down")
        return super().list_folder(path, after)

    def delete(self, path: str) -> bool:
        if self.deletes_fail:
            raise StorageError("503 slow down")
        return super().delete(path)


def reply_lost(path: str, real: Callable[[], None]) -> None:
    real()
    raise StorageError(f"connection reset while putting {path}")


def retried_inside_the_client(path: str, real: Callable[[], None]) -> None:
    """The client library retried a put that had succeeded: the caller sees a refusal by its own object."""
    real()
    real()


def request_lost(path: str, real: Callable[[], None]) -> None:
    raise StorageError(f"connection reset before putting {path}")


def conflict_without_object(path: str, real: Callable[[], None]) -> None:
    raise ObjectExists(path)


TROUBLES = [reply_lost, retried_inside_the_client, request_lost, conflict_without_object]


def provider_on(storage: MemoryStorage, clock: ManualClock | None = None) -> StorageLockProvider:
    return StorageLockProvider(storage, clock=clock or ManualClock())


def names(storage: MemoryStorage) -> list[str]:
    return [stat.path for stat in storage.list_objects(LOCKS_PREFIX)]


@pytest.mark.parametrize("trouble", TROUBLES)
def test_unclear_put_is_read_back(trouble: Callable[[str, Callable[[], None]], None]) -> None:
    storage = TroubledStorage()
    provider = provider_on(storage)
    storage.troubles = [trouble]
    lease = provider.try_acquire("trips", owner="a", ttl_s=LONG_S)
    assert lease is not None
    storage.troubles = [trouble]
    lease.renew()
    storage.troubles = [trouble]
    assert lease.release() is True
    assert storage.troubles == []
    assert [path.rpartition("/")[2] for path in names(storage)] == [f"{epoch:020d}.json" for epoch in (1, 2, 3)]


def test_put_that_never_arrives_is_unreachable_not_taken() -> None:
    storage = TroubledStorage()
    provider = provider_on(storage)
    storage.troubles = [request_lost] * 3
    with pytest.raises(LockUnreachable):
        provider.try_acquire("trips", owner="a", ttl_s=LONG_S)
    assert provider.try_acquire("trips", owner="a", ttl_s=LONG_S) is not None


def test_waiting_outlasts_an_outage() -> None:
    storage, clock = TroubledStorage(), ManualClock()
    provider = provider_on(storage, clock)
    storage.lists_fail = 4
    assert provider.acquire("trips", owner="a", ttl_s=LONG_S, wait_s=30) is not None
    storage.lists_fail = 1000
    with pytest.raises(LockUnreachable) as caught:
        provider.acquire("trips", owner="b", ttl_s=LONG_S, wait_s=30)
    assert "503" in str(caught.value)
    assert clock.monotonic_s() >= 30


def test_failed_renewal_leaves_the_lease_to_be_renewed_again() -> None:
    storage, clock = TroubledStorage(), ManualClock()
    lease = provider_on(storage, clock).acquire("trips", owner="a", ttl_s=9, wait_s=0)
    clock.advance(3)
    storage.lists_fail = 1
    with pytest.raises(LockUnreachable):
        lease.renew()
    assert not lease.lost
    assert lease.remaining_s == 6
    lease.renew()
    assert lease.remaining_s == 9


def test_grant_whose_answer_got_lost_runs_from_when_it_was_made() -> None:
    """Put done, read-back impossible: the next attempt of the same wish finds its own lease, and must not count it as fresh."""
    storage, clock = TroubledStorage(), ManualClock()
    provider = provider_on(storage, clock)

    def done_but_listing_fails(path: str, real: Callable[[], None]) -> None:
        real()
        storage.lists_fail = 1

    storage.troubles = [done_but_listing_fails]
    lease = provider.acquire("trips", owner="a", ttl_s=10, wait_s=20)
    assert clock.monotonic_s() > 0
    assert len(names(storage)) == 1
    assert lease.remaining_s <= 10 - clock.monotonic_s() + 0.001
    state = provider.read("trips")
    assert state is not None
    assert state.expires >= clock.now() + timedelta(seconds=lease.remaining_s)


def test_paused_writer_that_lands_on_a_deleted_epoch_has_not_won() -> None:
    """Between its decision and its put, others moved the lock on so far that the name it aimed at was deleted again."""
    storage, clock = TroubledStorage(), ManualClock()
    slow, quick = provider_on(storage, clock), provider_on(storage, clock)
    quick.acquire("trips", owner="first", ttl_s=LONG_S, wait_s=0).release()
    won: list[Lease] = []

    def while_it_pauses(path: str, real: Callable[[], None]) -> None:
        for _ in range(KEPT_EPOCHS):
            quick.acquire("trips", owner="quick", ttl_s=LONG_S, wait_s=0).release()
        won.append(quick.acquire("trips", owner="quick", ttl_s=LONG_S, wait_s=0))
        assert path not in names(storage)
        real()
        assert path in names(storage)

    storage.troubles = [while_it_pauses]
    assert slow.try_acquire("trips", owner="slow", ttl_s=LONG_S) is None
    state = slow.read("trips")
    assert state is not None
    assert state.owner == "quick"
    assert won[0].release() is True


def test_release_overtaken_by_the_next_holder_is_still_a_release() -> None:
    storage, clock = TroubledStorage(), ManualClock()
    provider, other = provider_on(storage, clock), provider_on(storage, clock)
    lease = provider.acquire("trips", owner="a", ttl_s=LONG_S, wait_s=0)

    def taken_at_once(path: str, real: Callable[[], None]) -> None:
        real()
        assert other.try_acquire("trips", owner="b", ttl_s=LONG_S) is not None

    storage.troubles = [taken_at_once]
    assert lease.release() is True
    assert not lease.lost


def test_old_epochs_are_deleted_behind() -> None:
    storage = TroubledStorage()
    provider = provider_on(storage)
    storage.deletes_fail = True
    for _ in range(KEPT_EPOCHS):
        provider.acquire("trips", owner="a", ttl_s=LONG_S, wait_s=0).release()
    assert len(names(storage)) == 2 * KEPT_EPOCHS
    storage.deletes_fail = False
    lease = provider.acquire("trips", owner="a", ttl_s=LONG_S, wait_s=0)
    assert len(names(storage)) == KEPT_EPOCHS
    for _ in range(50):
        lease.renew()
    assert len(names(storage)) == KEPT_EPOCHS


def test_takers_grant_the_holders_clock_its_allowance() -> None:
    storage, holder_clock, other_clock = MemoryStorage(), ManualClock(), ManualClock()
    other_clock.advance(1.9)
    lease = provider_on(storage, holder_clock).acquire("trips", owner="a", ttl_s=10, wait_s=0)
    other = provider_on(storage, other_clock)
    for clock in (holder_clock, other_clock):
        clock.advance(9.9)
    assert not lease.lost
    assert other.try_acquire("trips", owner="b", ttl_s=10) is None
    lease.renew()
    for clock in (holder_clock, other_clock):
        clock.advance(10.2)
    assert lease.lost
    assert other.try_acquire("trips", owner="b", ttl_s=10) is not None


def test_dead_holder_with_a_clock_far_ahead_blocks_no_longer_than_its_ttl() -> None:
    storage, ahead, clock = MemoryStorage(), ManualClock(), ManualClock()
    ahead.advance(3600)
    provider_on(storage, ahead).acquire("trips", owner="dead", ttl_s=10, wait_s=0)
    provider = provider_on(storage, clock)
    with pytest.raises(LockTimeout):
        provider.acquire("trips", owner="b", ttl_s=10, wait_s=11)
    lease = provider.acquire("trips", owner="b", ttl_s=10, wait_s=2)
    assert lease.owner == "b"
    assert clock.monotonic_s() < 14


def test_live_holder_with_a_clock_far_ahead_keeps_its_lease() -> None:
    storage, ahead, clock = MemoryStorage(), ManualClock(), ManualClock()
    ahead.advance(3600)
    lease = provider_on(storage, ahead).acquire("trips", owner="a", ttl_s=10, wait_s=0)
    other = provider_on(storage, clock)
    for _ in range(10):
        assert other.try_acquire("trips", owner="b", ttl_s=10) is None
        for one in (ahead, clock):
            one.advance(5)
        lease.renew()


def test_holder_whose_clock_jumped_ahead_learns_it() -> None:
    storage, clock = MemoryStorage(), ManualClock()
    lease = provider_on(storage, clock).acquire("trips", owner="a", ttl_s=10, wait_s=0)
    clock._now += timedelta(hours=1)
    # Only the wall clock moved: by its own count the lease lasts, by the place's it has ended.
    assert not lease.lost
    with pytest.raises(LeaseLost):
        lease.renew()
    assert lease.lost


def test_objects_that_are_no_leases_are_left_alone() -> None:
    storage = MemoryStorage()
    provider = provider_on(storage)
    for stray in ("README", "1.json", "99999999999999999999.json.tmp"):
        storage.put(f"{LOCKS_PREFIX}/trips/{stray}", b"x")
    storage.put(f"{LOCKS_PREFIX}/{'%00'}/{1:020d}.json", b"x")
    assert provider.try_acquire("trips", owner="a", ttl_s=LONG_S) is not None
    assert [state.name for state in provider.list()] == ["trips"]


def test_unreadable_head_stops_instead_of_being_taken_for_free() -> None:
    storage = MemoryStorage()
    provider = provider_on(storage)
    storage.put(f"{LOCKS_PREFIX}/trips/{7:020d}.json", b"{}")
    with pytest.raises(CorruptMetadata) as caught:
        provider.try_acquire("trips", owner="a", ttl_s=LONG_S)
    assert "00000000000000000007.json" in str(caught.value)
