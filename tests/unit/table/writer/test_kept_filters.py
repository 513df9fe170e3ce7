"""A rewrite that leaves the record keys of a file as they are copies its Bloom filter; any other one fills a filter anew."""

from __future__ import annotations

import base64
import random
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.simulation.faults import covering
from tests.unit.table.tables import Row, compact, new_table, open_table, write

from tideline_table.bloom import BloomFilter, KeyBytes
from tideline_table.config import Options
from tideline_table.reader.base_file import read_filter_text
from tideline_table.reader.key_footer import BLOOM_FILTER, BLOOM_TYPE
from tideline_table.schema.meta_fields import MetaField
from tideline_table.table import Table, TableType
from tideline_table.writer import Operation, base_file
from tideline_table.writer.base_file import key_pairs

ROWS: Sequence[Row] = [(f"k{number:03d}", "p", 5, "x") for number in range(200)]


@pytest.fixture
def filled(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many keys each filter of a base file got that was filled since; those of log files, for their indexes, are small."""
    counts: list[int] = []
    fill = BloomFilter.with_keys

    def counted(self: BloomFilter, keys: KeyBytes) -> BloomFilter:
        if keys.count > 100:
            counts.append(keys.count)
        return fill(self, keys)

    monkeypatch.setattr(BloomFilter, "with_keys", counted)
    return counts


def made(kind: TableType, **options: object) -> Table:
    _, storage, clock = new_table(type=kind)
    table = open_table(storage, clock, **options)
    write(table, ROWS)
    return table


def change(table: Table, rows: Sequence[Row], operation: Operation = Operation.UPSERT) -> None:
    """Write, and on a merge-on-read table compact, so that the rows are in base files."""
    write(table, rows, operation)
    if table.definition.has_logs:
        compact(table)


def check_filters(table: Table) -> None:
    """Each base file has the filter that its keys give, bit for bit."""
    for found in table.refresh().latest_slices():
        file = pq.ParquetFile(table.storage.open_input(found.path))
        keys = file.read([MetaField.RECORD_KEY]).column(0)
        assert file.metadata.metadata[BLOOM_FILTER] == key_pairs(keys, Options(table.options.given()))[BLOOM_FILTER]


@pytest.mark.parametrize("kind", list(TableType), ids=lambda kind: kind.value)
@pytest.mark.parametrize("form", ["SIMPLE", "DYNAMIC_V0"])
def test_updates_copy_the_filter(kind, form, filled):
    table = made(kind, **{"hoodie.bloom.index.filter.type": form})
    assert filled.pop() == 200
    change(table, [("k007", "p", 6, "y"), ("k100", "p", 6, "y"), ("k199", "p", 4, "loses to the row in the table")])
    assert not filled
    check_filters(table)


@pytest.mark.parametrize("kind", list(TableType), ids=lambda kind: kind.value)
@pytest.mark.parametrize(
    ("operation", "rows", "count"),
    [
        (Operation.DELETE, [("k007", "p", 6, "y")], 199),
        (Operation.UPSERT, [("k007", "p", 6, "y"), ("new", "p", 6, "y")], 201),
    ],
    ids=["deletion", "insert"],
)
def test_other_keys_fill_a_filter(kind, operation, rows, count, filled):
    table = made(kind, **{"hoodie.parquet.small.file.limit": 1 << 20})
    filled.clear()
    change(table, rows, operation)
    assert count in filled
    check_filters(table)


def test_a_deletion_and_an_insert_fill_a_filter_although_the_number_of_keys_stays(filled):
    table = made(TableType.MOR, **{"hoodie.parquet.small.file.limit": 1 << 20})
    filled.clear()
    write(table, [("k007", "p", 6, "y")], Operation.DELETE)
    write(table, [("new", "p", 6, "y")])
    compact(table)
    assert table.read(["id"]).num_rows == 200
    check_filters(table)


@pytest.mark.parametrize("kind", list(TableType), ids=lambda kind: kind.value)
def test_a_filter_of_another_form_or_size_is_not_copied(kind, filled):
    table = made(kind)
    for options in ({"hoodie.bloom.index.filter.type": "SIMPLE"}, {"hoodie.index.bloom.fpp": "0.01"}):
        filled.clear()
        other = Table.open(
            table.storage.root, options={**table.options.given(), **options}, clock=table.clock, storage=table.storage
        )
        change(other, [("k007", "p", 6, "y")])
        assert filled == [200], options
        check_filters(other)


@pytest.mark.parametrize("kind", list(TableType), ids=lambda kind: kind.value)
def test_a_filter_that_the_file_contradicts_is_not_copied(kind, filled, monkeypatch):
    table = made(kind)
    (held,) = table.refresh().latest_slices()
    empty = BloomFilter.bounded(200, 100_000, 1e-9)
    monkeypatch.setattr(
        base_file,
        "key_pairs",
        lambda *given: {**key_pairs(*given), BLOOM_FILTER: base64.b64encode(empty.to_dynamic_bytes(200, 200))},
    )
    write(table, [("k007", "p", 6, "y")])
    if table.definition.has_logs:
        compact(table)
    monkeypatch.undo()
    (damaged,) = table.refresh().latest_slices()
    assert damaged.path != held.path
    assert read_filter_text(table.storage, damaged.path) is None
    change(table, [("k008", "p", 7, "y")])
    check_filters(table)


def test_a_filter_of_an_unreadable_form_is_not_copied():
    keys, options = pa.chunked_array([["k1", "k2"]]), Options({})
    wanted = key_pairs(keys, options)

    assert key_pairs(keys, options, {**wanted, BLOOM_TYPE: b"\xff"}) == wanted


@pytest.mark.parametrize(("kind", "seed"), covering(1, TableType, range(6)))
def test_any_history_leaves_the_filters_of_the_keys(kind, seed):
    numbers = random.Random(seed)
    table = made(kind, **{"hoodie.parquet.small.file.limit": numbers.choice([0, 1 << 20])})
    for step in range(8):
        rows = [
            (f"k{numbers.randrange(205):03d}", "p", numbers.randrange(12), f"{step}") for _ in range(numbers.choice([1, 3, 40]))
        ]
        unique = list({row[0]: row for row in rows}.values())
        write(table, unique, numbers.choice([Operation.UPSERT, Operation.UPSERT, Operation.UPSERT, Operation.DELETE]))
        if table.definition.has_logs and numbers.random() < 0.6:
            compact(table)
        check_filters(table)
