"""Records of the archived timeline (format reference 6.6): one for each state file of an instant, with the document that the file held."""

from __future__ import annotations

import copy
import io
import json
from collections.abc import Callable, Mapping
from typing import Any

import fastavro

from tideline_table.errors import CorruptMetadata
from tideline_table.timeline import plans
from tideline_table.timeline.avro_container import MAGIC
from tideline_table.timeline.instant import Action, Instant, State

_TEXT = ["null", "string"]
_LONG = ["null", "long"]
_NAMESPACE = "org.apache.hudi.avro.model"


def _record(name: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    listed = [{"name": field, "type": kind, **_default(kind)} for field, kind in fields.items()]
    return {"type": "record", "name": name, "fields": listed}


def _default(kind: Any) -> dict[str, Any]:
    if not isinstance(kind, list):
        return {}
    return {"default": None if kind[0] == "null" else 1}


def _maybe(kind: Any) -> list[Any]:
    return ["null", kind]


def _map(values: Any) -> dict[str, Any]:
    return {"type": "map", "values": values}


def _array(items: Any) -> dict[str, Any]:
    return {"type": "array", "items": items}


_VERSION = ["int", "null"]
_WRITE_STAT = _record(
    "HoodieWriteStat",
    {
        **dict.fromkeys(("fileId", "path", "prevCommit"), _TEXT),
        **dict.fromkeys(("numWrites", "numDeletes", "numUpdateWrites", "totalWriteBytes", "totalWriteErrors"), _LONG),
        "partitionPath": _TEXT,
        **dict.fromkeys(
            ("totalLogRecords", "totalLogFiles", "totalUpdatedRecordsCompacted", "numInserts", "totalLogBlocks"), _LONG
        ),
        **dict.fromkeys(("totalCorruptLogBlock", "totalRollbackBlocks", "fileSizeInBytes"), _LONG),
        "logVersion": ["null", "int"],
        "logOffset": _LONG,
        "baseFile": _TEXT,
        "logFiles": _maybe(_array("string")),
        "cdcStats": _maybe(_map("long")),
        "prevBaseFile": _TEXT,
        "minEventTime": _LONG,
        "maxEventTime": _LONG,
        "runtimeStats": _maybe(
            _record("HoodieRuntimeStats", dict.fromkeys(("totalScanTime", "totalCreateTime", "totalUpsertTime"), _LONG))
        ),
        **dict.fromkeys(("totalLogFilesCompacted", "totalLogReadTimeMs", "totalLogSizeCompacted"), _LONG),
        "tempPath": _TEXT,
        "numUpdates": _LONG,
    },
)


def _commit_fields(stat: Any) -> dict[str, Any]:
    return {
        "partitionToWriteStats": _maybe(_map(_array(stat))),
        "compacted": ["null", "boolean"],
        "extraMetadata": _maybe(_map("string")),
        "version": _VERSION,
        "operationType": _TEXT,
    }


_COMPACTION_STAT = _record(
    "HoodieCompactionWriteStat",
    {
        "partitionPath": _TEXT,
        **dict.fromkeys(("totalLogRecords", "totalLogFiles", "totalUpdatedRecordsCompacted"), _LONG),
        "hoodieWriteStat": _maybe("HoodieWriteStat"),
    },
)
_SAVEPOINT_PARTITION = _record(
    "HoodieSavepointPartitionMetadata", {"partitionPath": "string", "savepointDataFile": _array("string")}
)
_SAVEPOINT = _record(
    "HoodieSavepointMetadata",
    {
        "savepointedBy": "string",
        "savepointedAt": "long",
        "comments": "string",
        "partitionMetadata": _map(_SAVEPOINT_PARTITION),
        "version": _VERSION,
    },
)
_INDEX_PARTITION = _record(
    "HoodieIndexPartitionInfo",
    {"version": _VERSION, "metadataPartitionPath": _TEXT, "indexUptoInstant": _TEXT, "extraMetadata": _maybe(_map("string"))},
)
ARCHIVED_ENTRY = {
    "namespace": _NAMESPACE,
    **_record(
        "HoodieArchivedMetaEntry",
        {
            "hoodieCommitMetadata": _maybe(_record("HoodieCommitMetadata", _commit_fields(_WRITE_STAT))),
            "hoodieCleanMetadata": _maybe(plans.CLEAN_METADATA),
            "hoodieCompactionMetadata": _maybe(
                _record("HoodieCompactionMetadata", {"partitionToCompactionWriteStats": _maybe(_map(_array(_COMPACTION_STAT)))})
            ),
            "hoodieRollbackMetadata": _maybe(plans.ROLLBACK_METADATA),
            "hoodieSavePointMetadata": _maybe(_SAVEPOINT),
            "commitTime": _TEXT,
            "actionType": _TEXT,
            "version": _VERSION,
            "hoodieCompactionPlan": _maybe(plans.COMPACTION_PLAN),
            "hoodieCleanerPlan": _maybe(plans.CLEANER_PLAN),
            "actionState": _TEXT,
            "hoodieReplaceCommitMetadata": _maybe(
                _record(
                    "HoodieReplaceCommitMetadata",
                    {**_commit_fields("HoodieWriteStat"), "partitionToReplaceFileIds": _maybe(_map(_array("string")))},
                )
            ),
            "hoodieRequestedReplaceMetadata": _maybe(plans.REQUESTED_REPLACE),
            "HoodieInflightReplaceMetadata": _maybe("HoodieCommitMetadata"),
            "hoodieIndexCommitMetadata": _maybe(
                _record(
                    "HoodieIndexCommitMetadata",
                    {"version": _VERSION, "operationType": _TEXT, "indexPartitionInfos": _maybe(_array(_INDEX_PARTITION))},
                )
            ),
            "stateTransitionTime": _TEXT,
        },
    ),
}
"""The record as Apache Hudi 1.2 declares it; earlier releases know fewer fields, and match them by name."""
ARCHIVED_ENTRY_JSON = json.dumps(ARCHIVED_ENTRY)
_PARSED = fastavro.parse_schema(copy.deepcopy(ARCHIVED_ENTRY))

_COMMIT = "hoodieCommitMetadata"
_FIELDS: dict[tuple[Action, State], str] = {
    **{(a, State.COMPLETED): _COMMIT for a in (Action.COMMIT, Action.DELTA_COMMIT)},
    **{(a, State.INFLIGHT): _COMMIT for a in (Action.COMMIT, Action.DELTA_COMMIT)},
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
"""Where the document of a state file goes; of other ones only that they were there is kept, as Hudi does."""


def archived_entry(instant: Instant, content: bytes, path: str) -> bytes:
    """The Avro record of one state file. Raises `CorruptMetadata`, which names `path`, for content that is not what its name says."""
    record: dict[str, Any] = {
        "commitTime": instant.time,
        "actionType": instant.action.value,
        "actionState": instant.state.value.upper(),
        "stateTransitionTime": None,
    }
    field = _FIELDS.get((instant.action, instant.state))
    sink = io.BytesIO()
    try:
        if field is not None and content:
            record[field] = _reader(content)(content, path)
        fastavro.schemaless_writer(sink, _PARSED, record)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise CorruptMetadata(
            f"timeline file {path} cannot be archived ({type(error).__name__}: {error})",
            expected=f"the document of {instant.action}, {instant.state}",
            remedy="restore the file; nothing was changed",
        ) from None
    return sink.getvalue()


def _reader(content: bytes) -> Callable[[bytes, str], dict[str, Any]]:
    return plans.decode_document if content.startswith(MAGIC) else _from_json


def _from_json(content: bytes, _: str) -> dict[str, Any]:
    document = json.loads(content)
    if not isinstance(document, dict):
        raise TypeError(f"a {type(document).__name__}")
    return document
