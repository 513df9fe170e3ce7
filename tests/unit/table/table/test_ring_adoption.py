"""Consistent hashing of a table that Apache Hudi's writers made is found in its hashing metadata and rows before the table is
shared.

The tables are of files and timeline that Apache Hudi's writers could have left; `tests/conformance/test_consistent_hashing.py`
does the same with Apache Hudi's own tables.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from tests.unit.table.index.test_hash_rings import SMALL
from tests.unit.table.table.test_bucket_adoption import OF_INDEX, SCHEMA, SHARING, rows

from tideline_locks import open_hudi_lock
from tideline_table.action import resize_rings, write_rows
from tideline_table.errors import CorruptMetadata, InvalidOption, UnsupportedTable
from tideline_table.hudi.properties import PROPERTIES_PATH, format_properties, read_properties
from tideline_table.index.bucket import Engine
from tideline_table.index.bucket_properties import bucket_index
from tideline_table.index.hash_ring import HashRing, ring_folder
from tideline_table.table import BucketIndex, Table, TableRequest, TableType, create_table, share_table
from tideline_table.writer import Operation


def hudis(folder: Path, numbers: range = range(120), hash_fields: tuple[str, ...] = ("user",), *, resized: bool = False) -> Table:
    """Return a table of which nothing shows that Tideline made it."""
    path = folder / "table"
    create_table(
        str(path),
        TableRequest(
            "t",
            SCHEMA,
            ("user", "page"),
            ("part",),
            "ts",
            TableType.MOR,
            index=BucketIndex(3, hash_fields, consistent=True),
        ),
    )
    writer = Table.open(str(path))
    write_rows(writer, rows(numbers, 1), Operation.UPSERT)
    write_rows(writer, rows(numbers[:20], 2), Operation.UPSERT)
    if resized:
        assert resize_rings(writer, options=SMALL).committed is not None
    writer.storage.delete_below(".hoodie/.tideline")
    properties = {k: v for k, v in read_properties(writer.storage).items() if k not in OF_INDEX and not k.startswith("tideline")}
    writer.storage.put(PROPERTIES_PATH, format_properties(properties, "as Hudi's"))
    return Table.open(str(path))


def nodes_of(number: int) -> set[int]:
    """The nodes of a row by each choice of hash fields."""
    ring, keys = HashRing.first(f"x{number % 2}", 3), ("user", "page")
    indexes = [bucket_index(3, fields, keys, Engine.CONSISTENT) for fields in (("user",), ("page",), keys)]
    return {int(index.in_partition("", ring).buckets(pa.array([f"user:u{number % 40},page:p{number}"]))[0]) for index in indexes}


@pytest.mark.parametrize("fields", [("user",), ("page",), ("user", "page")])
def test_number_and_hash_fields_are_found_and_kept(tmp_path: Path, fields: tuple[str, ...]) -> None:
    table = hudis(tmp_path, hash_fields=fields)
    assert (table.capabilities.keeps_log, table.definition.buckets) == (False, None)
    before = table.read().num_rows
    shared = share_table(table, SHARING, open_hudi_lock)
    assert shared.definition.index_text == f"3 consistent bucket(s) by {','.join(fields)}"
    assert read_properties(shared.storage)["hoodie.index.bucket.engine"] == "CONSISTENT_HASHING"
    assert shared.hudi_options()["hoodie.index.bucket.engine"] == "CONSISTENT_HASHING"
    groups = {s.group for s in shared.slices()}
    write_rows(shared, rows(range(60, 180), 3), Operation.UPSERT)
    found = Table.open(str(tmp_path / "table"), hudi_lock=open_hudi_lock)
    assert {s.group for s in found.slices()} >= groups
    read = found.read()
    assert read.num_rows == before + 60
    index = found.definition.buckets
    assert index is not None
    for partition, ring in found.rings().of(["x0", "x1"]).items():
        part = read.filter(pc.equal(read["part"], partition))
        ids = [ring.file_ids[at] for at in index.in_partition("", ring).buckets(part["_hoodie_record_key"]).tolist()]
        assert [name.removeprefix(".").split("_")[0] for name in part["_hoodie_file_name"].to_pylist()] == ids


def test_what_the_caller_names_is_checked_against_rings_and_rows(tmp_path: Path) -> None:
    table = hudis(tmp_path)
    with pytest.raises(UnsupportedTable, match="that are not where it puts them"):
        share_table(table, SHARING, open_hudi_lock, BucketIndex(3, ("page",)))
    with pytest.raises(UnsupportedTable, match="began with 3 buckets; expected 4"):
        share_table(table, SHARING, open_hudi_lock, BucketIndex(4, ("user",)))
    assert not Table.open(str(tmp_path / "table")).capabilities.keeps_log
    assert (
        share_table(table, SHARING, open_hudi_lock, BucketIndex(3, ("user",))).definition.index_text
        == "3 consistent bucket(s) by user"
    )


def test_few_rows_leave_a_choice_to_the_caller(tmp_path: Path) -> None:
    unclear = next(n for n in range(120) if len(nodes_of(n)) == 1)
    table = hudis(tmp_path, range(unclear, unclear + 1))
    with pytest.raises(InvalidOption, match="--buckets N --hash-fields"):
        share_table(table, SHARING, open_hudi_lock)
    assert share_table(table, SHARING, open_hudi_lock, BucketIndex(0, ("user",))).definition.index_text.startswith("3 consistent")


def test_torn_missing_and_resized_rings_are_not_shared(tmp_path: Path) -> None:
    table = hudis(tmp_path)
    path = HashRing.first("x0", 3).path
    whole = table.storage.read(path)
    table.storage.put(path, whole[:40])
    with pytest.raises(CorruptMetadata, match="cannot be read"):
        share_table(table, SHARING, open_hudi_lock)
    table.storage.delete(path)
    with pytest.raises(UnsupportedTable, match="without its metadata"):
        share_table(table, SHARING, open_hudi_lock)
    table.storage.put(path, whole)
    share_table(table, SHARING, open_hudi_lock)


def test_a_table_that_was_resized_is_not_shared(tmp_path: Path) -> None:
    table = hudis(tmp_path, resized=True)
    with pytest.raises(UnsupportedTable, match=r"of a hash ring, which \d+ replaced"):
        share_table(table, SHARING, open_hudi_lock)
    assert not table.capabilities.keeps_log


def test_an_exclusive_table_is_shared_after_its_resizes(tmp_path: Path) -> None:
    path = tmp_path / "ours"
    create_table(
        str(path), TableRequest("t", SCHEMA, ("user",), ("part",), "ts", TableType.MOR, index=BucketIndex(2, consistent=True))
    )
    table = Table.open(str(path))
    write_rows(table, rows(range(40), 1), Operation.UPSERT)
    done = resize_rings(table, options=SMALL).committed
    assert done is not None
    stale = HashRing("x0", "20260101000000000", 2, 1, HashRing.first("x0", 2).nodes)
    table.storage.put(stale.path, stale.content)
    shared = share_table(table, SHARING, open_hudi_lock)
    names = [o.path.rsplit("/", 1)[-1] for o in table.storage.list_objects(ring_folder("x0"))]
    assert names == ["00000000000000.hashing_meta", f"{done.instant}.commit", f"{done.instant}.hashing_meta"]
    write_rows(shared, rows(range(20, 60), 2), Operation.UPSERT)
    with pytest.raises(UnsupportedTable, match="which Apache Hudi's writers write, too"):
        resize_rings(shared, options=SMALL)
    assert shared.read().num_rows == 40
