"""Avro documents of plans and of completed table services (format reference 6): one record per object container file."""

from __future__ import annotations

import functools
import hashlib
import io
import json
from collections.abc import Mapping
from importlib import resources
from typing import Any

import fastavro


def record_schema(name: str) -> dict[str, Any]:
    """Return the Avro schema of Apache Hudi 1.2 for the record `name`."""
    text = resources.files(__package__).joinpath("schemas", f"{name}.avsc").read_text(encoding="utf-8")
    schema: dict[str, Any] = json.loads(text)
    return schema


REQUESTED_REPLACE = record_schema("HoodieRequestedReplaceMetadata")
COMPACTION_PLAN = record_schema("HoodieCompactionPlan")
CLEANER_PLAN = record_schema("HoodieCleanerPlan")
CLEAN_METADATA = record_schema("HoodieCleanMetadata")
ROLLBACK_PLAN = record_schema("HoodieRollbackPlan")
ROLLBACK_METADATA = record_schema("HoodieRollbackMetadata")
RESTORE_PLAN = record_schema("HoodieRestorePlan")
RESTORE_METADATA = record_schema("HoodieRestoreMetadata")
INDEX_PLAN = record_schema("HoodieIndexPlan")
INDEX_METADATA = record_schema("HoodieIndexCommitMetadata")
SAVEPOINT_METADATA = record_schema("HoodieSavepointMetadata")


@functools.cache
def _parsed(name: str) -> Any:
    return fastavro.parse_schema(record_schema(name))


def encode_document(schema: Mapping[str, Any], document: Mapping[str, Any]) -> bytes:
    """Encode `document` as an Avro object container file with one record and no codec. Equal input gives equal bytes."""
    return encode_record(_parsed(schema["name"]), document)


def encode_record(schema: Any, document: Mapping[str, Any]) -> bytes:
    """As `encode_document`, for any schema. Fields of the document that the schema lacks are left out."""
    sink = io.BytesIO()
    sync = hashlib.md5(json.dumps(document, sort_keys=True).encode(), usedforsecurity=False).digest()
    fastavro.writer(sink, schema, [document], codec="null", sync_marker=sync)
    return sink.getvalue()
