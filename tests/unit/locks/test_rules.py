from __future__ import annotations

import dataclasses
from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from tideline_locks.port import Held, LeaseRequest
from tideline_locks.rules import LeaseRecord, Stale, Standing, decide_acquire, decide_break, decide_release, decide_renew

NOW = datetime(2026, 1, 1, tzinfo=UTC)
TTL_S = 10.0


def wish(lease_id: str, fence: int = 0) -> LeaseRequest:
    return LeaseRequest("trips", f"owner of {lease_id}", lease_id, TTL_S, fence)


def held(lease_id: str = "a", fence: int = 0) -> LeaseRecord:
    record = decide_acquire(None, wish(lease_id, fence), now=NOW, expired=False)
    assert isinstance(record, LeaseRecord)
    return record


def test_free_lock_is_granted_for_the_ttl() -> None:
    record = held("a", 5)
    assert (record.standing, record.lease_id, record.fence, record.acquired) == (Standing.HELD, "a", 5, NOW)
    assert record.expires == NOW + timedelta(seconds=TTL_S)


def test_held_lock_names_its_holder_and_stale_wins_over_held() -> None:
    assert decide_acquire(held("a", 5), wish("b", 5), now=NOW, expired=False) == Held("owner of a", NOW)
    assert decide_acquire(held("a", 5), wish("b", 4), now=NOW, expired=False) == Stale(5)
    assert decide_acquire(held("a", 5), wish("b", 4), now=NOW, expired=True) == Stale(5)


def test_end_of_a_lease_is_not_part_of_it() -> None:
    record = held()
    assert not record.expired(record.expires - timedelta(microseconds=1))
    assert record.expired(record.expires)
    assert not record.expired(record.expires, grace_s=1)
    assert decide_renew(record, "a", now=record.expires) is None


def test_release_past_the_end_is_no_release_in_time() -> None:
    record = held()
    late = decide_release(record, "a", now=record.expires)
    assert late is not None
    assert late.standing is Standing.BROKEN
    assert decide_release(late, "a", now=record.expires) is None


def test_break_needs_expiry() -> None:
    assert decide_break(held(), expired=False) is None
    assert decide_break(None, expired=True) is None
    broken = decide_break(held(), expired=True)
    assert broken is not None
    assert broken == dataclasses.replace(held(), standing=Standing.BROKEN)
    assert decide_break(broken, expired=True) is None


steps = st.lists(
    st.tuples(st.sampled_from(["acquire", "renew", "release", "break", "pass"]), st.sampled_from("abc"), st.integers(0, 4)),
    max_size=40,
)


@given(steps)
def test_no_two_leases_live_at_once_and_fences_never_fall(script: list[tuple[str, str, int]]) -> None:
    """Against a model: who holds until when, by what each actor was told."""
    now, record = NOW, None
    told_until: dict[str, datetime] = {}
    greatest = 0
    for serial, (step, actor, number) in enumerate(script):
        lease_id = next((i for i in reversed(told_until) if i.startswith(actor)), actor)
        expired = record is not None and record.expired(now)
        if step == "acquire":
            mine = f"{actor}{serial}"
            outcome = decide_acquire(record, wish(mine, number), now=now, expired=expired)
            live = [i for i, until in told_until.items() if until > now]
            if isinstance(outcome, LeaseRecord):
                assert live == []
                assert number >= greatest
                greatest, record, told_until[mine] = number, outcome, outcome.expires
            elif isinstance(outcome, Stale):
                assert number < greatest == outcome.greatest
            else:
                assert len(live) == 1
        elif step == "renew" and (renewed := decide_renew(record, lease_id, now=now)) is not None:
            assert told_until[lease_id] > now
            record, told_until[lease_id] = renewed, renewed.expires
        elif step == "release" and (released := decide_release(record, lease_id, now=now)) is not None:
            record, told_until[lease_id] = released, now
        elif step == "break" and (broken := decide_break(record, expired=expired)) is not None:
            assert all(until <= now for until in told_until.values())
            record = broken
        elif step == "pass":
            now += timedelta(seconds=number * 3)
