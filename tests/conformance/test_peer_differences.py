"""The entries of docs/peer-differences.md, each reproduced: the number in a test's name is that of the entry."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from tests.conformance.both_in_turn import SHARING, meet_rules
from tests.conformance.matrix import KEY, Kind
from tests.conformance.peers.apache_hudi import ApacheHudi, PeerFailed
from tests.conformance.peers.environment import REPOSITORY
from tests.conformance.peers.hudi_rs import read_hudi_rs
from tests.conformance.peers.rows import difference
from tests.conformance.stories.catalogue import STORIES
from tests.conformance.stories.layouts import NO_PARTITION
from tests.conformance.stories.life import AVRO_LOGS, EVENT_TIME, KEYS
from tests.conformance.stories.merging import MODELS, ORDERING, PAYLOAD, UNAVAILABLE
from tests.conformance.stories.rows import marked_deleted, trips
from tests.conformance.stories.schemas import ordered
from tests.conformance.stories.story import Maker, Recorded, Story
from tests.conformance.story_library import Library

from tideline_table.action import write_rows
from tideline_table.errors import InstantNotFound, UnsupportedTable
from tideline_table.hudi.formats import format_of, format_to_create
from tideline_table.hudi.properties import read_properties
from tideline_table.log_format import BlockType, scan_log
from tideline_table.metadata_table import StoredMetadata
from tideline_table.table import BucketIndex, Table, TableRequest, TableType, create_table
from tideline_table.writer import Operation

pytestmark = pytest.mark.of_peers

RULES = "hoodie.bucket.index.partition.expressions"
HUDI_TABLE = {
    **KEYS,
    "hoodie.table.name": "difference",
    "hoodie.datasource.write.table.type": "MERGE_ON_READ",
    "hoodie.datasource.write.operation": "upsert",
}


def _step(library: Library, story: str, step: str) -> Recorded:
    return library.step(next(s for s in STORIES if s.name == story), step)


def _ours(recorded: Recorded) -> pa.Table:
    return Table.open(str(recorded.base)).read()


@pytest.fixture
def maker(apache_hudi: ApacheHudi, workdir: Path) -> Maker:
    """An empty place for a merge-on-read table of Hudi's."""
    return Maker(apache_hudi, workdir / "table", Story("difference", Kind.MOR, (), {**KEYS, **EVENT_TIME, **AVRO_LOGS}))


def test_every_entry_has_a_reproduction() -> None:
    page = (REPOSITORY / "docs" / "peer-differences.md").read_text(encoding="utf-8")
    numbers = [int(number) for number in re.findall(r"^## (\d+)\. ", page, re.MULTILINE)]
    assert numbers == list(range(1, len(numbers) + 1))
    assert {int(n) for name in globals() for n in re.findall(r"^test_(\d+)_", name)} == set(numbers)
    assert {s.excuse for s in STORIES} - {0} <= set(numbers)


def test_1_hudi_answers_timestamp_partitions_as_text(library: Library) -> None:
    recorded = _step(library, "cow-days", "upsert")
    ours = _ours(recorded)
    assert recorded.snapshot.schema.field("ts").type == pa.string()
    # What was written, what the table's schema says, and what hudi-rs reads, are numbers.
    assert ours.schema.field("ts").type == pa.int64()
    assert difference(ours, read_hudi_rs(recorded.base), KEY, names=("tideline", "hudi-rs")) is None


def test_2_hudi_hides_meta_fields_that_were_not_filled(library: Library) -> None:
    recorded = _step(library, "cow-no-meta-fields", "bulk insert")
    meta = [name for name in _ours(recorded).column_names if name.startswith("_hoodie_")]
    assert meta
    assert not set(meta) & set(recorded.snapshot.column_names)
    assert not any(pc.any(pc.greater(pc.utf8_length(_ours(recorded).column(name)), 0)).as_py() for name in meta)


def test_3_hudi_increments_hold_rows_that_were_never_visible(library: Library) -> None:
    story = next(s for s in STORIES if s.name == "mor-life")
    recorded = library.step(story, story.names[-1])
    as_of = dict(recorded.travels)
    seen = [(increment, set(as_of[increment.end].column("_hoodie_commit_seqno").to_pylist())) for increment in recorded.increments]
    phantoms = [
        row for increment, visible in seen for row in increment.rows.to_pylist() if row["_hoodie_commit_seqno"] not in visible
    ]
    # The late versions of k0008 and k0009 (6 after 7): merged without the log files from before the increment, they seem to win.
    assert {(row["_hoodie_record_key"], row["ts"]) for row in phantoms} >= {("k0008", 6), ("k0009", 6)}


def test_4_hudi_rs_loses_what_was_written_beside_a_pending_compaction(library: Library) -> None:
    recorded = _step(library, "mor-life", "upsert beside compaction")
    assert difference(_ours(recorded), recorded.snapshot, KEY) is None
    rust = {row["id"]: row["ts"] for row in read_hudi_rs(recorded.base).to_pylist()}
    hudi = {row["id"]: row["ts"] for row in recorded.snapshot.to_pylist()}
    assert {key for key in hudi if rust.get(key) != hudi[key]} == {"k0006", "k0007", "k0008", "k0009"}
    # Once the compaction has run, hudi-rs finds them.
    recorded = _step(library, "mor-life", "compacted")
    assert difference(read_hudi_rs(recorded.base), recorded.snapshot, KEY) is None


def test_5_hudi_rs_cannot_merge_logs_after_a_nested_field_was_added(library: Library) -> None:
    recorded = _step(library, "mor-evolution-parquet", "nested fields added")
    assert difference(_ours(recorded), recorded.snapshot, KEY) is None
    with pytest.raises(Exception, match=r"incompatible with target Struct|schema"):
        read_hudi_rs(recorded.base)


def test_6_hudi_cannot_write_null_elements_of_arrays(maker: Maker) -> None:
    rows = trips(range(2), 5)
    tags = pa.array([["a", None], []], pa.list_(pa.string()))
    rows = rows.set_column(rows.schema.get_field_index("tags"), "tags", tags)
    with pytest.raises(PeerFailed, match="Failed to write to Hudi"):
        maker.write(rows, "insert")
    maker.write(trips(range(2), 5), "insert")
    assert _same_rows(maker.hudi.read(maker.base), Table.open(str(maker.base)).read())


def test_7_hudi_cannot_update_beside_arrays_of_structs_of_one_field(maker: Maker) -> None:
    items = pa.list_(pa.struct([("n", pa.int32())]))
    values = pa.array([[("k", [{"n": n}])] for n in range(6)], pa.map_(pa.string(), items))
    rows = trips(range(6), 5).append_column("deep", values)
    cow = Maker(maker.hudi, maker.base, Story("difference", Kind.COW, (), {**KEYS, **EVENT_TIME}))
    cow.write(rows, "insert")
    assert Table.open(str(maker.base)).read().num_rows == 6
    with pytest.raises(PeerFailed, match="optional int32 n is not a group"):
        cow.write(rows.slice(0, 1), "upsert")


def test_8_hudi_cannot_log_deletions_ordered_by_a_date(maker: Maker) -> None:
    maker.write(ordered("date", [0, 1], 5, "first"), "bulk_insert")
    with pytest.raises(PeerFailed, match="Not in union"):
        maker.write(marked_deleted(ordered("date", [0], 6, "gone")), "upsert")


def test_9_hudi_merge_into_logs_rows_without_their_partition_column(library: Library) -> None:
    recorded = _step(library, "mor-sql", "merge into")
    hudi = {row["id"]: str(row["day"]) for row in recorded.snapshot.to_pylist()}
    ours = {row["id"]: str(row["day"]) for row in Table.open(str(recorded.base)).read().to_pylist()}
    rust = {row["id"]: row["day"] for row in read_hudi_rs(recorded.base).to_pylist()}
    assert hudi[3] == "2024-05-02"
    assert ours == hudi
    assert rust[3] is None


def test_10_hudi_has_no_procedure_that_undoes_a_commit_of_version_6(maker: Maker) -> None:
    maker.write(trips(range(2), 5), "bulk_insert")
    maker.in_catalog()
    instant = maker.instants("commit")[-1]
    with pytest.raises(PeerFailed, match="timeline does not exist"):
        maker.sql(f"call rollback_to_instant(table => '{{table}}', instant_time => '{instant}')")
    assert _same_rows(maker.hudi.read(maker.base), Table.open(str(maker.base)).read())


def test_11_hudi_cannot_bulk_insert_bytes_as_rows(maker: Maker) -> None:
    rows = trips(range(2), 5).append_column("small", pa.array([1, 2], pa.int8()))
    with pytest.raises(PeerFailed, match="Unsupported type: ByteType"):
        maker.write(rows, "bulk_insert")


def test_12_nobody_reads_parts_of_deleted_records(maker: Maker) -> None:
    options = {"hoodie.spark.sql.merge.into.partial.updates": "true"}
    nine = Maker(maker.hudi, maker.base, Story("partial", Kind.MOR, (), options, version=9))
    properties = "type = 'mor', primaryKey = 'id', hoodie.write.table.version = '9'"
    nine.sql(f"create table {{table}} (id int, name string, n int) using hudi tblproperties ({properties}) location '{{base}}'")
    nine.sql("insert into {table} values (1, 'a', 1), (2, 'b', 2)")
    nine.sql("delete from {table} where id = 1")
    nine.sql("insert into {table} values (1, 'again', 3)")
    assert _same_rows(maker.hudi.read(maker.base), Table.open(str(maker.base)).read())
    nine.sql(
        "merge into {table} t using (select 1 as id, 9 as n) s on t.id = s.id when matched then update set n = s.n"
    )  # fmt: skip
    with pytest.raises(PeerFailed, match="NullPointerException"):
        maker.hudi.read(maker.base)
    with pytest.raises(UnsupportedTable, match=r"partial records \(IS_PARTIAL\) for 1 deleted record"):
        Table.open(str(maker.base)).read()


@pytest.mark.parametrize("version", [6, 9])
def test_13_hudi_does_not_read_its_hfile_blocks(apache_hudi: ApacheHudi, workdir: Path, version: int) -> None:
    made = {}
    for kind in ("hfile", "avro"):
        options = {**KEYS, **EVENT_TIME, "hoodie.logfile.data.block.format": kind}
        made[kind] = maker = Maker(apache_hudi, workdir / kind, Story(f"blocks-{kind}", Kind.MOR, (), options, version=version))
        maker.write(trips(range(12), 5), "bulk_insert")
        maker.write(trips(range(4, 14), 6), "upsert")
        maker.write(trips([0, 5], 7), "delete")
        maker.write(marked_deleted(trips([1], 7)), "upsert")
        # Late, of a deleted key, and new ones in a second block of the same file group.
        maker.write(trips([3, 5, 6, 7, 8], lambda n: 4 if n == 3 else 9), "upsert")
    with pytest.raises(PeerFailed, match="ClassCastException"):
        made["hfile"].read()
    ours = {kind: Table.open(str(maker.base)) for kind, maker in made.items()}
    paths = [path for found in ours["hfile"].slices() for path in found.log_paths]
    assert {block.type for path in paths for block in scan_log(ours["hfile"].storage, path).blocks} == {
        BlockType.HFILE,
        BlockType.DELETE,
    }
    # Other instants, files and row numbers, for they are other writes.
    meta = {"_hoodie_commit_time", "_hoodie_commit_seqno", "_hoodie_file_name"}
    wanted = made["avro"].read()
    for table in ours.values():
        assert difference(table.read(), wanted, "_hoodie_record_key", ignore=meta) is None
    assert ours["hfile"].look_up(["k0006"]).column("ts").to_pylist() == [9]


def test_14_hudi_hides_the_partition_column_of_rows_that_stayed(maker: Maker) -> None:
    options = {"hoodie.index.type": "GLOBAL_SIMPLE", "hoodie.simple.index.update.partition.path": "false"}
    cow = Maker(maker.hudi, maker.base, Story("difference", Kind.COW, (), {**KEYS, **EVENT_TIME, **options}))
    cow.write(trips(range(3), 5, lambda n: "a"), "upsert")
    cow.write(trips([1], 6, lambda n: "b"), "upsert")
    found = [{row["id"]: row["part"] for row in rows.to_pylist()} for rows in _three_answers(maker)]
    assert found == [{"k0000": "a", "k0001": part, "k0002": "a"} for part in ("a", "b", "b")]
    written = pc.field("part") == "b"
    assert maker.hudi.read(maker.base, where="part = 'b'").num_rows == 0
    assert Table.open(str(maker.base)).read(["id"], where=written).to_pylist() == [{"id": "k0001"}]


def test_15_hudi_loses_timestamps_that_partitions_are_made_of(maker: Maker) -> None:
    options = {**KEYS, **EVENT_TIME, "hoodie.datasource.write.partitionpath.field": "at"}
    cow = Maker(maker.hudi, maker.base, Story("difference", Kind.COW, (), options))
    cow.write(trips(range(3), 5), "insert")
    written = trips(range(3), 5).column("at").to_pylist()
    found = [sorted(rows.column("at").to_pylist(), key=str) for rows in _three_answers(maker)]
    assert found == [[None, None, None], written, written]


def test_16_hudi_travels_to_times_whose_files_went(maker: Maker) -> None:
    versions = {"hoodie.cleaner.policy": "KEEP_LATEST_FILE_VERSIONS", "hoodie.cleaner.fileversions.retained": "1"}
    cow = Maker(maker.hudi, maker.base, Story("difference", Kind.COW, (), {**KEYS, **EVENT_TIME}))
    cow.write(trips(range(4), 5), "insert")
    cow.write(trips([1], 6), "upsert", hoodie_clean_automatic="true", **{k.replace(".", "_"): v for k, v in versions.items()})
    first, last = cow.instants("commit")
    assert sorted(cow.read(as_of=first).column("id").to_pylist()) == ["k0000", "k0002"]
    with pytest.raises(InstantNotFound, match="was cleaned"):
        Table.open(str(cow.base)).read(as_of=first)
    assert _same_rows(cow.read(as_of=last), Table.open(str(cow.base)).read(as_of=last))


def test_17_hudi_takes_values_with_an_equal_sign_for_names(maker: Maker) -> None:
    cow = Maker(maker.hudi, maker.base, Story("difference", Kind.COW, (), {**KEYS, **EVENT_TIME}))
    cow.write(trips(range(2), 5, lambda n: "x=1" if n else "p0"), "insert")
    found = [sorted(rows.column("part").to_pylist()) for rows in _three_answers(maker)]
    assert found == [["1", "p0"], ["p0", "x=1"], ["p0", "x=1"]]


def test_18_hudi_increments_of_encoded_partitions_are_not_decoded(maker: Maker) -> None:
    options = {"hoodie.datasource.write.partitionpath.urlencode": "true"}
    cow = Maker(maker.hudi, maker.base, Story("difference", Kind.COW, (), {**KEYS, **EVENT_TIME, **options}))
    cow.write(trips(range(2), 5, lambda n: "a b" if n else "100%"), "insert")
    (instant,) = cow.instants("commit")
    increments = cow.read("incremental", begin="000", end=instant), Table.open(str(cow.base)).incremental("", instant).read()
    assert [sorted(rows.column("part").to_pylist()) for rows in increments] == [["100%25", "a b"], ["100%", "a b"]]
    assert _same_rows(cow.read(), Table.open(str(cow.base)).read())


@pytest.mark.parametrize("kind", list(Kind))
def test_19_hudi_merges_partial_updates_ordered_by_decimals_by_arrival(maker: Maker, kind: Kind) -> None:
    payload = {"hoodie.datasource.write.payload.class": "org.apache.hudi.common.model.PartialUpdateAvroPayload"}
    options = {**KEYS, **payload, **AVRO_LOGS, "hoodie.datasource.write.precombine.field": "amount"}
    mine = Maker(maker.hudi, maker.base, Story("difference", kind, (), options))
    mine.write(trips([1], 9), "insert")
    mine.write(trips([1], 5), "upsert")
    found = [rows.column("ts").to_pylist() for rows in (mine.read(), Table.open(str(mine.base)).read())]
    assert found == ([[9], [9]] if kind is Kind.COW else [[5], [9]])


def test_20_hudi_does_not_look_back_at_savepoints(maker: Maker) -> None:
    cow = Maker(maker.hudi, maker.base, Story("looked-back", Kind.COW, (), {**KEYS, **EVENT_TIME}))
    cow.write(trips(range(4), 5), "insert")
    saved, first = cow.read(), cow.instants("commit")[0]
    cow.in_catalog()
    cow.sql(f"call create_savepoint(table => '{{table}}', commit_time => '{first}')")
    for ts in (6, 7, 8):
        cow.write(trips(range(4), ts), "upsert", hoodie_clean_automatic="true", hoodie_clean_commits_retained="1")
    with pytest.raises(PeerFailed, match="Cleaner cleaned up"):
        cow.read(as_of=first)
    assert _same_rows(saved, read_hudi_rs(cow.base, first))
    assert _same_rows(saved, Table.open(str(cow.base)).read(as_of=first))


def test_21_hudi_deletes_every_row_of_a_repeated_key_that_an_increment_has(maker: Maker) -> None:
    for ts in (5, 6):
        maker.write(trips([1], ts), "insert", hoodie_parquet_small_file_limit="104857600")
    maker.write(trips([1], 7), "delete")
    first, _, last = maker.instants("deltacommit")
    ours = Table.open(str(maker.base))
    # The deletion meets the first of the two rows, says Hudi's own snapshot.
    assert [rows.column("ts").to_pylist() for rows in (maker.read(), ours.read())] == [[6], [6]]
    increments = maker.read("incremental", begin=first, end=last), ours.incremental(first, last).read()
    assert [rows.column("ts").to_pylist() for rows in increments] == [[], [6]]


@pytest.mark.parametrize("kind", list(Kind))
def test_22_hudi_orders_by_texts_where_partitions_are_made_of_times(maker: Maker, kind: Kind) -> None:
    partitions = {
        "hoodie.datasource.write.partitionpath.field": "ts",
        "hoodie.datasource.write.keygenerator.class": "org.apache.hudi.keygen.TimestampBasedKeyGenerator",
        "hoodie.keygen.timebased.timestamp.type": "SCALAR",
        "hoodie.keygen.timebased.timestamp.scalar.time.unit": "days",
        "hoodie.keygen.timebased.output.dateformat": "yyyyMM",
    }
    mine = Maker(maker.hudi, maker.base, Story("difference", kind, (), {**KEYS, **EVENT_TIME, **AVRO_LOGS, **partitions}))
    for ts in (8, 9, 13):
        mine.write(trips([1], ts), "upsert")
    instants = mine.instants("commit" if kind is Kind.COW else "deltacommit")
    found = [
        [instants.index(instant) for instant in rows.column("_hoodie_commit_time").to_pylist()]
        for rows in (mine.read(), Table.open(str(mine.base)).read())
    ]
    assert found == ([[2], [2]] if kind is Kind.COW else [[1], [2]])


def test_23_hudi_increments_lack_archived_writes(maker: Maker) -> None:
    archived = {"hoodie_archive_automatic": "true", "hoodie_keep_min_commits": "2", "hoodie_keep_max_commits": "3"}
    cleaned = {"hoodie_clean_automatic": "true", "hoodie_clean_commits_retained": "1"}
    maker.write(trips([1], 5, lambda _: "p1"), "insert")
    for ts in (6, 7, 8, 9, 10):
        maker.write(trips([2], ts, lambda _: "p2"), "upsert", **archived, **cleaned)
    assert len(maker.instants("deltacommit")) < 6
    last = maker.instants("deltacommit")[-1]
    answers = (
        maker.read("incremental", begin="000", end=last),
        maker.read(),
        Table.open(str(maker.base)).incremental("", last).read(),
    )
    assert [sorted(rows.column("id").to_pylist()) for rows in answers] == [["k0002"], ["k0001", "k0002"], ["k0001", "k0002"]]


@pytest.mark.parametrize("kind", list(Kind))
def test_24_hudi_writes_rows_twice_that_are_to_stay_in_their_partition(maker: Maker, kind: Kind) -> None:
    options = {"hoodie.index.type": "GLOBAL_SIMPLE", "hoodie.simple.index.update.partition.path": "false"}
    mine = Maker(maker.hudi, maker.base, Story("difference", kind, (), {**KEYS, **EVENT_TIME, **AVRO_LOGS, **options}))
    mine.write(trips(range(2), 5, lambda n: "a"), "upsert")
    mine.write(trips([1], 6, lambda n: "b"), "upsert")
    twice = ["k0001"] if kind is Kind.MOR else []
    for rows in _three_answers(mine):
        assert sorted(rows.column("id").to_pylist()) == ["k0000", "k0001", *twice]
        assert set(rows.column("_hoodie_partition_path").to_pylist()) == {"a"}


def test_25_hudi_reads_logs_of_postgres_changes_by_another_rule(maker: Maker) -> None:
    options = {ORDERING: "_event_lsn", PAYLOAD: f"{MODELS}debezium.PostgresDebeziumAvroPayload"}
    schema = pa.schema(
        [("id", pa.string()), ("_event_lsn", pa.int64()), ("a", pa.string()), ("_change_operation_type", pa.string())]
    )
    found = {}
    for kind in Kind:
        mine = Maker(maker.hudi, maker.base / kind, Story("difference", kind, (), {**KEYS, **NO_PARTITION, **AVRO_LOGS, **options}))
        for rows in ([("1", 5, "a", "u"), ("2", 5, "a", "u")], [("1", 6, UNAVAILABLE, "u"), ("2", 4, "a", "d")]):
            mine.write(pa.table(list(zip(*rows, strict=True)), schema=schema), "upsert")
        answers = [{r["id"]: r["a"] for r in rows.to_pylist()} for rows in (mine.read(), Table.open(str(mine.base)).read())]
        assert answers[0] == answers[1]
        found[kind] = answers[0]
        if kind is Kind.MOR:
            with pytest.raises(UnsupportedTable, match=r"merge-on-read table .* with .*PostgresDebeziumAvroPayload"):
                Table.open(str(mine.base)).check_writable()
    assert found == {Kind.COW: {"1": "a", "2": "a"}, Kind.MOR: {"1": UNAVAILABLE}}


def test_26_hudi_adds_some_deletions_as_rows(maker: Maker) -> None:
    options = {PAYLOAD: f"{MODELS}AWSDmsAvroPayload", **NO_PARTITION}
    mine = Maker(maker.hudi, maker.base, Story("difference", Kind.COW, (), {**KEYS, **options}))
    mine.write(pa.table({"id": ["1", "2", "3"], "ts": [5] * 3, "Op": ["I", "D", "d"]}), "upsert")
    mine.write(pa.table({"id": ["4"], "ts": [5], "Op": ["D"]}), "bulk_insert")
    assert sorted(mine.read().column("id").to_pylist()) == ["1", "3", "4"]
    mine.write(pa.table({"id": ["1", "3"], "ts": [6] * 2, "Op": ["d"] * 2}), "upsert")
    assert mine.read().column("id").to_pylist() == ["4"]


@pytest.mark.parametrize("kind", list(Kind))
def test_27_hudi_rs_reads_no_table_partitioned_by_a_field_of_a_struct(maker: Maker, kind: Kind) -> None:
    partition = {"hoodie.datasource.write.partitionpath.field": "place.city"}
    mine = Maker(maker.hudi, maker.base, Story("difference", kind, (), {**KEYS, **EVENT_TIME, **partition}))
    mine.write(pa.table({"id": ["1", "2"], "ts": [5] * 2, "place": [{"city": "Oslo"}, {"city": "Rome"}]}), "upsert")
    assert _same_rows(Table.open(str(mine.base)).read(), mine.read())
    assert set(mine.read().column("_hoodie_partition_path").to_pylist()) == {"Oslo", "Rome"}
    with pytest.raises(Exception, match=r"Partition field `place\.city` .* not present in the table schema"):
        read_hudi_rs(mine.base)


def test_28_hudi_rs_merges_logs_by_arrival_if_the_ordering_column_is_inside_of_a_struct(maker: Maker) -> None:
    ordering = {"hoodie.datasource.write.precombine.field": "place.at"}
    mine = Maker(maker.hudi, maker.base, Story("difference", Kind.MOR, (), {**KEYS, **EVENT_TIME, **AVRO_LOGS, **ordering}))
    for at, name in ((5, "first"), (4, "late")):
        mine.write(pa.table({"id": ["1"], "ts": [5], "part": ["p"], "place": [{"at": at, "name": name}]}), "upsert")
    theirs, independent, ours = (found.column("place").to_pylist() for found in _three_answers(mine))
    assert theirs == ours == [{"at": 5, "name": "first"}]
    assert independent == [{"at": 4, "name": "late"}]


def test_29_hudi_counts_buckets_off_by_the_number_of_another_table(maker: Maker) -> None:
    meet_rules(maker.hudi, maker.base / "met", "^other$,2", 3)
    meet_rules(maker.hudi, maker.base / "also met", "^other$,2;.*,5", 5)
    held = {}
    for number in ("3", "5"):
        index = {"hoodie.index.type": "BUCKET", "hoodie.bucket.index.num.buckets": number, RULES: "^other$,2"}
        mine = Maker(maker.hudi, maker.base / number, Story("difference", Kind.COW, (), {**KEYS, **EVENT_TIME, **index}))
        mine.write(trips(range(60), 5, lambda n: "a"), "upsert")
        held[number] = len(list((mine.base / "a").glob("*.parquet")))
    # A rule for all partitions says the number in the text.
    index = {"hoodie.index.type": "BUCKET", "hoodie.bucket.index.num.buckets": "5", RULES: "^other$,2;.*,5"}
    mine = Maker(maker.hudi, maker.base / "closed", Story("difference", Kind.COW, (), {**KEYS, **EVENT_TIME, **index}))
    mine.write(trips(range(60), 5, lambda n: "a"), "upsert")
    assert held == {"3": 3, "5": 3}
    assert len(list((mine.base / "a").glob("*.parquet"))) == 5


def test_30_hudi_writes_keys_twice_with_the_partitioner_of_its_bucket_layout(maker: Maker) -> None:
    meet_rules(maker.hudi, maker.base / "met", "^a,5;^thirty,2", 3)
    found = {}
    layout = {
        "hoodie.storage.layout.type": "BUCKET",
        "hoodie.storage.layout.partitioner.class": "org.apache.hudi.table.action.commit.SparkBucketIndexPartitioner",
    }
    for name, more in (("plain", {}), ("layout", layout)):
        index = {"hoodie.index.type": "BUCKET", "hoodie.bucket.index.num.buckets": "3", RULES: "^a,5;^thirty,2"}
        mine = Maker(maker.hudi, maker.base / name, Story("difference", Kind.COW, (), {**KEYS, **EVENT_TIME, **index, **more}))
        for ts in (5, 6):
            mine.write(trips(range(60), ts, lambda n: "a"), "upsert")
        keys = mine.read().column("id").to_pylist()
        assert len(set(keys)) == 60
        found[name] = len(keys) - 60
    assert found["plain"] == 0
    assert found["layout"] > 0


def test_31_hudi_loses_rows_written_after_it_has_overwritten_hash_rings(maker: Maker) -> None:
    rings = {
        "hoodie.index.type": "BUCKET",
        "hoodie.index.bucket.engine": "CONSISTENT_HASHING",
        "hoodie.bucket.index.num.buckets": "3",
    }
    mine = Maker(maker.hudi, maker.base, Story("difference", Kind.MOR, (), {**KEYS, **EVENT_TIME, **AVRO_LOGS, **rings}))
    mine.write(trips(range(40), 5, lambda n: "a"), "upsert")
    mine.write(trips(range(10), 6, lambda n: "a"), "insert_overwrite")
    mine.write(trips(range(40), 7, lambda n: "a"), "upsert")
    folder = mine.base / ".hoodie/.bucket_index/consistent_hashing_metadata/a"
    assert [path.name for path in folder.glob("*.hashing_meta")] == ["00000000000000.hashing_meta"]
    for found in _three_answers(mine):
        assert sorted(found.column("ts").to_pylist()) == [6] * 10, "30 new rows and 10 updates are lost"
    # The same writes by Tideline.
    base = str(maker.base.parent / "ours")
    create_table(
        base,
        TableRequest("t", trips([], 0).schema, ("id",), ("part",), "ts", TableType.MOR, index=BucketIndex(3, consistent=True)),
    )
    table = Table.open(base)
    for count, ts, operation in ((40, 5, Operation.UPSERT), (10, 6, Operation.INSERT_OVERWRITE), (40, 7, Operation.UPSERT)):
        write_rows(table, trips(range(count), ts, lambda n: "a"), operation)
    for found in (maker.hudi.read(Path(base)), read_hudi_rs(Path(base)), table.read()):
        assert sorted(found.column("ts").to_pylist()) == [7] * 40


@pytest.mark.parametrize("kind", Kind)
@pytest.mark.parametrize("how", ["deleted", "marked"])
def test_32_hudi_shows_late_rows_behind_deletions_by_the_type_of_table(maker: Maker, kind: Kind, how: str) -> None:
    mine = Maker(maker.hudi, maker.base, Story("difference", kind, (), {**KEYS, **EVENT_TIME, **AVRO_LOGS}))
    mine.write(trips(range(4), 5), "upsert")
    if how == "deleted":
        mine.write(trips([0], 0), "delete")
    else:
        mine.write(marked_deleted(trips([0], 10)), "upsert")
    mine.write(trips([0], 1), "upsert")
    expected = [1] if kind is Kind.COW else [5] if how == "deleted" else []
    for found in _three_answers(mine):
        assert found.filter(pc.equal(found["id"], trips([0], 1)["id"][0]))["ts"].to_pylist() == expected


def test_33_hudi_cannot_read_some_columns_of_merged_cells(maker: Maker) -> None:
    options = {
        **HUDI_TABLE,
        "hoodie.write.table.version": "8",
        "hoodie.index.type": "BUCKET",
        "hoodie.bucket.index.num.buckets": "1",
        PAYLOAD: MODELS + "PartialUpdateAvroPayload",
    }
    maker.hudi.write(maker.base, trips(range(4), 1), options)
    maker.hudi.write(maker.base, trips(range(2, 6), 2), options)  # the last two are in no base file
    whole = maker.hudi.read(maker.base)
    with pytest.raises(PeerFailed, match="ArrayIndexOutOfBounds"):
        maker.hudi.read(maker.base, columns=["id", "ts"])
    found = Table.open(str(maker.base)).read(["id", "ts"]).sort_by("id")
    assert found.equals(whole.select(["id", "ts"]).sort_by("id"))
    assert found["ts"].to_pylist() == [1, 1, 2, 2, 2, 2]


def test_34_hudi_leaves_out_files_by_the_columns_of_a_partial_record(maker: Maker) -> None:
    options = {
        **{key: value for key, value in HUDI_TABLE.items() if key != ORDERING},
        "hoodie.write.table.version": "9",
        "hoodie.record.merge.mode": "COMMIT_TIME_ORDERING",
        "hoodie.metadata.index.column.stats.enable": "true",
        "hoodie.metadata.index.partition.stats.enable": "false",
    }
    maker.hudi.write(maker.base, trips(range(4), 1), options, metadata=True)
    maker.hudi.sql(f"create table cells using hudi location '{maker.base}'")
    settings = {**options, "hoodie.spark.sql.merge.into.partial.updates": "true", "hoodie.metadata.enable": "true"}
    for column, value in (("price", "900D"), ("quantity", "90")):
        maker.hudi.sql(
            f"merge into cells t using (select 'k0001' as id, 'p1' as part, {value} as v) s on t.id = s.id and t.part = s.part "
            f"when matched then update set {column} = s.v",
            settings,
        )
    where = "price > 800 and quantity > 80"
    skipping = {"hoodie.enable.data.skipping": "true"}
    assert maker.hudi.read(maker.base, metadata=True, where=where, options=skipping).num_rows == 0
    assert maker.hudi.read(maker.base, metadata=False, where=where).num_rows == 1
    assert Table.open(str(maker.base)).read(where=where).num_rows == 1


def test_35_hudi_merge_into_of_version_6_leaves_other_columns_null(maker: Maker) -> None:
    mine = Maker(maker.hudi, maker.base, Story("difference", Kind.MOR, (), {**KEYS, **EVENT_TIME}))
    mine.write(trips(range(4), 1), "upsert")
    maker.hudi.sql(f"create table six using hudi location '{maker.base}'")
    maker.hudi.sql(
        "merge into six t using (select 'k0001' as id, 'p1' as part, 2L as ts, 9D as price) s on t.id = s.id and t.part = s.part "
        "when matched then update set id = s.id, part = s.part, ts = s.ts, price = s.price"
    )
    for found in _three_answers(mine):
        (row,) = (row for row in found.to_pylist() if row["id"] == "k0001")
        assert (row["ts"], row["price"], row["quantity"]) == (2, 9.0, None)


def test_36_hudi_cannot_overwrite_partitions_beside_a_record_index(maker: Maker) -> None:
    options = {
        **HUDI_TABLE,
        "hoodie.write.table.version": "9",
        "hoodie.metadata.index.column.stats.enable": "true",
        "hoodie.metadata.index.partition.stats.enable": "true",
        "hoodie.metadata.record.index.enable": "true",
        "hoodie.index.type": "RECORD_INDEX",
        "hoodie.write.markers.type": "DIRECT",
    }
    overwrite = {**options, "hoodie.datasource.write.operation": "insert_overwrite"}
    maker.hudi.write(maker.base, trips(range(8), 1), options, metadata=True)
    maker.hudi.write(maker.base, trips(range(4, 10), 2), options, metadata=True)
    with pytest.raises(PeerFailed, match="pathInfo"):
        maker.hudi.write(maker.base, trips([2], 3), {**overwrite, "hoodie.embed.timeline.server": "false"}, metadata=True)
    assert Table.open(str(maker.base)).read().num_rows == 10
    maker.hudi.write(maker.base, trips([2], 3), overwrite, metadata=True)


def test_37_hudi_lists_files_that_its_rollback_deletes(maker: Maker) -> None:
    options = {**HUDI_TABLE, "hoodie.write.table.version": "9"}
    for ts in (1, 2):
        maker.hudi.write(maker.base, trips(range(4), ts), options, metadata=False)
    undone = max(a.instant for a in Table.open(str(maker.base)).state.completed_writes())
    maker.hudi.roll_back(maker.base, "difference", undone, {**options, "hoodie.metadata.enable": "true"})
    storage = Table.open(str(maker.base)).storage
    stored = StoredMetadata.read(storage, format_of(read_properties(storage)))
    assert any(undone in name for held in stored.read_files(storage, frozenset()).files.values() for name in held)
    assert not any(undone in path.name for path in maker.base.glob("*/*"))


def test_38_hudi_deletes_a_partition_with_what_a_savepoint_protects(maker: Maker) -> None:
    options = {**HUDI_TABLE, "hoodie.datasource.write.table.type": "COPY_ON_WRITE"}
    maker.hudi.write(maker.base, trips(range(4), 1), options)
    saved = Table.open(str(maker.base)).state.completed_writes()[-1].instant
    maker.hudi.sql(f"call create_savepoint(path => '{maker.base}', commit_time => '{saved}')")
    gone = {"hoodie.datasource.write.operation": "delete_partition", "hoodie.datasource.write.partitions.to.delete": "p0"}
    maker.hudi.write(maker.base, trips([0], 2), {**options, **gone})
    assert list((maker.base / "p0").glob("*.parquet"))
    for ts in (3, 4, 5):
        cleaning = {"hoodie.clean.automatic": "true", "hoodie.clean.commits.retained": "1"}
        maker.hudi.write(maker.base, trips([1], ts), {**options, **cleaning})
    assert not (maker.base / "p0").exists()


def test_39_hudi_cannot_compact_logs_with_partial_records(maker: Maker) -> None:
    options = {**HUDI_TABLE, "hoodie.write.table.version": "9"}
    for ts in (1, 2):
        maker.hudi.write(maker.base, trips(range(4), ts), options)
    maker.hudi.sql(f"create table parts using hudi location '{maker.base}'")
    maker.hudi.sql(
        "merge into parts t using (select 'k0001' as id, 'p1' as part, 3L as ts, 9D as price) s on t.id = s.id and t.part = s.part "
        "when matched then update set ts = s.ts, price = s.price",
        {**options, "hoodie.spark.sql.merge.into.partial.updates": "true"},
    )
    log_compaction = {"enable": "true", "inline": "true", "blocks.threshold": "1"}
    with pytest.raises(PeerFailed, match="Partial merging logic is not implemented"):
        maker.hudi.write(
            maker.base,
            trips([1], 4),
            {**options, **{f"hoodie.log.compaction.{key}": value for key, value in log_compaction.items()}},
        )
    assert Table.open(str(maker.base)).read().num_rows == 4


def test_40_hudi_cannot_restore_to_before_its_metadata_table(maker: Maker) -> None:
    options = {**HUDI_TABLE, "hoodie.write.table.version": "9"}
    maker.hudi.write(maker.base, trips(range(4), 1), options, metadata=False)
    saved = Table.open(str(maker.base)).state.completed_writes()[-1].instant
    maker.hudi.sql(f"call create_savepoint(path => '{maker.base}', commit_time => '{saved}')", {"hoodie.metadata.enable": "false"})
    maker.hudi.write(maker.base, trips(range(4), 2), options, metadata=True)
    with pytest.raises(PeerFailed, match="Unable to find completion time"):
        maker.hudi.restore(maker.base, "difference", saved, {**options, "hoodie.metadata.enable": "true"})


EARLY, EARLY_END = "20200101000000000", "20200101000001000"
"""An instant before all others, and when it completed."""


def _three_writes(maker: Maker) -> tuple[str, str]:
    """Write base files in two partitions, then a log file in each; return the second instant and its completion time."""
    options = {**HUDI_TABLE, "hoodie.write.table.version": "9"}
    for numbers, ts in ((range(4), 1), ([1], 5), ([0], 2)):
        maker.hudi.write(maker.base, trips(numbers, ts), options)
    for checksum in maker.base.rglob("*.crc"):
        checksum.unlink()
    done = sorted(path.name.split(".")[0] for path in (maker.base / ".hoodie/timeline").glob("*_*.deltacommit"))
    begun, _, ended = done[1].partition("_")
    return begun, ended


def _times(maker: Maker) -> list[list[int]]:
    return [sorted(found["ts"].to_pylist()) for found in _three_answers(maker)]


def test_41_hudi_reads_log_files_that_no_timeline_explains(maker: Maker) -> None:
    begun, ended = _three_writes(maker)
    assert _times(maker) == [[1, 1, 2, 5]] * 3
    for path in [path for path in maker.base.rglob(f"*{begun}*") if path.is_file()]:
        path.rename(path.with_name(path.name.replace(begun, EARLY).replace(ended, EARLY_END)))
    assert _times(maker) == [[1, 1, 1, 2]] * 3, "the timeline says that it completed before its base file"
    for path in (maker.base / ".hoodie/timeline").glob(f"{EARLY}*"):
        path.unlink()
    assert _times(maker) == [[1, 1, 2, 5], [1, 1, 1, 2], [1, 1, 1, 2]]


def test_42_hudi_hides_the_base_file_behind_a_clock_that_stepped_back(maker: Maker) -> None:
    begun, ended = _three_writes(maker)
    (completed,) = (maker.base / ".hoodie/timeline").glob(f"{begun}_{ended}.deltacommit")
    completed.rename(completed.with_name(f"{begun}_{EARLY_END}.deltacommit"))
    assert _times(maker) == [[1, 2, 5], [1, 2, 5], [1, 1, 2, 5]]


def test_43_hudi_asks_the_expression_index_of_another_function(maker: Maker) -> None:
    options = {**HUDI_TABLE, "hoodie.write.table.version": "9", "hoodie.metadata.index.column.stats.enable": "true"}
    maker.hudi.write(maker.base, trips(range(4), 1), options, metadata=True)
    maker.hudi.sql(f"create table functions using hudi location '{maker.base}'")
    settings = {**options, **SHARING.hudi_options(format_to_create(9)), "hoodie.metadata.enable": "true"}
    maker.hudi.sql("create index low on functions using column_stats(id) options(expr='lower')", settings)
    skipping = {"hoodie.enable.data.skipping": "true"}
    for function, value, found in (("lower", "k0001", 1), ("upper", "K0001", 0)):
        where = f"{function}(id) = '{value}'"
        assert maker.hudi.read(maker.base, metadata=True, where=where, options=skipping).num_rows == found
        assert maker.hudi.read(maker.base, metadata=False, where=where).num_rows == 1


def _three_answers(maker: Maker) -> tuple[pa.Table, pa.Table, pa.Table]:
    return maker.hudi.read(maker.base), read_hudi_rs(maker.base), Table.open(str(maker.base)).read()


def _same_rows(one: pa.Table, other: pa.Table) -> bool:
    return difference(one, other, KEY) is None
