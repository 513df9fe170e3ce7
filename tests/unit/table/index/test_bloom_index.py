"""The Bloom index: footers that writers leave, and look-ups by them, also where a footer lies."""

import base64
import logging

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.unit.table.tables import compact, contents, new_table, open_table, write

import tideline
from tideline import BloomIndex
from tideline_table.bloom import BloomFilter, KeyBytes
from tideline_table.config import Options
from tideline_table.errors import InvalidOption, TableExists, UnsupportedTable
from tideline_table.hudi.properties import PROPERTIES_PATH
from tideline_table.index import SimpleIndex
from tideline_table.reader import read_footer
from tideline_table.reader.key_footer import BLOOM_FILTER, BLOOM_TYPE, MAX_KEY, MIN_KEY
from tideline_table.storage import MemoryStorage
from tideline_table.table import Table, TableType
from tideline_table.writer import Operation
from tideline_table.writer.base_file import key_pairs

BLOOM = {"hoodie.index.type": "BLOOM"}
KEYS = pa.chunked_array([[f"key {n:05}" for n in range(3000)]])


def keyed(numbers, part="p", ts=1, value="x"):
    return [(f"k{n:04}", part, ts, value) for n in numbers]


# --- what is written ------------------------------------------------------------------------------------------------------------


def filter_in(pairs):
    return BloomFilter.from_bytes(base64.b64decode(pairs[BLOOM_FILTER]), is_dynamic=BLOOM_TYPE in pairs)


def test_filters_are_as_large_as_a_file_needs():
    """Up to the number of keys for which they are sized at most; from there on with fewer hashes."""
    usual = filter_in(key_pairs(KEYS, Options()))
    assert (usual.hashes, usual.bits) == (16, 150_006)
    small = filter_in(key_pairs(KEYS.slice(0, 1), Options()))
    assert (small.hashes, small.bits) == (16, 51)
    options = Options({"hoodie.bloom.index.filter.dynamic.max.entries": 100, "hoodie.index.bloom.num_entries": 50})
    full = filter_in(key_pairs(KEYS.slice(0, 400), options))
    assert (full.hashes, full.bits) == (9, 5001)
    assert full.may_hold(KeyBytes(KEYS.slice(0, 400))).all()
    assert full.may_hold(KeyBytes(KEYS.slice(400))).mean() < 0.01


@pytest.mark.parametrize("rate", [0.3, 0.01, 0.001])
def test_the_rate_of_false_positives_holds(rate):
    held = filter_in(key_pairs(KEYS, Options({"hoodie.index.bloom.fpp": rate})))
    assert held.may_hold(KeyBytes(KEYS)).all()
    strangers = KeyBytes(pa.array([f"other {n}" for n in range(40_000)]))
    assert rate / 4 < held.may_hold(strangers).mean() < rate * 2


def test_the_form_of_filters_is_an_option():
    simple = key_pairs(KEYS, Options({"hoodie.bloom.index.filter.type": "SIMPLE", "hoodie.index.bloom.fpp": 0.01}))
    assert BLOOM_TYPE not in simple, "Apache Hudi takes a filter without a code for a SIMPLE one"
    assert filter_in(simple).hashes == 4
    dynamic = key_pairs(KEYS, Options())
    assert dynamic[BLOOM_TYPE] == b"DYNAMIC_V0"
    content = base64.b64decode(dynamic[BLOOM_FILTER])
    assert [int.from_bytes(content[at : at + 4]) for at in (13, 17, 21)] == [3000, 3000, 1], "keys per row, in the last row, rows"
    off = key_pairs(KEYS, Options({"hoodie.parquet.bloom.filter.enabled": "false"}))
    assert set(off) == {MIN_KEY, MAX_KEY}


@pytest.mark.parametrize("value", ["0", "1", "-0.1", "nan", "1e-13"])
def test_impossible_rates_are_refused(value):
    with pytest.raises(InvalidOption, match=r"hoodie.index.bloom.fpp.*at least 1e-12 and at most 0.5"):
        Options({"hoodie.index.bloom.fpp": value})


def test_every_base_file_has_a_filter():
    """Of inserts, rewrites and compactions alike."""
    table, storage, _ = new_table(type=TableType.MOR)
    write(table, keyed(range(5)))
    write(table, keyed(range(3, 9), ts=2))
    write(table, keyed(range(2), ts=3))
    compact(table)
    assert len(table.slices()) >= 2
    for file_slice in table.slices():
        footer = read_footer(storage, file_slice.path, with_bloom=True)
        held = pq.read_table(pa.BufferReader(storage.read(file_slice.path))).column("_hoodie_record_key")
        assert footer.bloom is not None
        assert footer.bloom.may_hold(KeyBytes(held)).all()


# --- look-up --------------------------------------------------------------------------------------------------------------------


class Counting(MemoryStorage):
    """Counts which files are opened, and how often."""

    def __init__(self, storage):
        super().__init__()
        self.within, self.opened = storage, []

    def open_input(self, path):
        self.opened.append(path)
        return self.within.open_input(path)


def test_only_files_whose_filter_may_hold_a_key_are_read():
    table, storage, _ = new_table()
    for first in range(6):
        write(table, keyed(range(first, 600, 6)))  # the ranges of all files overlap
    counting = Counting(storage)
    wanted = pa.chunked_array([["k0004", "k0040", "k0300x", "zz"], ["k0010"]])
    location = SimpleIndex(counting).locate(wanted, table.slices(), by_filters=True)
    assert len(location.slices) == 1
    assert [hits.tolist() for hits in location.hits] == [[0, 1, 4]]
    assert location.absent.tolist() == [False, False, True, True, False]
    paths = [s.path for s in table.slices()]
    assert {path: counting.opened.count(path) for path in paths} == {
        path: 2 if path == location.slices[0].path else 1 for path in paths
    }


@pytest.mark.parametrize("kind", list(TableType))
@pytest.mark.parametrize("logs", [False, True])
def test_writes_with_filters_do_what_writes_without_do(kind, logs):
    """Upserts, deletes and inserts over many overlapping files."""
    found = {}
    for index in ("SIMPLE", "BLOOM"):
        _, storage, clock = new_table(type=kind)
        options = {"hoodie.index.type": index, "tideline.insert.to.log": logs, "hoodie.parquet.small.file.limit": 10**8 * logs}
        table = open_table(storage, clock, **options)
        for step in range(8):
            write(table, keyed(range(step * 3, step * 7 + 9), "pq"[step % 2], ts=step, value=str(step)))
        write(table, keyed(range(0, 60, 5), ts=9), Operation.DELETE)
        write(
            table, keyed(range(70), "q", ts=10, value="again"), Operation.INSERT, **{"hoodie.datasource.insert.dup.policy": "drop"}
        )
        found[index] = contents(table)
        assert len({row[:2] for row in found[index]}) == len(found[index])
    assert found["SIMPLE"] == found["BLOOM"]


def test_filters_count_in_the_cache():
    table, storage, _ = new_table()
    write(table, keyed(range(500)))
    index = SimpleIndex(storage)
    index.locate(pa.chunked_array([["k0001"]]), table.slices(), by_filters=True)
    assert index._held_bytes > 500 * 43 // 8


# --- footers that lie -----------------------------------------------------------------------------------------------------------


def with_footer(storage, path, change):
    """Write the file anew with other key/value pairs."""
    file = pq.ParquetFile(pa.BufferReader(storage.read(path)))
    pairs = {k: v for k, v in file.metadata.metadata.items() if k != b"ARROW:schema"}
    changed = {k: v for k, v in {**pairs, **change(pairs)}.items() if v is not None}
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, file.schema_arrow, store_schema=False) as writer:
        writer.write_table(file.read())
        writer.add_key_value_metadata(changed)
    storage.put(path, sink.getvalue().to_pybytes())


def of_keys(*keys):
    return key_pairs(pa.chunked_array([keys], pa.string()), Options())


LIES = {
    "truncated": (lambda pairs: {BLOOM_FILTER: pairs[BLOOM_FILTER][:-9]}, "ignored"),
    "truncated at a whole group": (lambda pairs: {BLOOM_FILTER: pairs[BLOOM_FILTER][:40]}, "ignored"),
    "not base64": (lambda _: {BLOOM_FILTER: b"\xff\x00 %%%"}, "ignored"),
    "empty": (lambda _: {BLOOM_FILTER: b""}, "ignored"),
    "unknown type code": (lambda _: {BLOOM_TYPE: b"DYNAMIC_V9"}, "DYNAMIC_V9"),
    "code of the other form": (lambda _: {BLOOM_TYPE: b"SIMPLE"}, "ignored"),
    "no code": (lambda _: {BLOOM_TYPE: None}, "ignored"),
    "filter of other keys": (lambda _: {BLOOM_FILTER: of_keys("some", "other")[BLOOM_FILTER]}, "lacks keys that the file holds"),
    "footer of another file": (lambda _: of_keys("some", "other"), "key range"),
    "no bit is set": (
        lambda _: {BLOOM_FILTER: base64.b64encode(BloomFilter.sized(9, 0.01).to_dynamic_bytes(9, 9))},
        "lacks keys that the file holds",
    ),
    "filter of other keys, no range": (
        lambda _: {MIN_KEY: None, MAX_KEY: None, BLOOM_FILTER: of_keys("some", "other")[BLOOM_FILTER]},
        "lacks keys that the file holds",
    ),
    "min > max": (lambda pairs: {MIN_KEY: pairs[MAX_KEY], MAX_KEY: pairs[MIN_KEY]}, "key range"),
    "range too narrow": (lambda _: {MIN_KEY: b"k0003", MAX_KEY: b"k0004"}, "key range"),
    "range beside": (lambda _: {MIN_KEY: b"a", MAX_KEY: b"b"}, "key range"),
    "half a range": (lambda _: {MAX_KEY: None}, ""),
    "no filter": (lambda _: {BLOOM_FILTER: None, BLOOM_TYPE: None}, ""),
    "nothing": (lambda _: {BLOOM_FILTER: None, BLOOM_TYPE: None, MIN_KEY: None, MAX_KEY: None}, ""),
}


@pytest.mark.parametrize("by_filters", [False, True])
@pytest.mark.parametrize("lie", LIES)
@pytest.mark.usefixtures("unrecorded_files")
def test_a_footer_that_lies_hides_no_key(lie, by_filters, caplog):
    change, warned = LIES[lie]
    table, storage, clock = new_table()
    write(table, keyed(range(10)))
    with_footer(storage, table.slices()[0].path, change)
    options = BLOOM if by_filters else {}
    with caplog.at_level(logging.WARNING):
        other = open_table(storage, clock, "other", **options)
        committed = write(other, keyed(range(8, 12), ts=2))
    assert (committed.rows_updated, committed.rows_inserted) == (2, 2)
    assert len(contents(other)) == 12
    shown = [record.getMessage() for record in caplog.records]
    if by_filters or warned == "key range":
        assert any(warned in text for text in shown) == bool(warned)
    assert len(shown) <= 1 + (lie == "footer of another file"), "once for each file"


def test_keys_beyond_the_basic_plane():
    """Their range is left out, and the filter decides."""
    table, storage, clock = new_table()
    names = ["a", "z", "\ue000", "\uffee", "😀", "é漢"]
    write(table, [(name, "p", 1, "x") for name in names])
    assert read_footer(storage, table.slices()[0].path, with_bloom=True).bounds is None
    committed = write(open_table(storage, clock, "other", **BLOOM), [(name, "p", 2, "y") for name in [*names, "😁", "\uffef"]])
    assert (committed.rows_updated, committed.rows_inserted) == (6, 2)


@pytest.mark.usefixtures("unrecorded_files")
def test_a_range_of_apache_hudi_beyond_the_basic_plane_hides_no_key():
    """Java's order: U+1F600 is before U+FFEE."""
    table, storage, clock = new_table()
    write(table, [("\ue000", "p", 1, "x"), ("\uffee", "p", 1, "x"), ("😀", "p", 1, "x")])
    with_footer(storage, table.slices()[0].path, lambda _: {MIN_KEY: "😀".encode(), MAX_KEY: "\uffee".encode()})
    for options in ({}, BLOOM):
        found = open_table(storage, clock, "other", **options)
        committed = write(found, [("\ue000", "p", 2, "y")])
        assert (committed.rows_updated, committed.rows_inserted) == (1, 0)


# --- tables that keep the index -------------------------------------------------------------------------------------------------

SCHEMA = pa.schema([pa.field("id", pa.string(), nullable=False), ("part", pa.string()), ("v", pa.int64())])


def rows(*triples):
    return pa.Table.from_pylist([dict(zip(SCHEMA.names, triple, strict=True)) for triple in triples], schema=SCHEMA)


def created(path, index, **more):
    return tideline.create(path, schema=SCHEMA, key="id", partition="part", index=index, **more)


def partitions_of(table):
    return sorted((row["id"], row["part"], row["v"]) for row in table.read().to_pylist())


def test_a_table_keeps_the_scope_of_its_keys(tmp_path):
    created(tmp_path / "t", BloomIndex(across_partitions=True))
    table = tideline.open(tmp_path / "t")
    table.upsert(rows(("a", "p", 1), ("b", "p", 1)))
    table.upsert(rows(("a", "q", 2)))
    assert partitions_of(table) == [("a", "q", 2), ("b", "p", 1)]
    table.upsert(rows(("b", "q", 3)), options={"hoodie.bloom.index.update.partition.path": False})
    assert [row[:2] for row in partitions_of(table)] == [("a", "q"), ("b", "q")]
    assert {s.group.partition_path for s in Table.open(str(tmp_path / "t")).slices()} == {"p", "q"}
    table.delete([{"id": "a"}])
    assert [row[0] for row in partitions_of(table)] == ["b"]


def test_a_table_with_keys_by_partition(tmp_path):
    table = created(tmp_path / "t", BloomIndex())
    table.upsert(rows(("a", "p", 1), ("b", "p", 1)))
    table.upsert(rows(("a", "q", 2), ("b", "p", 2)))
    assert partitions_of(table) == [("a", "p", 1), ("a", "q", 2), ("b", "p", 2)]
    table.upsert(rows(("b", "p", 3)), options={"hoodie.index.type": "SIMPLE"})
    table.delete([{"id": "a"}])
    assert partitions_of(table) == [("b", "p", 3)]


@pytest.mark.parametrize(
    ("index", "other"),
    [
        (BloomIndex(), "GLOBAL_BLOOM"),
        (BloomIndex(), "GLOBAL_SIMPLE"),
        (BloomIndex(across_partitions=True), "BLOOM"),
        (BloomIndex(across_partitions=True), "SIMPLE"),
        (BloomIndex(), "BUCKET"),
    ],
)
def test_a_writer_with_another_scope_is_refused(tmp_path, index, other):
    table = created(tmp_path / "t", index)
    with pytest.raises(InvalidOption, match=f"hoodie.index.type={other}"):
        table.upsert(rows(("a", "p", 1)), options={"hoodie.index.type": other})
    with pytest.raises(InvalidOption, match=f"hoodie.index.type={other}"):
        tideline.open(tmp_path / "t", options={"hoodie.index.type": other}).upsert(rows(("a", "p", 1)))
    assert table.read().num_rows == 0


@pytest.mark.parametrize("changed", ["hoodie.index.type=BLOOM", "", "hoodie.index.type=SIMPLE"])
def test_a_changed_index_is_refused(tmp_path, changed):
    created(tmp_path / "t", BloomIndex(across_partitions=True))
    path = tmp_path / "t" / PROPERTIES_PATH
    text = path.read_text()
    assert "hoodie.index.type=GLOBAL_BLOOM" in text
    path.write_text(text.replace("hoodie.index.type=GLOBAL_BLOOM", changed))
    with pytest.raises(UnsupportedTable, match="expected GLOBAL_BLOOM: the rows of the table are"):
        tideline.open(tmp_path / "t").upsert(rows(("a", "p", 1)))


def test_impossible_requests(tmp_path):
    with pytest.raises(InvalidOption, match="without meta fields"):
        created(tmp_path / "t", BloomIndex(), meta_fields=False)
    with pytest.raises(InvalidOption, match="BucketIndex, BloomIndex or RecordIndex"):
        created(tmp_path / "t", "bloom")
    assert not (tmp_path / "t").exists()
    created(tmp_path / "t", BloomIndex())
    with pytest.raises(TableExists):
        created(tmp_path / "t", BloomIndex())
