"""The harness against itself: what Apache Hudi writes, Apache Hudi and hudi-rs read equally; and the harness reports failures."""

from __future__ import annotations

import datetime as dt
import os
import subprocess
import sys
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from tests.conformance.peers.apache_hudi import ApacheHudi, PeerFailed, PeerInstant
from tests.conformance.peers.environment import REPOSITORY
from tests.conformance.peers.hudi_rs import read_hudi_rs
from tests.conformance.peers.rows import difference

AT = dt.datetime(2024, 5, 1, 10, 11, 12, 345678, tzinfo=dt.UTC)

OPTIONS = {
    "hoodie.table.name": "trips",
    "hoodie.datasource.write.table.type": "COPY_ON_WRITE",
    "hoodie.datasource.write.recordkey.field": "id",
    "hoodie.datasource.write.partitionpath.field": "part",
    "hoodie.datasource.write.precombine.field": "ts",
    "hoodie.bulkinsert.shuffle.parallelism": "2",
    "hoodie.upsert.shuffle.parallelism": "2",
    "hoodie.delete.shuffle.parallelism": "2",
    "hoodie.clean.automatic": "false",
}


def trips(numbers: range, ts: int) -> pa.Table:
    """Rows `k0000`… in the partitions p0 and p1, with a column of most of the types that Hudi knows."""
    return pa.table(
        {
            "id": pa.array([f"k{number:04}" for number in numbers]),
            "ts": pa.array([ts] * len(numbers), pa.int64()),
            "price": pa.array([number * 1.5 for number in numbers]),
            "quantity": pa.array([number if number % 4 else None for number in numbers], pa.int32()),
            "at": pa.array([AT + dt.timedelta(minutes=number) for number in numbers], pa.timestamp("us", "UTC")),
            "day": pa.array([AT.date()] * len(numbers)),
            "amount": pa.array([Decimal(number).scaleb(-2) for number in numbers], pa.decimal128(10, 2)),
            "flag": pa.array([number % 3 == 0 for number in numbers]),
            "tags": pa.array([[f"t{number}", "é漢😀"] for number in numbers], pa.list_(pa.string())),
            "part": pa.array([f"p{number % 2}" for number in numbers]),
        }
    )


def write(peer: ApacheHudi, base_path: Path, operation: str, rows: pa.Table, **options: str) -> None:
    peer.write(base_path, rows, {**OPTIONS, "hoodie.datasource.write.operation": operation, **options})


def user_columns(table: pa.Table) -> pa.Table:
    return table.select([name for name in table.column_names if not name.startswith("_hoodie_")])


@dataclass(frozen=True)
class Written:
    base_path: Path
    rows: pa.Table
    instants: tuple[str, ...]


@pytest.fixture(scope="module")
def written(apache_hudi: ApacheHudi, tmp_path_factory: pytest.TempPathFactory) -> Written:
    """Ten rows, an upsert that overlaps them, an upsert that is too old, and a delete; and the rows that this must leave."""
    base_path = tmp_path_factory.mktemp("tables") / "trips"
    write(apache_hudi, base_path, "bulk_insert", trips(range(10), ts=5))
    write(apache_hudi, base_path, "upsert", trips(range(4, 14), ts=7))
    write(apache_hudi, base_path, "upsert", trips(range(12, 14), ts=6).set_column(2, "price", pa.array([-1.0, -1.0])))
    write(apache_hudi, base_path, "delete", trips(range(2), ts=8))
    rows = pa.concat_tables([trips(range(2, 4), ts=5), trips(range(4, 14), ts=7)])
    return Written(base_path, rows, tuple(sorted(instant.instant for instant in apache_hudi.timeline(base_path))))


def test_the_session_runs_in_utc_on_the_wanted_releases(apache_hudi: ApacheHudi) -> None:
    running = apache_hudi.ping()
    assert running["zone"] == "UTC"
    assert running["spark"].startswith("3.5.")


def test_a_table_is_written_as_version_6_with_timeline_layout_1(apache_hudi: ApacheHudi, written: Written) -> None:
    properties = apache_hudi.properties(written.base_path)
    assert properties["hoodie.table.version"] == "6"
    assert properties["hoodie.timeline.layout.version"] == "1"
    assert "hoodie.table.metadata.partitions" not in properties
    on_disk = (written.base_path / ".hoodie" / "hoodie.properties").read_text(encoding="latin-1").splitlines()
    assert "hoodie.table.version=6" in on_disk
    assert "hoodie.timeline.layout.version=1" in on_disk
    assert not (written.base_path / ".hoodie" / "timeline").exists()
    completed = {path.name for path in (written.base_path / ".hoodie").glob("*.commit")}
    assert completed == {f"{instant}.commit" for instant in written.instants}


def test_apache_hudi_reads_what_was_written(apache_hudi: ApacheHudi, written: Written) -> None:
    found = apache_hudi.read(written.base_path)
    assert difference(user_columns(found), written.rows, "id", names=("Apache Hudi", "written")) is None
    assert pc.all(pc.equal(found["_hoodie_record_key"], found["id"])).as_py()
    assert pc.all(pc.equal(found["_hoodie_partition_path"], found["part"])).as_py()
    assert set(found["_hoodie_commit_time"].to_pylist()) <= set(written.instants)


def test_hudi_rs_reads_the_same_rows(apache_hudi: ApacheHudi, written: Written) -> None:
    spark, rust = apache_hudi.read(written.base_path), read_hudi_rs(written.base_path)
    assert rust.num_rows == 12
    assert difference(spark, rust, "_hoodie_record_key", names=("Apache Hudi", "hudi-rs")) is None


def test_time_travel_reads_equally(apache_hudi: ApacheHudi, written: Written) -> None:
    first = written.instants[0]
    spark, rust = apache_hudi.read(written.base_path, as_of=first), read_hudi_rs(written.base_path, as_of=first)
    assert difference(user_columns(spark), trips(range(10), ts=5), "id") is None
    assert difference(spark, rust, "_hoodie_record_key", names=("Apache Hudi", "hudi-rs")) is None


def test_a_read_can_be_narrowed(apache_hudi: ApacheHudi, written: Written) -> None:
    found = apache_hudi.read(written.base_path, columns=["id", "ts"], where="part = 'p1' and ts = 5")
    assert found.to_pylist() == [{"id": "k0003", "ts": 5}]
    nothing = apache_hudi.read(written.base_path, columns=["id", "ts"], where="ts = 99")
    assert nothing.column_names == ["id", "ts"]
    assert nothing.num_rows == 0
    later = apache_hudi.read(written.base_path, "incremental", begin=written.instants[0], end=written.instants[1], columns=["id"])
    assert sorted(later["id"].to_pylist()) == [f"k{number:04}" for number in range(4, 14)]


def test_clustering_by_procedure_changes_files_and_no_rows(apache_hudi: ApacheHudi, workdir: Path) -> None:
    base_path = workdir / "trips"
    for first in (0, 10):
        write(apache_hudi, base_path, "bulk_insert", trips(range(first, first + 10), ts=1))
    before, slices = apache_hudi.read(base_path), apache_hudi.file_slices(base_path)
    assert [found.partition_path for found in slices] == ["p0", "p0", "p1", "p1"]

    apache_hudi.call(f"run_clustering(path => '{base_path}', op => 'schedule', order => 'price')")
    (pending,) = (instant for instant in apache_hudi.timeline(base_path) if instant.state != "COMPLETED")
    assert pending.state == "REQUESTED"
    assert (base_path / ".hoodie" / f"{pending.instant}.replacecommit.requested").stat().st_size > 0
    apache_hudi.call(f"run_clustering(path => '{base_path}', op => 'execute')")

    assert PeerInstant(pending.instant, "replacecommit", "COMPLETED") in apache_hudi.timeline(base_path)
    clustered = apache_hudi.file_slices(base_path)
    assert [(found.partition_path, found.base_instant) for found in clustered] == [("p0", pending.instant), ("p1", pending.instant)]
    assert not {found.file_id for found in clustered} & {found.file_id for found in slices}
    after = apache_hudi.read(base_path)
    assert difference(before, after, "_hoodie_record_key", ignore=["_hoodie_file_name"]) is None
    assert difference(after, read_hudi_rs(base_path), "_hoodie_record_key", names=("Apache Hudi", "hudi-rs")) is None
    assert not (base_path / ".hoodie" / "metadata").exists()
    assert apache_hudi.properties(base_path)["hoodie.table.version"] == "6"


def test_merge_on_read_slices_show_their_log_files(apache_hudi: ApacheHudi, workdir: Path) -> None:
    base_path, kind = workdir / "trips", {"hoodie.datasource.write.table.type": "MERGE_ON_READ"}
    write(apache_hudi, base_path, "bulk_insert", trips(range(4), ts=1), **kind)
    write(apache_hudi, base_path, "upsert", trips(range(2), ts=2), **kind)
    assert [len(found.log_files) for found in apache_hudi.file_slices(base_path)] == [1, 1]
    expected = pa.concat_tables([trips(range(2), ts=2), trips(range(2, 4), ts=1)])
    assert difference(user_columns(apache_hudi.read(base_path)), expected, "id") is None
    assert difference(user_columns(read_hudi_rs(base_path)), expected, "id") is None
    assert difference(user_columns(apache_hudi.read(base_path, "read_optimized")), trips(range(4), ts=1), "id") is None


def test_statements_return_rows(apache_hudi: ApacheHudi) -> None:
    rows = apache_hudi.sql("select 1 as one, cast('12.50' as decimal(10,2)) as amount, array(1, 2) as several, null as nothing")
    assert rows == [{"one": 1, "amount": "12.50", "several": [1, 2], "nothing": None}]


def test_settings_of_a_statement_do_not_outlive_it(apache_hudi: ApacheHudi) -> None:
    told = apache_hudi.sql("set hoodie.metadata.enable", {"hoodie.metadata.enable": "false"})
    assert told[0]["value"] == "false"
    assert apache_hudi.sql("set hoodie.metadata.enable")[0]["value"] == "<undefined>"
    assert apache_hudi.sql("set hoodie.write.table.version")[0]["value"] == "6"


def test_errors_of_the_far_side_carry_the_java_message(apache_hudi: ApacheHudi, workdir: Path) -> None:
    with pytest.raises(PeerFailed, match="TableNotFoundException") as caught:
        apache_hudi.timeline(workdir / "nothing")
    assert caught.value.kind == "org.apache.hudi.exception.TableNotFoundException"
    with pytest.raises(PeerFailed, match="boom"):
        apache_hudi.sql("select raise_error('boom')")
    assert apache_hudi.sql("select 1 as one") == [{"one": 1}]


@pytest.mark.ends_hudi(2)
def test_a_request_past_its_limit_fails_and_the_next_one_is_served(apache_hudi: ApacheHudi) -> None:
    limited = "java_method('java.lang.Thread', 'sleep', bigint(60000))"
    before = apache_hudi.process_id
    with pytest.raises(PeerFailed, match="limit"):
        apache_hudi.sql(f"select {limited}", timeout_s=0.5)
    assert apache_hudi.sql("select 1 as one") == [{"one": 1}]
    assert apache_hudi.process_id != before
    with pytest.raises(ProcessLookupError):
        os.kill(before, 0)


def test_preparing_again_from_two_processes_at_once_changes_nothing(apache_hudi: ApacheHudi) -> None:
    command = [sys.executable, "-m", "tests.conformance.peers.environment"]
    running = [subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    told = [process.communicate(timeout=250)[0] for process in running]
    assert [process.returncode for process in running] == [0, 0]
    assert told[0] == told[1]
    assert "hudi-spark3.5-bundle_2.12-1.2.0.jar" in told[0]


# --- the comparison itself -------------------------------------------------------------------------------------------------

ROWS = pa.table({"id": ["a", "b"], "at": pa.array([AT, None], pa.timestamp("us", "UTC")), "x": [1.0, float("nan")]})


def test_equal_rows_in_other_clothes_are_equal() -> None:
    other = pa.table(
        {
            "x": [float("nan"), 1.0],
            "at": pa.array([None, AT.replace(tzinfo=None)], pa.timestamp("ns")),
            "id": pa.array(["b", "a"], pa.large_string()).dictionary_encode(),
            "_hoodie_file_name": ["f", "f"],
        }
    )
    assert difference(ROWS, other, "id") is None
    assert difference(other, ROWS, ["id"]) is None


@pytest.mark.parametrize(
    ("other", "told"),
    [
        (ROWS.slice(0, 1), "id='b': only in left"),
        (pa.concat_tables([ROWS, ROWS.slice(0, 1)]), "id='a': 1 rows in left, 2 in right"),
        (ROWS.set_column(2, "x", pa.array([2.0, float("nan")])), "x is 1.0 in left, 2.0 in right"),
        (ROWS.set_column(2, "x", pa.array([1.0, None])), "x is nan in left, None in right"),
        (ROWS.set_column(2, "x", pa.array([1, 2])), "column x: left double, right int64"),
        (ROWS.drop_columns(["x"]), "only left has ['x']"),
        (ROWS.drop_columns(["id"]), "right lacks the key columns ['id']"),
    ],
)
def test_differences_are_told(other: pa.Table, told: str) -> None:
    assert told in (difference(ROWS, other, "id") or "")


def test_many_differences_are_counted() -> None:
    assert "… and 15 more" in (difference(trips(range(20), ts=1), trips(range(20), ts=2), "id") or "")
