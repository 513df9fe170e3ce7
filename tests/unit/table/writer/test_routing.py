import numpy as np
import pytest
from tests.unit.table.tables import instant

from tideline_table.config import Options
from tideline_table.file_group.slice import FileGroupId, FileSlice
from tideline_table.index.simple import Location
from tideline_table.writer.input import FilePlacement, route_input
from tideline_table.writer.task import Operation

NOW = instant(9)


def slice_of(name, size=1000, rows=10, partition="p"):
    return FileSlice(FileGroupId(partition, name), instant(1), f"{name}_0-0-0_{instant(1)}.parquet", size, rows)


def route(operation, rows, slices=(), found=None, *, placement=None, closed=()):
    """Tasks as (file id of the base or None, positions)."""
    placement = placement or FilePlacement(2000, 1500, 100.0)
    locations = {}
    if found is not None:
        hits = [(s, np.flatnonzero(np.array(found) == n)) for n, s in enumerate(slices)]
        held, positions = [s for s, p in hits if len(p)], [p for _, p in hits if len(p)]
        locations = {"p": Location(tuple(held), tuple(positions), rows)}
    tasks = route_input(NOW, operation, {"p": np.arange(rows)}, locations, {"p": list(slices)}, placement, frozenset(closed))
    assert [t.task.number for t in tasks] == list(range(len(tasks)))
    assert len({t.task.file_id for t in tasks}) == len(tasks)
    return [(t.task.base.group.file_id if t.task.base else None, t.positions.tolist()) for t in tasks]


def test_updates_go_where_their_keys_are_and_inserts_fill_small_files():
    slices = [slice_of("a"), slice_of("b", 1600)]
    assert route(Operation.UPSERT, 5, slices, [1, -1, 0, -1, 0]) == [("a", [2, 4, 1, 3]), ("b", [0])]


def test_the_smallest_file_is_filled_first_up_to_the_target_size():
    slices = [slice_of("a", 1400), slice_of("b", 1200)]
    assert route(Operation.INSERT, 16, slices) == [("b", list(range(8))), ("a", list(range(8, 14))), (None, [14, 15])]


def test_inserts_beyond_make_files_of_full_size():
    tasks = route(Operation.INSERT, 45)
    assert [len(positions) for _, positions in tasks] == [20, 20, 5]
    assert sorted(p for _, positions in tasks for p in positions) == list(range(45))


def test_small_file_limit_zero_fills_nothing():
    assert route(Operation.INSERT, 2, [slice_of("a")], placement=FilePlacement(2000, 0, 100.0)) == [(None, [0, 1])]


def test_groups_under_clustering_take_updates_but_no_inserts():
    slices = [slice_of("a"), slice_of("b")]
    assert route(Operation.UPSERT, 3, slices, [0, -1, -1], closed={FileGroupId("p", "a")}) == [("a", [0]), ("b", [1, 2])]


def test_bulk_insert_always_makes_new_groups():
    assert route(Operation.BULK_INSERT, 3, [slice_of("a")]) == [(None, [0, 1, 2])]


def test_deletes_of_absent_keys_vanish():
    assert route(Operation.DELETE, 3, [slice_of("a")], [-1, 0, -1]) == [("a", [1])]
    assert route(Operation.DELETE, 2, [slice_of("a")], [-1, -1]) == []


def test_a_key_that_stands_in_two_files_goes_to_both():
    slices = [slice_of("a"), slice_of("b")]
    location = Location(tuple(slices), (np.array([0, 1]), np.array([1])), 3)
    for operation, inserts in ((Operation.UPSERT, [(0, 2)]), (Operation.DELETE, [])):
        tasks = route_input(NOW, operation, {"p": np.arange(3)}, {"p": location}, {"p": slices}, FilePlacement(2000, 0, 100.0))
        assert [t.positions.tolist() for t in tasks] == [[0, 1], [1], *([2] for _ in inserts)]


def test_every_row_goes_somewhere_once():
    choose = np.random.default_rng(7)
    for _ in range(100):
        slices = [slice_of(f"s{n}", int(choose.integers(100, 2500))) for n in range(choose.integers(0, 5))]
        rows = int(choose.integers(0, 60))
        found = choose.integers(-1, len(slices), rows) if slices else np.full(rows, -1)
        tasks = route(Operation.UPSERT, rows, slices, found)
        assert sorted(p for _, positions in tasks for p in positions) == list(range(rows))
        at = {p: name for name, positions in tasks for p in positions}
        for row, group in enumerate(found):
            if group >= 0:
                assert at[row] == slices[group].group.file_id
        for name, positions in tasks:
            inserted = sum(found[p] < 0 for p in positions)
            if name is not None and inserted:
                size = next(s.size_bytes for s in slices if s.group.file_id == name)
                assert size < 1500
                assert size + inserted * 100 <= 2000


def test_partitions_are_apart():
    tasks = route_input(
        NOW,
        Operation.INSERT,
        {"q": np.array([1]), "p": np.array([0, 2])},
        {},
        {"p": [slice_of("a")], "q": []},
        FilePlacement(2000, 1500, 100.0),
    )
    assert [(t.task.partition_path, t.positions.tolist()) for t in tasks] == [("p", [0, 2]), ("q", [1])]


@pytest.mark.parametrize(
    ("slices", "row_bytes"),
    [
        ([], 256.0),
        ([slice_of("a", 1000, 10)], 100.0),
        ([slice_of("a", 1000, 10), slice_of("b", 500, 0), slice_of("c", 1, -1)], 100.0),
    ],
)
def test_row_size_from_what_is_there(slices, row_bytes):
    assert FilePlacement.of(Options(), slices).row_bytes == row_bytes
