"""The content of completed commits of layout 2: Avro records, with the fields that Apache Hudi 1.2 writes."""

from __future__ import annotations

import copy
from typing import Any

from tideline_table.hudi.plans import encode_record, record_schema
from tideline_table.hudi.write_stats import RECORDS_KEY, CommitMetadata, WriteStat, records_text


def _schemas() -> tuple[dict[str, Any], dict[str, Any]]:
    # The record of the archive of layout 1 holds both, the second one by the name of the first one's write stat.
    fields = {f["name"]: f["type"][1] for f in record_schema("HoodieArchivedMetaEntry")["fields"] if isinstance(f["type"], list)}
    commit, replace = copy.deepcopy(fields["hoodieCommitMetadata"]), copy.deepcopy(fields["hoodieReplaceCommitMetadata"])
    replace["fields"][0] = commit["fields"][0]
    for schema in (commit, replace):
        schema["namespace"] = "org.apache.hudi.avro.model"
    return commit, replace


COMMIT_METADATA, REPLACE_COMMIT_METADATA = _schemas()


def commit_content(metadata: CommitMetadata) -> bytes:
    """Return the Avro container of the metadata of a commit, delta commit or replace commit."""
    by_partition: dict[str, list[dict[str, Any]]] = {}
    for stat in metadata.stats:
        by_partition.setdefault(stat.partition_path, []).append(_stat(stat))
    records = records_text(metadata.stats)
    extra = {**metadata.extra, **({RECORDS_KEY: records} if records else {})}
    record = {**metadata.to_json(), "partitionToWriteStats": by_partition, "extraMetadata": extra, "version": None}
    return encode_record(COMMIT_METADATA if metadata.replaced is None else REPLACE_COMMIT_METADATA, record)


def _stat(stat: WriteStat) -> dict[str, Any]:
    found = {**stat.to_json(), "numUpdates": 0, "totalRollbackBlocks": 0, "totalLogReadTimeMs": 0}
    if stat.is_log and stat.changes is None:
        # Of a delta commit, as Apache Hudi writes it in a table without change files: its slice is not looked up.
        found |= {"baseFile": "", "logFiles": [stat.path.rpartition("/")[2]]}
    return found
