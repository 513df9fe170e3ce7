"""What fuzzing found, each once: these inputs led to untyped errors, or to states that were folded by half."""

import io
import json
import time

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.unit.table.log_files import stored
from tests.unit.table.tables import instant

from tideline_table.errors import CorruptMetadata
from tideline_table.hudi.format import ArchivedInstant
from tideline_table.hudi.instant import Action, State
from tideline_table.hudi.version8.history import history_instants
from tideline_table.hudi.write_stats import CommitMetadata
from tideline_table.json_text import parse_json
from tideline_table.log.checkpoint import CHECKPOINT_FOLDER, POINTER, read_opening, write_checkpoint
from tideline_table.log.entry import IDENTITY_PATH, Entry
from tideline_table.log.sharing import Sharing
from tideline_table.log.state import TableState
from tideline_table.log_format import BlockType, HeaderKey, read_rows, scan_log
from tideline_table.log_format.framing import frame_block
from tideline_table.reader.base_file import read_footer
from tideline_table.reader.key_footer import MIN_KEY
from tideline_table.schema.identity import SchemaVersions
from tideline_table.storage import MemoryStorage
from tideline_table.table.identity import read_identity

HALVES = [rb'"\ud800"', rb'"\uDFFFx"', b'"\xed\xa0\x80"']


@pytest.mark.parametrize("text", HALVES, ids=ascii)
def test_half_a_surrogate_pair_is_no_text(text):
    with pytest.raises(ValueError, match=r"surrogates not allowed|invalid continuation"):
        parse_json(b'{"a": [' + text + b"]}")
    with pytest.raises(CorruptMetadata):
        CommitMetadata.from_bytes(b'{"operationType": ' + text + b"}", "x")
    entry = Entry(1, "a", "2026-01-01T00:00:00+00:00", "w", instant(1), Action.COMMIT, State.NONE, State.INFLIGHT, "OPERATION")
    with pytest.raises(CorruptMetadata):
        Entry.from_bytes(entry.to_bytes().replace(b'"OPERATION"', text), "x")


def test_whole_surrogate_pairs_are_text():
    assert parse_json(rb'{"a": "\ud83d\ude00 \\ud800 \u0394"}') == {"a": "😀 \\ud800 Δ"}


@pytest.mark.parametrize("number", ["1e999", "-Infinity"])
def test_endless_numbers(number):
    with pytest.raises(CorruptMetadata):
        SchemaVersions.parsed([f'{{"version_id": {number}, "type": "record", "fields": []}}'])
    with pytest.raises(CorruptMetadata):
        Sharing.from_json({"lock": "filesystem", "expire_min": float(number)})


def test_identities_nested_too_deep():
    with pytest.raises(CorruptMetadata):
        read_identity(stored_at(IDENTITY_PATH, b'{"uid":' * 100_000))


def stored_at(path, content):
    storage = MemoryStorage()
    storage.put(path, content)
    return storage


def test_texts_of_parquet_blocks_are_utf_8():
    text = '{"type":"record","name":"r","fields":[{"name":"a","type":["null","string"]}]}'
    sink = io.BytesIO()
    pq.write_table(pa.table({"a": ["needle"]}), sink, compression="none", store_schema=False)  # a writer without page checksums
    block = frame_block(BlockType.PARQUET, {HeaderKey.INSTANT_TIME: instant(1), HeaderKey.SCHEMA: text}, sink.getvalue())
    storage = stored(block.replace(b"needle", b"need\xff\xfe"))
    with pytest.raises(CorruptMetadata, match="UTF8"):
        read_rows(storage, scan_log(storage, "log").blocks[0])


def repeated(schema, rows, **values):
    """A small Parquet file of very many equal rows."""
    sink = io.BytesIO()
    table = pa.table({name: pa.repeat(pa.scalar(values[name], schema.field(name).type), rows) for name in schema.names})
    pq.write_table(table, sink, compression="zstd", store_schema=False)
    return sink.getvalue()


def test_parquet_blocks_do_not_repeat_a_row_for_ever():
    text = '{"type":"record","name":"r","fields":[{"name":"n","type":["null","long"]}]}'
    rows = 500_000
    content = repeated(pa.schema([("n", pa.int64())]), rows, n=5)
    assert len(content) < 3000
    block = frame_block(BlockType.PARQUET, {HeaderKey.INSTANT_TIME: instant(1), HeaderKey.SCHEMA: text}, content)
    storage = stored(block)
    with pytest.raises(CorruptMetadata, match=f"{rows} rows in {len(content)} bytes"):
        read_rows(storage, scan_log(storage, "log").blocks[0])


def test_an_instant_of_the_history_counts_once():
    columns = ["instantTime", "completionTime", "action"]
    content = repeated(
        pa.schema([(name, pa.string()) for name in columns]), 1_000_000, **dict.fromkeys(columns[:2], instant(1)), action="commit"
    )
    started = time.process_time()
    found = history_instants(pa.BufferReader(content), "x")
    assert len(found) <= 1_000_000 // 8192 + 1
    assert set(found) == {ArchivedInstant(instant(1), "commit", instant(1))}
    assert time.process_time() - started < 1


def test_key_ranges_of_base_files_are_utf_8():
    sink = io.BytesIO()
    rows = pa.table({"a": ["x"]})
    with pq.ParquetWriter(sink, rows.schema) as writer:
        writer.write_table(rows)
        writer.add_key_value_metadata({MIN_KEY: b"needle"})
    assert read_footer(stored_at("f", sink.getvalue()), "f").min_key == "needle"
    with pytest.raises(CorruptMetadata, match="cannot be read"):
        read_footer(stored_at("f", sink.getvalue().replace(b"needle", b"need\xff\xfe")), "f")


@pytest.mark.parametrize(
    "changes",
    [
        {"actions": [[instant(2), "commit", "finished", "UPSERT", ""]]},
        {"actions": [[instant(2), "merge", "completed", "UPSERT", ""]]},
        {"slices": [["p", "f-0", [[]]]]},
        {"slices": [["p", "f-0", [[instant(2), None, 1, 1]]]]},
        {"slices": [["p", "f-0", [[instant(2), "f", 1, 1, [["l", 1, None, 1]]]]]]},
        {"plans": {instant(2): {"plan": {"operations": [1]}}}},
        {"plans": {instant(2): {"plan": {"clusteringPlan": {"inputGroups": [{}]}}}}},
    ],
    ids=str,
)
def test_entries_are_folded_whole_or_not_at_all(changes):
    state = TableState()
    common = {
        "append_id": "a",
        "recorded": "2026-01-01T00:00:00+00:00",
        "writer_id": "w",
        "instant": instant(1),
        "operation": "UPSERT",
    }
    state.apply(Entry(1, action=Action.COMMIT, before=State.NONE, after=State.INFLIGHT, **common))
    adopted = {
        "actions": [],
        "slices": [],
        "replaced": [],
        "plans": {},
        "schema": "",
        "last_clean_retained": "",
        "archived_before": "",
    }
    body = {"metadata": {}, "adopted": {**adopted, **changes}}
    with pytest.raises(CorruptMetadata):
        state.apply(Entry(2, action=Action.COMMIT, before=State.INFLIGHT, after=State.COMPLETED, **common).with_body(body))
    assert state.sequence == 1
    assert state.actions[instant(1)].state is State.INFLIGHT


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("slices", [["p", "f-0", [[instant(1), None, 1, 1]]]]),
        ("slices", [["p", "f-0", [[None, "f", 1, 1]]]]),
        ("plans", {instant(1): {"plan": {"clusteringPlan": {"inputGroups": [{"slices": [{"fileId": 1}]}]}}}}),
        ("plans", [1]),
        ("progress", [["k", "v"]]),
    ],
)
def test_checkpoints_of_another_shape_are_not_used(name, value):
    state = TableState()
    state.apply(Entry(1, "a", "", "w", instant(1), Action.COMMIT, State.NONE, State.INFLIGHT, "UPSERT"))
    storage = MemoryStorage()
    write_checkpoint(storage, state)
    (path,) = (o.path for o in storage.list_folder(CHECKPOINT_FOLDER).objects if o.path != POINTER)
    assert read_opening(storage).state.sequence == 1
    document = json.loads(storage.read(path))
    storage.delete(path)
    storage.put(path, json.dumps({**document, name: value}).encode())
    # The whole log is read instead.
    assert read_opening(storage).state.sequence == 0
