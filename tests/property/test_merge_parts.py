"""Merging records cell by cell, against a model that merges two versions at a time, as Apache Hudi does."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.property.profile import quick

from tideline_table.errors import UnsupportedTable
from tideline_table.file_group.slice import FileGroupId, FileSlice, LogFile
from tideline_table.log_format import HeaderKey, avro_block, delete_block, parquet_block, scan_log
from tideline_table.log_format.framing import frame_block
from tideline_table.merge import MergeMode, Merging, OpenCells, PartialUpdate
from tideline_table.reader import LogRule, read_slice
from tideline_table.schema import avro_from_arrow, avro_with_meta_fields, with_meta_fields
from tideline_table.storage import MemoryStorage

VALUES = ("a", "b", "c")
USER = pa.schema(
    [("id", pa.string()), ("ts", pa.int64()), *((name, pa.string()) for name in VALUES), ("_hoodie_is_deleted", pa.bool_())]
)
SCHEMA = with_meta_fields(USER)
KEYS = "xyz"
MARKER = "?"


@dataclass(frozen=True)
class Write:
    """One block: whole rows, parts with these columns only, or deletions, by key: (ordering value, deleted, values)."""

    kind: str
    rows: dict[str, tuple[int, bool, tuple[str | None, ...]]]
    columns: frozenset[str]
    parquet: bool

    @property
    def schema(self) -> pa.Schema:
        kept = [f for f in USER if self.kind != "part" or f.name not in VALUES or f.name in self.columns]
        return pa.schema(kept)


@dataclass
class Version:
    """What is known of a record: `cells` lacks what parts of it do not say."""

    kind: str
    ts: int
    cells: dict[str, str | None] = field(default_factory=dict)


def is_open(value: str | None, partial: PartialUpdate | None) -> bool:
    if partial is None:
        return False
    return value is None if partial.cells is OpenCells.NULLS else value == partial.marker


def on_top(high: Version, low: Version, partial: PartialUpdate | None) -> Version:
    if high.kind != "record" or low.kind != "record":
        return high
    cells = {name: high.cells[name] for name in VALUES if name in high.cells and not is_open(high.cells[name], partial)}
    left = {name: low.cells[name] for name in VALUES if name not in cells and name in low.cells}
    rest = {name: value for name, value in high.cells.items() if name not in cells and name not in left}
    return Version("record", high.ts, {**cells, **left, **rest})


def merged(old: Version, new: Version, mode: MergeMode, partial: PartialUpdate | None) -> Version:
    if mode is MergeMode.COMMIT_TIME or "purge" in (old.kind, new.kind) or new.ts >= old.ts:
        return on_top(new, old, partial)
    return on_top(old, new, partial)


def modelled(base: dict[str, Any], writes: list[Write], mode: MergeMode, partial: PartialUpdate | None) -> list[tuple[Any, ...]]:
    logs: dict[str, Version] = {}
    for write in writes:
        for key, (ts, deleted, values) in write.rows.items():
            kind = "purge" if write.kind == "purge" else "delete" if deleted or write.kind == "delete" else "record"
            said = write.columns if write.kind == "part" else set(VALUES)
            new = Version(kind, ts, {n: v for n, v in zip(VALUES, values, strict=True) if n in said})
            logs[key] = merged(logs[key], new, mode, partial) if key in logs else new
    found = {key: Version("record", ts, dict(zip(VALUES, values, strict=True))) for key, (ts, _, values) in base.items()}
    for key, log in logs.items():
        found[key] = merged(found[key], log, mode, partial) if key in found else log
    return sorted(
        ((key, v.ts, *(v.cells.get(name) for name in VALUES)) for key, v in found.items() if v.kind == "record"), key=repr
    )


def has_parts_of_deleted(writes: list[Write], keys: pa.Array | None) -> bool:
    gone: set[str] = set()
    for write in writes:
        for key, (_, deleted, _) in write.rows.items():
            if keys is not None and key == "y":
                continue
            if deleted or write.kind in ("delete", "purge"):
                gone.add(key)
            elif key in gone and write.kind == "part":
                return True
            else:
                gone.discard(key)
    return False


def rows_of(rows: dict[str, Any], schema: pa.Schema) -> pa.Table:
    keys = list(rows)
    values: dict[str, list[Any]] = {
        "_hoodie_record_key": keys,
        "id": keys,
        "ts": [rows[k][0] for k in keys],
        "_hoodie_is_deleted": [rows[k][1] for k in keys],
        **{name: [rows[k][2][at] for k in keys] for at, name in enumerate(VALUES)},
    }
    columns = [pa.array(values.get(f.name, [None] * len(keys)), f.type) for f in with_meta_fields(schema)]
    return pa.Table.from_arrays(columns, schema=with_meta_fields(schema))


def block_of(write: Write, number: int) -> bytes:
    at, text = f"{20260101000000000 + number}", avro_with_meta_fields(avro_from_arrow(write.schema, "t"))
    if write.kind in ("delete", "purge"):
        ordering = pa.array([r[0] for r in write.rows.values()], pa.int64()) if write.kind == "delete" else None
        return delete_block(pa.array(list(write.rows)), "", ordering, text, at)
    content = (parquet_block if write.parquet else avro_block)(rows_of(write.rows, write.schema), text, at)
    if write.kind == "rows":
        return content
    storage = MemoryStorage()
    storage.put("x", content)
    (found,) = scan_log(storage, "x").blocks
    inner = storage.read_range("x", found.content_offset, found.content_bytes)
    return frame_block(found.type, {**found.header, HeaderKey.IS_PARTIAL: "true"}, inner)


def stored(base: dict[str, Any], writes: list[Write]) -> tuple[MemoryStorage, FileSlice]:
    storage = MemoryStorage()
    if base:
        sink = pa.BufferOutputStream()
        pa.parquet.write_table(rows_of(base, USER), sink, row_group_size=2)
        storage.put("f_0-0-0_1.parquet", sink.getvalue().to_pybytes())
    logs = []
    for version, write in enumerate(writes, 1):
        name = f".f_1.log.{version}_0-0-0"
        storage.put(name, block_of(write, version))
        logs.append(LogFile(name, 0, "", version))
    return storage, FileSlice(FileGroupId("", "f"), "1", "f_0-0-0_1.parquet" if base else "", 0, len(base), tuple(logs))


a_value = st.sampled_from([None, MARKER, "p", "q"])
a_row = st.tuples(st.integers(1, 4), st.sampled_from([False, False, False, True]), st.tuples(*[a_value] * len(VALUES)))
some_rows = st.dictionaries(st.sampled_from(KEYS), a_row, min_size=1)
some_columns = st.frozensets(st.sampled_from(VALUES))


def some_writes(*kinds: str) -> st.SearchStrategy[list[Write]]:
    return st.lists(st.builds(Write, st.sampled_from(kinds), some_rows, some_columns, st.booleans()), min_size=1, max_size=5)


some_base = st.dictionaries(st.sampled_from(KEYS), a_row.map(lambda row: (row[0], False, row[2])))


def check(base: dict[str, Any], writes: list[Write], rule: LogRule, wanted: str) -> None:
    expected = modelled(base, writes, rule.merging.mode, rule.merging.partial)
    where = keys = None
    if wanted == "where":
        where = (pc.field("b") == "p") & (pc.field("ts") > 1)
        expected = [row for row in expected if row[3] == "p" and row[1] > 1]
    elif wanted == "keys":
        keys = pa.array(["x", "z"])
        expected = [row for row in expected if row[0] != "y"]
    columns = ["c", "_hoodie_record_key"] if wanted == "narrow" else None
    storage, found = stored(base, writes)
    if rule.merging.mode is MergeMode.COMMIT_TIME and has_parts_of_deleted(writes, keys):
        with pytest.raises(UnsupportedTable, match=r"deleted record\(s\)"):
            read_slice(storage, found, SCHEMA, rule, columns, where, keys)
        return
    rows = read_slice(storage, found, SCHEMA, rule, columns, where, keys)
    names = columns or SCHEMA.names
    assert rows.column_names == names
    if columns:
        expected = [(row[4], row[0]) for row in expected]
    else:
        rows = rows.select(["id", "ts", *VALUES])
    assert sorted((tuple(r.values()) for r in rows.to_pylist()), key=repr) == sorted(expected, key=repr)


@quick
@given(
    mode=st.sampled_from(list(MergeMode)),
    base=some_base,
    writes=some_writes("part", "part", "rows", "delete", "purge"),
    wanted=st.sampled_from(["all", "where", "keys", "narrow"]),
)
def test_parts_of_records(mode, base, writes, wanted):
    check(base, writes, LogRule(Merging(mode, ordering_field="ts" if mode is MergeMode.EVENT_TIME else "")), wanted)


@quick
@given(
    mode=st.sampled_from(list(MergeMode)),
    cells=st.sampled_from([PartialUpdate(OpenCells.NULLS), PartialUpdate(OpenCells.MARKED, MARKER)]),
    base=some_base,
    writes=some_writes("rows", "rows", "rows", "delete", "purge"),
    wanted=st.sampled_from(["all", "where", "keys", "narrow"]),
)
def test_cells_left_open_by_value(mode, cells, base, writes, wanted):
    check(base, writes, LogRule(Merging(mode, cells, ordering_field="ts" if mode is MergeMode.EVENT_TIME else "")), wanted)
