from datetime import UTC, datetime, timedelta

import pytest

from tideline_lock_service.watch import Change, Kind, SeenLease, changes, seen
from tideline_locks import LeaseState

START = datetime(2026, 1, 1, tzinfo=UTC)


def at(seconds):
    return START + timedelta(seconds=seconds)


def lease(lease_id="1", owner="ann", acquired=0.0, expires=30.0, token=4):
    return LeaseState("table:t", owner, lease_id, token, at(acquired), at(expires), expired=False)


def looked(found, *, remaining_s=25.0, longest_s=28.0):
    return SeenLease(found, remaining_s, longest_s)


@pytest.mark.parametrize(
    ("before", "now", "steps"),
    [
        (None, None, []),
        (None, lease(), [(Kind.ACQUIRED, "ann", None)]),
        (looked(lease()), None, [(Kind.RELEASED, "ann", None)]),
        (looked(lease()), lease(), []),
        (looked(lease()), lease(expires=40), []),
        (looked(lease(), remaining_s=13), lease(expires=50), [(Kind.RENEWED_AFTER_PAUSE, "ann", None)]),
        (looked(lease(), remaining_s=13), lease(), []),
        (looked(lease(), remaining_s=14), lease(expires=50), []),
        # Bob got it before ann's lease could end: ann gave it back.
        (
            looked(lease()),
            lease("2", "bob", acquired=20, expires=50),
            [(Kind.RELEASED, "ann", None), (Kind.ACQUIRED, "bob", None)],
        ),
        (looked(lease()), lease("2", "bob", acquired=33, expires=63), [(Kind.TAKEN_OVER, "bob", "ann")]),
        (looked(lease()), lease("2", "ann", acquired=33, expires=63), [(Kind.TAKEN_OVER, "ann", "ann")]),
    ],
)
def test_steps_between_two_looks(before, now, steps):
    found = changes(before, now)
    assert [(c.kind, c.owner, c.previous_owner) for c in found] == steps


def test_a_change_has_the_token_of_its_lease():
    assert changes(None, lease(token=9)) == [Change(Kind.ACQUIRED, "ann", 9)]
    assert changes(looked(lease(token=4)), None) == [Change(Kind.RELEASED, "ann", 4)]


def test_the_longest_remaining_time_stands_for_the_ttl_of_one_lease_only():
    first = seen(lease(), at(2), None)
    assert (first.remaining_s, first.longest_s, first.is_late) == (28, 28, False)
    second = seen(lease(), at(17), first)
    assert (second.remaining_s, second.longest_s, second.is_late) == (13, 28, True)
    third = seen(lease("2", "bob", acquired=18, expires=28), at(18), second)
    assert (third.remaining_s, third.longest_s) == (10, 10)
