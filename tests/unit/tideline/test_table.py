"""Every method of `tideline.Table`, on both table types."""

from __future__ import annotations

import re
import time
from datetime import UTC, date, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType, TimestampType
from tests.unit.tideline.conftest import FIRST, SCHEMA, ids, sorted_rows, trips_of

import tideline
from tideline import BucketIndex
from tideline.errors import InstantNotFound, InvalidInput, SchemaMismatch, TableExists, TableNotFound, TidelineError

NOW = {"hoodie.compact.inline.max.delta.commits": 1, "tideline.clustering.min.input.files": 2}


def data_files(folder: Path) -> list[Path]:
    return [
        found for day in ("mon", "tue") for found in (folder / day).iterdir() if ".parquet" in found.name or ".log." in found.name
    ]


def test_a_created_table_tells_what_it_is(table: tideline.Table, tmp_path: Path) -> None:
    assert (table.name, table.path) == ("trips", f"file:{tmp_path}/trips")
    assert (table.inspect.key, table.inspect.partition, table.inspect.ordering) == (("id",), ("day",), "updated_at")
    assert table.schema == SCHEMA
    assert tideline.open(tmp_path / "trips").inspect.type == table.inspect.type
    assert table.inspect.type in repr(table)


@pytest.mark.parametrize("several", [tuple, list])
def test_key_and_partition_take_names(several, tmp_path: Path) -> None:
    made = tideline.create(tmp_path / "t", schema=SCHEMA, key=several(["id", "updated_at"]), partition=several(["day"]))
    made.upsert(trips_of(*FIRST, ("a", "mon", 1.0, 2)))
    assert made.inspect.key == ("id", "updated_at")
    assert ids(made.read()) == ["a", "a", "b", "c"]
    assert made.lookup(trips_of(("a", "", None, 2)))["fare"].to_pylist() == [1.0]
    assert made.lookup([{"id": "a", "updated_at": 1}, {"id": "x", "updated_at": 1}])["fare"].to_pylist() == [90.0]
    assert made.delete([{"id": "a", "updated_at": 1}]).rows_deleted == 1
    with pytest.raises(SchemaMismatch, match="id, updated_at"):
        made.delete(["a"])


def test_upsert_replaces_and_inserts(table: tideline.Table) -> None:
    before = tideline.open(table.path).changes().until
    done = table.upsert(trips_of(("a", "mon", 95.0, 2), ("d", "tue", 7.0, 1), ("b", "mon", 0.0, 0)))
    assert re.fullmatch(r"\d{17}", done.instant)
    assert (done.rows_inserted, done.attempts) == (1, 1)
    assert done.sequence > before
    fares = {row["id"]: row["fare"] for row in table.read().to_pylist()}
    assert fares == {"a": 95.0, "b": 200.0, "c": None, "d": 7.0}  # b was older than what the table holds


def test_insert_and_bulk_insert_add_rows(table: tideline.Table) -> None:
    assert table.insert(trips_of(("d", "tue", 1.0, 1))).rows_inserted == 1
    assert table.bulk_insert(trips_of(("e", "wed", 1.0, 1), ("f", "wed", 2.0, 1))).rows_inserted == 2
    assert ids(table.read()) == ["a", "b", "c", "d", "e", "f"]


def test_overwrites_replace_partitions_and_tables(table: tideline.Table) -> None:
    table.insert_overwrite(trips_of(("x", "mon", 1.0, 1)))
    assert ids(table.read()) == ["c", "x"]
    table.insert_overwrite_table(trips_of(("y", "wed", 1.0, 1)))
    assert ids(table.read()) == ["y"]


@pytest.mark.parametrize(
    "keys", [["a", "c", "none"], [{"id": "a"}, {"id": "c"}], pa.table({"id": ["c", "a"]})], ids=["values", "mappings", "rows"]
)
def test_delete_finds_keys_in_all_partitions(table: tideline.Table, keys) -> None:
    table.delete(keys)
    assert ids(table.read()) == ["b"]


INDEXES = {
    "plain": {"key": "id"},
    "composite key": {"key": ["id", "updated_at"]},
    "bucket": {"key": "id", "index": BucketIndex(4)},
    "composite key in buckets": {"key": ["id", "updated_at"], "index": BucketIndex(4, fields="id")},
    "several file groups": {"key": "id", "index": BucketIndex(4, several_file_groups=True)},
    "hash rings": {"key": "id", "index": BucketIndex(4, consistent=True)},
}


@pytest.mark.parametrize("index", INDEXES)
def test_no_keys_delete_nothing_with_any_index(index: str, tmp_path: Path) -> None:
    """As each other write without rows, it is a commit without files."""
    made = tideline.create(tmp_path / "t", schema=SCHEMA, partition="day", type="mor", **INDEXES[index])
    made.upsert(trips_of(*FIRST))
    for keys in ([], iter(()), trips_of()):
        before = made.changes().until
        done = made.delete(keys)
        assert (done.rows_deleted, done.rows_inserted, done.sequence > before) == (0, 0, True)
        assert ids(made.read()) == ["a", "b", "c"]
    assert made.lookup([]).num_rows == 0
    assert made.upsert(trips_of()).rows_inserted == 0
    assert ids(made.read()) == ["a", "b", "c"]


def test_delete_looks_only_where_partition_columns_say(table: tideline.Table) -> None:
    table.delete(pa.table({"id": ["a", "c"], "day": ["tue", "tue"]}))
    assert ids(table.read()) == ["a", "b"]


def test_delete_partitions_takes_a_name_or_names(table: tideline.Table) -> None:
    table.delete_partitions("mon")
    assert ids(table.read()) == ["c"]
    table.upsert(trips_of(*FIRST))
    table.delete_partitions(["mon", "tue"])
    assert table.read().num_rows == 0


def test_read_and_scan_return_the_columns_of_the_table(table: tideline.Table) -> None:
    assert table.read().schema.names == SCHEMA.names
    assert sorted_rows(table.read("id", "fare > 100")) == [{"id": "b"}]
    assert ids(table.read(columns=["fare", "id"], where=pc.field("fare").is_null())) == ["c"]
    reader = table.scan(columns=["id"], where="day = 'mon' and fare is not null")
    assert isinstance(reader, pa.RecordBatchReader)
    assert ids(reader.read_all()) == ["a", "b"]
    assert table.read(["id"], meta_fields=True).schema.names[2:] == [
        "_hoodie_record_key", "_hoodie_partition_path", "_hoodie_file_name", "id",
    ]  # fmt: skip
    assert table.read(meta_fields=True).schema.names[5:] == SCHEMA.names
    assert table.read(["id", "_hoodie_partition_path"]).num_columns == 2
    assert table.read(columns=[]).num_rows == 3


def test_where_speaks_of_meta_fields_too(table: tideline.Table) -> None:
    assert ids(table.read("id", where="_hoodie_partition_path = 'tue'")) == ["c"]
    with pytest.raises(TidelineError, match="fares"):
        table.read(where="fares > 1")


def test_lookup_reads_rows_by_key(table: tideline.Table) -> None:
    assert sorted_rows(table.lookup(["c", "a", "none"], "id")) == [{"id": "a"}, {"id": "c"}]
    assert table.lookup([]).num_rows == 0
    assert table.lookup(["a"], where="fare > 100").num_rows == 0
    assert table.lookup(["a"], meta_fields=True)["_hoodie_record_key"].to_pylist() == ["a"]
    with pytest.raises(SchemaMismatch, match="str"):
        table.lookup("a")
    with pytest.raises(SchemaMismatch, match="cannot convert"):
        table.lookup([1])


def test_reads_see_what_others_committed(table: tideline.Table) -> None:
    other = tideline.open(table.path)
    other.upsert(trips_of(("d", "tue", 1.0, 1)))
    assert ids(table.read("id")) == ["a", "b", "c", "d"]
    other.delete(["d"])
    assert table.lookup(["d"]).num_rows == 0
    assert ids(table.changes(since=0).read(["id"])["after"].to_pylist()) == ["a", "b", "c"]


def test_time_travel_takes_instants_times_and_dates(table: tideline.Table) -> None:
    then = table.upsert(trips_of(("d", "tue", 1.0, 1))).instant
    at = datetime.now(UTC)
    time.sleep(0.01)  # instants are whole milliseconds: the next one has to lie behind `at`
    table.delete(["a", "b", "c"])
    assert ids(table.read(as_of=then)) == ["a", "b", "c", "d"]
    assert table.lookup(["a"], as_of=at).num_rows == 1
    assert table.read(as_of=date(2020, 1, 1)).num_rows == 0
    assert table.sql("select count(*) from trips", as_of=then).fetchall() == [(4,)]
    assert table.sql("select count(*) from trips").fetchall() == [(1,)]
    with pytest.raises(InvalidInput):
        table.read(as_of="yesterday")


def test_read_optimized_leaves_out_log_files(table: tideline.Table) -> None:
    table.upsert(trips_of(("a", "mon", 95.0, 2)))
    expected = 90.0 if table.inspect.type == "mor" else 95.0
    assert table.read(where="id = 'a'", read_optimized=True)["fare"].to_pylist() == [expected]


def test_cluster_rewrites_small_files(table: tideline.Table) -> None:
    none = table.maintenance.cluster(options={"tideline.clustering.min.input.files": 9})
    assert not none
    assert "9 or more files" in none.reason
    table.bulk_insert(trips_of(("d", "mon", 1.0, 1)))
    before = sorted_rows(table.read())
    done = table.maintenance.cluster(options=NOW)
    assert done
    assert (done.rows_rewritten, done.files_written, done.reason) == (3, 1, "")
    assert sorted_rows(table.read()) == before
    assert table.read(where="day = 'mon'", meta_fields=True)["_hoodie_file_name"].unique().to_pylist() != []


def test_compact_merges_log_files(table: tideline.Table) -> None:
    if table.inspect.type == "cow":
        with pytest.raises(tideline.errors.InvalidInput):
            table.maintenance.compact()
        return
    none = table.maintenance.compact()
    assert not none
    assert "1 delta commit(s) since" in none.reason
    table.upsert(trips_of(("a", "mon", 95.0, 2)))
    done = table.maintenance.compact(options=NOW)
    assert done
    assert (done.log_files_merged, done.files_written) == (1, 1)
    assert table.read(where="id = 'a'", read_optimized=True)["fare"].to_pylist() == [95.0]


def test_log_compact_merges_log_files_into_one(table: tideline.Table) -> None:
    if table.inspect.type == "cow":
        with pytest.raises(tideline.errors.InvalidInput):
            table.maintenance.log_compact()
        return
    for number in range(3):
        table.upsert(trips_of(("a", "mon", 95.0 + number, 2 + number)))
    before, optimized = sorted_rows(table.read()), sorted_rows(table.read(read_optimized=True))
    none = table.maintenance.log_compact()
    assert not none
    assert "at most 3 log file(s)" in none.reason
    done = table.maintenance.log_compact(options={"hoodie.log.compaction.blocks.threshold": 3})
    assert done
    assert (done.log_files_merged, done.files_written) == (3, 1)
    assert sorted_rows(table.read()) == before
    assert sorted_rows(table.read(read_optimized=True)) == optimized, "the base file is as before"


def test_clean_and_archive_remove_what_is_old(table: tideline.Table, tmp_path: Path) -> None:
    assert not table.maintenance.clean()
    assert not table.maintenance.archive()
    assert "keeps all 1 completed writes" in table.maintenance.clean().reason
    assert "keeps all 1 completed writes" in table.maintenance.archive().reason
    if table.inspect.type == "mor":  # archival keeps the delta commits that the next compaction counts
        table.upsert(trips_of(("a", "mon", 95.0, 2)))
        table.maintenance.compact(options=NOW)
    for at in range(5):
        table.insert_overwrite(trips_of((f"n{at}", "mon", 1.0, at)))
    files = data_files(tmp_path / "trips")
    cleaned = table.maintenance.clean(options={"hoodie.cleaner.commits.retained": 1})
    assert cleaned
    assert len(data_files(tmp_path / "trips")) == len(files) - cleaned.files_deleted < len(files)
    few = {
        "hoodie.cleaner.commits.retained": 1,
        "hoodie.keep.min.commits": 2,
        "hoodie.keep.max.commits": 3,
        "tideline.archive.min.age": 0,
    }
    archived = table.maintenance.archive(options=few)
    assert archived
    assert archived.instants
    assert (tmp_path / "trips" / archived.file).exists()
    assert ids(table.read()) == ["c", "n4"]


def test_a_savepoint_is_restored(table: tideline.Table) -> None:
    kept = table.maintenance.create_savepoint(comment="before the import")
    assert [s.instant for s in table.inspect.savepoints()] == [kept.instant]
    gone = table.upsert(trips_of(("d", "mon", 1.0, 1)))
    preview = table.maintenance.restore(kept.instant, dry_run=True)
    assert (preview.instant, preview.undone) == ("", (gone.instant,))
    assert "d" in ids(table.read())
    done = table.maintenance.restore(kept.instant)
    assert done.undone == (gone.instant,)
    assert ids(table.read()) == ["a", "b", "c"]
    table.maintenance.delete_savepoint(kept.instant)
    assert table.inspect.savepoints() == ()
    with pytest.raises(InstantNotFound):
        table.maintenance.restore(kept.instant)


def test_roll_back_dead_finds_nothing_in_a_sound_table(table: tideline.Table) -> None:
    assert table.maintenance.roll_back_dead() == ()


def test_requests_that_make_no_sense_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(TableNotFound):
        tideline.open(tmp_path / "none")
    with pytest.raises(InvalidInput, match="cow or mor"):
        tideline.create(tmp_path / "t", schema=SCHEMA, key="id", type="row")
    with pytest.raises(SchemaMismatch):
        tideline.create(tmp_path / "t", schema=SCHEMA, key="nope")
    with pytest.raises(InvalidInput, match="unknown option"):
        tideline.create(tmp_path / "t", schema=SCHEMA, key="id", options={"tideline.write.conflict.retrys": 1})
    made = tideline.create(tmp_path / "t", schema=SCHEMA, key="id")
    with pytest.raises(TableExists):
        tideline.create(tmp_path / "t", schema=SCHEMA, key="id")
    with pytest.raises(SchemaMismatch, match="tip"):
        made.upsert(pa.table({"id": ["a"], "tip": [1]}))
    with pytest.raises(InvalidInput):
        made.maintenance.share("zookeeper")


def test_locks_by_url_serve_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    leases = tmp_path / "t/.hoodie/.tideline/locks"
    tideline.create(tmp_path / "t", schema=SCHEMA, key="id", locks="").upsert(trips_of(*FIRST))
    assert not leases.exists()
    monkeypatch.setenv("TIDELINE_LOCKS", "storage:")
    tideline.open(tmp_path / "t").upsert(trips_of(*FIRST))
    assert list(leases.iterdir())
    with pytest.raises(InvalidInput):
        tideline.open(tmp_path / "t", locks="zookeeper:")


def test_a_shared_table_is_written_under_hudis_lock(table: tideline.Table, tmp_path: Path) -> None:
    options = table.maintenance.share(lock_expiry_min=7)
    assert options["hoodie.write.lock.provider"].endswith("FileSystemBasedLockProvider")
    assert table.maintenance.share() == options
    table.upsert(trips_of(("d", "tue", 1.0, 1)))
    other = tideline.open(table.path)
    other.delete(["a"])
    assert ids(table.read()) == ["b", "c", "d"]
    assert other.maintenance.share() == options
    with pytest.raises(tideline.errors.InvalidInput):
        table.maintenance.archive()


def test_inspect_tells_what_is_due_and_what_fits(table: tideline.Table) -> None:
    found = table.inspect.status()
    assert (found.type, found.sequence > 0, found.backlog.small_files >= 0) == (table.inspect.type, True, True)
    assert {str(verdict.service) for verdict in found.verdicts} >= {"clustering", "compaction", "clean"}
    assert all(verdict.reason for verdict in found.verdicts)
    assert table.inspect.advise().proposed_index


def test_few_errors_are_public_and_catch_all_others() -> None:
    def below(kind: type) -> set[type]:
        return {kind}.union(*(below(sub) for sub in kind.__subclasses__()))

    public = {getattr(tideline.errors, name) for name in tideline.errors.__all__} - {tideline.errors.Recovery, TidelineError}
    assert len(public) < 11
    engine = {e for e in below(TidelineError) if e.__module__ in ("tideline_table.errors", "tideline_locks.errors")}
    assert {e.__name__ for e in engine if not issubclass(e, tuple(public))} == {"TidelineError", "MissingExtra"}


@pytest.mark.parametrize("kind", ["cow", "mor"])
def test_a_bucket_index(kind: str, tmp_path: Path) -> None:
    made = tideline.create(tmp_path / "t", schema=SCHEMA, key="id", partition="day", type=kind, index=BucketIndex(4, fields="id"))
    made.upsert(trips_of(*FIRST))
    made.insert(trips_of(*FIRST, ("z", "mon", 1.0, 2)))
    assert ids(made.read()) == ["a", "b", "c", "z"]
    samples = [ids(made.inspect.sample([number], out_of=2).read(["id"])) for number in (0, 1)]
    assert sorted([*samples[0], *samples[1]]) == ["a", "b", "c", "z"]
    assert ids(made.inspect.sample([0, 1, 2, 3]).read(where="id != 'a'")) == ["b", "c", "z"]
    with pytest.raises(InvalidInput, match="out of 3; expected a divisor of the number of buckets, 4"):
        made.inspect.sample([0], out_of=3)
    with pytest.raises(SchemaMismatch, match="keys without day, for a table with a bucket index"):
        made.delete(["a"])
    made.delete([{"id": "a", "day": "mon"}])
    assert ids(tideline.open(tmp_path / "t").read()) == ["b", "c", "z"]
    resized = made.maintenance.resize_buckets(8, partition_buckets="^tue,4")
    assert (bool(resized), resized.attempts, [(one.partition, one.reason) for one in resized.skipped]) == (
        True,
        1,
        [("tue", tideline.SkipReason.SAME_NUMBER)],
    )
    again = made.maintenance.resize_buckets(8)
    assert (bool(again), again.instant, [one.partition for one in again.skipped]) == (False, "", ["mon", "tue"])
    assert made.maintenance.resize_buckets(4, partition_buckets="", overwrite=True).instant
    made.maintenance.cluster()
    assert made.maintenance.cluster(options={"hoodie.clustering.plan.strategy.sort.columns": "day"}).instant
    assert made.maintenance.share()["hoodie.bucket.index.num.buckets"] == "4"
    with pytest.raises(InvalidInput, match="without a number of buckets"):
        tideline.create(tmp_path / "u", schema=SCHEMA, key="id", index=BucketIndex())


def test_keys_inside_of_structs(tmp_path: Path) -> None:
    place = pa.struct([("id", pa.int64()), ("city", pa.string()), ("ts", pa.int64())])
    schema = pa.schema([("a", place), ("v", pa.string())])
    made = tideline.create(tmp_path / "t", schema=schema, key="a.id", partition="a.city", ordering="a.ts", type="mor")
    assert (made.inspect.key, made.inspect.partition, made.inspect.ordering) == (("a.id",), ("a.city",), "a.ts")
    made.upsert(pa.table({"a": [{"id": n, "city": f"c{n % 2}", "ts": 5} for n in range(4)], "v": list("abcd")}, schema))
    made.upsert(pa.table({"a": [{"id": n, "city": f"c{n % 2}", "ts": n + 4} for n in range(4)], "v": list("ABCD")}, schema))
    assert sorted(made.read(["v"])["v"].to_pylist()) == ["B", "C", "D", "a"]
    for keys in ([2], [{"a.id": 2}], [{"a": {"id": 2}}], pa.table({"a.id": [2]})):
        assert made.lookup(keys, ["v"])["v"].to_pylist() == ["C"]
    with pytest.raises(SchemaMismatch, match=r"keys without column\(s\) 'a\.id'"):
        made.lookup([{"v": "C"}])
    made.delete([{"a": {"id": 0, "city": "c0"}}, {"a": {"id": 1, "city": "c1"}}])
    made.upsert(pa.table({"a": [{"id": 2, "city": "c9", "ts": 5}], "v": ["E"]}, schema))
    made.delete([{"a.id": 2, "a.city": "c0"}])
    assert sorted(made.read(["v"])["v"].to_pylist()) == ["D", "E"]
    made.delete([{"a.id": 2}])
    assert made.read(["v"])["v"].to_pylist() == ["D"]
    assert tideline.open(made.path).sql("select a.id from t").fetchall() == [(3,)]


def test_a_lookup_of_no_column_counts_rows(table: tideline.Table) -> None:
    assert [table.lookup(["a", "b", "x"], columns=[], where=where).num_rows for where in (None, "fare > 100")] == [2, 1]
    assert table.lookup(["x"], columns=[]).num_rows == 0


def test_a_table_without_a_key_takes_rows_and_is_serviced(tmp_path):
    made = tideline.create(tmp_path / "t", schema=SCHEMA, key=None, partition="day", type="mor")
    assert "recordkey.fields" not in (tmp_path / "t" / ".hoodie" / "hoodie.properties").read_text()
    apart = {"hoodie.parquet.small.file.limit": 0, "tideline.insert.to.log": True}
    first = made.insert(trips_of(*FIRST), options=apart)
    made.insert(trips_of(*FIRST), options=apart)
    keys = made.read(meta_fields=True).column("_hoodie_record_key").to_pylist()
    assert len(set(keys)) == len(keys) == 2 * len(FIRST)
    assert "at most 1 log file(s)" in made.maintenance.log_compact().reason
    assert made.maintenance.compact(options={"hoodie.compact.inline.max.delta.commits": 1}).files_written
    assert made.maintenance.cluster().rows_rewritten == len(keys)
    assert sorted(made.read(meta_fields=True).column("_hoodie_record_key").to_pylist()) == sorted(keys)
    assert made.incremental(first.sequence).read().num_rows == len(FIRST)
    for refused in (lambda: made.upsert(trips_of(*FIRST)), lambda: made.lookup(["a"]), lambda: made.delete(where="id = 'a'")):
        with pytest.raises(TidelineError, match="no record key columns"):
            refused()


def test_a_schema_may_be_text_or_a_struct_type_of_spark(tmp_path):

    text = tideline.create(tmp_path / "a", schema="id VARCHAR, tags VARCHAR[], t TIMESTAMPTZ, price DECIMAL(9, 2)", key="id").schema
    assert [str(field.type) for field in text][::2] == ["string", "timestamp[us, tz=UTC]"]
    fields = [StructField("id", StringType()), StructField("n", LongType()), StructField("at", TimestampType())]
    spark = tideline.create(tmp_path / "b", schema=StructType(fields), key="id").schema
    assert [str(field.type) for field in spark] == ["string", "int64", "timestamp[us, tz=UTC]"]
    with pytest.raises(SchemaMismatch, match="nosuch"):
        tideline.create(tmp_path / "c", schema="id nosuch", key="id")
