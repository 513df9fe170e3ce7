import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.plans import schedule_clustering
from tests.unit.table.tables import SCHEMA, contents, new_table, write

from tideline_table.action import run_clustering
from tideline_table.action.clustering.execute import cluster_group
from tideline_table.index import SimpleIndex
from tideline_table.reader import base_file, read_footer
from tideline_table.reader.base_file import BaseFileScan
from tideline_table.schema import META_FIELDS
from tideline_table.storage import MemoryStorage
from tideline_table.writer import Operation


def parquet(storage, path):
    return pq.ParquetFile(pa.BufferReader(storage.read(path)))


def test_footer_is_what_the_reference_says():
    """Section 8.2: Avro schema with meta fields, key range; meta columns first."""
    table, storage, _ = new_table()
    write(table, [("b", "p", 1, "x"), ("a", "p", 1, "x"), ("é漢", "p", 1, "x")])
    (path,) = (s.path for s in table.slices())
    file = parquet(storage, path)
    pairs = {k.decode(): v.decode() for k, v in file.metadata.metadata.items()}
    own = {"hoodie_min_record_key", "hoodie_max_record_key", "org.apache.hudi.bloomfilter", "hoodie_bloom_filter_type_code"}
    assert set(pairs) == {"parquet.avro.schema", "writer.model.name", *own}
    assert (pairs["hoodie_min_record_key"], pairs["hoodie_max_record_key"]) == ("a", "é漢")
    assert [f["name"] for f in json.loads(pairs["parquet.avro.schema"])["fields"]] == [*META_FIELDS, *SCHEMA.names]
    assert file.schema_arrow.names == [*META_FIELDS, *SCHEMA.names]
    assert file.metadata.row_group(0).column(0).compression == "ZSTD"


def test_keys_beyond_the_basic_plane_leave_the_range_out():
    """Java orders them otherwise than Arrow: a range would hide keys."""
    table, storage, _ = new_table()
    write(table, [("a", "p", 1, "x"), ("😀", "p", 1, "x")])
    footer = read_footer(storage, table.slices()[0].path)
    assert (footer.rows, footer.min_key, footer.max_key) == (2, "", "")
    assert footer.may_hold("zzz", "zzzz")


def test_a_file_without_rows_has_no_range():
    table, storage, _ = new_table()
    write(table, [("a", "p", 1, "x")])
    write(table, [("a", "p", 1, "x")], Operation.DELETE)
    footer = read_footer(storage, table.slices()[0].path)
    assert (footer.rows, footer.min_key) == (0, "")
    write(table, [("a", "p", 2, "again")])
    assert contents(table) == [("a", "p", 2, "again")]


@pytest.mark.parametrize("key", ["b", "d", "c"])
def test_the_ends_of_a_range_belong_to_it(key):
    table, _, _ = new_table()
    write(table, [("b", "p", 1, "x"), ("c", "p", 1, "x"), ("d", "p", 1, "x")])
    committed = write(table, [(key, "p", 2, "y")])
    assert (committed.rows_updated, committed.rows_inserted) == (1, 0)
    assert len(contents(table)) == 3


@pytest.mark.parametrize(
    ("low", "high", "may"),
    [("a", "a", False), ("a", "b", True), ("b", "b", True), ("c", "c", True), ("d", "e", True), ("e", "f", False)],
)
def test_may_hold(low, high, may):
    table, storage, _ = new_table()
    write(table, [("b", "p", 1, "x"), ("d", "p", 1, "x")])
    assert read_footer(storage, table.slices()[0].path).may_hold(low, high) is may


def test_the_index_reads_keys_only_of_files_whose_range_fits():
    table, storage, _ = new_table()
    for letter in "adg":
        write(table, [(letter, "p", 1, "x"), (f"{letter}z", "p", 1, "x")])
    opened = []

    class Counting(MemoryStorage):
        def open_input(self, path):
            opened.append(path)
            return storage.open_input(path)

    index = SimpleIndex(Counting())
    location = index.locate(pa.chunked_array([["d", "da"]]), table.slices())
    assert [p.tolist() for p in location.hits] == [[0]]
    assert location.absent.tolist() == [False, True]
    wanted = location.slices[0].path
    # A footer each, and the key column of the one that can hold a wanted key.
    assert {p: opened.count(p) for p in opened} == {s.path: 2 if s.path == wanted else 1 for s in table.slices()}
    before = len(opened)
    index.locate(pa.chunked_array([["d"]]), table.slices())
    assert len(opened) == before, "immutable files are read once"


def test_the_index_cache_is_bounded():
    table, storage, _ = new_table()
    for n in range(6):
        write(table, [(f"k{n}{i:03d}", "p", 1, "x") for i in range(50)])
    index = SimpleIndex(storage, cache_bytes=2000)
    for n in range(6):
        location = index.locate(pa.chunked_array([[f"k{n}007"]]), table.slices())
        assert len(location.slices) == 1
    assert index._held_bytes <= 2000
    assert index._held_bytes == sum(256 + getattr(cached, "nbytes", 0) for cached in index._cache.values())


def test_clustered_files_have_ranges_too():
    table, storage, _ = new_table()
    for n in range(2):
        write(table, [(f"k{n}", "p", 1, "x")])
    schedule_clustering(table)
    run_clustering(table, run=lambda tasks: [cluster_group(t, storage) for t in tasks])
    footer = read_footer(storage, table.slices()[0].path)
    assert (footer.min_key, footer.max_key, footer.rows) == ("k0", "k1", 2)


@pytest.mark.parametrize("columns", [["n"], ["gone"], ["v", "n", "gone", "a", "a.b"], None], ids=str)
def test_few_rows_are_decoded_as_many_are(columns, monkeypatch):
    """A struct, a column with its field's path as name, one that the file lacks, several row groups, other orders than the
    file's."""
    stored = pa.table(
        {
            "a": pa.array([{"b": n, "c": None} for n in range(7)], pa.struct([("b", pa.int64()), ("c", pa.string())])),
            "a.b": [str(n) for n in range(7)],
            "n": pa.array([None, *range(6)], pa.int32()),
            "v": ["x"] * 7,
        }
    )
    storage = MemoryStorage()
    with storage.open_output("p/f.parquet") as sink:
        pq.write_table(stored, sink, row_group_size=3)
    schema = pa.schema(
        [pa.field("v", pa.string(), nullable=False), ("gone", pa.float64()), *(stored.schema.field(n) for n in ("a", "a.b", "n"))]
    )
    names = columns or schema.names

    def read():
        scan = BaseFileScan(storage, "p/f.parquet", schema)
        wanted = pa.schema([schema.field(name) for name in names])
        return pa.Table.from_batches(scan.filtered(columns, None)), pa.Table.from_batches(scan.batches([0, 2], wanted))

    few = read()
    monkeypatch.setattr(base_file, "_FEW_ROWS", 0)
    many = read()
    for one, other in zip(few, many, strict=True):
        assert one.schema.equals(other.schema, check_metadata=True)
        assert one.equals(other)
    assert few[0].num_rows == 7
    assert few[1].num_rows == 4
    assert few[0].column_names == names
