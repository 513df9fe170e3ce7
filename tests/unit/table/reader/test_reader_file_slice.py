"""Merged file slices: the cases of the format reference (10.1, 10.4) as Apache Hudi 1.2.0 was seen to read them, and odd ones."""

from __future__ import annotations

import logging
import pickle
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from tests.unit.table.kryo_deletes import kryo_content

from tideline_table.errors import CorruptMetadata, UnsupportedTable
from tideline_table.file_group.slice import FileGroupId, FileSlice, LogFile
from tideline_table.keygen import KeyGenerator, PathColumns
from tideline_table.log_format import BlockType, HeaderKey, avro_block, command_block, delete_block, parquet_block, scan_log
from tideline_table.log_format.framing import frame_block
from tideline_table.merge import DeletionMark, MergeMode, Merging, OpenCells, PartialUpdate, comparable_ordering
from tideline_table.reader import LogRule, VisibleInstants, read_slice, scan_slice
from tideline_table.reader.base_file import BaseFileScan, referenced_columns
from tideline_table.reader.file_slice import merged_log
from tideline_table.reader.log_blocks import counting_blocks
from tideline_table.reader.predicate import parse_where
from tideline_table.schema import META_FIELDS, avro_from_arrow, avro_with_meta_fields, with_meta_fields, without_meta_fields
from tideline_table.storage import MemoryStorage

USER = pa.schema([("id", pa.string()), ("ts", pa.int64()), ("v", pa.string()), ("_hoodie_is_deleted", pa.bool_())])
SCHEMA = with_meta_fields(USER)
EVENT = LogRule(Merging(MergeMode.EVENT_TIME, ordering_field="ts"))
COMMIT = LogRule(Merging(MergeMode.COMMIT_TIME))


def at(number: int) -> str:
    return str(20260101000000000 + number)


def rows_of(rows, schema=SCHEMA):
    """Rows as (key, ts, v[, deleted])."""
    keys = [r[0] for r in rows]
    values = {"id": keys, "_hoodie_record_key": keys, "ts": [r[1] for r in rows], "v": [r[2] for r in rows]}
    values["_hoodie_is_deleted"] = [len(r) > 3 for r in rows]
    columns = [pa.array(values.get(f.name, [None] * len(keys)), f.type) for f in schema]
    return pa.Table.from_arrays(columns, schema=schema)


def block(rows, number, schema=SCHEMA, encode=avro_block, **header):
    text = avro_from_arrow(without_meta_fields(schema), "t")
    if META_FIELDS[0] in schema.names:
        text = avro_with_meta_fields(text)
    content = encode(rows_of(rows, schema), text, at(number))
    return with_header(content, header) if header else content


def with_header(content, more):
    storage = MemoryStorage()
    storage.put("x", content)
    (found,) = scan_log(storage, "x").blocks
    header = {**found.header, **{HeaderKey[name]: value for name, value in more.items()}}
    inner = storage.read_range("x", found.content_offset, found.content_bytes)
    return frame_block(found.type, header, inner)


def deletions(keys, number, ordering=None):
    return delete_block(pa.array(keys), "", ordering, avro_with_meta_fields(avro_from_arrow(USER, "t")), at(number))


def slice_of(base, *files, schema=SCHEMA):
    storage = MemoryStorage()
    if base is not None:
        sink = pa.BufferOutputStream()
        pq.write_table(rows_of(base, schema), sink, row_group_size=2)
        storage.put("f_0-0-0_1.parquet", sink.getvalue().to_pybytes())
    logs = []
    for version, content in enumerate(files, 1):
        name = f".f_1.log.{version}_0-0-0"
        storage.put(name, content)
        logs.append(LogFile(name, 0, "", version))
    return storage, FileSlice(FileGroupId("", "f"), "1", "f_0-0-0_1.parquet" if base is not None else "", 0, 1, tuple(logs))


def read(found, rule=EVENT, schema=SCHEMA, **more):
    storage, file_slice = found
    rows = read_slice(storage, file_slice, schema, rule, **more)
    return sorted((r["id"], r["ts"], r["v"]) for r in rows.to_pylist())


BASE = [(k, 5, "base") for k in "abcdefghijk"]
OBSERVED = (
    block([("a", 3, "u"), ("b", 3, "d", 1), ("c", 9, "d", 1), ("g", 9, "d", 1), ("h", 9, "u"), ("i", 9, "u")], 1),
    deletions(list("defi"), 2),
    block([("e", 3, "u2"), ("f", 9, "u2"), ("g", 7, "u2"), ("h", 7, "d", 1)], 3),
)


def test_what_apache_hudi_reads_by_event_time():
    """A record that came back after a deletion compares with the base row again: `e` shows the old row, as in Apache Hudi."""
    kept = [("a", 5, "base"), ("b", 5, "base"), ("e", 5, "base"), ("f", 9, "u2"), ("h", 9, "u"), ("j", 5, "base"), ("k", 5, "base")]
    assert read(slice_of(BASE, *OBSERVED)) == kept
    assert read(slice_of(BASE, b"".join(OBSERVED))) == kept, "the same blocks in one file"


def test_what_apache_hudi_reads_by_commit_time():
    kept = [("a", 3, "u"), ("e", 3, "u2"), ("f", 9, "u2"), ("g", 7, "u2"), ("j", 5, "base"), ("k", 5, "base")]
    assert read(slice_of(BASE, *OBSERVED), COMMIT) == kept


POSITIONS = "AQAAAAAAAAAAAAAAOjAAAAEAAAAAAAEAEAAAAAAAAQA="
"""The bitmap of rows 0 and 1."""


def test_positions_that_point_at_other_rows_do_not_count():
    """A base file that was written again has other rows there; Apache Hudi's readers would change these (trap 4)."""
    wrong = {"RECORD_POSITIONS": POSITIONS, "BASE_FILE_INSTANT_TIME_OF_RECORD_POSITIONS": "1"}
    update = block([("c", 9, "u"), ("d", 9, "u")], 1, **wrong)
    kept = [("a", 5, "base"), ("b", 5, "base"), ("c", 9, "u"), ("d", 9, "u")]
    assert read(slice_of(BASE[:4], update)) == kept
    assert read(slice_of(BASE[:4], update, with_header(deletions(["d", "b"], 2), wrong)), COMMIT) == [kept[0], kept[2]]


def test_deletions_with_ordering_values():
    deletes = deletions(["a", "b", "c", "d"], 2, pa.array([4, 5, 6, 6], pa.int64()))
    update = block([("c", 7, "u"), ("d", 3, "u")], 1)
    assert read(slice_of(BASE[:4], update + deletes)) == [("a", 5, "base"), ("c", 7, "u")]
    assert read(slice_of(BASE[:4], update, deletes), COMMIT) == []


def test_deletions_that_are_serialised_by_kryo():
    """Those of version 1 always win; those of version 2 compare."""
    kept = [("k0", 5, "base"), ("k1", 5, "base"), ("k2", 5, "base"), ("k6", 5, "base")]
    assert read(slice_of([(f"k{n}", 5, "base") for n in range(7)], by_kryo(2, "long"))) == kept
    assert read(slice_of(BASE[:3], by_kryo(2, "no_value"))) == [("c", 5, "base")]
    several = [("j", 5, "base"), ("k", 5, "base")]
    assert read(slice_of(several, by_kryo(1, "one"))) == several[:1]
    assert read(slice_of(several, by_kryo(1, "one"), block([("k", 1, "u")], 3))) == read(
        slice_of(several, deletions(["k"], 2), block([("k", 1, "u")], 3))
    )
    assert read(slice_of(several, by_kryo(1, "one")), COMMIT) == several[:1]


def by_kryo(version, name):
    header = {HeaderKey.INSTANT_TIME: at(2), HeaderKey.SCHEMA: avro_with_meta_fields(avro_from_arrow(USER, "t"))}
    return frame_block(BlockType.DELETE, header, kryo_content(version, name))


def test_deletions_whose_values_do_not_compare_win():
    deletes = deletions(["a"], 1, pa.array([1], pa.int32()))
    assert read(slice_of(BASE[:1], deletes)) == [], "Java compares an Integer with no Long"


@pytest.mark.parametrize(
    ("values", "kind", "same"),
    [
        (pa.array([1, None], pa.int64()), pa.int64(), [1, None]),
        (pa.array([None]), pa.int64(), [None]),
        (pa.array([1]), pa.int32(), None),
        (pa.array(["x"]), pa.int64(), None),
        (pa.array([1.5], pa.float32()), pa.float64(), None),
        (pa.array([3], pa.int32()), pa.date32(), "1970-01-04"),
        (pa.array([1_000_000]), pa.timestamp("us", tz="UTC"), "1970-01-01 00:00:01.000000Z"),
        (pa.array([1_000]), pa.timestamp("ms"), "1970-01-01 00:00:01.000"),
        (pa.array([1_000_000], pa.timestamp("us", tz="UTC")), pa.timestamp("ms", tz="UTC"), "1970-01-01 00:00:01.000Z"),
        (pa.array(["1.5"]).cast(pa.decimal128(30, 15)), pa.decimal128(10, 2), "1.50"),
    ],
)
def test_types_of_ordering_values(values, kind, same):
    found = comparable_ordering(pa.chunked_array([values]), kind)
    if same is None:
        assert found is None
        return
    assert found.type == kind
    assert (found.cast(pa.string())[0].as_py() if isinstance(same, str) else found.to_pylist()) == same


def test_uncommitted_and_later_blocks_do_not_count():
    blocks = b"".join(block([("a", 10 + n, f"w{n}")], n) for n in range(1, 5))
    found = slice_of(BASE[:1], blocks)
    some = VisibleInstants(frozenset([at(3)]), first_active=at(2), pending=frozenset())
    assert read(found, replace(EVENT, visible=some)) == [("a", 13, "w3")]
    assert read(found, replace(EVENT, visible=some, as_of=at(2))) == [("a", 11, "w1")], "older than the active timeline"
    pending = VisibleInstants(frozenset([at(2)]), first_active=at(2), pending=frozenset([at(1)]))
    assert read(found, replace(EVENT, visible=pending, as_of=at(1))) == [("a", 5, "base")]
    assert read(found, replace(EVENT, as_of=at(3))) == [("a", 13, "w3")]


def test_rollback_blocks_void_what_they_follow():
    one, two = block([("a", 6, "one")], 1), block([("a", 7, "two")], 2)
    undo = command_block(at(9), at(2))
    assert read(slice_of(BASE[:1], one, two, undo)) == [("a", 6, "one")]
    assert read(slice_of(BASE[:1], one, undo, two)) == [("a", 7, "two")], "only what was there before"
    assert read(slice_of(BASE[:1], one, two, undo), replace(EVENT, as_of=at(3))) == [("a", 6, "one")], "whatever its own instant"
    late = VisibleInstants(frozenset([at(1), at(2)]))
    assert read(slice_of(BASE[:1], one, two, undo), replace(EVENT, visible=late)) == [("a", 6, "one")]


def test_blocks_of_retried_tasks_are_harmless():
    written = block([("a", 6, "one")], 1) + deletions(["b"], 1)
    assert read(slice_of(BASE[:3], written + written, written)) == [("a", 6, "one"), ("c", 5, "base")]


def test_damaged_stretches_are_passed_over(caplog):
    one, two = block([("a", 6, "one")], 1), block([("b", 6, "two")], 2)
    with caplog.at_level(logging.WARNING):
        assert read(slice_of(BASE[:2], one[: len(one) // 2] + two)) == [("a", 5, "base"), ("b", 6, "two")]
    (record,) = caplog.records
    assert "1 damaged place(s)" in record.getMessage()
    assert ".f_1.log.1_0-0-0" in record.getMessage()


def instants_after(*blocks, visible=None):
    storage, file_slice = slice_of(None, b"".join(blocks))
    logs = [scan_log(storage, path) for path in file_slice.log_paths]
    return [int(b.instant) - int(at(0)) for b in counting_blocks(logs, visible)]


def test_compacted_blocks_stand_for_those_they_list():
    one, two, three = (block([("a", n, "")], n) for n in (1, 2, 3))
    compacted = block([("a", 2, "")], 8, COMPACTED_BLOCK_TIMES=f"{at(2)},{at(1)}")
    again = block([("a", 3, "")], 9, COMPACTED_BLOCK_TIMES=f"{at(3)},{at(2)},{at(1)}")
    assert instants_after(one, two, compacted, three) == [8, 3]
    assert instants_after(one, two, three, compacted) == [8, 3], "in the place of the last one"
    assert instants_after(one, two, compacted, three, again) == [9]
    assert instants_after(one, two, three, compacted, visible=VisibleInstants(frozenset(map(at, (1, 2, 3))))) == [1, 2, 3]
    assert instants_after(one, two, three, compacted, command_block(at(10), at(8))) == [1, 2, 3], (
        "a compaction that was rolled back"
    )
    assert instants_after(three, compacted) == [3, 8]
    deleted = with_header(deletions(["b"], 8), {"COMPACTED_BLOCK_TIMES": f"{at(1)},{at(2)}"})
    assert instants_after(one, two, compacted + deleted, three) == [8, 8, 3], "records and deletions of one compaction"


def test_parts_of_records_lie_upon_the_version_before():
    """By event time the part that comes late lies below: it fills what nobody above says. (More:
    tests/property/test_merge_parts.py.)"""
    narrow = with_meta_fields(pa.schema([USER.field("id"), USER.field("ts")]))
    part = block([("a", 6, None), ("z", 6, None)], 1, schema=narrow, IS_PARTIAL="true")
    assert read(slice_of(BASE[:2], part)) == [("a", 6, "base"), ("b", 5, "base"), ("z", 6, None)]
    late = block([("a", 4, "late"), ("z", 4, "late")], 2)
    assert read(slice_of(BASE[:1], part, late)) == [("a", 6, "late"), ("z", 6, "late")]
    assert read(slice_of(BASE[:1], part, late), COMMIT) == [("a", 4, "late"), ("z", 4, "late")]
    assert read(slice_of(BASE[:1], part), replace(EVENT, as_of=at(0))) == [("a", 5, "base")]


@pytest.mark.parametrize("rule", [EVENT, COMMIT])
def test_a_part_of_no_record_is_refused_if_it_lacks_a_column_that_no_row_lacks(rule):
    strict = pa.schema([f.with_nullable(f.name != "v") for f in SCHEMA])
    narrow = with_meta_fields(pa.schema([USER.field("id"), USER.field("ts")]))
    part = block([("a", 6, None), ("z", 6, None)], 1, schema=narrow, IS_PARTIAL="true")
    assert read(slice_of([*BASE[:2], ("z", 5, "base")], part), rule, strict) == [
        ("a", 6, "base"),
        ("b", 5, "base"),
        ("z", 6, "base"),
    ]
    with pytest.raises(UnsupportedTable, match=r"1 partial record.*'v'"):
        read(slice_of(BASE[:2], part), rule, strict)


def test_a_log_whose_parts_have_all_columns_is_merged():
    parts = [block([(key, 6, "new")], number, IS_PARTIAL="true") for number, key in enumerate("ab", 1)]
    storage, found = slice_of(BASE[:2], *parts)
    log = merged_log(storage, found, SCHEMA, COMMIT)
    assert (sorted(log.rows.column("id").to_pylist()), log.parts) == (["a", "b"], ())


def test_parts_of_records_do_not_go_with_cells_that_are_open_by_value():
    part = block([("a", 6, "one")], 1, IS_PARTIAL="true")
    rule = replace(EVENT, merging=replace(EVENT.merging, partial=PartialUpdate(OpenCells.NULLS)))
    with pytest.raises(UnsupportedTable, match="IS_PARTIAL"):
        read(slice_of(BASE, part), rule)


def test_several_ordering_fields_decide_one_after_the_other():
    rule = LogRule(Merging(MergeMode.EVENT_TIME, ordering_field="ts,v"))
    update = block([("a", 5, "a"), ("b", 5, "c"), ("c", 4, "z"), ("d", 6, "a")], 1)
    kept = [("a", 5, "base"), ("b", 5, "c"), ("c", 5, "base"), ("d", 6, "a")]
    assert read(slice_of(BASE[:4], update), rule) == kept
    assert read(slice_of(BASE[:4], block([("b", 5, "d"), ("d", 6, "b"), ("d", 7, "a")], 2), update), rule) == [
        *(kept[:1]), ("b", 5, "d"), kept[2], ("d", 7, "a")
    ]  # fmt: skip


def test_rows_that_say_by_a_value_that_they_are_deletions():
    rule = replace(EVENT, merging=replace(EVENT.merging, deletion=DeletionMark("v", "gone")))
    update = block([("a", 6, "gone"), ("b", 4, "gone"), ("c", 6, "u")], 1)
    assert read(slice_of(BASE[:3], update), rule) == [("b", 5, "base"), ("c", 6, "u")]
    storage, found = slice_of(BASE[:3], update)
    assert sorted(read_slice(storage, found, SCHEMA, rule, ["id"]).column("id").to_pylist()) == ["b", "c"]


def test_slices_without_base_file_or_without_anything():
    storage, only_log = slice_of(None, block([("a", 6, "one")], 1), deletions(["b"], 2))
    assert read((storage, only_log)) == [("a", 6, "one")]
    assert read((storage, replace(only_log, log_files=()))) == []
    assert read((storage, only_log), replace(EVENT, as_of=at(0))) == []


def test_columns_of_older_and_newer_files():
    old = pa.schema([*SCHEMA.remove(SCHEMA.get_field_index("v")).remove(SCHEMA.get_field_index("ts")), ("ts", pa.int32())])
    older = pa.schema([f for f in with_meta_fields(old) if f.name != "_hoodie_is_deleted"])
    storage, found = slice_of(
        [("a", 5, ""), ("b", 5, ""), ("c", 5, "")], block([("a", 4, ""), ("b", 6, "")], 1, older), schema=older
    )
    assert read((storage, found)) == [("a", 5, None), ("b", 6, None), ("c", 5, None)]
    assert read((storage, found), where=pc.field("ts") > 5) == [("b", 6, None)]
    storage.put(found.log_paths[0], block([("c", 7, "new")], 1))
    assert read((storage, found)) == [("a", 5, None), ("b", 5, None), ("c", 7, "new")]
    assert read((storage, found), where=pc.field("v") == "new") == [("c", 7, "new")]


def test_tables_without_meta_fields():
    bare = pa.schema([("id", pa.string()), ("ts", pa.int64()), ("v", pa.string())])
    rule = replace(EVENT, keygen=KeyGenerator(("id",), ()))
    found = slice_of(BASE[:4], block([("a", 6, "u"), ("b", 4, "u")], 1, bare) + deletions(["c"], 2), schema=bare)
    expected = [("a", 6, "u"), ("b", 5, "base"), ("d", 5, "base")]
    assert read(found, rule) == expected
    assert read(found, rule, keys=pa.array(["a", "c", "d"])) == [("a", 6, "u"), ("d", 5, "base")]
    assert read_slice(*found, SCHEMA, rule, ["_hoodie_commit_time", "v"]).num_rows == 3


def test_rules_and_slices_ship_to_workers():
    rule = replace(EVENT, visible=VisibleInstants(frozenset(["1"]), "1"), keygen=KeyGenerator(("id",), ()))
    assert pickle.loads(pickle.dumps(rule)) == rule
    _, found = slice_of(BASE, *OBSERVED)
    assert pickle.loads(pickle.dumps(found)) == found


def test_row_groups_that_cannot_match_are_not_decoded(monkeypatch):
    decoded = []

    def counted(scan, row_groups, wanted):
        decoded.append((list(row_groups), wanted.names))
        return original(scan, row_groups, wanted)

    original = BaseFileScan.batches
    monkeypatch.setattr(BaseFileScan, "batches", counted)
    found = slice_of(BASE[:8], block([("c", 6, "u"), ("e", 4, "u")], 1))
    assert read(found, COMMIT, where=pc.field("id").isin(["e"])) == [("e", 4, "u")]
    assert [groups for groups, _ in decoded] == [[2], [2]]
    decoded.clear()
    assert read(found, EVENT, keys=pa.array(["e"])) == [("e", 5, "base")]
    assert [groups for groups, _ in decoded] == [[2], [2]]
    decoded.clear()
    assert read(found, EVENT, where=pc.field("ts") == 4) == [], "the base row is compared although the filter leaves it out"
    assert decoded[0][0] == [0, 1, 2, 3]
    decoded.clear()
    assert read_slice(*found, SCHEMA, EVENT, ["v"]).column_names == ["v"]
    assert [names for _, names in decoded] == [["_hoodie_record_key", "ts"], ["v"]]


def test_columns_that_were_compared_are_not_decoded_again(monkeypatch):
    decoded = []

    def counted(scan, row_groups, wanted):
        decoded.append(wanted.names)
        return original(scan, row_groups, wanted)

    original = BaseFileScan.batches
    monkeypatch.setattr(BaseFileScan, "batches", counted)
    found = slice_of(BASE[:8], block([("c", 6, "u"), ("e", 4, "u")], 1))
    expected = [(k, 6, "u") if k == "c" else (k, 5, "base") for k in "abcdefgh"]
    whole = read_slice(*found, SCHEMA, EVENT)
    assert (whole.schema, sorted((r["id"], r["ts"], r["v"]) for r in whole.to_pylist())) == (SCHEMA, expected)
    rest = [name for name in SCHEMA.names if name not in ("_hoodie_record_key", "ts")]
    assert decoded == [["_hoodie_record_key", "ts"], rest]
    decoded.clear()
    for columns, where, count in ((["ts", "_hoodie_record_key"], None, 8), (["ts"], pc.field("ts") != 6, 7)):
        rows = read_slice(*found, SCHEMA, EVENT, columns, where)
        assert (rows.column_names, rows.num_rows) == (columns, count)
    assert decoded == [["_hoodie_record_key", "ts"]] * 2


@pytest.mark.parametrize("cells", [None, PartialUpdate(OpenCells.NULLS)])
def test_of_rows_with_one_key_the_first_meets_the_log(cells):
    """As Apache Hudi reads them, whichever wins: the others stay, also where the first row lies in a row group that a filter
    prunes."""
    twice = [
        ("a", 5, "first"),
        ("b", 5, "b"),
        ("c", 5, "c"),
        ("a", 2, "second"),
        ("d", 5, "first"),
        ("e", 5, "e"),
        ("d", 9, "second"),
    ]
    rows = slice_of(twice, block([("a", 7, "new"), ("d", 8, "new")], 1), deletions(["b"], 2))
    kept = [("a", 2, "second"), ("a", 7, "new"), ("c", 5, "c"), ("d", 8, "new"), ("d", 9, "second"), ("e", 5, "e")]
    event, commit = (replace(rule, merging=replace(rule.merging, partial=cells)) for rule in (EVENT, COMMIT))
    for rule in (event, commit):
        assert read(rows, rule) == kept
        assert read(rows, rule, keys=pa.array(["a", "b"])) == kept[:2]
        assert read(rows, rule, where=pc.field("v") == "second") == [kept[0], kept[4]]
    late = slice_of(twice, block([("a", 3, "late"), ("d", 3, "late")], 1))
    assert [r for r in read(late, event) if r[0] in "ad"] == [twice[3], twice[0], twice[4], twice[6]]
    assert read(slice_of(twice, deletions(["a"], 1)), event, where=pc.field("id") == "a") == [twice[3]]


def test_broken_files_name_themselves():
    storage, found = slice_of(BASE, block([("a", 6, "one")], 1))
    storage.put(found.path, b"PAR1 no more")
    with pytest.raises(CorruptMetadata, match=found.path):
        read((storage, found))
    storage, found = slice_of(BASE, with_content(b"\x00\x00\x00\x03\xff\xff"))
    with pytest.raises(CorruptMetadata, match=r"\.f_1\.log\.1_0-0-0"):
        read((storage, found))


def with_content(content):
    text = avro_with_meta_fields(avro_from_arrow(USER, "t"))
    return frame_block(BlockType.AVRO, {HeaderKey.INSTANT_TIME: at(1), HeaderKey.SCHEMA: text}, content)


DOTTED = pa.schema(
    [
        ("id", pa.string()),
        ("ts", pa.int64()),
        ("in", pa.struct([("x", pa.struct([("y", pa.int64())])), ("z", pa.float64())])),
        ("in.z", pa.int64()),
        ("the.in", pa.struct([("z", pa.int64())])),
        ("in.", pa.int64()),
    ]
)


@pytest.mark.parametrize(
    ("where", "columns"),
    [
        ((pc.field("ts") > 1) & (pc.field("in").is_null() | pc.field("id").isin(["a"])), {"ts", "in", "id"}),
        (pc.field("in", "x", "y") == 1, {"in"}),
        (pc.struct_field(pc.field("in"), ["x", "y"]) == 1, {"in"}),
        (pc.field("the.in", "z") == 1, {"the.in"}),
        # More than needed, but none too few: the dotted names do not tell which of the two it is.
        (pc.field("in", "z") == 1.0, {"in", "in.z"}),
        (pc.field("in.z") == 1, {"in", "in.z"}),
        (pc.field("in.") == 1, {"in", "in."}),
        (pc.is_nan(pc.field("ts").cast(pa.float64())) | pc.starts_with(pc.field("id"), "a"), {"ts", "id"}),
        (pc.scalar(True), set()),
        # Nothing is known of a column that is not there: then all are needed.
        (pc.field("gone") == 1, set(DOTTED.names)),
    ],
)
def test_referenced_columns(where, columns):
    assert referenced_columns(where, DOTTED) == columns
    for name in DOTTED.names:
        if name not in columns:
            DOTTED.empty_table().drop_columns([name]).filter(where)


IN_E = "id IN ('e', 'nothing', 'x')"


def test_a_list_of_values_prunes_row_groups():
    storage, found = slice_of(BASE, block([("c", 6, "u"), ("e", 6, "u")], 1))
    scan = BaseFileScan(storage, found.path, SCHEMA)
    assert scan.row_groups(parse_where(IN_E, SCHEMA)) == [2]
    assert scan.row_groups(parse_where(f"ts IN (5, {', '.join(map(str, range(6, 5000)))}) AND {IN_E}", SCHEMA)) == [2]
    assert scan.row_groups(parse_where("ts IN (4, 6)", SCHEMA)) == []
    assert read((storage, found), where=parse_where(IN_E, SCHEMA)) == [("e", 6, "u")]
    assert read((storage, found), where=parse_where("id = 'e' AND ts NOT IN (5, 7)", SCHEMA)) == [("e", 6, "u")]


@pytest.mark.parametrize("only_fill", [True, False])
def test_a_list_of_values_of_a_column_that_the_path_knows(only_fill):
    schema = SCHEMA.append(pa.field("hour", pa.int32()))
    rule = replace(EVENT, path_columns=PathColumns(("hour",), only_fill=only_fill))
    storage, found = slice_of(BASE[:4], block([("b", 6, "u")], 1), schema=schema if only_fill else SCHEMA)
    for name in [found.base_file, *(log.name for log in found.log_files)]:
        storage.put(f"hour=7/{name}", storage.read(name))
    found = replace(found, group=FileGroupId("hour=7", "f"))
    for text, kept in [("hour IN (7, 5000000000)", True), ("hour NOT IN (8, 9)", True), ("hour IN (8, 9)", False)]:
        where = parse_where(f"{text} AND id IN ('a', 'b', 'x')", schema)
        assert read((storage, found), rule, schema, where=where) == ([("a", 5, "base"), ("b", 6, "u")] if kept else [])


def test_file_names_of_log_rows_are_those_of_the_block():
    storage, found = slice_of(BASE[:1], block([("b", 6, "one")], 1, encode=parquet_block))
    batches = list(scan_slice(storage, found, SCHEMA, EVENT, ["_hoodie_file_name", "id"]))
    assert [b.schema.names for b in batches] == [["_hoodie_file_name", "id"]] * 2


def test_statistics_prune_where_the_filtered_column_kept_its_type():
    older = pa.schema([f if f.name != "ts" else pa.field("ts", pa.int32()) for f in SCHEMA])
    storage, found = slice_of(BASE[:6], schema=older)
    scan = BaseFileScan(storage, found.path, SCHEMA)
    assert scan.evolved == {"ts"}
    assert scan.row_groups(pc.field("id") == "c") == [1]
    assert scan.row_groups(pc.field("ts") == 99) == [0, 1, 2], "statistics are of the older type"
    assert read((storage, found), where=(pc.field("id") > "d") & (pc.field("ts") == 5)) == [("e", 5, "base"), ("f", 5, "base")]
