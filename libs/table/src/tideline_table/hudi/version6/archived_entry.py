"""Records of the archived timeline (format reference 6.6): one per state file of an instant, with the document of that file."""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import fastavro

from tideline_table.errors import parsing
from tideline_table.hudi.avro_container import MAGIC, decode_document
from tideline_table.hudi.instant import Action, Instant, State, completed_as
from tideline_table.hudi.plans import record_schema
from tideline_table.log_format import BlockType, HeaderKey
from tideline_table.log_format.framing import BLOCK_VERSION, frame_block
from tideline_table.storage import Storage

ARCHIVED_ENTRY = record_schema("HoodieArchivedMetaEntry")
"""The record schema of Apache Hudi 1.2. Earlier releases know fewer fields and match fields by name."""
ARCHIVED_ENTRY_JSON = json.dumps(ARCHIVED_ENTRY)
_PARSED = fastavro.parse_schema(json.loads(ARCHIVED_ENTRY_JSON))

_COUNT = struct.Struct(">ii")
_LENGTH = struct.Struct(">i")
_COMMIT = "hoodieCommitMetadata"
_FIELDS: dict[tuple[Action, State], str] = {
    **{(a, s): _COMMIT for a in (Action.COMMIT, Action.DELTA_COMMIT) for s in (State.INFLIGHT, State.COMPLETED)},
    (Action.REPLACE_COMMIT, State.REQUESTED): "hoodieRequestedReplaceMetadata",
    (Action.REPLACE_COMMIT, State.INFLIGHT): "HoodieInflightReplaceMetadata",
    (Action.REPLACE_COMMIT, State.COMPLETED): "hoodieReplaceCommitMetadata",
    (Action.COMPACTION, State.REQUESTED): "hoodieCompactionPlan",
    (Action.CLEAN, State.REQUESTED): "hoodieCleanerPlan",
    (Action.CLEAN, State.INFLIGHT): "hoodieCleanerPlan",
    (Action.CLEAN, State.COMPLETED): "hoodieCleanMetadata",
    (Action.ROLLBACK, State.COMPLETED): "hoodieRollbackMetadata",
    (Action.SAVEPOINT, State.COMPLETED): "hoodieSavePointMetadata",
}
"""Action and state → field for the document of the state file. Other state files are archived without a document, as in Hudi."""


def archived_entry(instant: Instant, content: bytes, path: str) -> bytes:
    """Return the Avro record of a state file. Raises `CorruptMetadata`, which names `path`, if `content` does not fit `instant`."""
    record: dict[str, Any] = {
        "commitTime": instant.time,
        "actionType": instant.action.value,
        "actionState": instant.state.value.upper(),
        "stateTransitionTime": None,
    }
    field = _FIELDS.get((instant.action, instant.state))
    sink = io.BytesIO()
    with parsing(f"timeline file {path}", f"the document of {instant.action}, {instant.state}"):
        if field is not None and content:
            record[field] = decode_document(content, path) if content.startswith(MAGIC) else _from_json(content)
        fastavro.schemaless_writer(sink, _PARSED, record)
    return sink.getvalue()


def _from_json(content: bytes) -> dict[str, Any]:
    document = json.loads(content)
    if not isinstance(document, dict):
        raise TypeError(f"a {type(document).__name__}")
    return document


def archive_content(storage: Storage, files: Iterable[tuple[Instant, str]], batch: int) -> bytes:
    """Return the archive file of timeline files. Raises `ObjectNotFound` for a missing one, `CorruptMetadata` for a corrupt one."""
    records = [archived_entry(_as_named(instant), storage.read(path), path) for instant, path in files]
    header = {HeaderKey.SCHEMA: ARCHIVED_ENTRY_JSON}
    return b"".join(frame_block(BlockType.AVRO, header, _datums(batch)) for batch in _batches(records, batch))


def _as_named(instant: Instant) -> Instant:
    # An archive names actions as their files do: a completed compaction is a commit.
    return Instant(instant.time, completed_as(instant.action), instant.state) if instant.state is State.COMPLETED else instant


def _batches(records: Sequence[bytes], size: int) -> Iterator[Sequence[bytes]]:
    return (records[at : at + size] for at in range(0, len(records), size))


def _datums(records: Sequence[bytes]) -> bytes:
    parts = [_COUNT.pack(BLOCK_VERSION, len(records))]
    for record in records:
        parts += [_LENGTH.pack(len(record)), record]
    return b"".join(parts)
