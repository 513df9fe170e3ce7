"""Timelines of anybody: names, metadata and history. Typed errors only, and slices that follow the rules.

Inputs by the thousand: tests/fuzz. TIDELINE_FUZZ_EXAMPLES sets the number of examples of each test; runs with more than the
usual number are not repeatable on purpose.
"""

import io
import json
import os
import time
import zipfile

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.property.profile import quick
from tests.property.test_parsers import VALID_COMMIT, VALID_PLAN, VALID_PROPERTIES, damaged, documents, only_typed, texts
from tests.unit.table.fixtures import FIXTURES

from tideline_table.errors import CorruptMetadata, TidelineError
from tideline_table.file_group.slice import FileGroupId
from tideline_table.hudi import properties as p
from tideline_table.hudi.avro_container import decode_document
from tideline_table.hudi.formats import UPGRADED, WRITTEN, format_of
from tideline_table.hudi.instant import Action, State
from tideline_table.hudi.listing import timeline_listing
from tideline_table.hudi.plans import COMPACTION_PLAN, encode_document
from tideline_table.hudi.properties import parse_properties
from tideline_table.hudi.version8.history import history_instants, manifest_files
from tideline_table.hudi.write_stats import CommitMetadata
from tideline_table.hudi_written import hudi_written_state, visible_instants
from tideline_table.hudi_written.slices import listed_groups, slices_of
from tideline_table.log.state import TableState
from tideline_table.reader.log_blocks import VisibleInstants
from tideline_table.storage import MemoryStorage
from tideline_table.table.definition import TableDefinition

EXAMPLES = int(os.environ.get("TIDELINE_FUZZ_EXAMPLES", "200"))
fuzz = settings(quick, max_examples=EXAMPLES, derandomize="TIDELINE_FUZZ_EXAMPLES" not in os.environ)


def of_fixture(folder, table, ending):
    with zipfile.ZipFile(FIXTURES / folder / f"{table}.zip") as archive:
        name = min(n for n in archive.namelist() if n.endswith(ending) and "__MACOSX" not in n and "/metadata/" not in n)
        return archive.read(name)


AVRO_COMMIT = of_fixture("timelines", "mor_v9_overwritten", ".replacecommit")
AVRO_PLAN = of_fixture("timelines", "mor_v9_pending_compaction", ".compaction.requested")
HISTORY_FILE = of_fixture("timelines", "mor_v9_archived", "_0.parquet")
MANIFEST = of_fixture("timelines", "mor_v9_archived", "history/manifest_7")
ARCHIVE = of_fixture("timelines", "mor_v6_archived", ".commits_.archive.1_1-0-1")

INSTANTS = [f"202601010000000{n:02d}" for n in range(8)]
times = st.sampled_from(INSTANTS)
actions = st.sampled_from([a.value for a in Action] + ["clustering", "commits", "schemacommit", "x"])
suffixes = st.sampled_from(["", ".requested", ".inflight", ".crc", "~"])
file_ids = st.sampled_from(["f-0", "g-0", "h"])


@st.composite
def timeline_names(draw, completed=None):
    two = draw(st.booleans()) if completed is None else completed
    middle = f"_{draw(times)}" if two and draw(st.booleans()) else ""
    action, suffix = draw(actions), draw(suffixes)
    return f"{draw(times)}{middle}.{action}{suffix}" if draw(st.integers(0, 9)) else f"{draw(times)}.inflight"


file_names = st.one_of(
    st.builds("{}_0-0-0_{}.parquet".format, file_ids, times),
    st.builds(".{}_{}.log.{}_0-0-0{}".format, file_ids, times, st.integers(1, 3), st.sampled_from(["", "", ".cdc", ".crc"])),
    st.builds("{}_{}.parquet".format, file_ids, times),
)
contents = st.one_of(
    st.just(b""),
    st.sampled_from([VALID_COMMIT, AVRO_COMMIT, AVRO_PLAN, VALID_PLAN]),
    damaged(VALID_COMMIT),
    damaged(AVRO_COMMIT),
    damaged(AVRO_PLAN),
    documents.map(lambda d: json.dumps(d).encode()),
    st.binary(max_size=40),
)


# --- names ------------------------------------------------------------------------------------------------------------------


@fuzz
@given(st.lists(st.one_of(timeline_names(), texts), max_size=12), st.sampled_from([1, 2]))
def test_listings(names, layout):
    form = format_of({p.LAYOUT: str(layout)})
    listing = timeline_listing(form, [f".hoodie/{n}" for n in names])
    assert len({(i.time, i.action) for i in listing.instants}) == len(listing.instants)
    for instant in listing.instants:
        assert instant.state is not State.NONE
        path = only_typed(listing.path, instant)
        # Only a compaction is shown under a name that no file of its own has, and then as completed.
        assert path is not None
        assert path.rsplit("/", 1)[-1].startswith(instant.time)
    completed = {i.time for i in listing.instants if i.state is State.COMPLETED and i.action is not Action.SAVEPOINT}
    assert set(listing.completion) == completed


@fuzz
@given(st.text(max_size=60) | st.from_regex(r"\A\d{13,21}(_\d{13,21})?\.[a-z]{0,14}(\.[a-z]{0,9})?\Z"))
def test_names_of_layout_two(name):
    found = UPGRADED.parse_timeline_file_name(name)
    if found is not None:
        instant, completion = found
        assert name.startswith(instant.time)
        assert not completion or (instant.state is State.COMPLETED and name.startswith(f"{instant.time}_{completion}."))


# --- whole tables -----------------------------------------------------------------------------------------------------------


@st.composite
def places(draw):
    layout = draw(st.sampled_from([1, 2]))
    storage = MemoryStorage()
    storage.put(".hoodie_partition_metadata", b"")
    folder = ".hoodie" if layout == 1 else ".hoodie/timeline"
    for name in draw(st.lists(timeline_names(layout == 2), max_size=10)):
        storage.put(f"{folder}/{name}", draw(contents))
    for name in draw(st.lists(file_names, max_size=8)):
        storage.put(name, b"x")
    properties = {p.LAYOUT: str(layout), p.TYPE: draw(st.sampled_from(["MERGE_ON_READ", "COPY_ON_WRITE"]))}
    return storage, properties


@fuzz
@given(places())
def test_tables(place):
    storage, properties = place
    state = only_typed(hudi_written_state, storage, properties)
    if state is None:
        return
    committed = visible_instants(state)
    for group, slices in state.slices.items():
        assert slices
        assert list(slices) == sorted(slices)
        for instant, file_slice in slices.items():
            assert file_slice.group == group
            assert file_slice.base_instant == instant
            assert file_slice.base_file or file_slice.log_files
            assert not file_slice.base_file or instant in committed
            assert not any(".cdc" in f.name or ".crc" in f.name for f in file_slice.log_files)
            assert all(not f.instant or f.instant in committed for f in file_slice.log_files)
    for as_of in ["", *INSTANTS]:
        for visible in state.latest_slices(as_of):
            assert visible.base_file or visible.log_files
    state.groups_under_clustering()
    state.groups_under_compaction()
    list(state.pending())


@fuzz
@given(
    st.dictionaries(times, times, max_size=6),
    st.lists(times, max_size=4, unique=True),
    st.lists(st.tuples(times, st.integers(1, 2)), max_size=6, unique=True),
    st.none() | times,
)
def test_log_files_belong_to_the_newest_slice_that_had_begun(durations, bases, logs, compaction):
    """Against the rule taken literally, log file by log file."""
    completion = {i: max(i, c) for i, c in durations.items()}
    committed = VisibleInstants(set(completion), INSTANTS[2], {INSTANTS[0]})
    storage = MemoryStorage()
    for at in bases:
        storage.put(f"f_0-0-0_{at}.parquet", b"")
    for at, version in logs:
        storage.put(f".f_{at}.log.{version}_0-0-0", b"")
    groups = listed_groups([("", storage.list_folder("").objects)])
    group = FileGroupId("", "f")
    compactions = {group: compaction} if compaction else {}
    found = slices_of(groups, UPGRADED, committed, compactions, lambda i: completion.get(i, i)).get(group, {})

    def counts(instant):
        return instant in completion or (instant < INSTANTS[2] and instant != INSTANTS[0])

    begun = {at for at in bases if counts(at)} | ({compaction} if compaction else set())
    want = {at: [] for at in bases if counts(at)}
    for at, version in sorted(logs):
        if counts(at):
            earlier = [b for b in begun if b <= completion.get(at, at)]
            home = max(earlier) if earlier else at
            begun.add(home)
            want.setdefault(home, []).append((at, version))
    assert {i: [(f.instant, f.version) for f in s.log_files] for i, s in found.items()} == want
    assert {i for i, s in found.items() if s.base_file} == {at for at in bases if counts(at)}


# --- contents ---------------------------------------------------------------------------------------------------------------


@fuzz
@given(
    st.one_of(
        damaged(AVRO_COMMIT), damaged(AVRO_PLAN), damaged(VALID_PLAN), contents, st.binary(max_size=80).map(b"Obj\x01".__add__)
    )
)
def test_metadata(content):
    only_typed(decode_document, content, "x")
    metadata = only_typed(CommitMetadata.from_bytes, content, "x")
    assert metadata is None or isinstance(metadata, CommitMetadata)


kinds = st.sampled_from(["null", "int", "long", "string", "bytes", "boolean", "double"])
types = st.recursive(
    kinds | st.builds(lambda n: {"type": "fixed", "name": f"F{n}", "size": n}, st.integers(0, 3)),
    lambda inner: st.one_of(
        st.builds(lambda i: {"type": "array", "items": i}, inner),
        st.builds(lambda i: {"type": "map", "values": i}, inner),
        st.builds(
            lambda i, n: {"type": "record", "name": f"R{n}", "fields": [{"name": "a", "type": i}]}, inner, st.integers(0, 99)
        ),
        st.lists(kinds, min_size=1, max_size=3, unique=True),
    ),
    max_leaves=5,
)
schemas = st.lists(types, max_size=3).map(
    lambda found: {"type": "record", "name": "T", "fields": [{"name": f"f{n}", "type": kind} for n, kind in enumerate(found)]}
)


def container(schema, body, codec=b"null"):
    def number(n):
        out = bytearray()
        n = n << 1 ^ n >> 63
        while n > 127:
            out.append(n & 127 | 128)
            n >>= 7
        return bytes([*out, n])

    header = {b"avro.schema": json.dumps(schema).encode(), b"avro.codec": codec}
    meta = b"".join(number(len(k)) + k + number(len(v)) + v for k, v in header.items())
    sync = bytes(16)
    return b"Obj\x01" + number(2) + meta + number(0) + sync + number(1) + number(len(body)) + body + sync


@fuzz
@given(
    schemas,
    st.one_of(
        st.binary(max_size=40),
        st.lists(st.sampled_from([b"\xfe\xff\xff\xff\xff\xff\xff\xff\x7f", b"\x02", b"\0"]), max_size=6).map(b"".join),
    ),
)
def test_records_of_any_schema(schema, body):
    """Counts of 2^62 items among them."""
    started = time.process_time()
    only_typed(decode_document, container(schema, body), "x")
    assert time.process_time() - started < 5


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "kind",
    [
        {"type": "array", "items": "null"},
        {"type": "array", "items": {"type": "record", "name": "E", "fields": []}},
        {"type": "array", "items": {"type": "record", "name": "E", "fields": [{"name": "a", "type": "null"}]}},
        {"type": "array", "items": {"type": "fixed", "name": "F", "size": 0}},
        {"type": "array", "items": {"type": "array", "items": {"type": "null"}}},
        ["null", {"type": "array", "items": "null"}],
    ],
)
def test_items_of_no_bytes(kind):
    schema = {"type": "record", "name": "T", "fields": [{"name": "a", "type": kind}]}
    body = (b"\x02" if isinstance(kind, list) else b"") + b"\xfe\xff\xff\xff\xff\xff\xff\xff\x7f"
    with pytest.raises(CorruptMetadata, match="take no bytes"):
        decode_document(container(schema, body), "x")


def test_containers_are_read_as_fastavro_does():
    for content in (AVRO_COMMIT, AVRO_PLAN, VALID_PLAN, encode_document(COMPACTION_PLAN, {"operations": []})):
        (record,) = fastavro.reader(io.BytesIO(content))
        assert decode_document(content, "x") == record
        deflated = io.BytesIO()
        schema = fastavro.reader(io.BytesIO(content)).writer_schema
        fastavro.writer(deflated, schema, [record], codec="deflate")
        assert decode_document(deflated.getvalue(), "x") == record
        for wrong in ([], [record, record]):
            sink = io.BytesIO()
            fastavro.writer(sink, schema, wrong)
            with pytest.raises(CorruptMetadata):
                decode_document(sink.getvalue(), "x")
    sink = io.BytesIO()
    fastavro.writer(
        sink, {"type": "record", "name": "T", "fields": [{"name": "a", "type": "bytes"}]}, [{"a": bytes(2**29)}], codec="deflate"
    )
    with pytest.raises(CorruptMetadata, match="unpacks to more"):
        decode_document(sink.getvalue(), "x")


@fuzz
@given(st.one_of(damaged(MANIFEST), st.binary(max_size=80), documents.map(lambda d: json.dumps(d).encode())))
def test_manifests(content):
    only_typed(manifest_files, content, "x")


@fuzz
@given(st.one_of(damaged(HISTORY_FILE), st.binary(max_size=200), st.binary(max_size=200).map(lambda b: b"PAR1" + b + b"PAR1")))
def test_history_files(content):
    before = pa.total_allocated_bytes()
    found = only_typed(history_instants, pa.BufferReader(content), "x")
    assert found is None or all(len(i.time) >= 14 for i in found)
    assert pa.total_allocated_bytes() - before < 2**20


@fuzz
@given(st.one_of(damaged(ARCHIVE), st.binary(max_size=200)))
def test_archives(content):
    storage = MemoryStorage()
    storage.put(".hoodie/archived/.commits_.archive.1_1-0-1", content)
    only_typed(WRITTEN.archived_instants, storage)


@fuzz
@given(
    st.dictionaries(
        st.sampled_from(sorted(v for k, v in vars(p).items() if k.isupper() and isinstance(v, str) and v.startswith("hoodie."))),
        st.one_of(texts, st.sampled_from(["6", "8", "9", "2", "1", "true", "MERGE_ON_READ", "CUSTOM", "EVENT_TIME_ORDERING", "²"])),
        max_size=12,
    )
)
def test_definitions(properties):
    only_typed(format_of, properties)
    found = only_typed(TableDefinition.from_properties, {**properties, p.NAME: "t"})
    if found is not None:
        only_typed(lambda: found.merge_mode)
        only_typed(hudi_written_state, MemoryStorage(), properties)


@fuzz
@given(st.one_of(damaged(VALID_PROPERTIES), st.binary(max_size=120)))
def test_properties(content):
    properties = only_typed(parse_properties, content)
    if properties is not None:
        only_typed(TableDefinition.from_properties, properties)


def test_an_empty_place_is_an_empty_table():
    assert hudi_written_state(MemoryStorage()).latest_slices() == TableState().latest_slices() == []
    with pytest.raises(TidelineError):
        hudi_written_state(MemoryStorage(), {p.LAYOUT: "0"})
