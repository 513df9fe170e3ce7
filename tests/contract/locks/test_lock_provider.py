"""What every lock provider promises, whatever it keeps its leases in."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.contract.locks.conftest import Contender, Place, wait_until

from tideline_locks import InvalidLease, KeptLease, Lease, LeaseLost, LockProvider, LockTimeout, StaleFence
from tideline_locks.lease import Grant, LeaseStore
from tideline_locks.waiting import RandomSource
from tideline_table.clock import ManualClock
from tideline_table.errors import Recovery

LONG_S = 60.0


def test_lease_shows_who_holds_what_until_when(place: Place) -> None:
    provider = place.provider()
    assert provider.read("trips") is None
    lease = provider.acquire("trips", owner="writer-1", ttl_s=LONG_S, wait_s=0, fence=7)
    state = place.provider().read("trips")
    assert state is not None
    assert (state.name, state.owner, state.lease_id, state.token) == ("trips", "writer-1", place.shown_id(lease), 7)
    assert lease.token == 7
    assert state.acquired == lease.acquired
    assert LONG_S <= (state.expires - state.acquired).total_seconds() < LONG_S + 0.1
    assert not state.expired
    trusted_s = place.trusted_s(LONG_S)
    assert trusted_s - 5 < lease.remaining_s <= trusted_s
    assert not lease.lost


def test_second_gets_it_only_after_release(place: Place) -> None:
    first, second = place.provider(), place.provider()
    lease = first.try_acquire("trips", owner="a", ttl_s=LONG_S)
    assert lease is not None
    assert second.try_acquire("trips", owner="b", ttl_s=LONG_S) is None
    assert second.try_acquire("other", owner="b", ttl_s=LONG_S) is not None
    assert lease.release() is True
    assert first.read("trips") is None
    assert lease.remaining_s == 0
    assert second.try_acquire("trips", owner="b", ttl_s=LONG_S) is not None


def test_leases_are_not_reentrant(place: Place) -> None:
    provider = place.provider()
    assert provider.try_acquire("trips", owner="a", ttl_s=LONG_S) is not None
    assert provider.try_acquire("trips", owner="a", ttl_s=LONG_S) is None


def test_timeout_names_the_holder_and_since_when(place: Place) -> None:
    provider = place.provider()
    held = provider.acquire("trips", owner="the-holder", ttl_s=LONG_S, wait_s=0)
    with pytest.raises(LockTimeout) as caught:
        place.provider().acquire("trips", owner="b", ttl_s=LONG_S, wait_s=0.2)
    assert caught.value.holder == "the-holder"
    assert caught.value.since == held.acquired
    assert caught.value.recovery is Recovery.RETRY
    assert "the-holder" in str(caught.value)
    # Who gave up waiting is not in anybody's way.
    held.release()
    assert provider.try_acquire("trips", owner="c", ttl_s=LONG_S) is not None


def test_who_gives_up_takes_the_lock_from_nobody(place: Place) -> None:
    provider, other = place.provider(), place.provider()
    held = provider.acquire("trips", owner="a", ttl_s=LONG_S, wait_s=0)
    with pytest.raises(LockTimeout):
        other.acquire("trips", owner="b", ttl_s=LONG_S, wait_s=0.2)
    state = other.read("trips")
    assert state is not None
    assert state.lease_id == place.shown_id(held)
    held.renew()
    assert held.release() is True


def test_waiting_takes_as_long_as_asked(place: Place) -> None:
    provider = place.provider()
    provider.acquire("trips", owner="a", ttl_s=LONG_S, wait_s=0)
    before_s = place.clock.monotonic_s()
    with pytest.raises(LockTimeout):
        provider.acquire("trips", owner="b", ttl_s=LONG_S, wait_s=0.4)
    assert 0.4 <= place.clock.monotonic_s() - before_s < LONG_S / 2, "not until the lease ends"


def test_waiter_gets_the_lock_when_it_is_released(real_time_place: Place) -> None:
    lease = real_time_place.provider().acquire("trips", owner="a", ttl_s=LONG_S, wait_s=0)
    waiting = real_time_place.provider()
    with ThreadPoolExecutor(1) as pool:
        got = pool.submit(waiting.acquire, "trips", owner="b", ttl_s=LONG_S, wait_s=LONG_S)
        assert not got.done()
        assert lease.release()
        assert got.result(LONG_S / 2).owner == "b"


def test_waiter_gets_the_lock_when_its_holder_is_silent(place: Place) -> None:
    provider = place.provider()
    silent = provider.acquire("trips", owner="a", ttl_s=place.short_ttl_s, wait_s=0, fence=3)
    lease = place.provider().acquire("trips", owner="b", ttl_s=LONG_S, wait_s=LONG_S, fence=4)
    assert silent.lost
    assert lease.token > silent.token


def test_expired_lease_is_taken_over_with_a_greater_token(place: Place) -> None:
    provider, other = place.provider(), place.provider()
    old = provider.acquire("trips", owner="a", ttl_s=place.short_ttl_s, wait_s=0, fence=3)
    place.let_expire(provider, "trips")
    shown = provider.read("trips")
    assert shown is not None
    assert shown.expired
    assert shown.owner == "a"
    new = other.try_acquire("trips", owner="b", ttl_s=LONG_S, fence=5)
    assert new is not None
    assert new.token == 5 > old.token
    assert old.lost
    with pytest.raises(LeaseLost) as caught:
        old.renew()
    assert caught.value.recovery is Recovery.REFRESH
    # And with what it had seen before, the old holder does not come back.
    with pytest.raises(StaleFence):
        provider.try_acquire("trips", owner="a", ttl_s=LONG_S, fence=3)


def test_releasing_a_lost_lease_reports_it_and_touches_nobody_elses(place: Place) -> None:
    provider, other = place.provider(), place.provider()
    old = provider.acquire("trips", owner="same-name", ttl_s=place.short_ttl_s, wait_s=0)
    place.let_expire(provider, "trips")
    new = other.acquire("trips", owner="same-name", ttl_s=LONG_S, wait_s=0)
    assert old.release() is False
    assert old.release() is False
    state = provider.read("trips")
    assert state is not None
    assert state.lease_id == place.shown_id(new)
    new.renew()
    assert new.release() is True


def test_only_the_owner_releases_or_renews(place: Place) -> None:
    provider, thief = place.provider(), place.provider()
    lease = provider.acquire("trips", owner="a", ttl_s=LONG_S, wait_s=0)
    # The same owner name is not enough: the id of the lease decides, at the place itself.
    forged = Lease(Grant("trips", "a", "guessed", 0, LONG_S, lease.acquired, place.clock.monotonic_s()), _store(thief), place.clock)
    with pytest.raises(LeaseLost):
        forged.renew()
    assert forged.release() is False
    assert forged.lost
    state = provider.read("trips")
    assert state is not None
    assert state.lease_id == place.shown_id(lease)
    assert lease.release() is True


def test_lease_past_its_end_is_freed_but_not_reported_as_held(place: Place) -> None:
    provider = place.provider()
    lease = provider.acquire("trips", owner="a", ttl_s=place.short_ttl_s, wait_s=0)
    place.let_expire(provider, "trips")
    with pytest.raises(LeaseLost):
        lease.renew()
    # Not only by the holder's own count: the place itself does not revive it.
    grant = Grant("trips", "a", lease.lease_id, 0, place.short_ttl_s, lease.acquired, place.clock.monotonic_s())
    assert _store(provider).renew_grant(grant) is False
    assert _store(provider).release_grant(grant) is False
    assert lease.release() is False
    assert provider.read("trips") is None


def test_stale_fence_is_refused_held_or_free(fenced_place: Place) -> None:
    provider, other = fenced_place.provider(), fenced_place.provider()
    lease = provider.acquire("trips", owner="a", ttl_s=LONG_S, wait_s=0, fence=10)
    for _ in range(2):
        with pytest.raises(StaleFence) as caught:
            other.acquire("trips", owner="b", ttl_s=LONG_S, wait_s=LONG_S, fence=9)
        assert (caught.value.fence, caught.value.greatest) == (9, 10)
        assert caught.value.recovery is Recovery.REFRESH
        # The greatest granted fence outlives the release.
        lease.release()
    assert other.try_acquire("elsewhere", owner="b", ttl_s=LONG_S, fence=9) is not None
    again = other.try_acquire("trips", owner="b", ttl_s=LONG_S, fence=10)
    assert again is not None
    assert again.token == 10


def test_readable_fence_is_read_again_when_it_is_old(fenced_place: Place) -> None:
    provider, other = fenced_place.provider(), fenced_place.provider()
    provider.acquire("trips", owner="a", ttl_s=LONG_S, wait_s=0, fence=10).release()
    seen = iter([8, 9, 11, 99])
    with other.acquire("trips", owner="b", ttl_s=LONG_S, wait_s=LONG_S, fence=lambda: next(seen)) as lease:
        assert lease.token == 11
    with pytest.raises(LockTimeout) as caught:
        other.acquire("trips", owner="b", ttl_s=LONG_S, wait_s=0.1, fence=lambda: 10)
    assert isinstance(caught.value.__cause__, StaleFence)
    assert provider.try_acquire("trips", owner="a", ttl_s=LONG_S, fence=11) is not None


def test_who_cannot_read_its_fence_is_in_nobodys_way(place: Place) -> None:
    provider = place.provider()
    with pytest.raises(ZeroDivisionError):
        provider.acquire("trips", owner="a", ttl_s=LONG_S, wait_s=LONG_S, fence=lambda: 1 // 0)
    with pytest.raises(InvalidLease):
        provider.acquire("trips", owner="a", ttl_s=LONG_S, wait_s=LONG_S, fence=lambda: -1)
    assert provider.try_acquire("trips", owner="b", ttl_s=LONG_S) is not None


def test_refused_wishes_raise_no_fence(place: Place) -> None:
    provider = place.provider()
    lease = provider.acquire("trips", owner="a", ttl_s=LONG_S, wait_s=0, fence=1)
    assert provider.try_acquire("trips", owner="b", ttl_s=LONG_S, fence=99) is None
    lease.release()
    assert provider.try_acquire("trips", owner="c", ttl_s=LONG_S, fence=1) is not None


def test_renewal_keeps_the_lease(place: Place) -> None:
    provider, other = place.provider(), place.provider()
    if isinstance(place.clock, ManualClock):
        lease = provider.acquire("trips", owner="a", ttl_s=place.short_ttl_s, wait_s=0)
        for _ in range(5):
            place.clock.advance(place.short_ttl_s * 0.7)
            lease.renew()
            assert lease.remaining_s == pytest.approx(place.short_ttl_s)
            assert other.try_acquire("trips", owner="b", ttl_s=LONG_S) is None
        assert lease.release() is True
        return
    ttl_s = 4.5  # renewed after a third: on a busy machine a renewal may come seconds late
    lease = provider.acquire("trips", owner="a", ttl_s=ttl_s, wait_s=0)
    granted_s = place.clock.monotonic_s()
    with KeptLease(lease):
        while place.clock.monotonic_s() - granted_s < ttl_s + 0.1:
            assert other.try_acquire("trips", owner="b", ttl_s=LONG_S) is None
        assert not lease.lost
    assert not lease.lost
    assert other.try_acquire("trips", owner="b", ttl_s=LONG_S) is not None


def test_break_expired_ends_only_what_has_expired(place: Place) -> None:
    provider, other = place.provider(), place.provider()
    assert provider.break_expired("trips") is None
    lasting = provider.acquire("lasting", owner="a", ttl_s=LONG_S, wait_s=0)
    lease = provider.acquire("trips", owner="a", ttl_s=place.short_ttl_s, wait_s=0, fence=4)
    assert other.break_expired("lasting") is None
    place.let_expire(provider, "trips")
    assert other.break_expired("lasting") is None
    assert lasting.release() is True
    with ThreadPoolExecutor(4) as pool:
        broken = [state for state in pool.map(lambda _: other.break_expired("trips"), range(4)) if state is not None]
    assert [(state.owner, state.lease_id, state.token, state.expired) for state in broken] == [
        ("a", place.shown_id(lease), 4, True)
    ]
    assert provider.read("trips") is None
    assert lease.release() is False
    if place.remembers:
        with pytest.raises(StaleFence):
            provider.try_acquire("trips", owner="b", ttl_s=LONG_S, fence=3)


def test_list_shows_held_locks_by_prefix_in_order(place: Place) -> None:
    provider = place.provider()
    names = ["fleet/b", "fleet/a:1", "fleet/a@x", "fleet-2", "other"]
    leases = {name: provider.acquire(name, owner=name, ttl_s=LONG_S, wait_s=0) for name in names}
    provider.acquire("fleet/gone", owner="x", ttl_s=LONG_S, wait_s=0).release()
    assert [s.name for s in provider.list("fleet/")] == ["fleet/a:1", "fleet/a@x", "fleet/b"]
    assert [s.name for s in provider.list()] == sorted(names)
    assert [s.lease_id for s in provider.list("other")] == [place.shown_id(leases["other"])]
    # No pattern, only a prefix.
    assert provider.list("fleet?") == []
    assert provider.list("*") == []


@pytest.mark.parametrize("name", ["", ".", "..", "../x", "/x", "a b", "a{b}", "a*", "ä", "a\n", "x" * 201, "x" + "/" * 67])
def test_unsafe_names_are_refused(place: Place, name: str) -> None:
    provider = place.provider()
    for ask in (provider.read, provider.break_expired):
        with pytest.raises(InvalidLease):
            ask(name)
    with pytest.raises(InvalidLease):
        provider.try_acquire(name, owner="a", ttl_s=LONG_S)


@pytest.mark.parametrize(
    "wrong",
    [
        {"ttl_s": 0.0},
        {"ttl_s": float("nan")},
        {"ttl_s": float("inf")},
        {"wait_s": -1.0},
        {"owner": ""},
        {"fence": -1},
        {"fence": 2**53 + 1},
    ],
)
def test_senseless_wishes_are_refused(place: Place, wrong: dict[str, object]) -> None:
    wish = {"owner": "a", "ttl_s": LONG_S, "wait_s": 0.0, "fence": 0, **wrong}
    with pytest.raises(InvalidLease):
        place.provider().acquire("trips", **wish)  # type: ignore[arg-type]


def test_the_longest_name_and_the_greatest_fence_fit(place: Place) -> None:
    provider = place.provider()
    name = "x" + "/y" * 49
    lease = provider.acquire(name, owner="o" * 512, ttl_s=LONG_S, wait_s=0, fence=2**53)
    lease.renew()
    assert [(s.name, s.token) for s in provider.list()] == [(name, 2**53)]
    with pytest.raises(StaleFence):
        provider.try_acquire(name, owner="b", ttl_s=LONG_S, fence=2**53 - 1)
    assert lease.release() is True


def test_context_releases_also_after_an_error(place: Place) -> None:
    provider = place.provider()
    with pytest.raises(ZeroDivisionError), provider.acquire("trips", owner="a", ttl_s=LONG_S, wait_s=0) as lease:
        raise ZeroDivisionError
    assert lease.released
    assert lease.release() is True
    assert provider.read("trips") is None
    with pytest.raises(LeaseLost):
        lease.renew()


def test_repeated_wish_meets_its_own_grant(place: Place) -> None:
    """A retried conditional put reads as "taken" (field notes): the same wish, sent twice, is one lease."""
    ids = RandomSource(random.Random(1), lambda: "the-same-wish")
    provider = place.provider(randomness=ids)
    first = provider.try_acquire("trips", owner="a", ttl_s=LONG_S, fence=2)
    second = provider.try_acquire("trips", owner="a", ttl_s=LONG_S, fence=2)
    assert first is not None
    assert second is not None
    assert second.acquired == first.acquired
    assert second.release() is True
    # The retried release finds its own work too, where the place remembers it.
    assert first.release() is place.remembers


def test_expired_lock_goes_to_one_of_many(place: Place) -> None:
    provider = place.provider()
    provider.acquire("trips", owner="dead", ttl_s=place.short_ttl_s, wait_s=0)
    place.let_expire(provider, "trips")
    barrier = threading.Barrier(8)

    def attempt(number: int) -> Lease | None:
        mine = place.provider()
        barrier.wait()
        return mine.try_acquire("trips", owner=f"t{number}", ttl_s=LONG_S)

    with ThreadPoolExecutor(8) as pool:
        assert len([lease for lease in pool.map(attempt, range(8)) if lease is not None]) == 1


ROUNDS = {"in_process": 100, "storage_memory": 25, "hudi_storage": 25, "redis": 50, "hudi_metastore": 4}
"""How often each of eight threads takes the lock, 8 times elsewhere."""


def test_threads_exclude_each_other(real_time_place: Place) -> None:
    rounds = ROUNDS.get(real_time_place.kind, 8)
    inside = 0
    most_inside = 0
    count = 0
    fences = [0]

    def work(number: int) -> None:
        nonlocal inside, most_inside, count
        provider = real_time_place.provider()
        for _ in range(rounds):
            while True:
                try:
                    lease = provider.acquire("trips", owner=f"t{number}", ttl_s=LONG_S, wait_s=LONG_S, fence=fences[-1])
                    break
                except StaleFence:
                    continue
            inside += 1
            most_inside = max(most_inside, inside)
            seen = count
            real_time_place.clock.sleep(0.0005)
            count = seen + 1
            fences.append(count)
            inside -= 1
            assert lease.release() is True

    with ThreadPoolExecutor(8) as pool:
        for done in [pool.submit(work, number) for number in range(8)]:
            done.result()
    assert most_inside == 1
    assert count == 8 * rounds
    assert real_time_place.provider().read("trips") is None


def test_processes_exclude_each_other(
    process_place: Place, contender: Callable[[str, int, str], Contender], tmp_path: Path
) -> None:
    assert process_place.url is not None
    (tmp_path / "counter").write_text("0")
    rounds = 25 if process_place.kind == "redis" else 8
    contenders = [contender(process_place.url, rounds, f"p{number}") for number in range(4)]
    for one in contenders:
        one.hear("ready")
    for one in contenders:
        one.go()
    assert [one.exit_code() for one in contenders] == [0, 0, 0, 0]
    assert int((tmp_path / "counter").read_text()) == 4 * rounds


def test_lock_of_a_killed_process_is_taken_over(process_place: Place, contender: Callable[[str, int, str], Contender]) -> None:
    assert process_place.url is not None
    victim = contender(process_place.url, 0, "victim")
    victim.hear("ready")
    victim.go()
    victim.hear("held")
    victim.kill()
    provider = process_place.provider()
    lease = provider.acquire("contended", owner="heir", ttl_s=LONG_S, wait_s=LONG_S)
    assert lease.release() is True


def test_kept_lease_learns_that_it_was_broken(real_time_place: Place) -> None:
    provider = real_time_place.provider()
    lease = provider.acquire("trips", owner="a", ttl_s=0.6, wait_s=0)
    # Another process with rights on the place ends it by force: the next renewal tells the holder, within a third of the ttl.
    assert _store(provider).release_grant(Grant("trips", "a", lease.lease_id, 0, 0.6, lease.acquired, 0.0))
    with KeptLease(lease) as kept:
        wait_until(lambda: isinstance(kept.last_error, LeaseLost))
        assert lease.lost
    wait_until(lambda: lease.released)


def _store(provider: LockProvider) -> LeaseStore:
    assert hasattr(provider, "release_grant")
    return provider  # type: ignore[return-value]
