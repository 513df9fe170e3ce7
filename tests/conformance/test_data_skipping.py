"""Apache Hudi 1.2.0 leaves out files by the column statistics that Tideline keeps in the metadata table, and finds the right
rows."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.conformance.both_in_turn import QUICK
from tests.conformance.peers.apache_hudi import ApacheHudi
from tests.plans import schedule_compaction
from tests.unit.table.tables import QUIET

from tideline_table.action import check_table, create_metadata, run_compaction, write_rows
from tideline_table.log.metadata import COLUMN_STATS
from tideline_table.log_format.hfile import HFile
from tideline_table.metadata_table.column_records import decode_column_stats
from tideline_table.table import Table, TableRequest, TableType, create_table
from tideline_table.writer import Operation

pytestmark = pytest.mark.timeout(900)

VERSIONS = pytest.mark.parametrize("version", [6, 8, 9])
NAN = float("nan")
SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("p", pa.string()),
        ("v", pa.float64()),
        ("s", pa.string()),
        ("n", pa.int32()),
        ("f", pa.float32()),
        ("m", pa.decimal128(10, 2)),
        ("d", pa.date32()),
        ("ts", pa.timestamp("us", "UTC")),
        ("y", pa.binary()),
    ]
)
COMPARED = ("minValue", "maxValue", "valueCount", "nullCount", "valueType")
SKIPPING = {"hoodie.enable.data.skipping": "true"}
QUERIES = {
    "v = 2": "p0 p1",
    "not (v <= 2)": "p0 p1 p2",
    "n is null": "p0 p1 p3",
    "n is not null and id > 0": "p2",
    "n = 1": "p0 p2 p3",
    "s = 's1'": "p0 p2 p3",
    "s like 's2%'": "p0 p1 p3",
    "f = 1.5": "p0 p2 p3",
    "m = 3.00": "p0 p1 p2",
    "d = date'2020-01-03'": "p0 p1 p3",
    "ts > timestamp'2020-01-03 12:00:00'": "p0 p1 p2",
    "id in (1, 35)": "p1 p2",
    "id between 5 and 12": "p2 p3",
    "y = X'01'": "p0 p2 p3",
}
"""Condition → partitions whose files it excludes."""
NOT_SKIPPED = {(9, "y = X'01'")}
"""In version 9, Apache Hudi 1.2.0 opens these files, though it writes the same records."""


def rows(number: int) -> pa.Table:
    """Return ten rows of partition `p<number>`. The last one of p3 has a NaN; p2 has only nulls in n."""
    return pa.table(
        {
            "id": range(number * 10, number * 10 + 10),
            "p": [f"p{number}"] * 10,
            "v": [float(number)] * 9 + [NAN if number == 3 else float(number)],
            "s": [f"s{number}"] * 10,
            "n": [None if number == 2 else number] * 10,
            "f": [number + 0.5] * 10,
            "m": [Decimal(number)] * 10,
            "d": [dt.date(2020, 1, 1 + number)] * 10,
            "ts": [dt.datetime(2020, 1, 1 + number, tzinfo=dt.UTC)] * 10,
            "y": [bytes([number])] * 10,
        },
        schema=SCHEMA,
    )


def made(base: Path, kind: TableType, version: int) -> Table:
    create_table(str(base), TableRequest("t", SCHEMA, ("id",), ("p",), "", kind, version=version))
    table = Table.open(str(base), options=QUIET)
    create_metadata(table, [COLUMN_STATS])
    for number in range(4):
        write_rows(table, rows(number), Operation.UPSERT)
    return table


@contextmanager
def without(base: Path, partitions: Sequence[str]) -> Iterator[None]:
    """Take away the data files of these partitions: a query that opens one of them fails."""
    moved = []
    for partition in partitions:
        for path in (found for found in (base / partition).iterdir() if found.name != ".hoodie_partition_metadata"):
            to = path.with_name(f"_{path.name}.away")
            path.rename(to)
            moved.append((to, path))
    try:
        yield
    finally:
        for to, path in moved:
            to.rename(path)


def ids(found: pa.Table) -> list[int]:
    return sorted(found.column("id").to_pylist())


@pytest.mark.pairs
@VERSIONS
def test_it_opens_no_file_that_the_statistics_exclude(tmp_path: Path, apache_hudi: ApacheHudi, version: int) -> None:
    table = made(tmp_path / "t", TableType.COW, version)
    base = Path(table.base_path)
    assert check_table(table) == []
    for where, excluded in QUERIES.items():
        expected = ids(apache_hudi.read(base, metadata=False, where=where))
        with without(base, [] if (version, where) in NOT_SKIPPED else excluded.split()):
            found = ids(apache_hudi.read(base, metadata=True, where=where, options=SKIPPING))
        assert found == expected, where


@pytest.mark.pairs
@VERSIONS
def test_log_records_keep_their_slice_in_the_query(tmp_path: Path, apache_hudi: ApacheHudi, version: int) -> None:
    table = made(tmp_path / "t", TableType.MOR, version)
    write_rows(table, rows(1).slice(0, 1).set_column(3, SCHEMA.field("s"), pa.array(["changed"])), Operation.UPSERT)
    assert ids(apache_hudi.read(table.base_path, metadata=True, where="s = 'changed'", options=SKIPPING)) == [10]
    assert len(ids(apache_hudi.read(table.base_path, metadata=True, where="s = 's1'", options=SKIPPING))) == 9
    schedule_compaction(table, {"hoodie.compact.inline.max.delta.commits": 1})
    run_compaction(table)
    assert ids(apache_hudi.read(table.base_path, metadata=True, where="s = 'changed'", options=SKIPPING)) == [10]
    assert check_table(table) == []


def by_column(folder: Path) -> dict[tuple[str, str], dict[str, Any]]:
    """Return the statistics in all HFiles (also those inside of log files) by partition and column."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for path in sorted(folder.glob("*.hfile")):
        hfile = HFile(path.read_bytes())
        schema = hfile.file_info["schema"].decode()
        for batch in hfile.entries():
            pairs = zip(batch.column("key").to_pylist(), batch.column("value").to_pylist(), strict=True)
            for record in decode_column_stats(pairs, schema).values():
                found[record["fileName"], record["columnName"]] = record
    return found


@pytest.mark.pairs
@VERSIONS
def test_records_are_those_that_it_writes_itself(tmp_path: Path, apache_hudi: ApacheHudi, version: int) -> None:
    """Of the same rows, as its own metadata table and ours hold them when they are made.

    Differences are in docs/design/data-skipping.md.
    """
    options = {
        **QUICK,
        "hoodie.table.name": "t",
        "hoodie.datasource.write.recordkey.field": "id",
        "hoodie.datasource.write.partitionpath.field": "p",
        "hoodie.datasource.write.operation": "upsert",
        "hoodie.write.table.version": str(version),
        "hoodie.write.auto.upgrade": "false",
    }
    theirs = tmp_path / "theirs"
    for number in range(4):
        apache_hudi.write(theirs, rows(number), options)
    more = {**options, "hoodie.metadata.index.column.stats.enable": "true"}
    apache_hudi.write(theirs, rows(0), more, metadata=True)
    create_table(str(tmp_path / "ours"), TableRequest("t", SCHEMA, ("id",), ("p",), version=version))
    table = Table.open(str(tmp_path / "ours"), options=QUIET)
    for number in range(4):
        write_rows(table, rows(number), Operation.UPSERT)
    create_metadata(table, [COLUMN_STATS])

    def described(folder: Path) -> dict[tuple[str, str], tuple[Any, ...]]:
        held = by_column(folder)
        partition = {name: held[name, "_hoodie_partition_path"]["minValue"]["value"] for name, _ in held}
        return {
            (partition[name], column): tuple(record[key] for key in COMPARED)
            for (name, column), record in held.items()
            if column != "_hoodie_commit_time"
        }

    there, here = described(theirs / ".hoodie/metadata/column_stats"), described(tmp_path / "ours/.hoodie/metadata/column_stats")
    different = {key for key in here if key in there and here[key] != there[key]}
    assert different == {("p2", "n"), ("p3", "v")}  # nulls only, and a NaN
    assert here["p2", "n"][:4] == (None, None, 10, 10)
    assert here["p3", "v"][:4] == ({"value": 3.0}, {"value": float("inf")}, 10, 0)
    assert {column for _, column in here} <= {column for _, column in there}
