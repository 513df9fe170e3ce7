"""What `advise` says follows from the data: skew, sizes, key ranges and the newest writes."""

from __future__ import annotations

import pyarrow as pa
import pytest
from tests.unit.table.tables import QUIET

from tideline_table.action import write_rows
from tideline_table.clock import ManualClock
from tideline_table.storage import MemoryStorage
from tideline_table.table import BucketIndex, Table, TableRequest, advise, create_table
from tideline_table.table.advice import HashFields, WritePattern, choose, proposed_number, spread_of
from tideline_table.writer import Operation

NO_WRITES = WritePattern(0, 0, 0, 0.0)
EVEN = (HashFields(("id",), 1000, 0.001, 1.1),)


def written(key: tuple[str, ...], buckets: int | None, *parts: pa.Table, **options: object) -> Table:
    clock = ManualClock()
    storage = MemoryStorage(clock=clock)
    index = BucketIndex(buckets) if buckets else None
    create_table(storage.root, TableRequest("t", parts[0].schema, key, (), "", index=index), clock, storage)
    writer = Table.open(storage.root, options={**QUIET, "tideline.write.schema.evolution": "evolve"}, clock=clock, storage=storage)
    for part in parts:
        write_rows(writer, part, Operation.UPSERT)
    return Table.open(storage.root, options=options, clock=clock, storage=storage)


def test_the_number_of_buckets_fills_files_and_can_be_doubled() -> None:
    assert [proposed_number(n, 100) for n in (0, 1, 80, 81, 161, 640, 641)] == [1, 1, 1, 2, 4, 8, 16]


def test_a_hot_value_shows_as_skew_and_the_even_field_comes_first() -> None:
    keys = pa.array([f"user:{'hot' if n % 2 else n},page:{n}" for n in range(1000)])
    found = {f.fields: f for f in spread_of(keys, ("user", "page"), 8)}
    assert found["user",].largest_share == 0.5
    assert found["user",].distinct == 501
    assert found["user",].skew > 4
    assert found["page",].skew < 1.5
    assert spread_of(keys, ("user", "page"), 8)[-1].fields == ("user",)
    assert spread_of(keys.slice(0, 0), ("user", "page"), 8) == ()


@pytest.mark.parametrize(
    ("writes", "overlap", "number", "spread", "expected"),
    [
        (WritePattern(9, 1000, 1, 0.1), 1.0, 8, EVEN, "SIMPLE"),
        (WritePattern(9, 10, 500, 0.9), 0.1, 8, EVEN, "BLOOM"),
        (WritePattern(9, 10, 500, 0.9), 1.0, 8, EVEN, "BUCKET"),
        (WritePattern(9, 10, 500, 0.9), 1.0, 1, EVEN, "SIMPLE"),
        (WritePattern(9, 10, 500, 0.9), 1.0, 8, (HashFields(("id",), 3, 0.9, 7.0),), "SIMPLE"),
        (NO_WRITES, 1.0, 8, EVEN, "BUCKET"),
    ],
)
def test_the_index_follows_from_writes_and_key_ranges(
    writes: WritePattern, overlap: float, number: int, spread: tuple[HashFields, ...], expected: str
) -> None:
    kind, reasons = choose(writes, overlap, number, 1000, spread)
    assert kind == expected
    assert reasons


def test_random_updates_get_buckets_and_ordered_keys_do_not() -> None:
    ordered = [pa.table({"id": [f"k{n:05}" for n in range(at, at + 500)], "v": range(at, at + 500)}) for at in range(0, 2000, 500)]
    small = {"hoodie.parquet.max.file.size": 4000}
    found = advise(written(("id",), None, *ordered, ordered[0], ordered[1], **small))
    assert (found.index, found.rows_per_bucket_skew, found.proposed_index) == ("", None, "BLOOM")
    assert found.key_range_overlap == 0.0
    assert found.writes.updated == 1000
    assert found.keys_sampled == 2000
    whole = pa.concat_tables(ordered)
    mixed = [whole.take(list(range(at, 2000, 4))) for at in range(4)]
    found = advise(written(("id",), None, *mixed, *mixed, **small))
    assert found.proposed_index == "BUCKET"
    assert found.proposed_buckets > 1
    assert found.key_range_overlap > 0.9
    assert [c.name for c in found.sort_columns] == ["id", "v"]
    assert found.sort_columns[1].files_read_share > 0.9


def test_a_table_with_a_bucket_index_shows_its_own_skew() -> None:
    even = pa.table({"id": [f"k{n}" for n in range(400)], "v": range(400)})
    found = advise(written(("id",), 4, even))
    assert found.index == "4 bucket(s) by id"
    assert found.rows_per_bucket_skew is not None
    assert 1.0 <= found.rows_per_bucket_skew < 1.5
    index = written(("id",), 4, even).definition.buckets
    assert index is not None
    one = even.filter(pa.array(index.buckets(even["id"]) == 2))
    found = advise(written(("id",), 4, one))
    assert found.rows_per_bucket_skew == 4.0
    assert any("4.0 times the mean" in reason for reason in found.reasons)


def test_an_empty_table_has_an_advice_too() -> None:
    empty = pa.table({"id": pa.array([], pa.string()), "v": pa.array([], pa.int64())})
    found = advise(written(("id",), None, empty))
    assert (found.file_groups, found.keys_sampled, found.proposed_buckets) == (0, 0, 1)


def test_files_from_before_a_number_became_a_text_are_no_error() -> None:
    numbers = pa.table({"id": [f"a{n}" for n in range(20)], "v": range(20), "w": range(20)})
    texts = pa.table({"id": [f"b{n}" for n in range(20)], "v": [str(n) for n in range(20)], "w": range(10, 30)})
    assert [c.name for c in advise(written(("id",), None, numbers, texts)).sort_columns] == ["w", "id"]
