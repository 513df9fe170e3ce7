"""The order of rows in clustering: curves over columns of any type, and sorting of groups larger than memory."""

import itertools
from datetime import UTC, date, datetime
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from tests.simulation.faults import covering

from tideline_table.action.clustering import external_sort
from tideline_table.action.clustering.curve import CurveOrder, hilbert_positions, passed_bounds, z_order_positions
from tideline_table.action.clustering.execution_strategy import OrderedBy
from tideline_table.action.clustering.external_sort import Sample, pieces, sort_externally, sort_rows
from tideline_table.errors import InvalidOption

MIB = 1024 * 1024


def grid(columns, bits):
    points = np.array(list(itertools.product(range(1 << bits), repeat=columns)), dtype=np.uint64)
    return points, [points[:, n] for n in range(columns)]


@pytest.mark.parametrize(("columns", "bits"), [(1, 4), (2, 1), (2, 4), (3, 3), (4, 2), (5, 1)])
def test_neighbours_on_the_hilbert_curve_are_neighbours_in_space(columns, bits):
    points, axes = grid(columns, bits)
    positions = hilbert_positions(axes, bits)
    assert sorted(positions.tolist()) == list(range(len(points)))
    walked = points[np.argsort(positions)].astype(np.int64)
    assert (np.abs(np.diff(walked, axis=0)).sum(axis=1) == 1).all()


@pytest.mark.parametrize(("columns", "bits"), [(1, 4), (2, 3), (3, 2)])
def test_positions_on_the_z_order_curve_interleave_bits(columns, bits):
    points, axes = grid(columns, bits)

    def interleaved(point):
        return int("".join(f"{int(value):0{bits}b}"[bit] for bit in range(bits) for value in point), 2)

    assert z_order_positions(axes, bits).tolist() == [interleaved(point) for point in points]


VALUES = {
    "text": pa.array(["b", "", None, "a", "é", "a" * 90, "ab", "b"]),
    "binary": pa.array([b"b", b"", None, b"a", b"\xff", b"\x00", b"ab", b"b"]),
    "long": pa.array([3, -(2**63), None, 2**63 - 1, 0, -1, 1, 3]),
    "double": pa.array([1.5, float("nan"), None, float("-inf"), -0.0, 0.0, float("inf"), 1e-300]),
    "decimal": pa.array([Decimal("1.10"), Decimal("-99.99"), None, Decimal("1.11"), *[Decimal(n) for n in range(4)]]),
    "timestamp": pa.array([datetime(2026, 1, d, tzinfo=UTC) if d else None for d in (3, 1, 0, 9, 9, 2, 5, 4)]),
    "date": pa.array([date(2026, m, 1) if m else None for m in (3, 1, 0, 9, 9, 2, 5, 4)]),
    "boolean": pa.array([True, False, None, True, False, False, None, True]),
    "nothing": pa.array([None] * 8, pa.string()),
}


@pytest.mark.parametrize("kind", VALUES)
@pytest.mark.parametrize("layout", ["z-order", "hilbert"])
def test_along_one_column_a_curve_is_its_order(kind, layout):
    rows = pa.table({"v": pa.concat_arrays([VALUES[kind]] * 3), "n": range(24)})
    order = OrderedBy(columns=("v",), layout=layout).row_order(rows)
    assert order is not None
    expected = rows.take(pc.sort_indices(rows, [("v", "ascending")]))
    assert repr(sort_rows(rows, order).column("v").to_pylist()) == repr(expected.column("v").to_pylist())


def test_passed_bounds_count_equal_values():
    column = pa.chunked_array([[5, 1, None], [3, 4]])
    assert passed_bounds(column, pa.array([1, 4])).tolist() == [2, 1, 2, 1, 2]


def test_buckets_hold_equal_shares_of_a_skewed_column():
    skewed = pa.table({"v": np.exp(np.linspace(0, 40, 4096)), "w": np.arange(4096)})
    order = CurveOrder.of(skewed, z_order_positions)
    buckets = passed_bounds(skewed.column("v"), order.bounds["v"])
    assert (np.diff(np.sort(buckets)) <= 1).all()


def test_names_of_apache_hudi_and_unknown_ones():
    rows = pa.table({"v": [2, 1]})
    hudi = OrderedBy("org.apache.hudi.client.clustering.run.strategy.SparkSortAndSizeExecutionStrategy", ("v",), "ZORDER")
    assert sort_rows(rows, hudi.row_order(rows)).column("v").to_pylist() == [1, 2]
    with pytest.raises(InvalidOption, match=r"nope.*sort-and-size"):
        OrderedBy("nope", ("v",)).row_order(rows)
    with pytest.raises(InvalidOption, match="this release does not have"):
        OrderedBy("SparkConsistentBucketClusteringExecutionStrategy", ("v",)).row_order(rows)


def mixed_rows(count):
    random = np.random.default_rng(7)
    doubles = random.normal(size=count)
    doubles[random.random(count) < 0.05] = np.nan
    doubles[random.random(count) < 0.05] = -0.0
    texts = pa.array([None if x < 0.1 else "hot" if x < 0.6 else f"t{int(x * 1e6)}" for x in random.random(count)])
    return pa.table({"s": texts, "d": pa.array(doubles), "n": np.arange(count), "pad": pa.array(["x" * 40] * count)})


@pytest.mark.parametrize(("layout", "columns"), covering(1, ["linear", "z-order", "hilbert"], [("s",), ("s", "d"), ("d", "s")]))
def test_files_hold_the_same_order_as_memory(tmp_path, layout, columns):
    rows = mixed_rows(6_000)
    order = OrderedBy(columns=columns, layout=layout).row_order(rows.select(list(columns)))
    sample = Sample(1000)
    sample.add(rows.select(list(columns)))
    chosen = sample.table(rows.schema)
    assert (chosen.num_rows, sample.rows) == (1000, 6_000)
    # So small that the part of a frequent value does not fit, and that parts are partitioned again.
    limit = rows.nbytes // 12
    found = list(sort_externally(lambda: rows.to_batches(max_chunksize=200), order, chosen, tmp_path, limit))
    assert max(piece.nbytes for piece in found) <= limit
    together = pa.concat_tables(found)
    keys = order(together)
    assert pc.sort_indices(keys, [(n, "ascending") for n in keys.column_names]).to_pylist() == list(range(6_000))
    assert sorted(together.column("n").to_pylist()) == list(range(6_000))
    assert together.sort_by("n").drop_columns(["d"]).equals(rows.drop_columns(["d"]))
    assert not [p for p in tmp_path.rglob("*") if p.is_file()]


def test_parts_are_partitioned_again(tmp_path, monkeypatch):
    monkeypatch.setattr(external_sort, "_MOST_BOUNDS", 2)
    rows = mixed_rows(20_000)
    order = OrderedBy(columns=("n",)).row_order(rows)
    found = sort_externally(rows.to_batches, order, rows.slice(0, 100), tmp_path, rows.nbytes // 20)
    assert pa.concat_tables(found).column("n").to_pylist() == list(range(20_000))


def test_pieces_hold_all_rows():
    rows = mixed_rows(1000)
    found = list(pieces(rows.to_batches(max_chunksize=10), rows.nbytes // 7))
    assert 5 <= len(found) <= 8
    assert pa.concat_tables(found).num_rows == 1000
