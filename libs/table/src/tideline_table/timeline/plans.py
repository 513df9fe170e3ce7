"""Avro documents of plans and of completed table services (format reference 6), one record per object container file."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Mapping
from typing import Any

import fastavro

from tideline_table.timeline.avro_container import read_one_record

Document = Mapping[str, Any]
_NAMESPACE = "org.apache.hudi.avro.model"


def _nullable(kind: Any) -> Any:
    return ["null", kind]


def _field(name: str, kind: Any, default: Any = ...) -> dict[str, Any]:
    if default is ...:
        return (
            {"name": name, "type": kind, "default": None}
            if isinstance(kind, list) and kind[0] == "null"
            else {"name": name, "type": kind}
        )
    return {"name": name, "type": kind, "default": default}


def _record(name: str, *fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "record", "name": name, "namespace": _NAMESPACE, "fields": list(fields)}


def _array(items: Any) -> dict[str, Any]:
    return {"type": "array", "items": items}


def _map(values: Any) -> dict[str, Any]:
    return {"type": "map", "values": values}


def _version(default: int = 1) -> dict[str, Any]:
    return _field("version", ["int", "null"], default)


_STRING = _nullable("string")
_EXTRA = _field("extraMetadata", _nullable(_map("string")))

_SLICE = _record(
    "HoodieSliceInfo",
    _field("dataFilePath", _STRING),
    _field("deltaFilePaths", _nullable(_array("string"))),
    {"name": "fileId", "type": _STRING},
    _field("partitionPath", _STRING),
    _field("bootstrapFilePath", _STRING),
    _version(),
)
_CLUSTERING_GROUP = _record(
    "HoodieClusteringGroup",
    _field("slices", _nullable(_array(_SLICE))),
    _field("metrics", _nullable(_map("double"))),
    _field("numOutputFileGroups", ["int", "null"], 1),
    _EXTRA,
    _version(),
)
_CLUSTERING_STRATEGY = _record(
    "HoodieClusteringStrategy",
    _field("strategyClassName", _STRING),
    _field("strategyParams", _nullable(_map("string"))),
    _version(),
)
_CLUSTERING_PLAN = _record(
    "HoodieClusteringPlan",
    _field("inputGroups", _nullable(_array(_CLUSTERING_GROUP))),
    _field("strategy", _nullable(_CLUSTERING_STRATEGY)),
    _EXTRA,
    _version(),
    _field("preserveHoodieMetadata", _nullable("boolean")),
)
REQUESTED_REPLACE = _record(
    "HoodieRequestedReplaceMetadata",
    _field("operationType", _STRING),
    _field("clusteringPlan", _nullable(_CLUSTERING_PLAN)),
    _EXTRA,
    _version(),
)

_COMPACTION_OPERATION = _record(
    "HoodieCompactionOperation",
    {"name": "baseInstantTime", "type": _STRING},
    _field("deltaFilePaths", _nullable(_array("string"))),
    _field("dataFilePath", _STRING),
    {"name": "fileId", "type": _STRING},
    _field("partitionPath", _STRING),
    _field("metrics", _nullable(_map("double"))),
    _field("bootstrapFilePath", _STRING),
)
_COMPACTION_STRATEGY = _record(
    "HoodieCompactionStrategy",
    _field("compactorClassName", _STRING),
    _field("strategyParams", _nullable(_map("string"))),
    _version(),
)
COMPACTION_PLAN = _record(
    "HoodieCompactionPlan",
    _field("operations", _nullable(_array(_COMPACTION_OPERATION))),
    _EXTRA,
    _version(),
    _field("strategy", _nullable(_COMPACTION_STRATEGY)),
    _field("preserveHoodieMetadata", ["boolean", "null"], default=False),
)

_ACTION_INSTANT = _record(
    "HoodieActionInstant", _field("timestamp", "string"), _field("action", "string"), _field("state", "string")
)
_CLEAN_FILE = _record("HoodieCleanFileInfo", _field("filePath", _STRING), _field("isBootstrapBaseFile", _nullable("boolean")))
CLEANER_PLAN = _record(
    "HoodieCleanerPlan",
    _field("earliestInstantToRetain", _nullable(_ACTION_INSTANT)),
    _field("lastCompletedCommitTimestamp", "string", ""),
    _field("policy", "string"),
    _field("filesToBeDeletedPerPartition", _nullable(_map(_array("string")))),
    _version(),
    _field("filePathsToBeDeletedPerPartition", _nullable(_map(_array(_CLEAN_FILE)))),
    _field("partitionsToBeDeleted", _nullable(_array("string"))),
    _EXTRA,
)
_CLEAN_PARTITION = _record(
    "HoodieCleanPartitionMetadata",
    _field("partitionPath", "string"),
    _field("policy", "string"),
    _field("deletePathPatterns", _array("string")),
    _field("successDeleteFiles", _array("string")),
    _field("failedDeleteFiles", _array("string")),
    _field("isPartitionDeleted", _nullable("boolean")),
)
CLEAN_METADATA = _record(
    "HoodieCleanMetadata",
    _field("startCleanTime", "string"),
    _field("timeTakenInMillis", "long"),
    _field("totalFilesDeleted", "int"),
    _field("earliestCommitToRetain", "string"),
    _field("lastCompletedCommitTimestamp", "string", ""),
    _field("partitionMetadata", _map(_CLEAN_PARTITION)),
    _version(),
    _field("bootstrapPartitionMetadata", _nullable(_map("HoodieCleanPartitionMetadata"))),
    _EXTRA,
)

_INSTANT_INFO = _record("HoodieInstantInfo", _field("commitTime", "string"), _field("action", "string"))
_ROLLBACK_REQUEST = _record(
    "HoodieRollbackRequest",
    _field("partitionPath", "string"),
    _field("fileId", _STRING),
    _field("latestBaseInstant", _STRING),
    _field("filesToBeDeleted", _array("string"), []),
    _field("logBlocksToBeDeleted", _nullable(_map("long"))),
)
ROLLBACK_PLAN = _record(
    "HoodieRollbackPlan",
    _field("instantToRollback", _nullable(_INSTANT_INFO)),
    _field("RollbackRequests", _nullable(_array(_ROLLBACK_REQUEST))),
    _version(),
)
_ROLLBACK_PARTITION = _record(
    "HoodieRollbackPartitionMetadata",
    _field("partitionPath", "string"),
    _field("successDeleteFiles", _array("string")),
    _field("failedDeleteFiles", _array("string")),
    _field("rollbackLogFiles", _nullable(_map("long"))),
    _field("logFilesFromFailedCommit", _nullable(_map("long"))),
)
ROLLBACK_METADATA = _record(
    "HoodieRollbackMetadata",
    _field("startRollbackTime", "string"),
    _field("timeTakenInMillis", "long"),
    _field("totalFilesDeleted", "int"),
    _field("commitsRollback", _array("string")),
    _field("partitionMetadata", _map(_ROLLBACK_PARTITION)),
    _version(),
    _field("instantsRollback", _array(_INSTANT_INFO), []),
)

RESTORE_PLAN = _record(
    "HoodieRestorePlan",
    _field("instantsToRollback", _array(_INSTANT_INFO), []),
    _field("version", ["int", "null"], 2),
    _field("savepointToRestoreTimestamp", _STRING),
)
RESTORE_METADATA = _record(
    "HoodieRestoreMetadata",
    _field("startRestoreTime", "string"),
    _field("timeTakenInMillis", "long"),
    _field("instantsToRollback", _array("string")),
    _field("hoodieRestoreMetadata", _map(_array(_nullable(ROLLBACK_METADATA)))),
    _version(),
    _field("restoreInstantInfo", _array("HoodieInstantInfo"), []),
)
SAVEPOINT_METADATA = _record(
    "HoodieSavepointMetadata",
    _field("savepointedBy", "string"),
    _field("savepointedAt", "long"),
    _field("comments", "string"),
    _field(
        "partitionMetadata",
        _map(
            _record(
                "HoodieSavepointPartitionMetadata",
                _field("partitionPath", "string"),
                _field("savepointDataFile", _array("string")),
            )
        ),
    ),
    _version(),
)

_PARSED: dict[str, Any] = {}


def _parsed(schema: dict[str, Any]) -> Any:
    name = schema["name"]
    if name not in _PARSED:
        _PARSED[name] = fastavro.parse_schema(json.loads(json.dumps(schema)))
    return _PARSED[name]


def encode_document(schema: dict[str, Any], document: Document) -> bytes:
    """`document` as an Avro object container file with one record and no codec; equal input gives equal bytes."""
    sink = io.BytesIO()
    sync = hashlib.md5(json.dumps(document, sort_keys=True).encode(), usedforsecurity=False).digest()
    fastavro.writer(sink, _parsed(schema), [document], codec="null", sync_marker=sync)
    return sink.getvalue()


def decode_document(content: bytes, path: str) -> dict[str, Any]:
    """The one record of an Avro container file, whatever release wrote it. `CorruptMetadata` names a broken file."""
    return read_one_record(content, path)
