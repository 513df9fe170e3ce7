"""Tables with consistent hashing: rings bit for bit, where rows go, resizes, and what is refused."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from tests.plans import schedule_compaction, schedule_log_compaction
from tests.unit.table.index.test_bucket_index import KEYS, beside, rows
from tests.unit.table.tables import compact, contents, new_table, open_table, write

from tideline_table.action import (
    RingResize,
    SkippedPartition,
    SkipReason,
    create_metadata,
    create_savepoint,
    preview_restore,
    resize_buckets,
    resize_rings,
    run_log_compaction,
)
from tideline_table.action.log_compaction.task import merge_log
from tideline_table.action.write import ring_resize
from tideline_table.coordination.shared.hudi_rules import check_buckets
from tideline_table.errors import CorruptMetadata, InvalidOption, StorageError, TidelineError, UnsupportedTable, WriteConflict
from tideline_table.hudi.file_names import is_ring_file_id
from tideline_table.hudi.properties import read_properties
from tideline_table.index.bucket import BucketIndex, Engine
from tideline_table.index.bucket_kinds import RingIndex
from tideline_table.index.bucket_properties import bucket_index
from tideline_table.index.hash_ring import FIRST_INSTANT, HashRing, RingNode, parse_ring, ring_folder
from tideline_table.index.ring_change import RingLimits, resized_ring
from tideline_table.index.xx_hash import text_hashes
from tideline_table.metadata_table.reading import live, read_files, slice_files
from tideline_table.storage import MemoryStorage
from tideline_table.table import BucketIndex as NewBuckets
from tideline_table.table import Table, TableType
from tideline_table.writer import Operation

TO_LOG = {"tideline.insert.to.log": True}
SMALL: dict[str, Any] = {"hoodie.parquet.max.file.size": 1024, "hoodie.bucket.index.max.num.buckets": 16}
"""Each base file of these tests is larger than a split needs."""
LARGE: dict[str, Any] = {"hoodie.parquet.max.file.size": 100_000_000, "hoodie.bucket.index.min.num.buckets": 1}


def ring_table(buckets: int = 4, **more: Any) -> tuple[Table, MemoryStorage, Any]:
    table, storage, clock = new_table(type=TableType.MOR, index=NewBuckets(buckets, consistent=True), **more)
    assert isinstance(storage, MemoryStorage)
    return table, storage, clock


def index_of(table: Table) -> BucketIndex:
    index = table.definition.buckets
    assert index is not None
    return index


def check_rings(table: Table) -> None:
    """Each row is in the file group of its node, and each file group is that of a node."""
    table.refresh()
    index, found = index_of(table), table.read()
    rings = table.rings().of({s.group.partition_path for s in table.slices()})
    for partition, ring in rings.items():
        part = found.filter(pc.equal(found["_hoodie_partition_path"], partition))
        ids = [ring.file_ids[at] for at in index.in_partition("", ring).buckets(part["_hoodie_record_key"]).tolist()]
        # The name of a log file has a dot before the file id.
        assert [name.removeprefix(".").split("_")[0] for name in part["_hoodie_file_name"].to_pylist()] == ids
        ring.by_node([s for s in table.slices() if s.group.partition_path == partition])
    keys = list(zip(found["_hoodie_partition_path"].to_pylist(), found["id"].to_pylist(), strict=True))
    assert len(set(keys)) == len(keys)


def test_the_hash_is_that_of_the_specification_and_of_hudi() -> None:
    texts = ["", "abc", "0123456789abcdef", "é漢😀" * 9]
    wanted = [0x02CC5D05, 0x32D153FF, 0xC2C45B69, 0x6C554277]
    assert text_hashes(pa.array(texts)).tolist() == wanted
    assert text_hashes(pa.chunked_array([texts[:1], texts[1:]])).tolist() == wanted
    assert text_hashes(pa.array(["x", *texts]).slice(1)).tolist() == wanted
    assert text_hashes(pa.array([], pa.string())).tolist() == []
    with pytest.raises(ValueError, match="null"):
        text_hashes(pa.array(["a", None]))


@pytest.mark.parametrize(
    ("key", "fields", "code", "value"),
    [
        ("plain", ("id",), 2124747617, 2147483647),
        ("a:b", ("id",), 1879768183, 2147483647),
        ("a,b", ("id",), 402491539, 536870912),
        ("id:1,n:2", ("id",), 921487538, 1073741824),
        ("é漢😀", ("id",), 846402706, 1073741824),
        ("id:k015,n:15,w:__null__", ("id", "w"), 88151593, 536870912),
        ("id:k014,n:14,w:__empty__", ("id", "w"), 1014267976, 1073741824),
        ("id:k001,n:1,w:a:b", ("id", "w"), 411971870, 536870912),
    ],
)
def test_a_key_belongs_to_the_node_that_hudi_gives_it(key: str, fields: tuple[str, ...], code: int, value: int) -> None:
    """As seen of Apache Hudi 1.2.0 (format reference 12.2)."""
    index = bucket_index(4, fields, ("id", "n", "w"), Engine.CONSISTENT)
    ring = HashRing.first("p0", 4)
    assert index.hash_codes(pa.array(["other", key]))[1] == code
    assert ring.nodes[index.in_partition("", ring).buckets(pa.array([key]))[0]].value == value


def test_the_first_ring_is_that_of_hudi() -> None:
    ring = HashRing.first("p0", 4)
    assert ring.nodes[0] == RingNode(536870912, "a1ba364b-fbde-3906-b865-53e4c35f3556")
    assert ring.nodes[3] == RingNode(2147483647, "ddd512a0-10e2-31e7-b326-8550d5f6acf3")
    assert ring.path == ".hoodie/.bucket_index/consistent_hashing_metadata/p0/00000000000000.hashing_meta"
    assert parse_ring(ring.content, ring.path, "p0", FIRST_INSTANT) == ring
    assert all(is_ring_file_id(file_id) for file_id in ring.file_ids)
    assert ring_folder("") == ".hoodie/.bucket_index/consistent_hashing_metadata"
    # A hash above the last value belongs to the first node.
    short = HashRing("p0", "20260101000000000", 2, 1, (RingNode(10, "a"), RingNode(20, "b")))
    assert short.nodes_of(np.array([0, 10, 11, 20, 21, 2**31 - 1])).tolist() == [0, 0, 1, 1, 0, 0]


@pytest.mark.parametrize("number", [1, 3, 7, 46_340])
def test_a_first_ring_has_as_many_nodes_as_asked(number: int) -> None:
    values = [node.value for node in HashRing.first("p", number).nodes]
    assert len(values) == number
    assert values == sorted(set(values))
    assert values[-1] == 2**31 - 1


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (lambda d: d["nodes"].reverse(), "node values"),
        (lambda d: d["nodes"].clear(), "0 node"),
        (lambda d: d["nodes"][0].update(tag="DELETE"), "tags DELETE, NORMAL"),
        (lambda d: d["nodes"][0].update(value=-1), "node values -1"),
        (lambda d: d["nodes"][0].update(value="1"), "cannot be read"),
        (lambda d: d["nodes"][1].update(fileIdPrefix=None), "cannot be read"),
        (lambda d: d["nodes"][1].update(fileIdPrefix=d["nodes"][0]["fileIdPrefix"]), "two nodes with one file id"),
        (lambda d: d.update(partitionPath="q"), "partition 'q'"),
        (lambda d: d.update(instant="1"), "at '1'"),
        (lambda d: d.update(version=1), "version 1"),
        (lambda d: d.pop("seqNo"), "cannot be read"),
    ],
)
def test_a_ring_that_contradicts_itself_is_refused(change: Any, found: str) -> None:
    ring = HashRing.first("p", 4)
    document = json.loads(ring.content)
    change(document)
    with pytest.raises(CorruptMetadata, match=found):
        parse_ring(json.dumps(document).encode(), ring.path, "p", FIRST_INSTANT)


@pytest.mark.parametrize("options", [{}, TO_LOG])
def test_rows_go_to_the_groups_of_their_nodes(options: dict[str, Any]) -> None:
    table, storage, clock = ring_table()
    write(table, rows(KEYS[:40], 1, "a") + rows(KEYS[:10], 1, "a", "q"), **options)
    write(table, rows(KEYS[20:60], 2, "b"), Operation.INSERT, **options)
    write(table, rows(KEYS[:5], 3, "x"), Operation.DELETE)
    check_rings(table)
    wanted = [(k, "p", 1, "a") for k in KEYS[5:20]] + [(k, "p", 2, "b") for k in KEYS[20:]]
    assert contents(table) == sorted(wanted + [(k, "q", 1, "a") for k in KEYS[:10]])
    before = contents(table)
    assert compact(table) is not None
    check_rings(table)
    assert contents(table) == before
    fresh = open_table(storage, clock, "fresh")
    for key in ("k007", "k055"):
        found = fresh.snapshot().only(pc.field("id") == key).slices
        assert len({s.group.file_id for s in found}) == len({s.group.partition_path for s in found}) == len(found)
        assert {s.group.partition_path for s in found} <= {"p", "q"}
        assert fresh.read(where=f"id = '{key}'").num_rows == sum(row[0] == key for row in before)


def test_two_first_writers_make_one_ring_and_one_group_for_each_node(monkeypatch: pytest.MonkeyPatch) -> None:
    table, storage, clock = ring_table(buckets=2)
    other = open_table(storage, clock, "other")
    beside(monkeypatch, lambda: write(other, rows(KEYS[:30], 1, "theirs")))
    assert write(table, rows(KEYS[20:50], 2, "mine")).attempts == 2
    check_rings(table)
    files = [o.path for o in storage.list_objects(ring_folder(""))]
    assert files == [HashRing.first("p", 2).path]
    assert {r[0]: r[3] for r in contents(table)} == {**dict.fromkeys(KEYS[:20], "theirs"), **dict.fromkeys(KEYS[20:50], "mine")}
    assert {s.group.file_id for s in table.slices()} == set(HashRing.first("p", 2).file_ids)


def test_torn_hashing_metadata_stops_writers_and_not_readers(caplog: pytest.LogCaptureFixture) -> None:
    table, storage, clock = ring_table()
    write(table, rows(KEYS, 1, "a"))
    path = HashRing.first("p", 4).path
    whole = storage.read(path)
    for length in (0, 40, len(whole) - 1):
        # Of a writer that died, on a disk without atomic renames: every writer derives the rest.
        storage.put(path, whole[:length])
        mended = open_table(storage, clock, f"mended{length}")
        assert mended.read(where="id = 'k003'").num_rows == 1
        write(mended, rows(KEYS[:3], 2, "b"))
        assert storage.read(path) == whole
    storage.put(path, whole[7:])
    torn = open_table(storage, clock, "torn")
    with pytest.raises(CorruptMetadata, match=r"00000000000000\.hashing_meta cannot be read"):
        write(torn, rows(KEYS[:3], 2, "b"))
    with caplog.at_level(logging.WARNING):
        assert torn.read(where="id = 'k003'").num_rows == 1
    assert "reads all buckets" in caplog.text
    storage.put(path, HashRing.first("p", 3).content)
    with pytest.raises(UnsupportedTable, match="began with 3 buckets; expected 4 buckets"):
        write(open_table(storage, clock, "three"), rows(KEYS[:3], 2, "b"))
    # Metadata of another partition's ring: its nodes do not have the file groups that are there.
    nodes = HashRing.first("q", 4).nodes
    storage.put(path, HashRing("p", FIRST_INSTANT, 4, 0, nodes).content)
    with pytest.raises(UnsupportedTable, match="which no node of"):
        write(open_table(storage, clock, "foreign"), rows(KEYS[:3], 2, "b"))
    storage.delete(path)
    # Every writer derives a first ring.
    write(open_table(storage, clock, "again"), rows(KEYS[:3], 2, "b"))
    assert storage.read(path) == whole
    check_rings(open_table(storage, clock, "reader"))


def test_rows_of_another_node_are_named_before_they_are_compacted(monkeypatch: pytest.MonkeyPatch) -> None:
    table, _, _ = ring_table()
    write(table, rows(KEYS, 1, "a"))
    right = RingIndex.buckets_of
    monkeypatch.setattr(RingIndex, "buckets_of", lambda index, codes: (right(index, codes) + 1) % 4)
    write(table, rows(KEYS, 2, "b"))
    monkeypatch.undo()
    with pytest.raises(TidelineError, match="of other buckets"):
        compact(table)


def test_what_a_ring_does_not_allow_is_refused_by_name() -> None:
    with pytest.raises(InvalidOption, match="consistent hashing in a copy-on-write table"):
        new_table(type=TableType.COW, index=NewBuckets(4, consistent=True))
    with pytest.raises(InvalidOption, match="46341 buckets; expected 1 to 46340"):
        ring_table(buckets=46_341)
    table, storage, clock = ring_table()
    write(table, rows(KEYS, 1, "a"))
    before = contents(table)
    with pytest.raises(UnsupportedTable, match="4 consistent bucket"):
        resize_buckets(table, 8)
    with pytest.raises(InvalidOption, match=r"hoodie\.index\.bucket\.engine=SIMPLE"):
        write(table, rows(KEYS[:5], 2, "b"), **{"hoodie.index.bucket.engine": "SIMPLE"})
    assert contents(open_table(storage, clock, "r")) == before
    with pytest.raises(UnsupportedTable, match="has a bucket index by consistent hashing"):
        table.snapshot().sampled([0])
    simple, _, _ = new_table(index=NewBuckets(4))
    with pytest.raises(UnsupportedTable, match="expected a table with consistent hashing"):
        resize_rings(simple)


# --- resizes -------------------------------------------------------------------------------------------------------------


def limits(**more: int) -> RingLimits:
    return RingLimits(**{"split_bytes": 200, "merge_bytes": 20, "least": 1, "most": 99, **more})


def values(ring: HashRing) -> list[int]:
    return [node.value for node in ring.nodes]


def test_large_nodes_are_split_in_the_middle_of_their_range() -> None:
    ring = HashRing.first("p", 4)
    change = resized_ring(ring, {0: 500, 1: 100, 3: 201}, limits(), "20260101000000000")
    assert change is not None
    assert values(change.ring) == [268435455, *values(ring)[:3], 1879048191, values(ring)[3]]
    assert {m.sources for m in change.moves} == {(0,), (3,)}
    assert (change.ring.sequence, change.ring.number, change.ring.instant) == (1, 4, "20260101000000000")
    kept = set(change.ring.file_ids) & set(ring.file_ids)
    assert kept == {ring.file_ids[1], ring.file_ids[2]}
    assert all(is_ring_file_id(file_id) for file_id in change.ring.file_ids)
    one = resized_ring(ring, {0: 500, 3: 900}, limits(most=5), "2")
    assert one is not None
    assert [m.sources for m in one.moves] == [(3,)], "the largest first"
    assert resized_ring(ring, {0: 500}, limits(most=4), "2") is None


def test_small_neighbours_are_merged_into_the_last_of_them() -> None:
    ring = HashRing.first("p", 8)
    change = resized_ring(ring, {0: 5, 1: 15, 2: 9, 3: 20, 4: 20, 6: 3, 7: 3}, limits(), "2")
    assert change is not None
    # 0 to 2 have more than 20 bytes then; 5 has no files; no merge crosses 0.
    assert [m.sources for m in change.moves] == [(0, 1, 2), (3, 4), (6, 7)]
    assert values(change.ring) == [values(ring)[at] for at in (2, 4, 5, 7)]
    few = resized_ring(ring, {0: 1, 1: 1, 2: 1, 3: 1}, limits(least=6), "2")
    assert few is not None
    assert [m.sources for m in few.moves] == [(0, 1, 2)]
    assert resized_ring(ring, {0: 1, 2: 1, 4: 1}, limits(), "2") is None
    both = resized_ring(ring, {0: 1, 1: 1, 2: 999}, limits(least=8, most=9), "2")
    assert both is not None
    assert len(both.ring.nodes) == 8


def test_a_resize_changes_no_row_and_no_query_of_earlier() -> None:
    table, storage, clock = ring_table(buckets=2)
    write(table, rows(KEYS[:40], 1, "a") + rows(KEYS[:10], 1, "a", "q"))
    first = table.state.last_instant
    write(table, rows(KEYS[20:60], 2, "b"))
    write(table, rows(KEYS[:3], 3, "x"), Operation.DELETE)
    before, then, last = contents(table), contents(table, first), table.state.sequence
    stale, reader = open_table(storage, clock, "stale"), open_table(storage, clock, "reader")
    clock.advance(1)
    done = resize_rings(table, options=SMALL).committed
    assert done is not None
    assert contents(table) == before
    check_rings(table)
    assert len(table.rings().at("p").nodes) == 4
    assert sum(batch.num_rows for batch in table.changes(last).scan()) == 0, "a resize changes no row"
    write(stale, rows([*KEYS[50:60], "new"], 4, "c"))
    check_rings(stale)
    for opened in (reader, table, open_table(storage, clock, "fresh")):
        opened.refresh()
        assert contents(opened, first) == then
        for key in ("k007", "k055", "new"):
            assert len(opened.snapshot().only((pc.field("id") == key) & (pc.field("part") == "p")).slices) <= 2
            assert sorted(set(opened.read(where=f"id = '{key}'")["id"].to_pylist())) == [key]
        assert opened.read(where="id = 'k007'", as_of=first).num_rows == 2
        assert opened.snapshot(first).only(pc.field("id") == "k007").slices != opened.snapshot(first).slices
    made = sorted(o.path.rsplit("/", 1)[-1] for o in storage.list_objects(ring_folder("p")))
    assert made == [f"{FIRST_INSTANT}.hashing_meta", f"{done.instant}.commit", f"{done.instant}.hashing_meta"]
    compact(table)
    check_rings(table)
    # Smaller again: the merged buckets hold the same rows.
    before = contents(table)
    clock.advance(1)
    assert resize_rings(table, options=LARGE).committed is not None
    assert contents(table) == before
    check_rings(table)
    assert len(table.rings().at("p").nodes) == 1
    assert resize_rings(table, options=LARGE).committed is None


def test_a_resize_reads_logs_that_a_log_compaction_merged() -> None:
    table, storage, clock = ring_table()
    write(table, rows(KEYS, 1, "a"))
    for version in range(2, 5):
        write(table, rows(KEYS[::2], version, f"v{version}"))
    before = contents(table)
    assert schedule_log_compaction(table, {"hoodie.log.compaction.blocks.threshold": 2}) is not None
    run_log_compaction(table, run=lambda tasks: [merge_log(task, storage) for task in tasks])
    assert contents(open_table(storage, clock, "r")) == before
    assert resize_rings(table, options=SMALL).committed is not None
    check_rings(table)
    assert contents(open_table(storage, clock, "r")) == before


def test_a_writer_with_the_old_ring_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    table, storage, clock = ring_table(buckets=2)
    write(table, rows(KEYS[:30], 1, "a"))
    other = open_table(storage, clock, "w2")
    beside(monkeypatch, lambda: resize_rings(other, options=SMALL))
    assert write(table, rows(KEYS[20:50], 2, "b")).attempts == 2
    check_rings(table)
    assert {r[0]: r[3] for r in contents(table)} == {**dict.fromkeys(KEYS[:20], "a"), **dict.fromkeys(KEYS[20:50], "b")}


def test_a_writer_that_only_opens_a_node_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    """It shares no file group with the resize, and the log knows which ring it went by."""
    table, storage, clock = ring_table(buckets=4)
    index, ring = index_of(table), HashRing.first("p", 4)
    nodes = index.in_partition("", ring).buckets(pa.array(KEYS)).tolist()
    write(table, rows([k for k, n in zip(KEYS, nodes, strict=True) if n == 0], 1, "a"))
    other = open_table(storage, clock, "w2")
    beside(monkeypatch, lambda: resize_rings(other, options=SMALL))
    assert write(table, rows([k for k, n in zip(KEYS, nodes, strict=True) if n == 2], 2, "b")).attempts == 2
    check_rings(table)


def test_a_resize_beside_a_writer_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    table, storage, clock = ring_table(buckets=2)
    write(table, rows(KEYS[:30], 1, "a"))
    other = open_table(storage, clock, "w2")
    beside(monkeypatch, lambda: write(other, rows(KEYS[20:50], 2, "b")))
    done = resize_rings(table, options=SMALL).committed
    assert done is not None
    assert done.attempts == 2
    check_rings(table)
    assert len(contents(table)) == 50
    # The ring of the attempt that lost is gone.
    assert [o.path for o in storage.list_objects(ring_folder("p")) if o.path.endswith("hashing_meta")] == [
        f"{ring_folder('p')}/{FIRST_INSTANT}.hashing_meta",
        f"{ring_folder('p')}/{done.instant}.hashing_meta",
    ]


def test_partitions_under_a_compaction_are_left_out() -> None:
    table, _, clock = ring_table(buckets=2)
    write(table, rows(KEYS, 1, "a"))
    write(table, rows(KEYS, 2, "b"))
    instant = schedule_compaction(table, {"hoodie.compact.inline.max.delta.commits": 1})
    clock.advance(1)
    assert instant
    assert resize_rings(table, options=SMALL) == RingResize(None, (SkippedPartition("p", SkipReason.PLAN_PENDING, (instant,)),))
    compact(table)
    done = resize_rings(table, options=SMALL)
    assert (done.committed is not None, done.skipped) == (True, ())
    check_rings(table)


def test_partitions_that_stay_as_they_are_have_a_reason() -> None:
    table, _, clock = ring_table()
    write(table, rows(KEYS, 1, "a"))
    write(table, rows(KEYS[:2], 1, "a", "q"))
    clock.advance(1)
    size = max(s.size_bytes for s in table.state.latest_slices())
    assert resize_rings(table).skipped == (SkippedPartition("p", SkipReason.FITS), SkippedPartition("q", SkipReason.FITS))
    # Without another limit, the number of the creation is that of the most buckets.
    found = resize_rings(table, options={"hoodie.parquet.max.file.size": 1024})
    assert found.committed is None
    assert [(one.partition, one.reason, one.too_large > 0) for one in found.skipped] == [
        ("p", SkipReason.MOST_BUCKETS, True),
        ("q", SkipReason.MOST_BUCKETS, True),
    ]
    done = resize_rings(
        table, options={**SMALL, "hoodie.parquet.max.file.size": size, "hoodie.bucket.index.split.threshold": 0.999}
    )
    assert done.committed is not None
    assert {stat.partition_path for stat in done.committed.stats} == {"p"}
    assert done.skipped == (SkippedPartition("q", SkipReason.FITS),)


def test_the_metadata_table_follows_a_resize() -> None:
    table, storage, clock = ring_table(buckets=2)
    create_metadata(table)
    write(table, rows(KEYS, 1, "a"))
    clock.advance(1)
    assert resize_rings(table, options=SMALL).committed is not None
    known = table.refresh().metadata
    assert known is not None
    found = read_files(storage, known.files, slice_files(storage, known.files)).files
    assert {name for names in found.values() for name in live(names)} >= {s.path.split("/")[1] for s in table.slices()}
    clock.advance(1)
    write(table, rows(KEYS[:5], 2, "b"))
    check_rings(table)


def test_a_restore_to_before_a_resize_is_refused() -> None:
    table, _, clock = ring_table(buckets=2)
    write(table, rows(KEYS, 1, "a"))
    saved = create_savepoint(table).instant
    clock.advance(1)
    assert resize_rings(table, options=SMALL).committed is not None
    with pytest.raises(UnsupportedTable, match="split the buckets"):
        preview_restore(table, saved)


@pytest.mark.parametrize("fails_at", ["ring", "commit"])
def test_a_resize_that_dies_leaves_the_table_as_it_was(monkeypatch: pytest.MonkeyPatch, fails_at: str) -> None:
    table, storage, _ = ring_table(buckets=2)
    write(table, rows(KEYS, 1, "a"))
    before, seen = contents(table), {o.path for o in storage.list_objects("p")}
    put = MemoryStorage.put_if_absent

    def breaks(self: MemoryStorage, path: str, data: bytes) -> None:
        if fails_at == "ring" and path.endswith(".hashing_meta"):
            raise StorageError("no answer")
        put(self, path, data)

    def conflict(*_: Any, **__: Any) -> None:
        raise WriteConflict("enough", with_instant="")

    monkeypatch.setattr(MemoryStorage, "put_if_absent", breaks)
    if fails_at == "commit":
        monkeypatch.setattr(ring_resize.WriteTransaction, "commit", conflict)
    with pytest.raises((StorageError, WriteConflict)):
        resize_rings(table, options={**SMALL, "tideline.write.conflict.retries": 0})
    monkeypatch.undo()
    assert contents(table) == before
    assert {o.path for o in storage.list_objects("p")} == seen
    assert [o.path for o in storage.list_objects(ring_folder(""))] == [HashRing.first("p", 2).path]
    write(table, rows(KEYS[:5], 9, "z"))
    check_rings(table)


def test_a_stale_ring_of_an_undone_resize_counts_for_no_one() -> None:
    """A resize whose process died before its commit leaves its ring. Sharing the table deletes it: Hudi would take it for valid."""
    table, storage, clock = ring_table(buckets=2)
    write(table, rows(KEYS, 1, "a"))
    stale = resized_ring(HashRing.first("p", 2), {0: 999}, limits(), table.state.last_instant)
    assert stale is not None
    storage.put_if_absent(stale.ring.path, stale.ring.content)
    write(open_table(storage, clock, "next"), rows(KEYS[:9], 2, "b"))
    check_rings(table)
    store = table.rings().store
    clock.advance(1)
    done = resize_rings(table, options=SMALL).committed
    assert done is not None
    store.delete_uncommitted(table.state.ring_resizes)
    names = [o.path.rsplit("/", 1)[-1] for o in storage.list_objects(ring_folder("p"))]
    assert names == [f"{FIRST_INSTANT}.hashing_meta", f"{done.instant}.commit", f"{done.instant}.hashing_meta"]


def test_a_ring_file_that_is_missing_after_a_resize_stops_writers() -> None:
    table, storage, clock = ring_table(buckets=2)
    write(table, rows(KEYS, 1, "a"))
    clock.advance(1)
    done = resize_rings(table, options=SMALL).committed
    assert done is not None
    storage.delete(f"{ring_folder('p')}/{done.instant}.hashing_meta")
    found = open_table(storage, clock, "next")
    with pytest.raises(CorruptMetadata, match=f"no .*{done.instant}.hashing_meta"):
        write(found, rows(KEYS[:5], 9, "z"))
    assert found.read(where="id = 'k003'").num_rows == 1


def test_a_shared_table_that_hudi_resizes_is_refused() -> None:
    table, storage, _ = ring_table(buckets=2)
    write(table, rows(KEYS, 1, "a"))
    properties = read_properties(storage)
    check_buckets(table.state, properties)
    state = table.state.copy()
    group = next(iter(state.slices))
    state.replaced[group] = "20270101000000000"
    with pytest.raises(UnsupportedTable, match="of a hash ring, which 20270101000000000 replaced"):
        check_buckets(state, properties)
    state.ring_resizes["20270101000000000"] = ("p",)
    check_buckets(state, properties)
    strange = table.state.copy()
    random = group._replace(file_id="ffffffff-0000-4000-8000-000000000000-0")
    strange.slices[random] = {at: replace(s, group=random) for at, s in strange.slices.pop(group).items()}
    with pytest.raises(UnsupportedTable, match="which is of no first hash ring"):
        check_buckets(strange, properties)
