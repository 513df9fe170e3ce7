"""Apache Hudi and Tideline keep the metadata table of one table of version 9 or 8 in turn.

After each step Apache Hudi reads, by its metadata table and by listing folders, the rows that are expected.
"""

from __future__ import annotations

import io
import json
import time
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from tests.conformance.both_in_turn import FAST, Turns, trips
from tests.conformance.matrix import Comparison, Kind
from tests.conformance.peers.apache_hudi import ApacheHudi, PeerFailed
from tests.conformance.test_data_skipping import SKIPPING, without
from tests.conformance.test_shared_metadata import CLEANING
from tests.conformance.test_shared_versions import AT_ONCE, IMPATIENT, WHOLE
from tests.plans import schedule_clean, schedule_clustering, schedule_compaction
from tests.simulation.faults import SAMPLE_STEP
from tests.unit.table.hudi_metadata import dying

from tideline_locks import open_hudi_lock
from tideline_table.action import check_table, roll_back_dead, run_clean, run_clustering, run_compaction
from tideline_table.config import METADATA_COMPACTION_DELTA_COMMITS, SHARED_METADATA
from tideline_table.hudi.instant import State
from tideline_table.metadata_table import StoredMetadata, stored_compaction
from tideline_table.table import Table
from tideline_table.writer import Operation

pytestmark = pytest.mark.timeout(900)


class Kept:
    """A table of both, with its metadata table, and what it must hold: key → ordering value."""

    def __init__(self, peer: ApacheHudi, path: Path, kind: Kind, version: int, partitions: str, options: dict[str, str]) -> None:
        self.partitions = partitions
        self.kept: dict[str, object] = {SHARED_METADATA.key: partitions}
        self.turns = Turns(peer, path, kind, options, own_options=self.kept, metadata=True, version=version)
        self.metadata = {**options, "hoodie.metadata.enable": "true"}
        self.rows: dict[str, int] = {}

    def ours(self, numbers: range, ts: int, operation: Operation = Operation.UPSERT) -> None:
        rows = trips(numbers, ts)
        self.turns.ours(rows, operation)
        self._wrote(rows["id"].to_pylist(), ts, operation is Operation.DELETE)

    def theirs(self, numbers: range, ts: int, operation: str = "upsert", **options: str) -> None:
        rows = trips(numbers, ts)
        self.turns.theirs(rows, operation, **options)
        self._wrote(rows["id"].to_pylist(), ts, operation == "delete")

    def _wrote(self, keys: list[str], ts: int, is_deletion: bool) -> None:
        for key in keys:
            if is_deletion:
                self.rows.pop(key, None)
            else:
                self.rows[key] = ts

    def check(self, what: str) -> None:
        """Apache Hudi finds the rows, by the metadata table, which is kept, and the check finds nothing wrong in it."""
        peer, path = self.turns.peer, self.turns.path
        assert peer.properties(path).get("hoodie.table.metadata.partitions") == self.partitions, what
        table = Table.open(str(path), options=self.kept)
        compare, ours = Comparison(), table.read()
        assert dict(zip(ours["id"].to_pylist(), ours["ts"].to_pylist(), strict=True)) == self.rows, what
        assert ours.num_rows == len(self.rows), what
        compare.rows(ours, peer.read(path, metadata=True), f"{what}, by the metadata table")
        assert check_table(table) == [], what


ALL = "column_stats,files,partition_stats,record_index"
BY_INDEX = {
    "hoodie.metadata.index.partition.stats.enable": "true",
    "hoodie.metadata.index.column.stats.enable": "true",
    "hoodie.metadata.record.index.enable": "true",
    # The default of ten, which test_shared_record_index.py has, makes of each write of Apache Hudi so many more.
    "hoodie.metadata.global.record.level.index.min.filegroup.count": "2",
    "hoodie.metadata.global.record.level.index.max.filegroup.count": "2",
    "hoodie.index.type": "RECORD_INDEX",
    "hoodie.metadata.compact.max.delta.commits": "4",
}
SHORT = {"hoodie.archive.automatic": "true", "hoodie.keep.min.commits": "3", "hoodie.keep.max.commits": "4"}
TABLES = [(9, Kind.MOR), (8, Kind.COW), (9, Kind.COW), (8, Kind.MOR)][: None if SAMPLE_STEP == 1 else 2]


@pytest.mark.parametrize(("version", "kind"), TABLES)
def test_both_write_in_turn(apache_hudi: ApacheHudi, workdir: Path, version: int, kind: Kind) -> None:
    kept = Kept(apache_hudi, workdir / "t", kind, version, ALL, BY_INDEX)
    kept.turns.create_here()
    kept.ours(range(10), 1, Operation.BULK_INSERT)
    kept.theirs(range(5, 20), 2)
    kept.check("made")
    for n in range(3):
        kept.ours(range(n, 8 + n), 3 + 2 * n)
        kept.check(f"our upsert {n}")
        kept.theirs(range(4 + n, 22), 4 + 2 * n)
        kept.check(f"their upsert {n}")
    kept.ours(range(18, 30), 10)
    kept.theirs(range(16, 34), 11)
    kept.check("they upsert keys that we inserted")
    kept.ours(range(1, 4), 12, Operation.DELETE)
    kept.check("we delete")
    kept.theirs(range(2, 6), 13)
    kept.check("they insert deleted keys again")


@pytest.mark.parametrize(("version", "kind"), TABLES)
def test_services_of_both(apache_hudi: ApacheHudi, workdir: Path, version: int, kind: Kind) -> None:
    kept = Kept(apache_hudi, workdir / "t", kind, version, ALL, BY_INDEX)
    turns = kept.turns
    turns.create_here()
    kept.ours(range(10), 1, Operation.BULK_INSERT)
    kept.theirs(range(5, 20), 2)
    kept.ours(range(3, 8), 3)
    if kind is Kind.MOR:
        assert schedule_compaction(turns.open(), AT_ONCE)
        kept.theirs(range(4, 9), 4)
        assert run_compaction(turns.open())
        kept.check("we compact, and they append meanwhile")
        turns.call(
            f"run_compaction(op => 'schedule', path => '{turns.path}')", **kept.metadata, **{k: str(v) for k, v in AT_ONCE.items()}
        )
        kept.ours(range(6, 12), 5)
        turns.call(f"run_compaction(op => 'run', path => '{turns.path}')", **kept.metadata)
        kept.check("they compact, and we append meanwhile")
    kept.ours(range(20, 24), 6, Operation.BULK_INSERT)
    assert schedule_clustering(turns.open(), WHOLE)
    assert run_clustering(turns.open())
    kept.check("we cluster")
    kept.theirs(range(18, 26), 7)
    kept.check("they upsert keys that we moved into other file groups")
    for ts in (8, 9):
        kept.ours(range(20, 24), ts)
    assert schedule_clean(turns.open(), {"hoodie.cleaner.commits.retained": 1})
    assert run_clean(turns.open())
    kept.check("we clean")
    kept.theirs(range(26), 10, **CLEANING)
    kept.check("they upsert all keys, and clean")
    kept.ours(range(2, 28), 11)
    kept.check("we upsert")


def test_they_write_on_when_we_turned_a_secondary_index_off(apache_hudi: ApacheHudi, workdir: Path) -> None:
    """With its definition they would make the index anew with the metadata table, and each of their writes would fail."""
    kept = Kept(apache_hudi, workdir / "t", Kind.MOR, 9, ALL, BY_INDEX)
    turns = kept.turns
    turns.create_here()
    kept.theirs(range(8), 1)
    apache_hudi.sql(f"create table indexed using hudi location '{turns.path}'")
    apache_hudi.sql("create index by_price on indexed (price)", {**turns.hudi_options, **kept.metadata})
    assert "secondary_index_by_price" in apache_hudi.properties(turns.path)["hoodie.table.metadata.partitions"]
    del kept.kept[SHARED_METADATA.key]
    kept.ours(range(2, 6), 3)
    for ts in (4, 5):
        kept.theirs(range(3, 10), ts)
        found = turns.agree(Comparison(), "behind the index", len(kept.rows))
        assert dict(zip(found["id"].to_pylist(), found["ts"].to_pylist(), strict=True)) == kept.rows


@pytest.mark.parametrize(("version", "kind"), TABLES)
def test_writers_that_die(apache_hudi: ApacheHudi, workdir: Path, version: int, kind: Kind) -> None:
    kept = Kept(apache_hudi, workdir / "t", kind, version, ALL, BY_INDEX)
    turns = kept.turns
    turns.create_here()
    kept.ours(range(10), 1, Operation.BULK_INSERT)
    kept.theirs(range(5, 20), 2)
    spoiled = {"price": "if(id = 'k0029', cast(raise_error('spoiled') as double), price)"}
    with pytest.raises(PeerFailed):
        turns.theirs(trips(range(26, 30), 3), "bulk_insert", computed=spoiled)
    (dead,) = (a.instant for a in turns.open().state.pending() if a.is_by_hudi)
    impatient = Table.open(str(turns.path), options={**FAST, **IMPATIENT, **kept.kept}, hudi_lock=open_hudi_lock)
    kept.ours(range(3, 8), 4)
    kept.check("we write beside their dead write")
    turns.wait_for_death(dead)
    assert roll_back_dead(impatient) == [dead]
    kept.check("we rolled theirs back")
    assert not [path.name for path in (turns.path / ".hoodie/metadata").rglob(f"*{dead}*") if path.suffix != ".crc"]
    for at in (3, 4):
        with dying(at):
            turns.ours(trips(range(18, 24), 4 + at))
        (died,) = (a.instant for a in turns.open().state.pending())
        kept.check(f"our write died at file {at}")
        kept.theirs(range(3, 6), 5 + at, **CLEANING)
        assert turns.open().state.actions[died].state is State.ROLLED_BACK
        kept.check(f"they rolled it back, at file {at}")
        kept.ours(range(18, 21), 6 + at)
        kept.check(f"both went on, at file {at}")
    with dying(4):
        turns.ours(trips(range(18, 24), 14))
    deadline = time.monotonic() + 60
    while not roll_back_dead(Table.open(str(turns.path), options={**FAST, **IMPATIENT, **kept.kept}, hudi_lock=open_hudi_lock)):
        assert time.monotonic() < deadline  # it left no heartbeat: the age of its files tells
        time.sleep(0.2)
    kept.check("we rolled ours back, whose delta commit was complete")
    kept.theirs(range(18, 26), 15)
    kept.check("they insert its keys")


def test_apache_hudi_leaves_out_partitions_by_our_statistics(apache_hudi: ApacheHudi, workdir: Path) -> None:
    """They are widened by our writes, also in logs, and leave out what has no such row."""
    kept = Kept(apache_hudi, workdir / "t", Kind.MOR, 9, ALL, BY_INDEX)
    turns = kept.turns
    turns.create_here()
    kept.ours(range(10), 1, Operation.BULK_INSERT)
    kept.theirs(range(10, 14), 2)
    kept.ours(range(0, 6, 2), 9)

    def found(where: str) -> list[str]:
        rows = turns.peer.read(turns.path, metadata=True, where=where, options=SKIPPING)
        return sorted(rows.column("id").to_pylist())

    assert found("ts = 9") == ["k0000", "k0002", "k0004"]
    assert found("ts = 2") == ["k0010", "k0011", "k0012", "k0013"]
    with without(turns.path, ["p1"]):
        assert found("ts = 9") == ["k0000", "k0002", "k0004"]
    kept.theirs(range(11, 14, 2), 12)
    assert found("ts >= 9") == ["k0000", "k0002", "k0004", "k0011", "k0013"]
    kept.check("they write to the other partition")
    nulls = trips([30, 31], 13)
    turns.ours(nulls.set_column(2, nulls.schema.field(2), pa.nulls(2, pa.float64())))
    assert "k0013" in found("price > 1"), "the column has only nulls in what we wrote last"
    assert found("price is null and ts > 1") == ["k0030", "k0031"]


def records_of(turns: Turns, instant: str) -> dict[str, list[Any]]:
    """Partition → the records of the delta commit of a write, without what each writer chooses: file names, ids and sizes."""
    table = turns.open()
    storage, found = table.storage, dict[str, list[Any]]()
    stored = StoredMetadata.read(storage, table.timeline.format)
    for partition in ALL.split(","):
        for group in stored.partition(storage, partition).groups:
            for content in group.contents(storage, {instant}):
                if content.path.endswith(".hfile"):
                    continue
                assert not content.deletes
                schema: Any = fastavro.parse_schema(json.loads(content.schema_json))
                for key, datum in content.updates:
                    record: Any = fastavro.schemaless_reader(io.BytesIO(datum), schema, None, return_record_name=True)
                    found.setdefault(partition, []).append(common(partition, key.decode(), record, instant))
    return {partition: sorted(records, key=repr) for partition, records in found.items()}


def common(partition: str, key: str, record: Any, instant: str) -> Any:
    if partition == "files":
        listed = record["filesystemMetadata"]
        return (key, record["type"], len(listed), any(held["isDeleted"] for held in listed.values()))
    if partition == "record_index":
        return (key, record["type"], record["recordIndexMetadata"][1]["partitionName"])
    held = record["ColumnStatsMetadata"][1]
    bounds = [(name, "own" if end["value"] == instant else end["value"]) for name, end in (held["minValue"], held["maxValue"])]
    kind = (held["columnName"], record["type"], held["valueType"] and held["valueType"][1])
    if partition == "column_stats":
        return (*kind, bounds, held["valueCount"], held["nullCount"])
    return (*kind, held["fileName"], [name for name, _ in bounds])


@pytest.mark.pairs
@pytest.mark.parametrize("version", [9, 8])
def test_records_are_those_of_apache_hudi(apache_hudi: ApacheHudi, workdir: Path, version: int) -> None:
    """Both upsert the same rows into copies of one table. Bounds of partitions are not compared: ours are of the step alone."""
    kept = Kept(apache_hudi, workdir / "t", Kind.COW, version, ALL, {**BY_INDEX, "hoodie.metadata.compact.max.delta.commits": "9"})
    kept.turns.create_here()
    kept.ours(range(10), 1, Operation.BULK_INSERT)
    kept.theirs(range(4), 2)
    theirs = kept.turns.copied(workdir / "theirs")
    rows = trips(range(2, 16), 3)
    ours = records_of(kept.turns, kept.turns.ours(rows).instant)
    theirs.theirs(rows)
    other = records_of(theirs, max(a.instant for a in theirs.open().state.completed_writes()))
    assert ours.keys() == other.keys() == set(ALL.split(","))
    for partition, records in ours.items():
        assert records == other[partition], partition


def compactions(turns: Turns) -> list[str]:
    """The instants at which the partition `files` was compacted."""
    bases = (turns.path / ".hoodie/metadata/files").glob("*.hfile")
    return sorted(path.stem.rpartition("_")[2] for path in bases)


@pytest.mark.pairs
@pytest.mark.parametrize(("version", "kind"), TABLES[::-1])
def test_both_compact_it(apache_hudi: ApacheHudi, workdir: Path, monkeypatch: pytest.MonkeyPatch, version: int, kind: Kind) -> None:
    """Tideline compacts and archives while Apache Hudi does not, then both do in turn."""
    monkeypatch.setattr(stored_compaction, "_MOST_INSTANTS", 6)
    monkeypatch.setattr(stored_compaction, "_LEAST_INSTANTS", 3)
    rarely = {**BY_INDEX, "hoodie.metadata.compact.max.delta.commits": "900"}
    kept = Kept(apache_hudi, workdir / "t", kind, version, ALL, rarely)
    kept.kept[METADATA_COMPACTION_DELTA_COMMITS.key] = "3"
    turns = kept.turns
    turns.create_here()
    kept.ours(range(10), 1, Operation.BULK_INSERT)
    kept.theirs(range(5, 20), 2)
    made = compactions(turns)
    for ts in range(3, 12):
        kept.ours(range(ts % 4, 6), ts, Operation.DELETE if ts == 6 else Operation.UPSERT)
    assert len(compactions(turns)) == 2, "older files are deleted"
    assert min(compactions(turns)) > max(made), "we compacted twice"
    assert list((turns.path / ".hoodie/metadata/.hoodie/timeline/history").glob("*.parquet")), "we archived"
    kept.check("we compacted")
    kept.theirs(range(4, 24), 12)
    kept.check("they upsert, and go by our base files")
    found = turns.peer.read(turns.path, metadata=True, where="ts >= 12", options=SKIPPING)
    assert found.num_rows == 20
    last = max(compactions(turns))
    kept.theirs(range(3), 13, **{"hoodie.metadata.compact.max.delta.commits": "1", **CLEANING, **SHORT})
    kept.theirs(range(6), 14, **{"hoodie.metadata.compact.max.delta.commits": "1", **CLEANING, **SHORT})
    assert max(compactions(turns)) > last, "they compacted"
    kept.check("they compacted")
    for ts in range(15, 20):
        kept.ours(range(ts % 4, 9), ts)
    kept.check("we compacted behind them")
    kept.theirs(range(26), 20)
    kept.check("they upsert all")


def test_bounds_of_decimals_that_we_compact(apache_hudi: ApacheHudi, workdir: Path) -> None:
    """By their octets, 1.04 (68) would be above 3.00 (01 2C), and the partition without it."""
    kept = Kept(apache_hudi, workdir / "t", Kind.MOR, 9, ALL, {**BY_INDEX, "hoodie.metadata.compact.max.delta.commits": "900"})
    kept.kept[METADATA_COMPACTION_DELTA_COMMITS.key] = "1"
    turns = kept.turns
    turns.create_here()
    kept.ours(range(10), 1, Operation.BULK_INSERT)
    kept.theirs(range(10, 14), 25)
    for ts in (26, 27):
        kept.ours(range(0, 6, 2), ts)
    rows = turns.peer.read(turns.path, metadata=True, where="amount > 2", options=SKIPPING)
    assert sorted(rows.column("id").to_pylist()) == ["k0010", "k0011", "k0012", "k0013"]
