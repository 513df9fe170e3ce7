"""Tables whose base files are ORC: types, every operation and service, damage, and what is refused."""

from __future__ import annotations

from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import orc

import tideline
from tideline_table.errors import DamagedFile, InvalidOption, SchemaMismatch, UnsupportedTable
from tideline_table.reader.base_file import read_footer
from tideline_table.reader.orc_file import as_parquet
from tideline_table.storage import open_storage

ORC = {"hoodie.table.base.file.format": "ORC"}
INNER = pa.struct([("x", pa.int32()), ("at", pa.timestamp("us", "UTC"))])
SCHEMA = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        ("part", pa.string()),
        ("ts", pa.int64()),
        ("price", pa.float64()),
        ("ratio", pa.float32()),
        ("open", pa.bool_()),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", "UTC")),
        ("ms", pa.timestamp("ms", "UTC")),
        ("clock", pa.time64("us")),
        ("short", pa.time32("ms")),
        ("dec", pa.decimal128(10, 2)),
        ("wide", pa.decimal128(38, 9)),
        ("raw", pa.binary()),
        ("inner", INNER),
        ("list", pa.list_(INNER)),
        ("map", pa.map_(pa.string(), pa.timestamp("us", "UTC"))),
    ]
)
AT = datetime(2020, 1, 2, 3, 4, 5, 678901, UTC)
OLD = datetime(1906, 5, 6, 7, 8, 9, 1, UTC)
SMALL = {"id": "z", "part": "q", "ts": 1}


def row(key: str, part: str, ts: int, **more: Any) -> dict[str, Any]:
    inner = {"x": ts, "at": OLD}
    values = {"price": ts / 2, "ratio": 1.5, "open": False, "day": date(1890, 1, 1), "at": AT, "ms": AT.replace(microsecond=678000)}
    values |= {"clock": time(1, 2, 3, 4), "short": time(1, 2, 3, 4000), "dec": Decimal("-1.25"), "wide": Decimal(f"{ts}.000000001")}
    return {
        "id": key,
        "part": part,
        "ts": ts,
        **values,
        "raw": b"\x00\xff",
        "inner": inner,
        "list": [inner, None],
        "map": [(key, OLD)],
        **more,
    }


def rows(*found: dict[str, Any]) -> pa.Table:
    return pa.Table.from_pylist(list(found), SCHEMA)


def same(table: tideline.Table, *expected: dict[str, Any]) -> None:
    assert table.read().sort_by("id").to_pylist() == rows(*sorted(expected, key=lambda found: found["id"])).to_pylist()


def files(path: Path) -> list[Path]:
    return sorted(path.glob("[pq]/[!.]*"))


@pytest.mark.parametrize("codec", ["zstd", "snappy", "gzip", "lz4", "none"])
def test_the_footer_holds_what_hudi_writes_there(tmp_path: Path, codec: str) -> None:
    """More of it than fits into one block of compression."""
    options = ORC | {"hoodie.parquet.compression.codec": codec}
    keys = [f"{n:04}" for n in range(200)]
    table = tideline.create(tmp_path / "t", schema=SCHEMA, key="id", options=options)
    table.upsert(rows(*(row(key, "p", 1) for key in keys)), options={"hoodie.bloom.index.filter.type": "SIMPLE"})
    (file,) = (tmp_path / "t").glob("*.orc")
    pairs = dict(orc.ORCFile(file).metadata)
    assert (pairs[b"hoodie_min_record_key"], pairs[b"hoodie_max_record_key"]) == (b"0000", b"0199")
    assert b'"name":"clock"' in pairs[b"orc.avro.schema"]
    footer = read_footer(open_storage(str(tmp_path / "t")), file.name, with_bloom=True)
    assert footer.rows == 200
    assert footer.bounds == ("0000", "0199")
    assert footer.bloom is not None
    assert table.read(where="id = '0007'").num_rows == 1


@pytest.mark.parametrize("kind", ["cow", "mor"])
@pytest.mark.parametrize("version", [6, 9])
def test_every_operation_and_service(tmp_path: Path, kind: str, version: int) -> None:
    path = tmp_path / "t"
    made: dict[str, Any] = {"schema": SCHEMA, "key": "id", "partition": "part", "ordering": "ts", "options": ORC}
    table = tideline.create(path, type=kind, table_version=version, **made)
    a, b, c, null = row("a", "p", 1), row("b", "p", 2, price=float("inf")), row("c", "q", 3), dict.fromkeys(SCHEMA.names) | SMALL
    first = table.upsert(rows(a, b, c, null)).instant
    same(table, a, b, c, null)
    b2, d = row("b", "p", 5, inner=None), row("d", "p", 1)
    second = table.upsert(rows(b2, d, row("a", "p", 0))).instant
    same(table, a, b2, c, d, null)
    assert sorted(table.incremental(first).read().column("id").to_pylist()) == ["b", "d"]
    assert table.read(as_of=first).sort_by("id").to_pylist() == rows(a, b, c, null).to_pylist()
    assert table.read(["id"], "price > 2 or at is null").sort_by("id").to_pylist() == [{"id": "b"}, {"id": "z"}]
    assert table.read(["id"], f"at = '{AT:%Y-%m-%d %H:%M:%S.%f}' and ts < 2").sort_by("id").to_pylist() == [
        {"id": "a"},
        {"id": "d"},
    ]
    table.delete(where="id = 'c'")
    same(table, a, b2, d, null)
    if kind == "mor":
        assert table.maintenance.compact(options={"hoodie.compact.inline.max.delta.commits": 1}).instant
    table.bulk_insert(rows(row("e", "p", 9)))
    clustered = table.maintenance.cluster(options={"hoodie.clustering.plan.strategy.sort.columns": "ts"})
    assert clustered.rows_rewritten == 4
    same(table, a, b2, d, row("e", "p", 9), null)
    assert table.read(as_of=second).num_rows == 5
    assert {file.suffix for file in files(path)} == {".orc"}
    assert table.inspect.check(deep=True) == ()


def test_a_flipped_bit_is_found(tmp_path: Path) -> None:
    table = tideline.create(tmp_path / "t", schema=SCHEMA, key="id", options=ORC)
    table.upsert(rows(row("a", "p", 1)))
    (file,) = (tmp_path / "t").glob("*.orc")
    content = bytearray(file.read_bytes())
    content[20] ^= 1
    file.write_bytes(content)
    with pytest.raises(DamagedFile):
        table.read()
    assert [finding.path for finding in table.inspect.check()] == [file.name]


def test_what_orc_cannot_hold_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SchemaMismatch, match=r"column 'at' of type timestamp\[us\].*zone"):
        tideline.create(tmp_path / "t", schema=pa.schema([("id", pa.string()), ("at", pa.timestamp("us"))]), key="id", options=ORC)
    with pytest.raises(InvalidOption, match="base files in HFILE"):
        tideline.create(tmp_path / "t", schema=SCHEMA, key="id", options={"hoodie.table.base.file.format": "HFILE"})
    table = tideline.create(tmp_path / "t", schema=SCHEMA, key="id", options=ORC)
    with pytest.raises(SchemaMismatch, match="1677 to 2262"):
        table.upsert(rows(row("a", "p", 1, at=datetime(1600, 1, 1, tzinfo=UTC))))
    assert table.read().num_rows == 0


def test_a_timestamp_that_arrow_cannot_read_is_named() -> None:
    sink = pa.BufferOutputStream()
    orc.write_table(pa.table({"at": pa.array([datetime(9999, 1, 1)], pa.timestamp("us"))}), sink)
    with pytest.raises(UnsupportedTable, match="1677 to 2262"):
        as_parquet(sink.getvalue())
