"""Reading merged slices, against a model that goes record by record; blocks are real ones in real log files."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.property.profile import quick, some

from tideline_table.file_group.slice import FileGroupId, FileSlice, LogFile
from tideline_table.log_format import avro_block, command_block, delete_block, parquet_block
from tideline_table.merge import MergeMode, Merging
from tideline_table.reader import LogRule, VisibleInstants, file_slice, read_slice, scan_log_part, superseded_rows
from tideline_table.schema import avro_from_arrow, avro_with_meta_fields, with_meta_fields
from tideline_table.storage import MemoryStorage

USER = pa.schema([("id", pa.string()), ("ts", pa.int64()), ("v", pa.string()), ("_hoodie_is_deleted", pa.bool_())])
SCHEMA = with_meta_fields(USER)
AVRO = avro_with_meta_fields(avro_from_arrow(USER, "t"))
KEYS = "abcd"


@dataclass(frozen=True)
class Write:
    """One block: rows as (key, ts, deleted), deletions as (key, ts), or a rollback of the write `voids` places before."""

    kind: str
    rows: tuple[tuple[str, int | None, bool], ...] = ()
    voids: int = 0
    committed: bool = True


@dataclass
class Model:
    """What the reference says, one record after the other."""

    mode: MergeMode
    state: dict[str, tuple[str, int | None, str]] = field(default_factory=dict)

    def add(self, key: str, kind: str, ts: int | None, value: str) -> None:
        known = self.state.get(key)
        if (
            self.mode is MergeMode.EVENT_TIME
            and known is not None
            and "purge" not in (kind, known[0])
            and not at_least(ts, known[1])
        ):
            return
        self.state[key] = (kind, ts, value)

    def over(self, base: list[tuple[str, int | None]]) -> set[tuple[str, int | None, str]]:
        found = {(k, ts, v) for k, (kind, ts, v) in self.state.items() if kind == "record"}
        for key, ts in base:
            known = self.state.get(key)
            if known is None:
                found.add((key, ts, "base"))
            elif self.mode is MergeMode.EVENT_TIME and known[0] != "purge" and not at_least(known[1], ts):
                found.discard((key, known[1], known[2]))
                found.add((key, ts, "base"))
        return found


def at_least(one: float | None, other: float | None) -> bool:
    if one is None or other is None:
        return other is None
    return math.isnan(one) or one >= other


orderings = st.one_of(st.none(), st.integers(0, 3))
some_rows = st.dictionaries(st.sampled_from(KEYS), st.tuples(orderings, st.booleans()), min_size=1).map(
    lambda found: tuple((k, ts, deleted) for k, (ts, deleted) in found.items())
)
some_writes = st.lists(
    st.builds(
        Write,
        kind=st.sampled_from(["avro", "parquet", "delete", "purge", "rollback"]),
        rows=some_rows,
        voids=st.integers(1, 3),
        committed=st.sampled_from([True, True, True, False]),
    ),
    max_size=6,
)
some_base = st.dictionaries(st.sampled_from(KEYS), orderings).map(lambda found: list(found.items()))


def rows_of(rows, value: str) -> pa.Table:
    keys = [r[0] for r in rows]
    empty = pa.nulls(len(keys), pa.string())
    columns = {
        "_hoodie_commit_time": empty,
        "_hoodie_commit_seqno": empty,
        "_hoodie_record_key": pa.array(keys, pa.string()),
        "_hoodie_partition_path": empty,
        "_hoodie_file_name": empty,
        "id": pa.array(keys, pa.string()),
        "ts": pa.array([r[1] for r in rows], pa.int64()),
        "v": pa.array([value] * len(keys), pa.string()),
        "_hoodie_is_deleted": pa.array([len(r) > 2 and r[2] for r in rows], pa.bool_()),
    }
    return pa.table(columns)


def instant(number: int) -> str:
    return f"{20260101000000000 + number}"


def block_of(write: Write, number: int) -> bytes:
    at = instant(number)
    if write.kind in ("avro", "parquet"):
        encode = avro_block if write.kind == "avro" else parquet_block
        return encode(rows_of(write.rows, f"w{number}"), AVRO, at)
    keys = pa.array([r[0] for r in write.rows])
    if write.kind == "delete":
        return delete_block(keys, "", pa.array([r[1] or 0 for r in write.rows], pa.int64()), AVRO, at)
    if write.kind == "purge":
        return delete_block(keys, "", None, AVRO, at)
    return command_block(at, instant(number - write.voids))


def base_bytes(base) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.parquet.ParquetWriter(sink, SCHEMA) as writer:
        for row in base:
            writer.write_table(rows_of([row], "base").cast(SCHEMA))
    return sink.getvalue().to_pybytes()


def modelled(mode: MergeMode, base, writes: list[Write], as_of: int) -> set[tuple[str, int | None, str]]:
    counting: list[tuple[int, Write]] = []
    for number, write in enumerate(writes):
        if write.kind == "rollback":
            counting = [(n, w) for n, w in counting if n != number - write.voids]
        elif write.committed and number <= as_of:
            counting.append((number, write))
    model = Model(mode)
    for number, write in counting:
        for key, ts, deleted in write.rows:
            if write.kind in ("avro", "parquet"):
                model.add(key, "delete" if deleted else "record", ts, f"w{number}")
            else:
                model.add(key, write.kind, ts or 0, "")
    return model.over(base)


def stored(base, writes: list[Write], per_file: int) -> tuple[MemoryStorage, FileSlice]:
    storage = MemoryStorage()
    if base:
        storage.put("f_0-0-0_1.parquet", base_bytes(base))
    logs = []
    blocks = [block_of(write, number) for number, write in enumerate(writes)]
    for version, part in enumerate([blocks[at : at + per_file] for at in range(0, len(blocks), per_file)], 1):
        name = f".f_1.log.{version}_0-0-0"
        storage.put(name, b"".join(part))
        logs.append(LogFile(name, 0, "", version))
    return storage, FileSlice(FileGroupId("", "f"), "1", "f_0-0-0_1.parquet" if base else "", 0, len(base), tuple(logs))


@quick
@given(
    mode=st.sampled_from(list(MergeMode)),
    base=some_base,
    writes=some_writes,
    per_file=st.integers(1, 3),
    as_of=st.integers(0, 6),
    narrow=st.booleans(),
    held=st.booleans(),
    wanted=st.sampled_from(["all", "where", "keys"]),
)
def test_slices_read_as_the_model_says(mode, base, writes, per_file, as_of, narrow, held, wanted):
    storage, found = stored(base, writes, per_file)
    completed = frozenset(instant(n) for n, w in enumerate(writes) if w.committed)
    merging = Merging(mode, ordering_field="ts" if mode is MergeMode.EVENT_TIME else "")
    rule = LogRule(merging, VisibleInstants(completed), instant(as_of) if as_of < 6 else "")
    expected = modelled(mode, base, writes, as_of if as_of < 6 else len(writes))
    where = keys = None
    if wanted == "where":
        where = pc.field("ts") >= 2
        expected = {row for row in expected if row[1] is not None and row[1] >= 2}
    elif wanted == "keys":
        keys = pa.array(["a", "c"])
        expected = {row for row in expected if row[0] in ("a", "c")}
    columns = ["v", "id"] if narrow else None
    with pytest.MonkeyPatch.context() as patch:
        if not held:
            patch.setattr(file_slice, "HELD_BYTES", 0)
        rows = read_slice(storage, found, SCHEMA, rule, columns, where, keys)
    names = columns or SCHEMA.names
    assert rows.column_names == names
    result = [tuple(r[n] for n in (("id", "v") if narrow else ("id", "ts", "v"))) for r in rows.to_pylist()]
    assert sorted(result, key=repr) == sorted(((k, v) if narrow else (k, ts, v) for k, ts, v in expected), key=repr)


@some
@given(
    mode=st.sampled_from(list(MergeMode)), base=some_base, writes=some_writes, per_file=st.integers(1, 3), as_of=st.integers(0, 6)
)
def test_base_rows_and_log_rows_without_superseded_ones_are_the_slice(mode, base, writes, per_file, as_of):
    base = base or [("a", 2)]
    storage, found = stored(base, writes, per_file)
    merging = Merging(mode, ordering_field="ts" if mode is MergeMode.EVENT_TIME else "")
    completed = frozenset(instant(n) for n, w in enumerate(writes) if w.committed)
    rule = LogRule(merging, VisibleInstants(completed), instant(as_of) if as_of < 6 else "")
    gone = superseded_rows(storage, found, SCHEMA, rule)
    held = [(key, ts, "base") for key, ts in base]
    log = [
        (r["id"], r["ts"], r["v"]) for b in scan_log_part(storage, found, SCHEMA, rule, ["v", "id", "ts"]) for r in b.to_pylist()
    ]
    kept = {row for n, row in enumerate(held) if n not in gone.base} | {row for n, row in enumerate(log) if n not in gone.log}
    assert kept == modelled(mode, base, writes, as_of if as_of < 6 else len(writes))
    assert len(kept) == len(held) - len(gone.base) + len(log) - len(gone.log)
