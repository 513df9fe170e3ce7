from hypothesis import given
from hypothesis import strategies as st

from tideline_runtime.shards import StaticShards, fair_part, holds, moves, shard_of

COUNTS = st.integers(1, 40)


@st.composite
def fleets(draw):
    """Members in the order in which they joined, and holders of some shards: members, and one that is no member."""
    count = draw(COUNTS)
    members = [f"m{n}" for n in range(draw(st.integers(1, min(count, 8))))]
    holders = {}
    for shard in range(count):
        holder = draw(st.sampled_from([*members, "gone", None]))
        if holder is not None:
            holders[shard] = holder
    return count, members, holders


def after_round(count, members, holders):
    """Each member in turn gives back and takes, by what is held at that time."""
    held = dict(holders)
    for me in members:
        change = moves(me, members, held, [shard for shard, holder in held.items() if holder == me], count)
        for shard in change.give:
            assert held.pop(shard) == me
        for shard in change.take[: change.wanted]:
            assert shard not in held
            held[shard] = me
    return held


def parts_of(members, held):
    return [sum(holder == member for holder in held.values()) for member in members]


@given(COUNTS, st.integers(1, 40))
def test_parts_are_fair_and_cover_every_shard(count, members):
    parts = [fair_part(rank, members, count) for rank in range(members)]
    assert sum(parts) == count
    assert max(parts) - min(parts) <= 1


@given(fleets())
def test_two_rounds_after_the_last_change_every_shard_has_its_holder(fleet):
    count, members, holders = fleet
    living = {shard: holder for shard, holder in holders.items() if holder != "gone"}
    held = after_round(count, members, after_round(count, members, living))
    assert parts_of(members, held) == [fair_part(rank, len(members), count) for rank in range(len(members))]
    assert after_round(count, members, held) == held


@given(fleets())
def test_live_leases_of_others_are_never_taken(fleet):
    count, members, holders = fleet
    held = after_round(count, members, holders)
    assert all(held[shard] == "gone" for shard, holder in holders.items() if holder == "gone")


@given(COUNTS, st.integers(1, 8))
def test_a_member_that_joins_takes_its_part_and_nothing_else_moves(count, members):
    names = [f"m{n}" for n in range(members)]
    before = after_round(count, names, {})
    joined = [*names, "new"]
    held = after_round(count, joined, after_round(count, joined, before))
    assert {shard: holder for shard, holder in held.items() if holder != "new"}.items() <= before.items()


@given(COUNTS, st.integers(2, 8), st.data())
def test_after_a_member_left_the_others_keep_what_they_hold(count, members, data):
    names = [f"m{n}" for n in range(members)]
    before = after_round(count, names, {})
    left = data.draw(st.sampled_from(names))
    rest = [name for name in names if name != left]
    remaining = {shard: holder for shard, holder in before.items() if holder != left}
    assert remaining.items() <= after_round(count, rest, remaining).items()


def test_an_instance_without_a_place_gives_everything_back():
    change = moves("me", ["a", "b"], {0: "me", 1: "a"}, [0], 3)
    assert (change.give, change.take, change.wanted) == ((0,), (), 0)


def test_a_static_shard_holds_its_tables_and_stays():
    shards = StaticShards(1, 3)
    names = [f"file:/data/t{n}" for n in range(30)]
    assert [name for name in names if holds(shards, name)] == [name for name in names if shard_of(name, 3) == 1]
    assert (shards.held(), shards.give_up(1, "fenced"), shards.held()) == ((1,), False, (1,))
