"""Look-ups by key index find what reading everything finds: random histories, indexes missing, torn and from elsewhere, blocks
of others."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.plans import schedule_clean, schedule_compaction
from tests.property.profile import few, quick
from tests.property.test_merge_slices import SCHEMA, instant, orderings, some_base, some_writes, stored
from tests.unit.table.tables import contents, create, open_table, write

from tideline_table.action import run_clean, run_compaction
from tideline_table.action.compaction.plan import compact_slice
from tideline_table.clock import ManualClock
from tideline_table.log_format import BlockType, read_deletes, read_rows, scan_log
from tideline_table.log_format.key_index import INDEX_FOLDER, index_path, read_index
from tideline_table.log_format.key_index_file import WrittenBlock, index_bytes
from tideline_table.merge import MergeMode, Merging
from tideline_table.reader import LogRule, VisibleInstants, read_slice
from tideline_table.reader.file_slice import scan_slice
from tideline_table.reader.log_index import LogIndexes
from tideline_table.storage import MemoryStorage
from tideline_table.table import TableType
from tideline_table.writer import Operation

KEYS = [f"k{n}" for n in range(12)]
NOW = {"hoodie.compact.inline.max.delta.commits": 1}

written = st.tuples(
    st.sampled_from([Operation.UPSERT, Operation.UPSERT, Operation.DELETE]),
    st.lists(st.sampled_from(KEYS), min_size=1, max_size=4, unique=True),
    st.fixed_dictionaries(
        {
            "tideline.log.index.clique.files": st.sampled_from([0, 1, 2, 8]),
            "tideline.insert.to.log": st.booleans(),
            "hoodie.logfile.data.block.format": st.sampled_from(["parquet", "avro"]),
            "hoodie.parquet.small.file.limit": st.sampled_from([0, 1_000_000]),
        }
    ),
)
steps = st.lists(
    st.one_of(
        written, written, written, st.sampled_from(["plan", "compact", "clean"]), st.tuples(st.just("harm"), st.integers(0, 3))
    ),
    min_size=2,
    max_size=9,
)
TO_LOG = {"tideline.log.index.clique.files": 8, "tideline.insert.to.log": True, "hoodie.parquet.small.file.limit": 1_000_000}
TO_BASE = TO_LOG | {"tideline.insert.to.log": False}
DROPPED_BY_COMPACTION = [
    (Operation.UPSERT, ["k0", "k1"], TO_BASE),
    (Operation.DELETE, ["k0"], TO_BASE),
    "plan",
    (Operation.UPSERT, ["k0"], TO_BASE),
    "compact",
    (Operation.UPSERT, ["k0"], TO_BASE),
]


@few
@given(steps=steps)
@example(steps=DROPPED_BY_COMPACTION)
@example(steps=[(Operation.UPSERT, KEYS[:2], TO_BASE), (Operation.UPSERT, ["k2"], TO_LOG), (Operation.UPSERT, ["k2"], TO_BASE)])
@example(steps=[(Operation.UPSERT, KEYS[:4], TO_LOG), (Operation.UPSERT, KEYS[2:6], TO_LOG), "plan", "compact", ("harm", 0)])
def test_look_ups_equal_full_merges_and_keys_stay_unique(steps):
    clock = ManualClock()
    storage = MemoryStorage(clock=clock)
    create(storage, clock, type=TableType.MOR)
    table = open_table(storage, clock, **{"hoodie.cleaner.commits.retained": 1})
    model: dict[str, tuple[str, str, int, str]] = {}
    for number, step in enumerate(steps):
        if isinstance(step, str):
            maintain(table, step)
        elif step[0] == "harm":
            harm(storage, step[1])
        else:
            operation, keys, options = step
            rows = [(k, "p", number, f"v{number}") for k in keys]
            write(table, rows, operation, **options)
            for row in rows:
                if operation is Operation.DELETE:
                    model.pop(row[0], None)
                else:
                    model[row[0]] = row
        assert contents(table) == sorted(model.values())
        for reader in (table, open_table(storage, clock)):
            for keys in ([KEYS[number % len(KEYS)]], KEYS[::3], ["absent"]):
                found = reader.look_up(keys, ["id", "part", "ts", "v"]).to_pylist()
                assert sorted(tuple(r.values()) for r in found) == sorted(model[k] for k in keys if k in model)
    every = {s.group.partition_path + "/" + log.name for s in table.refresh().every_slice() for log in s.log_files}
    indexes = {found.path.removeprefix(f"{INDEX_FOLDER}/").removesuffix(".keys") for found in storage.list_objects(INDEX_FOLDER)}
    assert indexes <= every, "no index outlives its log file"


def maintain(table, step):
    if step == "plan":
        schedule_compaction(table, NOW)
    elif step == "compact":
        run_compaction(table, run=lambda tasks: [compact_slice(task, table.storage) for task in tasks])
    else:
        schedule_clean(table)
        run_clean(table)


def harm(storage, how):
    """Take the newest index away, tear it, or put another one or a changed byte in its place."""
    paths = [found.path for found in storage.list_objects(INDEX_FOLDER)]
    if not paths:
        return
    content = storage.read(paths[-1])
    if how == 0:
        storage.delete(paths[-1])
    elif how == 1:
        storage.put(paths[-1], content[: len(content) // 2])
    elif how == 2:
        storage.put(paths[-1], storage.read(paths[0]))
    else:
        at = len(content) - 20
        storage.put(paths[-1], content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])


def indexed(storage, file_slice, chosen, window_files):
    """The slice with true sizes, and indexes for those of its files that have no rollback block, where `chosen` says so."""
    logs, previous = [], None
    for at, (path, log) in enumerate(zip(file_slice.log_paths, file_slice.log_files, strict=True)):
        logs.append(replace(log, size_bytes=len(storage.read(path))))
        blocks = scan_log(storage, path).blocks
        if not chosen[at % len(chosen)] or any(b.type is BlockType.COMMAND for b in blocks):
            previous = None
            continue
        found = [
            WrittenBlock(
                b.type, b.offset, b.size_bytes, b.header, (keys_of(storage, b)).column("_hoodie_record_key").combine_chunks()
            )
            for b in blocks
        ]
        storage.put(index_path(path), index_bytes(storage, path, found, previous, window_files))
        previous = read_index(storage, path)
        assert previous is not None
    return replace(file_slice, log_files=tuple(logs))


def keys_of(storage, block):
    return read_deletes(storage, block) if block.type is BlockType.DELETE else read_rows(storage, block)


@settings(quick, max_examples=200)
@given(
    mode=st.sampled_from(list(MergeMode)),
    base=some_base,
    writes=some_writes,
    per_file=st.integers(1, 2),
    as_of=st.integers(0, 6),
    chosen=st.lists(st.booleans(), min_size=1, max_size=3),
    window_files=st.integers(1, 4),
    wanted=st.lists(st.sampled_from("abcdx"), min_size=1, max_size=2, unique=True),
    ordering=orderings,
)
def test_narrowed_slices_read_as_whole_ones(mode, base, writes, per_file, as_of, chosen, window_files, wanted, ordering):
    storage, whole = stored(base, writes, per_file)
    found = indexed(storage, whole, chosen, window_files)
    completed = frozenset(instant(n) for n, w in enumerate(writes) if w.committed)
    merging = Merging(mode, ordering_field="ts" if mode is MergeMode.EVENT_TIME else "")
    rule = LogRule(merging, VisibleInstants(completed), instant(as_of) if as_of < 6 else "")
    keys = pa.array(sorted(wanted))
    expected = read_slice(storage, found, SCHEMA, rule, None, None, keys)
    batches = list(scan_slice(storage, found, SCHEMA, rule, None, None, keys, LogIndexes(storage)))
    assert pa.Table.from_batches(batches, SCHEMA).to_pylist() == expected.to_pylist()


@pytest.mark.parametrize("place", range(0, 400, 7))
def test_a_changed_byte_never_changes_what_is_found(place):
    storage, clock = MemoryStorage(clock=ManualClock()), ManualClock()
    create(storage, clock, type=TableType.MOR)
    table = open_table(storage, clock, **TO_LOG)
    write(table, [(k, "p", 1, "x") for k in KEYS])
    write(table, [(k, "p", 2, "y") for k in KEYS[:6]])
    path = [found.path for found in storage.list_objects(INDEX_FOLDER)][-1]
    content = storage.read(path)
    at = place % len(content)
    storage.put(path, content[:at] + bytes([content[at] ^ 0x41]) + content[at + 1 :])
    found = open_table(storage, clock).look_up(["k1", "k9"], ["id", "v"]).to_pylist()
    assert sorted((r["id"], r["v"]) for r in found) == [("k1", "y"), ("k9", "x")]
    write(table, [("k1", "p", 3, "z"), ("k9", "p", 3, "z"), ("new", "p", 3, "z")])
    assert [r[0] for r in contents(table)] == sorted([*KEYS, "new"])
