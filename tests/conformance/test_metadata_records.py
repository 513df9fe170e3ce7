"""Every record of the metadata table that Tideline keeps is the one that Apache Hudi 1.2.0 writes for the same history, or the
difference is documented."""

from __future__ import annotations

import base64
import datetime as dt
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.conformance.matrix import Kind
from tests.conformance.metadata_records import PARTITIONS, Place, Record, Written
from tests.conformance.peers.apache_hudi import ApacheHudi
from tests.plans import schedule_clean, schedule_clustering, schedule_compaction

from tideline_table.action import create_metadata, delete_partitions, run_clean, run_clustering, run_compaction, write_rows
from tideline_table.bloom import BloomFilter
from tideline_table.file_group.slice import FileGroupId
from tideline_table.log.metadata import BLOOM_FILTERS, COLUMN_STATS, FILES, RECORD_INDEX
from tideline_table.metadata_table import bloom_filters, column_records, record_index
from tideline_table.metadata_table.records import FilesRecords
from tideline_table.table import RecordIndex, Table, TableRequest, TableType, create_table
from tideline_table.writer import Operation

pytestmark = pytest.mark.timeout(900)

Records = dict[Place, Record | None]
MISSING: Record = {"": "missing"}
NO_ROWS = "clustering p3 base "
"""The name of the base file without rows that only Tideline writes."""
AT = dt.datetime(2024, 5, 1, 10, 11, 12, 345678, tzinfo=dt.UTC)
SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("ts", pa.int64()),
        ("price", pa.float64()),
        ("quantity", pa.int32()),
        ("at", pa.timestamp("us", "UTC")),
        ("day", pa.date32()),
        ("amount", pa.decimal128(10, 2)),
        ("flag", pa.bool_()),
        ("blob", pa.binary()),
        ("ratio", pa.float32()),
        (
            "place",
            pa.struct(
                [("city", pa.string()), ("zip", pa.int32()), ("at", pa.struct([("lat", pa.float64()), ("on", pa.date32())]))]
            ),
        ),
        ("part", pa.string()),
    ]
)
INDEXED = [*(name for name in SCHEMA.names if name != "place"), "place.city", "place.zip", "place.at.lat", "place.at.on"]
COLUMNS = ["_hoodie_commit_time", "_hoodie_partition_path", "_hoodie_record_key", *INDEXED]
SHARED = {
    "hoodie.index.type": "RECORD_INDEX",
    "hoodie.metadata.record.index.min.filegroup.count": "2",
    "hoodie.metadata.record.index.max.filegroup.count": "2",
    "hoodie.metadata.compact.max.delta.commits": "100",
    "hoodie.metadata.index.column.stats.column.list": ",".join(INDEXED),
    # Apache Hudi's default makes filters of 431 KB.
    "hoodie.index.bloom.num_entries": "100",
    "hoodie.bloom.index.filter.dynamic.max.entries": "100",
    "hoodie.parquet.small.file.limit": "0",
    "hoodie.clean.commits.retained": "1",
    "hoodie.cleaner.commits.retained": "1",
    "hoodie.compact.inline.max.delta.commits": "1",
}
OURS = {"tideline.task.max.lifetime": 0, "tideline.clustering.min.input.files": 1}
THEIRS = {
    "hoodie.table.name": "trips",
    "hoodie.datasource.write.recordkey.field": "id",
    "hoodie.datasource.write.partitionpath.field": "part",
    "hoodie.datasource.write.precombine.field": "ts",
    "hoodie.metadata.enable": "true",
    "hoodie.metadata.record.index.enable": "true",
    "hoodie.metadata.global.record.level.index.enable": "true",
    "hoodie.metadata.global.record.level.index.min.filegroup.count": "2",
    "hoodie.metadata.global.record.level.index.max.filegroup.count": "2",
    "hoodie.metadata.index.column.stats.enable": "true",
    "hoodie.metadata.index.bloom.filter.enable": "true",
    "hoodie.compact.inline": "false",
    "hoodie.clean.automatic": "false",
    "hoodie.clean.async": "false",
    "hoodie.archive.automatic": "false",
    "hoodie.embed.timeline.server": "false",
    "hoodie.markers.type": "DIRECT",
    "hoodie.bulkinsert.shuffle.parallelism": "1",
    "hoodie.insert.shuffle.parallelism": "1",
    "hoodie.upsert.shuffle.parallelism": "1",
    "hoodie.delete.shuffle.parallelism": "1",
}


def rows(numbers: Iterable[int], ts: int, part: Callable[[int], str] = lambda n: f"p{n % 2}") -> pa.Table:
    """Return rows without arrays: Apache Hudi fails on an array with a null element (docs/peer-differences.md, 6)."""
    return pa.Table.from_pylist(
        [
            {
                "id": f"k{n:04}",
                "ts": ts,
                "price": n * 1.5 if n % 5 else None,
                "quantity": n * 10 + ts if n % 4 else None,
                "at": AT + dt.timedelta(minutes=n),
                "day": AT.date() + dt.timedelta(days=n),
                "amount": Decimal(n * 100 + ts).scaleb(-2),
                "flag": n % 3 == 0,
                "blob": bytes([n % 256, 0, 255]),
                "ratio": n / 4,
                "place": place(n) if n % 6 else None,
                "part": part(n),
            }
            for n in numbers
        ],
        schema=SCHEMA,
    )


def place(n: int) -> dict[str, Any]:
    at = {"lat": n / 2, "on": AT.date()} if n % 4 else None
    return {"city": f"c{n}", "zip": n if n % 3 else None, "at": at}


@dataclass(frozen=True)
class Write:
    """A step of the history that writes rows."""

    operation: Operation
    rows: pa.Table


WRITES = {
    "bulk insert": Write(Operation.BULK_INSERT, rows(range(12), 1)),
    "upsert": Write(Operation.UPSERT, rows(range(8, 20), 2)),
    "new partitions": Write(Operation.INSERT, rows(range(20, 25), 3, lambda n: "p2" if n < 24 else "p3")),
    "delete": Write(Operation.DELETE, rows((3, 4, 15, 24), 4, lambda n: f"p{n % 2}" if n < 24 else "p3")),
    "upsert of all": Write(Operation.UPSERT, rows((1, 2, 3, 20, 30), 5, lambda n: "p2" if n >= 20 else f"p{n % 2}")),
    "overwrite": Write(Operation.INSERT_OVERWRITE, rows((0, 40, 42), 6)),
    "last": Write(Operation.UPSERT, rows((1, 5, 40, 44), 7)),
}
HISTORY = (
    *("bulk insert", "upsert", "new partitions", "delete", "compaction", "upsert of all"),
    *("clustering", "overwrite", "partition deleted", "last", "clean"),
)


def by_tideline(base: Path, kind: Kind) -> Written:
    """Run the history with Tideline."""
    create_table(str(base), TableRequest("trips", SCHEMA, ("id",), ("part",), "ts", TableType(kind.value), index=RecordIndex()))
    table = Table.open(str(base), options={**SHARED, **OURS})
    create_metadata(table, PARTITIONS)
    written = Written(base)

    def do(step: str) -> None:
        if step in WRITES:
            write_rows(table, WRITES[step].rows, WRITES[step].operation)
        elif step == "compaction":
            assert schedule_compaction(table)
            run_compaction(table)
        elif step == "clustering":
            assert schedule_clustering(table)
            run_clustering(table)
        elif step == "clean":
            assert schedule_clean(table)
            run_clean(table)
        else:
            delete_partitions(table, ["p2"])

    return observed(written, kind, do)


def by_apache_hudi(peer: ApacheHudi, base: Path, kind: Kind) -> Written:
    """Run the history with Apache Hudi."""
    table_type = "COPY_ON_WRITE" if kind is Kind.COW else "MERGE_ON_READ"
    settings = {**SHARED, **THEIRS, "hoodie.datasource.write.table.type": table_type}
    calls = {
        "compaction": f"run_compaction(op => 'scheduleandexecute', path => '{base}')",
        "clustering": f"run_clustering(op => 'scheduleandexecute', path => '{base}')",
        "clean": "run_clean(table => 'trips', retain_commits => 1)",
    }

    def do(step: str) -> None:
        if step in WRITES:
            made = {**settings, "hoodie.datasource.write.operation": WRITES[step].operation.value}
            peer.write(base, WRITES[step].rows, made, metadata=True)
        elif step in calls:
            if step == "clean":
                peer.sql(f"create table if not exists trips using hudi location '{base}'")
            peer.sql(f"call {calls[step]}", {**settings, "hoodie.clean.automatic": "true"})
        else:
            dropped = {
                "hoodie.datasource.write.operation": "delete_partition",
                "hoodie.datasource.write.partitions.to.delete": "p2",
            }
            peer.write(base, rows([1], 1), {**settings, **dropped}, metadata=True)

    try:
        return observed(Written(base), kind, do)
    finally:
        peer.sql("drop table if exists trips")


def observed(written: Written, kind: Kind, do: Callable[[str], None]) -> Written:
    """Do the steps of the history and name what each of them brings."""
    for step in HISTORY:
        if step != "compaction" or kind is Kind.MOR:
            do(step)
            written.observe(step)
            assert step in written.steps.values(), f"{step} has completed nothing"
    return written


def differences(ours: Records, theirs: Records) -> dict[Place, tuple[Any, Any]]:
    """Return what differs: the fields of both records, or the whole records if one of them is missing or is a deletion."""
    found: dict[Place, tuple[Any, Any]] = {}
    for place in sorted(ours.keys() | theirs.keys()):
        one, other = ours.get(place, MISSING), theirs.get(place, MISSING)
        if one == other:
            continue
        if one and other and MISSING not in (one, other):
            fields = [name for name in one.keys() | other.keys() if one.get(name, MISSING) != other.get(name, MISSING)]
            one, other = ({name: held.get(name, MISSING) for name in fields} for held in (one, other))
        found[place] = one, other
    return found


def explanation(place: Place, ours: Any, theirs: Any) -> str:
    """Return which difference of docs/design/metadata-records.md this is; empty for any other."""
    if place.key.endswith(NO_ROWS) or "p3" in (place.key, *(ours or ()), *(theirs or ())):
        # The base file that Tideline alone writes for p3 is listed, has a filter, and is deleted by the clean.
        return "clustering of a file group without rows"
    bounds = {"minValue", "maxValue"}
    if place.partition == COLUMN_STATS and ours == dict.fromkeys(bounds) and theirs.keys() == bounds:
        zeros = [held["value"] for _, held in theirs.values()]
        return "number column of nulls only" if zeros == [0, 0] else ""
    return ""


EXPLANATIONS = {"clustering of a file group without rows", "number column of nulls only"}


@pytest.mark.parametrize("kind", list(Kind), ids=lambda kind: kind.value)
def test_records_are_those_that_apache_hudi_writes_for_the_same_history(apache_hudi: ApacheHudi, workdir: Path, kind: Kind) -> None:
    theirs = by_apache_hudi(apache_hudi, workdir / "theirs", kind)
    ours = by_tideline(workdir / "ours", kind)
    assert sorted([*theirs.names, NO_ROWS]) == ours.names, "both wrote the same files, but for one"
    found = differences(ours.records(COLUMNS), theirs.records(COLUMNS))
    explained = {place: explanation(place, *pair) for place, pair in found.items()}
    assert {place: found[place] for place, why in explained.items() if not why} == {}
    assert set(explained.values()) == EXPLANATIONS, "each explanation is still needed"
    # Apache Hudi follows the records of both, the deleted partition included.
    visible = shown(apache_hudi, ours)
    assert visible == shown(apache_hudi, theirs)
    assert {partition for _, _, partition in visible} == {"p0", "p1"}


def shown(peer: ApacheHudi, written: Written) -> list[tuple[Any, ...]]:
    """Return keys, ordering values and partition paths of the rows that Apache Hudi finds by the metadata table."""
    found = peer.read(written.base, metadata=True)
    names = ("_hoodie_record_key", "ts", "_hoodie_partition_path")
    return sorted(zip(*(found.column(name).to_pylist() for name in names), strict=True))


def test_a_seeded_change_is_found_in_each_partition(workdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So the comparison above can fail: another size, wrapper of bounds, filter and time of a location."""
    sound = by_tideline(workdir / "sound", Kind.MOR)
    list_file, locate = FilesRecords.list_file, record_index.location_of

    def list_larger(records: FilesRecords, partition: str, name: str, size_bytes: int) -> None:
        list_file(records, partition, name, size_bytes + 1)

    def locate_early(group: FileGroupId, instant: str) -> record_index.RecordLocation:
        return locate(group, instant)._replace(instant_ms=1)

    monkeypatch.setattr(FilesRecords, "list_file", list_larger)
    monkeypatch.setattr(record_index, "location_of", locate_early)
    monkeypatch.setitem(column_records._WRAPPERS, "int32", "LongWrapper")
    empty = base64.b64encode(BloomFilter.sized(10, 0.01).to_dynamic_bytes(10, 0))
    monkeypatch.setattr(bloom_filters, "read_filter_text", lambda *_: ("DYNAMIC_V0", empty))
    faulty = by_tideline(workdir / "faulty", Kind.MOR)
    assert sound.names == faulty.names
    found = differences(faulty.records(COLUMNS), sound.records(COLUMNS))
    fields = {
        partition: {name for at, (held, _) in found.items() if at.partition == partition for name in held}
        for partition in PARTITIONS
    }
    assert fields[FILES] == set(sound.names)
    assert fields[COLUMN_STATS] == {"minValue", "maxValue"}
    assert fields[BLOOM_FILTERS] == {"bloomFilter"}
    assert fields[RECORD_INDEX] == {"instantTime"}
