"""Rewriting keeps repeated texts as dictionaries: equal rows and types, statistics of the rows in each file, plain texts
elsewhere."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
from tests.unit.table.tables import new_table, write

from tideline_table.config import Options
from tideline_table.merge import MergeMode, Merging, OpenCells, PartialUpdate
from tideline_table.reader.base_file import DICTIONARY, BaseFileScan, read_footer
from tideline_table.reader.encoded_slice import encoded, encoded_table, repeated, trimmed, unified
from tideline_table.reader.read_plan import LogRule
from tideline_table.storage import MemoryStorage
from tideline_table.writer import Operation
from tideline_table.writer.base_file import write_base_file

SCHEMA = pa.schema([("_hoodie_record_key", pa.string()), ("kind", pa.string()), ("text", pa.string()), ("ts", pa.string())])


def stored(**written) -> MemoryStorage:
    storage = MemoryStorage()
    for name, rows in written.items():
        sink = pa.BufferOutputStream()
        pq.write_table(rows, sink, row_group_size=20_000)
        storage.put(f"{name}.parquet", sink.getvalue().to_pybytes())
    return storage


def rows(start: int, end: int, kinds: str) -> pa.Table:
    numbers = range(start, end)
    return pa.table(
        {
            "_hoodie_record_key": [f"k{n}" for n in numbers],
            "kind": [kinds[n % len(kinds)] if n % 7 else None for n in numbers],
            "text": [f"a longer text {n * 7919 % 100_003} that no row repeats" for n in numbers],
            "ts": ["1"] * len(numbers),
        },
        SCHEMA,
    )


def test_small_dictionaries_of_all_files_are_kept_and_rows_stay_equal():
    one, two = rows(0, 20_000, "ab"), rows(20_000, 40_000, "cd")
    storage = stored(one=one, two=two)
    footers = [read_footer(storage, f"{n}.parquet", with_dictionaries=True) for n in ("one", "two")]
    assert footers[0].dictionaries == {"kind", "ts"}, "the texts need a large dictionary"
    assert read_footer(storage, "one.parquet").dictionaries == frozenset()
    rule = encoded(LogRule(Merging(MergeMode.EVENT_TIME, ordering_field="ts")), SCHEMA, footers)
    assert rule.dictionaries == {"kind"}, "ordering values are compared as texts"
    assert encoded(LogRule(), SCHEMA, footers, ["kind"]).dictionaries == {"ts"}
    scans = [BaseFileScan(storage, f"{n}.parquet", SCHEMA, dictionaries=rule.dictionaries) for n in ("one", "two")]
    batches = [batch for scan in scans for batch in scan.filtered(None, None)]
    from_log = rows(40_000, 40_003, "ef")
    found = encoded_table([*batches, *from_log.to_batches()], SCHEMA, rule)
    assert found.schema.field("kind").type == DICTIONARY
    assert found.cast(SCHEMA).equals(pa.concat_tables([one, two, from_log]))


def test_files_of_some_of_the_rows_have_the_types_and_statistics_of_these_rows():
    storage = stored(one=rows(0, 100, "abcd"))
    rule = encoded(LogRule(), SCHEMA, [read_footer(storage, "one.parquet", with_dictionaries=True)])
    found = encoded_table(
        BaseFileScan(storage, "one.parquet", SCHEMA, dictionaries=rule.dictionaries).filtered(None, None), SCHEMA, rule
    )
    chosen = found.take([1, 2, 5, 14])
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, chosen.schema, store_schema=False) as writer:
        writer.write_table(chosen)
    file = pq.ParquetFile(pa.BufferReader(sink.getvalue()))
    assert file.schema_arrow == SCHEMA
    statistics = file.metadata.row_group(0).column(1).statistics
    assert (statistics.min, statistics.max, statistics.null_count) == ("b", "c", 1)


def test_statistics_are_of_the_texts_of_the_rows_that_are_written():
    whole = pa.table({"_hoodie_record_key": list("abcd"), "v": pa.chunked_array([["x", None, "y", "z"]]).dictionary_encode()})
    for part, expected in ((whole, ("x", "z", 1)), (whole.slice(1, 2), ("y", "y", 1)), (whole.slice(0, 0), (None, None, 0))):
        written = write_base_file(MemoryStorage(), "f.parquet", part, "{}", Options())
        assert written.statistics is not None
        found = written.statistics.columns["v"]
        assert (found.minimum, found.maximum, found.nulls) == expected


def dictionary_in(table) -> list[str]:
    """The dictionary of column `v` as its only base file stores it, with texts that no row has."""
    (left,) = table.slices()
    assert "v" in read_footer(table.storage, left.path, with_dictionaries=True).dictionaries
    file = pq.ParquetFile(table.storage.open_input(left.path), read_dictionary=["v"])
    return file.read(["v"]).column(0).chunk(0).dictionary.to_pylist()


def test_files_do_not_keep_texts_of_deleted_or_replaced_rows():
    table, _, _ = new_table()
    write(table, [("k1", "p", 1, "a secret"), ("k2", "p", 1, "kept"), ("k3", "p", 1, "replaced")])
    write(table, [("k1", "p", 2, "")], Operation.DELETE)
    assert sorted(dictionary_in(table)) == ["kept", "replaced"]
    write(table, [("k3", "p", 2, "new")])
    assert sorted(dictionary_in(table)) == ["kept", "new"]


def test_trimming_keeps_rows_and_nulls():
    found = pa.table({"v": pa.chunked_array([["b", None, "c", "b"]]).dictionary_encode()})
    assert trimmed(found) == found
    assert trimmed(found.slice(1, 2)).column("v").chunk(0).dictionary.to_pylist() == ["c"]
    assert trimmed(found.slice(1, 2)).column("v").to_pylist() == [None, "c"]
    assert trimmed(found.slice(0, 0)).num_rows == 0


def test_a_dictionary_that_became_large_is_dropped():
    texts = pa.chunked_array([[f"{n:0100}" for n in range(part, part + 2000)] for part in (0, 2000)]).dictionary_encode()
    rows = pa.table({"v": texts, "w": pa.chunked_array([["x"] * 4000]).dictionary_encode()})
    found = unified(rows)
    assert found.schema.types == [pa.string(), DICTIONARY]
    assert found.cast(pa.schema([("v", pa.string()), ("w", pa.string())])).equals(
        rows.cast(pa.schema([("v", pa.string()), ("w", pa.string())]))
    )


def test_cells_that_are_merged_or_derived_stay_texts():
    storage = stored(one=rows(0, 100, "ab"))
    footers = [read_footer(storage, "one.parquet", with_dictionaries=True)]
    merging = Merging(MergeMode.COMMIT_TIME, partial=PartialUpdate(OpenCells.NULLS))
    assert encoded(LogRule(merging), SCHEMA, footers).dictionaries == frozenset()
    assert encoded(LogRule(), SCHEMA, []).dictionaries == frozenset()


def test_a_repeated_text_is_one_value():
    assert repeated("name", 3).to_pylist() == ["name"] * 3
    assert repeated("name", 0).type == DICTIONARY
