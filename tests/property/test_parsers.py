"""Bytes that anybody may have written: typed errors only, and quickly. Inputs by the thousand: tests/fuzz."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.property.profile import quick, some
from tests.unit.table.tables import base_stat, instant

from tideline_table.action.clean.plan import plan_clean
from tideline_table.config import Options
from tideline_table.errors import TidelineError
from tideline_table.hudi.avro_container import decode_document
from tideline_table.hudi.file_names import parse_base_file_name, parse_log_file_name
from tideline_table.hudi.formats import WRITTEN
from tideline_table.hudi.instant import Action, State, time_from_instant
from tideline_table.hudi.listing import list_timeline
from tideline_table.hudi.plans import ROLLBACK_PLAN, encode_document
from tideline_table.hudi.point import parse_as_of
from tideline_table.hudi.properties import format_properties, parse_properties
from tideline_table.hudi.version6 import parse_timeline_file_name
from tideline_table.hudi.write_stats import CommitMetadata, WriteStat
from tideline_table.log.checkpoint import CHECKPOINT_FOLDER, POINTER, read_opening
from tideline_table.log.entry import Entry
from tideline_table.log.state import TableState
from tideline_table.schema import arrow_from_avro
from tideline_table.storage import MemoryStorage

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
leaves = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), texts)
names = st.sampled_from(
    [
        "log_format",
        "sequence",
        "append_id",
        "recorded",
        "writer_id",
        "instant",
        "action",
        "before",
        "after",
        "operation",
        "body",
        "body_reference",
        "path",
        "sha256",
        "size_bytes",
        "metadata",
        "plan",
        "clusteringPlan",
        "inputGroups",
        "slices",
        "partitionPath",
        "fileId",
        "partitionToWriteStats",
        "partitionToReplaceFileIds",
        "extraMetadata",
        "numWrites",
        "partitionMetadata",
        "successDeleteFiles",
        "earliestCommitToRetain",
        "target",
        "target_action",
        "type",
        "name",
        "fields",
        "items",
        "values",
        "record",
        "int",
        "string",
        "array",
        "map",
        "fixed",
        "size",
        "precision",
        "scale",
        "logicalType",
        "decimal",
        "null",
    ]
)
documents = st.recursive(
    st.one_of(leaves, names),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(names, inner, max_size=5)),
    max_leaves=12,
)

VALID_ENTRY = Entry(
    1, "a", "2026-01-01T00:00:00+00:00", "w", instant(1), Action.COMMIT, State.NONE, State.INFLIGHT, "UPSERT"
).to_bytes()
VALID_COMMIT = CommitMetadata("UPSERT", (base_stat("f-0", instant(1)),), {"schema": "{}"}, {"p": ["x"]}).to_bytes()
VALID_PLAN = encode_document(
    ROLLBACK_PLAN, {"instantToRollback": {"commitTime": instant(1), "action": "commit"}, "RollbackRequests": [], "version": 1}
)
VALID_PROPERTIES = format_properties({"hoodie.table.name": "t", "x": "é="}, "c")


@st.composite
def damaged(draw, whole):
    """A sound file with bytes changed, inserted or cut off."""
    content = bytearray(whole)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(0, len(content) - 1)))
        change = draw(st.sampled_from(["set", "insert", "cut"]))
        if change == "cut":
            del content[at:]
        elif change == "insert":
            content[at:at] = draw(st.binary(max_size=6))
        elif content:
            content[at] = draw(st.integers(0, 255))
    return bytes(content)


def files(whole):
    return st.one_of(st.binary(max_size=200), damaged(whole), documents.map(lambda d: json.dumps(d).encode()))


def only_typed(call, *arguments):
    try:
        return call(*arguments)
    except TidelineError as error:
        assert error.found  # noqa: PT017 - either outcome is fine, an empty explanation is not
        return None


@some
@given(files(VALID_ENTRY))
def test_log_entries(content):
    entry = only_typed(Entry.from_bytes, content, "x")
    if entry is not None:
        assert Entry.from_bytes(entry.to_bytes(), "x") == entry
        only_typed(TableState().apply, entry)


@some
@given(st.sampled_from(list(Action)), st.sampled_from(list(State)), st.dictionaries(names, documents, max_size=3))
def test_bodies_of_entries(action, after, body):
    """Folded whole or not at all, whatever the body says."""
    state = TableState()
    begun = Entry(1, "a", "2026-01-01T00:00:00+00:00", "w", instant(1), Action.COMMIT, State.NONE, State.INFLIGHT, "UPSERT")
    state.apply(begun)
    before = State.NONE if after in (State.REQUESTED, State.INFLIGHT) else State.INFLIGHT
    at = instant(2) if before is State.NONE else instant(1)
    for second in ({}, {"target": instant(1), "target_action": "commit"}):
        entry = Entry(state.sequence + 1, "b", "2026-01-01T00:00:00+00:00", "w", at, action, before, after, "CLUSTER")
        sequence, actions = state.sequence, dict(state.actions)
        if only_typed(lambda entry=entry, said={**body, **second}: state.apply(entry.with_body(said)) or True):
            break
        assert (state.sequence, state.actions) == (sequence, actions)
    state.latest_slices()
    state.groups_under_clustering()
    only_typed(plan_clean, state, "memory:/t", Options())


@some
@given(files(VALID_COMMIT))
def test_commit_metadata(content):
    metadata = only_typed(CommitMetadata.from_bytes, content, "x")
    if metadata is not None:
        only_typed(CommitMetadata.from_bytes, metadata.to_bytes(), "x")


stats = st.builds(
    WriteStat,
    file_id=texts,
    partition_path=texts,
    path=texts.filter(lambda p: ".log." not in p),
    prev_commit=texts.filter(bool),
    num_writes=st.integers(0, 2**63),
    file_size_bytes=st.integers(0, 2**63),
    num_inserts=st.integers(0, 2**63),
    num_updates=st.integers(0, 2**63),
    num_deletes=st.integers(0, 2**63),
)
replaced = st.none() | st.dictionaries(texts, st.lists(texts).map(tuple), max_size=3)


@quick
@given(st.lists(stats, max_size=4), st.dictionaries(texts, texts, max_size=3), replaced)
def test_commit_metadata_round_trip(stats, extra, replaced):
    stats = sorted(stats, key=lambda s: s.partition_path)
    metadata = CommitMetadata("UPSERT", tuple(stats), extra, replaced)
    found = CommitMetadata.from_bytes(metadata.to_bytes(), "x")
    assert (set(found.stats), found.extra, found.replaced) == (set(stats), extra, replaced)


@some
@given(files(VALID_PLAN))
def test_plan_documents(content):
    only_typed(decode_document, content, "x")


@some
@given(files(VALID_PROPERTIES))
def test_properties_files(content):
    only_typed(parse_properties, content)


@quick
@given(st.dictionaries(texts, texts, max_size=6).filter(lambda p: "hoodie.table.checksum" not in p))
def test_properties_round_trip(properties):
    content = format_properties(properties, "c")
    content.decode("ascii")
    assert parse_properties(content) == properties


@some
@given(documents.map(json.dumps) | texts)
def test_avro_schemas(text):
    only_typed(arrow_from_avro, text)


@some
@given(st.lists(st.tuples(names, documents), max_size=3))
def test_avro_record_fields(fields):
    text = json.dumps({"type": "record", "name": "r", "fields": [{"name": n, "type": t} for n, t in fields]})
    only_typed(arrow_from_avro, text)


@some
@given(st.text(max_size=40) | st.from_regex(r"\A[.]?[0-9a-z-]{0,4}_?[0-9-]{0,5}_?\d{0,20}[.](parquet|log[.]1|commit|inflight)\Z"))
def test_names(name):
    parse_base_file_name(name)
    parse_log_file_name(name)
    found = parse_timeline_file_name(name)
    if found is not None and found.state is not State.REQUESTED:
        assert WRITTEN.timeline_file_name(found) == name or found.action is Action.COMMIT
    only_typed(parse_as_of, name)
    only_typed(time_from_instant, name)


@quick
@given(
    st.dictionaries(
        st.text(st.characters(codec="ascii", exclude_characters="\x00/\\"), min_size=1, max_size=20), st.just(b""), max_size=5
    )
)
def test_timeline_listings(names):
    storage = MemoryStorage()
    for name in names:
        if name not in (".", ".."):
            storage.put(f".hoodie/{name}", b"")
    list_timeline(storage, WRITTEN)


CHECKPOINT_KEYS = [
    "format",
    "sequence",
    "last_instant",
    "actions",
    "slices",
    "replaced",
    "plans",
    "clustering_losses",
    "schema",
    "last_clean_retained",
]


@some
@given(st.fixed_dictionaries({}, optional=dict.fromkeys(CHECKPOINT_KEYS, documents)), st.binary(max_size=4))
def test_checkpoints(document, pointer):
    storage = MemoryStorage()
    storage.put(POINTER, b"7")
    storage.put(f"{CHECKPOINT_FOLDER}/{7:020d}.json", json.dumps({**document, "format": 1, "sequence": 7}).encode())
    state = read_opening(storage).state
    assert state.sequence in (0, 7)
    state.latest_slices()
    list(state.pending())
    storage.put(POINTER, pointer)
    read_opening(storage)


@pytest.mark.timeout(20)
@pytest.mark.parametrize("depth", [10_000, 200_000])
@pytest.mark.parametrize("shape", ["[", '{"a":'])
def test_depth_is_no_weapon(depth, shape):
    deep = (shape * depth).encode()
    for parse in (
        lambda: Entry.from_bytes(deep, "x"),
        lambda: CommitMetadata.from_bytes(deep, "x"),
        lambda: arrow_from_avro(deep.decode()),
    ):
        with pytest.raises(TidelineError):
            parse()
