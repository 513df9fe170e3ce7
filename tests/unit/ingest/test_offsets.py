import pytest

from tideline_ingest.errors import OffsetsLost
from tideline_ingest.offsets import Kept, Offsets, starting_points
from tideline_table.errors import CorruptMetadata

A0, A1, B0 = ("a", 0), ("a", 1), ("b", 0)


def test_offsets_as_text():
    offsets = Offsets({B0: 3, ("a", 10): 2, A1: 1})
    assert offsets.to_text() == '{"a":{"1":1,"10":2},"b":{"0":3}}'
    assert Offsets.from_text(offsets.to_text()) == offsets
    named = Offsets({A1: 1}, {"a": "xyz"})
    assert named.to_text() == '{"a":{"1":1,"id":"xyz"}}'
    assert Offsets.from_text(named.to_text()) == named
    assert named.moved({A1: 2}, {"b": "uvw"}) == Offsets({A1: 2}, {"a": "xyz", "b": "uvw"})
    assert offsets.moved({A1: 5, A0: 1}).next == {B0: 3, ("a", 10): 2, A1: 5, A0: 1}


@pytest.mark.parametrize("text", ["", "[]", "3", '{"a": 3}', '{"a": {"x": 1}}', '{"a": {"0": null}}', '{"a":' * 100_000])
def test_what_is_no_offsets_is_refused(text):
    with pytest.raises(CorruptMetadata):
        Offsets.from_text(text)


KEPT = {A0: Kept(5, 9), A1: Kept(0, 4)}


@pytest.mark.parametrize(
    ("committed", "at_end", "points"),
    [
        (None, False, {A0: 5, A1: 0}),
        (None, True, {A0: 9, A1: 4}),
        (Offsets(), True, {A0: 5, A1: 0}),
        (Offsets({A0: 7, A1: 4}), False, {A0: 7, A1: 4}),
        (Offsets({A0: 5}), True, {A0: 5, A1: 0}),
        (Offsets({A0: 9, A1: 4, B0: 77}), False, {A0: 9, A1: 4}),
    ],
)
def test_where_to_go_on(committed, at_end, points):
    assert starting_points(committed, KEPT, {}, at_end=at_end, over_gaps=False) == (points, [])


@pytest.mark.parametrize(
    ("committed", "named", "points"),
    [
        ({A0: 4, A1: 2}, ("a", 0, 4), {A0: 5, A1: 2}),
        ({A0: 5, A1: 5}, ("a", 1, 5), {A0: 5, A1: 0}),
        ({A0: 5, ("a", 2): 8}, ("a", 2, 8), {A0: 5, A1: 0}),
    ],
)
def test_lost_records_are_named_or_passed_on_request(committed, named, points):
    with pytest.raises(OffsetsLost, match="load the missing records") as refused:
        starting_points(Offsets(committed), KEPT, {}, at_end=False, over_gaps=False)
    assert (refused.value.topic, refused.value.partition, refused.value.committed) == named
    found, lost = starting_points(Offsets(committed), KEPT, {}, at_end=False, over_gaps=True)
    assert found == points
    assert len(lost) == 1


def test_a_topic_that_was_made_anew_is_noticed_although_its_offsets_would_do():
    committed = Offsets({A0: 7, A1: 2}, {"a": "old"})
    with pytest.raises(OffsetsLost, match="created again"):
        starting_points(committed, KEPT, {"a": "new"}, at_end=False, over_gaps=False)
    found, lost = starting_points(committed, KEPT, {"a": "new"}, at_end=False, over_gaps=True)
    assert found == {A0: 5, A1: 0}
    assert len(lost) == 2
    for ids in ({"a": "old"}, {}):
        assert starting_points(committed, KEPT, ids, at_end=False, over_gaps=False) == ({A0: 7, A1: 2}, [])


def test_of_a_topic_that_was_made_anew_no_offset_is_left():
    """It has one partition now.

    When it gets its second one, the records in that are new, whatever its offset was in the old topic.
    """
    committed = Offsets({A0: 5, A1: 7, B0: 3}, {"a": "old", "b": "same"})
    ids = {"a": "new", "b": "same"}
    points, lost = starting_points(committed, {A0: Kept(0, 3), B0: Kept(0, 3)}, ids, at_end=False, over_gaps=True)
    assert [(gap.topic, gap.partition) for gap in lost] == [("a", 1), ("a", 0)]
    moved = Offsets.from_text(committed.moved(points, ids).to_text())
    assert moved == Offsets({A0: 0, B0: 3}, ids)
    grown = {A0: Kept(0, 9), A1: Kept(0, 20), B0: Kept(0, 3)}
    assert starting_points(moved, grown, ids, at_end=False, over_gaps=False) == ({A0: 0, A1: 0, B0: 3}, [])
    assert committed.moved({A0: 6}) == Offsets({A0: 6, A1: 7, B0: 3}, committed.topic_ids)
