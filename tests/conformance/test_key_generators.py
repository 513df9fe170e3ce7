"""Record keys and partition paths, value by value: Apache Hudi writes rows with each of its key generators, and ours derives
the same.

And back: Apache Hudi reads tables that were created here with these generators.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from tests.conformance.both_in_turn import QUICK, SHARING
from tests.conformance.peers.apache_hudi import ApacheHudi

import tideline
from tideline_locks import open_hudi_lock
from tideline_table.action import write_rows
from tideline_table.table import Table, TableRequest, create_table, share_table
from tideline_table.table.declared_keys import read_keygen
from tideline_table.writer import Operation

AT = dt.datetime(2024, 5, 1, 10, 11, 12, 345678)
BEFORE = dt.datetime(1969, 12, 31, 23, 59, 59, 999999)
COLUMNS = {
    "id": pa.array(["a", "b", "c", "d"]),
    "number": pa.array([1, -2, 3, None], pa.int32()),
    "long": pa.array([1, -(2**40), 3, None], pa.int64()),
    "day": pa.array([dt.date(2024, 5, 1), dt.date(1969, 12, 31), dt.date(1900, 1, 1), None]),
    "price": pa.array([Decimal("1.50"), Decimal("-2.00"), Decimal("12345678.90"), None], pa.decimal128(10, 2)),
    "small": pa.array([Decimal("0.000000000001"), Decimal(1), Decimal(0), None], pa.decimal128(20, 12)),
    "at": pa.array([AT, BEFORE, AT.replace(microsecond=0), None], pa.timestamp("us", "UTC")),
    "local": pa.array([AT, BEFORE, AT.replace(microsecond=0), None], pa.timestamp("us")),
    "flag": pa.array([True, False, True, None]),
    "odd": pa.array(["x/y z=1%", "", "é漢", None]),
    "part": pa.array(["p1", "p2", "p1", "p2"]),
    "seconds": pa.array([1714558272, -1, 0, None], pa.int64()),
    "millis": pa.array([1714558272345, -1, 0, None], pa.int64()),
    "micros": pa.array([1714558272345678, -1, 0, None], pa.int64()),
    "days": pa.array([19844, -1, 0, None], pa.int64()),
    "text": pa.array(["2024-05-01 10:11:12", "1969-12-31 23:59:59", "2024-2-9 0:0:0", None]),
    "zoned": pa.array(["2024-05-01T10:11:12.345Z", "2024-05-01T10:11:12Z", "2024-02-29T00:00:00+02:00", None]),
    "ts": pa.array([1, 1, 1, 1], pa.int64()),
    "inner": pa.array(
        [{"n": n, "at": at, "odd": odd, "deep": {"s": s}} for n, at, odd, s in ((1, AT, "x/y", 1714558272), (-2, BEFORE, "", -1))]
        + [{"n": 3, "at": None, "odd": None, "deep": None}, None],
        pa.struct(
            [("n", pa.int64()), ("at", pa.timestamp("us", "UTC")), ("odd", pa.string()), ("deep", pa.struct([("s", pa.int64())]))]
        ),
    ),
}
ROWS = pa.table(COLUMNS)
BASE = {
    **QUICK,
    "hoodie.table.name": "keys",
    "hoodie.datasource.write.table.type": "COPY_ON_WRITE",
    "hoodie.datasource.write.operation": "insert",
    "hoodie.datasource.write.precombine.field": "ts",
    "hoodie.insert.shuffle.parallelism": "1",
    "hoodie.clean.automatic": "false",
    "hoodie.write.complex.keygen.validation.enable": "false",
}
KEY, PATH = "hoodie.datasource.write.recordkey.field", "hoodie.datasource.write.partitionpath.field"
CLASS = "hoodie.datasource.write.keygenerator.class"
HIVE, ENCODE = "hoodie.datasource.write.hive_style_partitioning", "hoodie.datasource.write.partitionpath.urlencode"
LOGICAL = "hoodie.datasource.write.keygenerator.consistent.logical.timestamp.enabled"
NEW_ENCODING = "hoodie.write.complex.keygen.new.encoding"


@dataclass(frozen=True)
class Case:
    name: str
    keys: str = "id"
    partitions: str = "part"
    generator: str = ""
    options: dict[str, str] = field(default_factory=dict)
    nulls: bool = True
    """Whether the row of nulls can be written."""


def times(name: str, column: str, kind: str, output: str, **more: str) -> Case:
    settings = {"timestamp.type": kind, "output.dateformat": output, **{k.replace("_", "."): v for k, v in more.items()}}
    return Case(name, "id", column, "TimestampBased", {f"hoodie.keygen.timebased.{k}": v for k, v in settings.items()})


UNIX = times("", "", "UNIX_TIMESTAMP", "yyyy/MM/dd").options
CASES = [
    Case("every type", "id,number,long,day,price,small,at,local,flag,odd", "number,long,day,price,small,at,flag,odd"),
    Case("simple", partitions="small"),
    Case("simple, a timestamp as key", keys="at", nulls=False),
    Case("hive style, encoded", partitions="odd", options={HIVE: "true", ENCODE: "true"}),
    Case("complex, one key", "id", "part,flag"),
    Case("complex, one bare key", "id", "part", "Complex", {NEW_ENCODING: "true"}),
    Case("non-partitioned, two keys", "id,number", "", "Nonpartitioned"),
    Case("logical timestamps", "at,id", "at", "Complex", {LOGICAL: "true", ENCODE: "true"}),
    Case("custom", "id", "part:SIMPLE,seconds:TIMESTAMP", "Custom", UNIX),
    Case("custom, hive style", "id,number", "seconds:TIMESTAMP,odd:SIMPLE", "Custom", {**UNIX, HIVE: "true", ENCODE: "true"}),
    Case(
        "fields of structs",
        "inner.n,id,inner.at,inner.odd",
        "inner.n,inner.odd",
        options={HIVE: "true", ENCODE: "true"},
        nulls=False,
    ),
    Case("logical timestamps of structs", "inner.at,id", "inner.at", "Complex", {LOGICAL: "true", ENCODE: "true"}, nulls=False),
    Case("custom, a field of a struct", "id", "part:SIMPLE,inner.deep.s:TIMESTAMP", "Custom", UNIX),
    times("seconds in structs", "inner.deep.s", "UNIX_TIMESTAMP", "yyyy-MM-dd HH"),
    times("seconds", "seconds", "UNIX_TIMESTAMP", "yyyy-MM-dd HH", output_timezone="America/New_York"),
    times("seconds, fixed zone", "seconds", "UNIX_TIMESTAMP", "yyyyMMdd HH mm ss SSS", timezone="GMT+8:00"),
    times("milliseconds", "millis", "EPOCHMILLISECONDS", "yyyy'y'MM-dd HH.mm.ss.SSS"),
    times("microseconds", "micros", "EPOCHMICROSECONDS", "yyyy HH.mm.ss.SSS"),
    times("timestamps", "at", "EPOCHMICROSECONDS", "yyyy/MM/dd/HH"),
    times("days", "days", "SCALAR", "yyyy/MM/dd", timestamp_scalar_time_unit="DAYS"),
    times("texts", "text", "DATE_STRING", "yyyyMMddHH", input_dateformat="yyyy-MM-dd HH:mm:ss"),
    times(
        "texts between zones",
        "text",
        "MIXED",
        "yyyyMMddHH",
        input_dateformat="yyyy-MM-dd HH:mm:ss",
        input_timezone="America/New_York",
        output_timezone="GMT+2",
    ),
    times(
        "texts of two patterns",
        "zoned",
        "DATE_STRING",
        "yyyyMMddHHmmss",
        input_dateformat="yyyy-MM-dd'T'HH:mm:ss.SSSZ,yyyy-MM-dd'T'HH:mm:ssZ",
        output_timezone="UTC",
    ),
]


def columns_of(case: Case) -> list[str]:
    named = f"{case.keys},{case.partitions}".replace(":SIMPLE", "").replace(":TIMESTAMP", "").split(",")
    return [c for c in COLUMNS if c in {"id", "ts", *(name.partition(".")[0] for name in named)}]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_keys_and_paths_are_those_of_apache_hudi(apache_hudi: ApacheHudi, workdir: Path, case: Case) -> None:
    base = workdir / "keys"
    rows = ROWS.select(columns_of(case)).slice(0, 4 if case.nulls else 3)
    options = {**BASE, KEY: case.keys, PATH: case.partitions, **case.options}
    if case.generator:
        options[CLASS] = f"org.apache.hudi.keygen.{case.generator}KeyGenerator"
    apache_hudi.write(base, rows, options)
    # A version 6 table does not say all of what its writer was told.
    keygen = read_keygen({**apache_hudi.properties(base), **case.options, PATH: case.partitions})
    assert keygen.problem == ""
    ours = zip(rows["id"].to_pylist(), keygen.record_keys(rows).to_pylist(), keygen.partition_paths(rows).to_pylist(), strict=True)
    theirs = Table.open(str(base)).read(["id", "_hoodie_record_key", "_hoodie_partition_path"])
    assert sorted(ours) == sorted(tuple(row.values()) for row in theirs.to_pylist())


COMPACT = {**UNIX, "hoodie.keygen.timebased.output.dateformat": "yyyyMMdd"}
CREATED = [
    TableRequest("keys", ROWS.schema, ("id",), ("seconds",), "ts", key_generator="TIMESTAMP", key_settings=UNIX),
    TableRequest(
        "keys", ROWS.schema, ("id",), ("part:SIMPLE", "seconds:TIMESTAMP"), "ts", key_generator="CUSTOM", key_settings=COMPACT
    ),
    TableRequest("keys", ROWS.schema, ("id",), ("part",), "ts", key_generator="COMPLEX", key_settings={NEW_ENCODING: "true"}),
    TableRequest("keys", ROWS.schema, ("id",), ("part",), key_generator="SIMPLE", meta_fields=False),
]


@pytest.mark.parametrize("request_", CREATED, ids=["timestamp", "custom", "complex", "no meta fields"])
def test_tables_created_here_are_read_there(apache_hudi: ApacheHudi, workdir: Path, request_: TableRequest) -> None:
    base = str(workdir / "keys")
    create_table(base, request_)
    rows = ROWS.slice(0, 3)
    write_rows(Table.open(base), rows, Operation.BULK_INSERT)
    write_rows(Table.open(base), ROWS.slice(3), Operation.INSERT)
    found = apache_hudi.read(base).sort_by("id")
    assert found["id"].to_pylist() == ["a", "b", "c", "d"]
    assert found["number"].to_pylist() == [1, -2, 3, None]
    if request_.meta_fields:
        ours = Table.open(base).read().sort_by("id")
        for name in ("_hoodie_record_key", "_hoodie_partition_path"):
            assert found[name].to_pylist() == ours[name].to_pylist()
    else:
        assert "_hoodie_record_key" not in found.column_names


def test_tables_without_a_key_are_those_of_both(apache_hudi: ApacheHudi, workdir: Path) -> None:
    rows = ROWS.select(["id", "part", "ts"])
    here = tideline.create(workdir / "here", schema=rows.schema, key=None, partition="part", name="keys")
    for _ in range(3):
        here.insert(rows, options={"hoodie.parquet.small.file.limit": 0})
    assert here.maintenance.cluster().rows_rewritten == 12
    job = {name: value for name, value in BASE.items() if "precombine" not in name}
    job["hoodie.datasource.write.partitionpath.field"] = "part"
    for _ in range(2):
        apache_hudi.write(workdir / "there", rows, job)
    share_table(Table.open(str(workdir / "there")), SHARING, open_hudi_lock)
    there = tideline.open(workdir / "there")
    assert there.inspect.key == ()
    there.insert(rows)
    for base in ("here", "there"):
        found = apache_hudi.read(workdir / base)
        assert sorted(found.select(rows.column_names).to_pylist(), key=str) == sorted(rows.to_pylist() * 3, key=str)
        assert len(set(found.column("_hoodie_record_key").to_pylist())) == 12
        assert set(found.column("_hoodie_partition_path").to_pylist()) == {"p1", "p2"}
