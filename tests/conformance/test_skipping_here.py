"""Tables of versions 6, 8 and 9 that Apache Hudi 1.2.0 writes with column statistics: filters leave out files here, and no row."""

from __future__ import annotations

import datetime as dt
import random
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from tests.conformance.both_in_turn import QUICK
from tests.conformance.peers.apache_hudi import ApacheHudi
from tests.simulation.faults import SAMPLE_STEP

from tideline_table.reader.where import parse_where
from tideline_table.table import Table
from tideline_table.table.query import Snapshot

pytestmark = pytest.mark.timeout(900)

NAN = float("nan")
SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("p", pa.string()),
        ("ts", pa.int64()),
        ("n", pa.int32()),
        ("v", pa.float64()),
        ("s", pa.string()),
        ("long_s", pa.string()),
        ("m", pa.decimal128(10, 2)),
        ("d", pa.date32()),
        ("t", pa.timestamp("us", "UTC")),
        ("b", pa.bool_()),
        ("y", pa.binary()),
    ]
)
TEXTS = ["", "a", "ä", "zz", "\uff5e", "\U0001f600", "\U0001f600x", "m" * 70, "m" * 70 + "n"]
INTEGERS = [-(2**31), -5, 0, 1, 7, 2**31 - 1]


def rows(numbers: list[int], seed: int, ts: int) -> pa.Table:
    """Return rows with these ids in partitions of ten; their values are near each other, with nulls, NaN and extremes between."""
    draw = random.Random(seed)

    def near(values: list[object], nulls: float = 0.1) -> list[object]:
        few = draw.sample(values, 2)
        return [None if draw.random() < nulls else draw.choice(few) for _ in numbers]

    days = [dt.date(1583, 1, 1), dt.date(1899, 10, 10), dt.date(1969, 12, 31), dt.date(2020, 2, 29), dt.date(9999, 12, 31)]
    times = [dt.datetime(year, 1, 2, 3, 4, 5, 678901, dt.UTC) for year in (1901, 1969, 1970, 2020, 2200)]
    columns: dict[str, list[object]] = {
        "id": list(numbers),
        "p": [f"p{number // 10}" for number in numbers],
        "ts": [ts] * len(numbers),
        "n": near(list(INTEGERS)),
        "v": near([NAN, -1.5, -0.0, 0.0, 2.5, float("inf")]),
        "s": near(list(TEXTS), draw.choice([0, 0.1, 1])),
        "long_s": near(["k" * 5000, "b" * 5000, "short"], draw.choice([0, 0.3])),
        "m": near([Decimal("-99999999.99"), Decimal("-0.01"), Decimal(0), Decimal("0.10"), Decimal("99999999.99")]),
        "d": near(list(days)),
        "t": near(list(times)),
        "b": near([True, False]),
        "y": near([b"", b"\x01", b"\x7f", b"\x80", b"\xff"]),
    }
    return pa.table(columns, schema=SCHEMA)


CONDITIONS = [
    *(f"{name} {operator} {value}" for name in ("id", "n") for operator in ("=", "<", ">=", "<>") for value in (-5, 0, 7, 25)),
    *(f"v {operator} {value}" for operator in ("=", "<", ">", "<>") for value in (-1.5, 0.0, 2.5)),
    *(f"s {operator} '{text}'" for operator in ("=", "<", ">", "<>") for text in TEXTS),
    *(f"long_s {operator} '{text}'" for operator in ("=", ">") for text in ("k" * 5000, "short", "c")),
    *(f"m {operator} {value}" for operator in ("=", "<", ">") for value in (-0.01, 0, 0.1, 99999999.99)),
    *(f"d {operator} DATE '{day}'" for operator in ("=", "<=", ">") for day in ("1899-10-10", "1969-12-31", "2020-02-29")),
    *(f"{name} IS {what}" for name in SCHEMA.names for what in ("NULL", "NOT NULL")),
    "b",
    "NOT b",
    "NOT (n = 7)",
    "n = 1 AND s IS NULL",
    "id IN (3, 17, 44) OR n IS NULL",
    "_hoodie_record_key = '17'",
]


def options(kind: str, version: int) -> dict[str, str]:
    return {
        **QUICK,
        "hoodie.table.name": "t",
        "hoodie.datasource.write.table.type": kind,
        "hoodie.datasource.write.recordkey.field": "id",
        "hoodie.datasource.write.partitionpath.field": "p",
        "hoodie.datasource.write.precombine.field": "ts",
        "hoodie.datasource.write.operation": "upsert",
        "hoodie.write.table.version": str(version),
        "hoodie.write.auto.upgrade": "false",
        "hoodie.parquet.small.file.limit": "0",
        "hoodie.metadata.index.column.stats.enable": "true",
        # Several row groups in a file, some of which have texts too long for a footer.
        "hoodie.parquet.block.size": "1024",
    }


def compared(found: Snapshot, where: str | pc.Expression, every: pa.Table) -> int:
    """Return how many slices a condition leaves out, after a comparison with `every`, the rows of all of them."""
    condition = parse_where(where, found.schema) if isinstance(where, str) else where
    ours, wanted = (
        sorted(rows.column("_hoodie_record_key").to_pylist())
        for rows in (found.read(["_hoodie_record_key"], condition), every.filter(condition))
    )
    assert ours == wanted, where
    return len(found.slices) - len(found.only(condition).slices)


KINDS = [("MERGE_ON_READ", 9), ("MERGE_ON_READ", 8), ("COPY_ON_WRITE", 6), ("COPY_ON_WRITE", 9)]


@pytest.mark.parametrize(("kind", "version"), KINDS if SAMPLE_STEP == 1 else KINDS[:2])
def test_a_filter_finds_the_same_rows_with_fewer_files(
    tmp_path: Path, apache_hudi: ApacheHudi, caplog: pytest.LogCaptureFixture, kind: str, version: int
) -> None:
    base = tmp_path / "t"
    chosen = options(kind, version)
    for number in range(5):
        apache_hudi.write(base, rows(list(range(number * 10, number * 10 + 10)), number, 1), chosen, metadata=True)
    skipped: dict[str, int] = {}

    def compare() -> None:
        found = Table.open(str(base)).snapshot()
        every = Snapshot(found.storage, found.schema, found.rule, found.slices).read()
        for where in CONDITIONS:
            skipped[where] = skipped.get(where, 0) + compared(found, where, every)
        moments = [dt.datetime(year, 1, 2, 3, 4, 5, 678901, dt.UTC) for year in (1901, 1970, 2020)]
        for at in moments:
            for where in (pc.field("t") == at, pc.field("t") < at, pc.field("t") > at):
                skipped["t"] = skipped.get("t", 0) + compared(found, where, every)

    compare()
    apache_hudi.write(base, rows([3, 14, 15, 44], 11, 2), chosen, metadata=True)
    apache_hudi.write(base, rows([14, 21], 12, 0), chosen, metadata=True)
    compare()
    apache_hudi.write(base, rows([15, 30], 13, 3), {**chosen, "hoodie.datasource.write.operation": "delete"}, metadata=True)
    compare()
    apache_hudi.write(base, rows([1, 16], 14, 4), {**chosen, "hoodie.clean.commits.retained": "1"}, metadata=True)
    compare()
    assert "cannot be read" not in caplog.text
    for where in ("id = 25", "n = 7", "d > DATE '2020-02-29'", "m = 0.1", "t", "_hoodie_record_key = '17'"):
        if version == 9 or where not in ("d > DATE '2020-02-29'", "m = 0.1", "t"):
            assert skipped[where], where
