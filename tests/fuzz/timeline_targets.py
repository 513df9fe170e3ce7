"""Parsers of the timeline: names, metadata, plans, history, properties, entries of the table log, checkpoints."""

from __future__ import annotations

import base64
import dataclasses
import io
import json
import zipfile

import pyarrow as pa
import pyarrow.parquet as pq
from tests.fuzz.log_targets import FILTER
from tests.fuzz.target import Target, stored, typed
from tests.unit.events.events_of_every_type import EVERY_TYPE
from tests.unit.table.fixtures import FIXTURES
from tests.unit.table.tables import base_stat, instant

from tideline_events import Record, decode, encode
from tideline_locks.lease_object import LeaseObject
from tideline_table.action.clean.plan import plan_clean
from tideline_table.config import Options
from tideline_table.hudi import plans
from tideline_table.hudi import properties as p
from tideline_table.hudi.avro_container import decode_document
from tideline_table.hudi.file_names import parse_base_file_name, parse_log_file_name
from tideline_table.hudi.formats import UPGRADED, WRITTEN, format_of
from tideline_table.hudi.instant import Action, State, time_from_instant
from tideline_table.hudi.listing import timeline_listing
from tideline_table.hudi.point import parse_as_of
from tideline_table.hudi.properties import format_properties, parse_properties
from tideline_table.hudi.version6 import parse_timeline_file_name
from tideline_table.hudi.version8.history import history_instants, manifest_files
from tideline_table.hudi.write_stats import CommitMetadata
from tideline_table.hudi_written import hudi_written_state
from tideline_table.log.checkpoint import CHECKPOINT_FOLDER, POINTER, read_opening, write_checkpoint
from tideline_table.log.entry import IDENTITY_PATH, Entry
from tideline_table.log.state import TableState
from tideline_table.log_format import avro_block, read_rows, scan_log
from tideline_table.log_format.avro import row_schema
from tideline_table.reader.base_file import read_base_file, read_footer
from tideline_table.reader.key_footer import BLOOM_FILTER, MAX_KEY, MIN_KEY
from tideline_table.schema.identity import SchemaVersions, history_texts
from tideline_table.storage import MemoryStorage
from tideline_table.table.definition import TableDefinition
from tideline_table.table.identity import read_identity

NOW = "2026-01-01T00:00:00+00:00"


def of_fixture(table: str, ending: str, folder: str = "timelines") -> bytes:
    """The first file of a packed table whose name ends so."""
    with zipfile.ZipFile(FIXTURES / folder / f"{table}.zip") as archive:
        name = min(n for n in archive.namelist() if n.endswith(ending) and "__MACOSX" not in n and "/metadata/" not in n)
        return archive.read(name)


def _place(layout: int, name: str, content: bytes, **more: bytes) -> MemoryStorage:
    folder = ".hoodie" if layout == 1 else ".hoodie/timeline"
    return stored(**{".hoodie_partition_metadata": b"", f"{folder}/{name}": content, **more})


def _folded(storage: MemoryStorage, layout: int = 1) -> None:
    state = typed(hudi_written_state, storage, {p.LAYOUT: str(layout), p.TYPE: "MERGE_ON_READ"})
    if state is not None:
        _looked_at(state)


def _looked_at(state: TableState) -> None:
    state.latest_slices()
    state.groups_under_clustering()
    state.groups_under_compaction()
    typed(plan_clean, state, "memory:/t", Options())


# --- names ------------------------------------------------------------------------------------------------------------------

_AT, _DONE = instant(1), instant(2)
_NAMES = [
    f"f-0_0-0-0_{_AT}.parquet", f".f-0_{_AT}.log.1_0-0-0", f".f-0_{_AT}.log.1_0-0-0.cdc", f"{_AT}.commit", f"{_AT}.inflight", f"{_AT}.commit.requested",
    f"{_AT}.compaction.requested", f"{_AT}_{_DONE}.commit", f"{_AT}.clustering.inflight", f"{_AT}.savepoint", "2026-01-01 10:11:12.123", _AT,
]  # fmt: skip


def _names(content: bytes) -> None:
    names = content.decode("utf-8", "surrogateescape").split("\n")
    for name in names:
        for parse in (
            parse_base_file_name,
            parse_log_file_name,
            parse_timeline_file_name,
            UPGRADED.parse_timeline_file_name,
            parse_as_of,
            time_from_instant,
        ):
            typed(parse, name)
    for layout in (1, 2):
        form = format_of({p.LAYOUT: str(layout)})
        listing = timeline_listing(form, [f"{form.timeline_folder}/{name}" for name in names])
        for found in listing.instants:
            typed(listing.path, found)


# --- metadata ---------------------------------------------------------------------------------------------------------------

_COMMIT = CommitMetadata(
    "UPSERT", (base_stat("f-0", _AT),), {"schema": '{"type":"record","name":"r","fields":[]}'}, {"p": ["x"]}
).to_bytes()


def _commit_json(content: bytes) -> None:
    _folded(_place(1, f"{_AT}.replacecommit", content))
    metadata = CommitMetadata.from_bytes(content, "x")
    typed(CommitMetadata.from_bytes, metadata.to_bytes(), "x")


def _commit_avro(content: bytes) -> None:
    _folded(_place(2, f"{_AT}_{_DONE}.replacecommit", content), 2)
    typed(CommitMetadata.from_bytes, content, "x")
    decode_document(content, "x")


_PLANS = {
    f"{_AT}.replacecommit.requested": plans.encode_document(
        plans.REQUESTED_REPLACE,
        {
            "operationType": "CLUSTER",
            "clusteringPlan": {
                "inputGroups": [{"slices": [{"dataFilePath": "p/f", "deltaFilePaths": [], "fileId": "f-0", "partitionPath": "p"}], "metrics": {"a": 1.0}}],
                "strategy": {"strategyClassName": "s", "strategyParams": {"a": "b"}},
            },
        },
    ),
    f"{_AT}.compaction.requested": plans.encode_document(
        plans.COMPACTION_PLAN,
        {"operations": [{"baseInstantTime": _AT, "deltaFilePaths": [".f"], "dataFilePath": "f", "fileId": "f-0", "partitionPath": "p", "metrics": {}}]},
    ),
    f"{_AT}.clean": plans.encode_document(
        plans.CLEAN_METADATA,
        {
            "startCleanTime": _AT, "timeTakenInMillis": 1, "totalFilesDeleted": 1, "earliestCommitToRetain": _AT,
            "partitionMetadata": {"p": {"partitionPath": "p", "policy": "x", "deletePathPatterns": [], "successDeleteFiles": ["f"], "failedDeleteFiles": []}},
            "bootstrapPartitionMetadata": {},
        },
    ),
    f"{_AT}.clean.requested": plans.encode_document(plans.CLEANER_PLAN, {"policy": "x", "filePathsToBeDeletedPerPartition": {"p": [{"filePath": "f"}]}}),
    f"{_AT}.rollback.requested": plans.encode_document(
        plans.ROLLBACK_PLAN,
        {"instantToRollback": {"commitTime": _AT, "action": "commit"}, "RollbackRequests": [{"partitionPath": "p", "filesToBeDeleted": ["f"], "logBlocksToBeDeleted": {"a": 1}}]},
    ),
    f"{_AT}.rollback": plans.encode_document(
        plans.ROLLBACK_METADATA,
        {
            "startRollbackTime": _AT, "timeTakenInMillis": 1, "totalFilesDeleted": 1, "commitsRollback": [_AT],
            "partitionMetadata": {"p": {"partitionPath": "p", "successDeleteFiles": ["f"], "failedDeleteFiles": [], "rollbackLogFiles": {"l": 5}}},
        },
    ),
}  # fmt: skip


def _plan(content: bytes) -> None:
    """The first byte says what it is a plan of; what it says is folded as a timeline file and as the body of an entry."""
    name = [*_PLANS][content[0] % len(_PLANS)] if content else next(iter(_PLANS))
    _folded(_place(1, name, content[1:]))
    plan = decode_document(content[1:], name)
    state = TableState()
    for number, at, action, operation in ((1, _AT, Action.REPLACE_COMMIT, "CLUSTER"), (2, _DONE, Action.COMPACTION, "COMPACT")):
        bare = Entry(number, "a", NOW, "w", at, action, State.NONE, State.REQUESTED, operation)
        typed(lambda entry=bare: state.apply(entry.with_body({"plan": plan})))
    _looked_at(state)


# --- history ----------------------------------------------------------------------------------------------------------------


def _small_archive() -> bytes:
    storage = stored(log=of_fixture("mor_v6_archived", ".commits_.archive.1_1-0-1"))
    block = scan_log(storage, "log", needs_instant=False).blocks[0]
    names = ["commitTime", "actionType", "actionState"]
    schema = json.dumps({"type": "record", "name": "r", "fields": [{"name": n, "type": ["null", "string"]} for n in names]})
    rows = read_rows(storage, block, columns=names).slice(0, 3).cast(row_schema(schema))
    return avro_block(rows, schema, _AT)


def _archive(content: bytes) -> None:
    WRITTEN.archived_instants(stored(**{".hoodie/archived/.commits_.archive.1_1-0-1": content}))


def _history_file(content: bytes) -> None:
    assert all(len(found.time) >= 14 for found in history_instants(pa.BufferReader(content), "x"))


_SCHEMA_VERSION = {
    "version_id": 20260101000000001,
    "type": "record",
    "fields": [
        {"id": 0, "name": "a", "optional": True, "type": "string"},
        {"id": 1, "name": "l", "optional": True, "type": {"type": "array", "element_id": 3, "element": "int", "element_optional": True}},
        {"id": 2, "name": "m", "optional": True, "type": {"type": "map", "key_id": 4, "key": "string", "value_id": 5, "value": "int", "value_optional": True}},
    ],
}  # fmt: skip
_SCHEMA_HISTORY = json.dumps({"schemas": [_SCHEMA_VERSION, {**_SCHEMA_VERSION, "version_id": 20260101000000009}]}).encode()


def _schema_history(content: bytes) -> None:
    versions = SchemaVersions.parsed(history_texts(content, "x"))
    if versions.versions:
        versions.file_names(_AT, _DONE)


# --- the table log, properties, locks, events -------------------------------------------------------------------------------


def _entry_of(sequence: int, at: str, action: Action, before: State, after: State, operation: str = "", **body: object) -> Entry:
    return Entry(sequence, "a", NOW, "w", at, action, before, after, operation).with_body(body)


_EARLY = instant(0)
_BEGUN = (
    _entry_of(1, _EARLY, Action.COMMIT, State.NONE, State.INFLIGHT, "UPSERT"),
    _entry_of(2, _EARLY, Action.COMMIT, State.INFLIGHT, State.COMPLETED, "UPSERT", metadata={}),
    _entry_of(3, _AT, Action.COMMIT, State.NONE, State.INFLIGHT, "UPSERT"),
    _entry_of(4, _DONE, Action.CLEAN, State.NONE, State.REQUESTED),
    _entry_of(5, _DONE, Action.CLEAN, State.REQUESTED, State.INFLIGHT),
)
_SAVED = {
    "metadata": {"savepointedBy": "u", "savepointedAt": 1, "comments": "c", "partitionMetadata": {}},
    "progress": {"k": ["v", _EARLY]},
}
_COMMITTED = _entry_of(6, _AT, Action.COMMIT, State.INFLIGHT, State.COMPLETED, "UPSERT", metadata=json.loads(_COMMIT))
_ADOPTED = {
    "actions": [[_AT, "commit", "completed", "UPSERT", _AT]], "slices": [["p", "f-0", [[_AT, "f", 1, 1, [["l", 1, _AT, 1]]]]]],
    "replaced": [["p", "g-0", _AT]], "plans": {}, "schema": "{}", "last_clean_retained": "", "archived_before": _AT,
}  # fmt: skip
_CLUSTERING = decode_document(_PLANS[f"{_AT}.replacecommit.requested"], "x")
_COMPACTION = decode_document(_PLANS[f"{_AT}.compaction.requested"], "x")
_CLEANED = decode_document(_PLANS[f"{_AT}.clean"], "x")
_NEXT = instant(3)
_ENTRIES = (
    _COMMITTED,
    _entry_of(6, _EARLY, Action.SAVEPOINT, State.NONE, State.COMPLETED, "", **_SAVED),
    _entry_of(6, _NEXT, Action.COMMIT, State.NONE, State.INFLIGHT, "UPSERT"),
    _entry_of(6, _DONE, Action.CLEAN, State.INFLIGHT, State.COMPLETED, metadata=_CLEANED),
    _entry_of(6, _NEXT, Action.REPLACE_COMMIT, State.NONE, State.REQUESTED, "CLUSTER", plan=_CLUSTERING),
    _entry_of(6, _NEXT, Action.COMPACTION, State.NONE, State.REQUESTED, "COMPACT", plan=_COMPACTION),
    _entry_of(6, _NEXT, Action.ROLLBACK, State.NONE, State.REQUESTED, target=_AT, target_action="commit"),
    _entry_of(
        6, _AT, Action.COMMIT, State.INFLIGHT, State.COMPLETED, metadata=json.loads(_COMMIT),
        adopted=_ADOPTED, sharing={"lock": "filesystem", "expire_min": 5},
    ),
)  # fmt: skip


def _begun() -> TableState:
    state = TableState()
    for entry in _BEGUN:
        state.apply(entry)
    return state


def _entry(content: bytes) -> None:
    entry = Entry.from_bytes(content, "x")
    assert Entry.from_bytes(entry.to_bytes(), "x") == entry
    state = _begun()
    typed(state.apply, entry)
    _looked_at(state)


def _written_checkpoint() -> tuple[str, bytes, bytes]:
    storage, state = MemoryStorage(), _begun()
    for sequence, entry in enumerate((_COMMITTED, _ENTRIES[1], _ENTRIES[4]), _COMMITTED.sequence):
        state.apply(dataclasses.replace(entry, sequence=sequence))
    write_checkpoint(storage, state)
    (path,) = (o.path for o in storage.list_folder(CHECKPOINT_FOLDER).objects if o.path != POINTER)
    return path, storage.read(path), storage.read(POINTER)


_PATH, _CHECKPOINT, _POINTER = _written_checkpoint()


def _checkpoint(content: bytes) -> None:
    _looked_at(read_opening(stored(**{_PATH: content, POINTER: _POINTER})).state)


def _pointer(content: bytes) -> None:
    opening = read_opening(stored(**{_PATH: _CHECKPOINT, POINTER: content}))
    for entry in opening.tail:
        typed(opening.state.apply, entry)
    _looked_at(opening.state)


def _properties(content: bytes) -> None:
    properties = parse_properties(content)
    typed(format_of, properties)
    found = typed(TableDefinition.from_properties, properties)
    if found is not None:
        typed(lambda: found.merge_mode)


_PROPERTIES = (
    of_fixture("mor_v6_archived", "hoodie.properties"),
    of_fixture("mor_v9_archived", "hoodie.properties"),
    format_properties({p.NAME: "t", "x": "é=", p.VERSION: "6", p.TYPE: "MERGE_ON_READ"}, "c"),
)


def _base_file_with(pairs: dict[bytes, bytes]) -> bytes:
    sink = io.BytesIO()
    rows = pa.table({"a": ["x", "y"], "b": [1, 2]})
    with pq.ParquetWriter(sink, rows.schema, store_schema=False) as writer:
        writer.write_table(rows)
        writer.add_key_value_metadata(pairs)
    return sink.getvalue()


def _base_file(content: bytes) -> None:
    storage = stored(f=content)
    typed(lambda: read_footer(storage, "f", with_bloom=True))
    read_base_file(storage, "f")


def _lease(content: bytes) -> None:
    LeaseObject.from_bytes(content, "x")


def _identity(content: bytes) -> None:
    read_identity(stored(**{IDENTITY_PATH: content}))


_LEASE = json.dumps(
    {
        "format": 1, "append_id": "a", "standing": "held", "owner": "o", "lease_id": "l", "fence": 3,
        "acquired": NOW, "expires": NOW, "ttl_s": 30.0,
    }
).encode()  # fmt: skip


_RECORDS = [encode(event) for event in EVERY_TYPE.values()]


def _event(content: bytes) -> None:
    """A record of the event log: which topic, its headers in JSON, and behind a NUL its value."""
    like = _RECORDS[content[0] % len(_RECORDS)] if content else _RECORDS[0]
    text, _, value = content[1:].partition(b"\0")
    try:
        headers = [(str(name), None if held is None else str(held).encode(errors="replace")) for name, held in json.loads(text)]
    except (ValueError, TypeError, RecursionError):
        headers = list(like.headers)
    decode(Record(like.topic, like.key, value, tuple(headers)))


def _recorded(number: int, record: Record) -> bytes:
    headers = [(name, held and held.decode()) for name, held in record.headers]
    return bytes((number,)) + json.dumps(headers).encode() + b"\0" + (record.value or b"")


TARGETS = (
    Target("file-names", _names, tuple("\n".join(_NAMES[n : n + 3]).encode() for n in range(0, len(_NAMES), 3))),
    Target("timeline-json", _commit_json, (_COMMIT, of_fixture("mor_v6_archived", ".deltacommit")), is_json=True),
    Target(
        "avro-metadata",
        _commit_avro,
        (of_fixture("mor_v9_overwritten", ".replacecommit"), of_fixture("mor_v9_archived", ".deltacommit")),
    ),
    Target("plans", _plan, tuple(bytes((number,)) + plan for number, plan in enumerate(_PLANS.values()))),
    Target("properties", _properties, _PROPERTIES),
    Target("archive-layout-1", _archive, (_small_archive(),)),
    Target("history-manifest", lambda content: manifest_files(content, "x"), (of_fixture("mor_v9_archived", "history/manifest_7"),), is_json=True),
    Target("history-file", _history_file, (of_fixture("mor_v9_archived", "_0.parquet"),)),
    Target("schema-history", _schema_history, (_SCHEMA_HISTORY,), is_json=True),
    Target("table-log-entry", _entry, tuple(entry.to_bytes() for entry in _ENTRIES), is_json=True),
    Target("checkpoint", _checkpoint, (_CHECKPOINT,), is_json=True),
    Target("checkpoint-pointer", _pointer, (_POINTER,), is_json=True),
    Target(
        "base-file",
        _base_file,
        (_base_file_with({MIN_KEY: b"x", MAX_KEY: b"y", BLOOM_FILTER: base64.b64encode(FILTER)}),),
    ),
    Target("table-identity", _identity, (json.dumps({"format": 1, "uid": "u", "base_path": "memory:/t", "mode": "exclusive"}).encode(),), is_json=True),
    Target("lease", _lease, (_LEASE,), is_json=True),
    Target("event", _event, tuple(_recorded(number, record) for number, record in enumerate(_RECORDS))),
)  # fmt: skip
