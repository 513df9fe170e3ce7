import json
from dataclasses import replace

import pytest

from tideline_table.errors import CorruptMetadata
from tideline_table.hudi.avro_container import decode_document
from tideline_table.hudi.version8.commit import commit_content
from tideline_table.hudi.write_stats import CommitMetadata, WriteStat

STAT = WriteStat("f-0", "p0", "p0/f-0_0-0-0_20260101000000000.parquet", "null", 7, 435, 4, 3, 2)
# Top level and write stat keys that Apache Hudi 1.2.0 was observed to need or write for a base file (format reference 5.1, 5.2).
REFERENCE_KEYS = {
    "fileId",
    "path",
    "cdcStats",
    "prevCommit",
    "numWrites",
    "numDeletes",
    "numUpdateWrites",
    "numInserts",
    "totalWriteBytes",
    "totalWriteErrors",
    "tempPath",
    "partitionPath",
    "totalLogRecords",
    "totalLogFilesCompacted",
    "totalLogSizeCompacted",
    "totalUpdatedRecordsCompacted",
    "totalLogBlocks",
    "totalCorruptLogBlock",
    "totalRollbackBlocks",
    "fileSizeInBytes",
    "minEventTime",
    "maxEventTime",
    "runtimeStats",
}


def test_document_has_the_names_of_the_reference():
    document = json.loads(CommitMetadata("UPSERT", (STAT,), {"schema": "{}"}).to_bytes())
    assert set(document) == {"partitionToWriteStats", "compacted", "extraMetadata", "operationType"}
    (stat,) = document["partitionToWriteStats"]["p0"]
    assert set(stat) == REFERENCE_KEYS
    assert (stat["numWrites"], stat["numInserts"], stat["numUpdateWrites"], stat["numDeletes"]) == (7, 4, 3, 2)
    assert stat["fileSizeInBytes"] == stat["totalWriteBytes"] == 435
    assert stat["prevCommit"] == "null"
    assert document["compacted"] is False
    assert document["extraMetadata"] == {"schema": "{}"}


def test_replaced_file_ids_make_a_replace_commit():
    metadata = CommitMetadata("CLUSTER", (STAT,), {}, {"p0": ["a-0", "b-0"]})
    assert metadata.to_json()["partitionToReplaceFileIds"] == {"p0": ["a-0", "b-0"]}
    assert CommitMetadata("CLUSTER", (), {}, {}).to_json()["partitionToReplaceFileIds"] == {}


@pytest.mark.parametrize(
    "metadata",
    [
        CommitMetadata("UPSERT", (STAT, WriteStat("g-0", "", "g.parquet", "20250101000000000", 0, 0)), {"schema": "s", "é": "😀"}),
        CommitMetadata("CLUSTER", (STAT,), {}, {"p0": ("a-0",), "": ()}),
        CommitMetadata("DELETE", ()),
        CommitMetadata("COMPACT", (STAT,), compacted=True),
        CommitMetadata(
            "UPSERT",
            (WriteStat("l-0", "p", "p/.l-0_20260101000000000.log.1_0-0-0", "null", 1, 1, base_file="b", log_files=("x", "y")),),
        ),
    ],
)
def test_round_trip(metadata):
    assert CommitMetadata.from_bytes(metadata.to_bytes(), "x") == metadata


def test_commits_in_avro_keep_the_digests_of_files_beside_hudis_fields():
    digests = "0+400:0123456789abcdef,400+35:fedcba9876543210"
    metadata = CommitMetadata("UPSERT", (replace(STAT, record=digests), STAT), {"schema": "s"})
    content = commit_content(metadata)
    found = CommitMetadata.from_bytes(content, "x")
    assert [stat.record for stat in found.stats] == [digests, digests], "two stats of one path are of one file"
    assert found.extra == {"schema": "s"}
    assert decode_document(content, "x")["extraMetadata"].keys() == {"schema", "tideline.records"}
    assert decode_document(commit_content(CommitMetadata("UPSERT", (STAT,))), "x")["extraMetadata"] == {}


def test_an_entry_gives_the_same_commit_in_avro_as_the_stats_of_its_writer():
    """Whichever process makes the timeline file: an entry has the stats by partition, a writer in the order of its tasks."""
    named = [("p", "f-2"), ("q", "f-1"), ("p", "f-0")]
    stats = [replace(STAT, partition_path=p, file_id=f, path=f"{p}/{f}_0-0-0_1.parquet", record=f"0+9:{f}") for p, f in named]
    metadata = CommitMetadata("CLUSTER", tuple(stats))
    again = CommitMetadata.from_json(metadata.to_json())
    assert again.stats != metadata.stats
    assert commit_content(again) == commit_content(metadata)


def test_log_stats_name_base_and_log_files():
    stat = WriteStat("l-0", "p", "p/.l-0_20260101000000000.log.1_0-0-0", "null", 1, 1, base_file="b", log_files=("x",))
    assert stat.is_log
    assert (stat.to_json()["baseFile"], stat.to_json()["logFiles"]) == ("b", ["x"])
    assert not STAT.is_log


def test_other_releases_are_read():
    minimal = {"partitionToWriteStats": {"p": [{"fileId": "f", "path": "p/x", "numUpdates": 9, "unknown": {}}]}, "newKey": 1}
    (stat,) = CommitMetadata.from_json(minimal).stats
    assert (stat.file_id, stat.num_writes, stat.prev_commit, stat.partition_path) == ("f", 0, "null", "")
    inflight = {"partitionToWriteStats": {"p": [{"fileId": "", "path": None, "numInserts": 5}]}}
    assert CommitMetadata.from_json(inflight).stats[0].path == ""
    empty = CommitMetadata.from_bytes(b"", "x")
    assert (empty.operation, empty.stats, empty.replaced) == ("UNKNOWN", (), None)


@pytest.mark.parametrize(
    "content",
    [
        b"{",
        b"[]",
        b"5",
        b"\xff\xfe",
        b'{"partitionToWriteStats": 5}',
        b'{"partitionToWriteStats": {"p": [5]}}',
        b'{"partitionToWriteStats": {"p": [{"path": "x"}]}}',
        b'{"partitionToWriteStats": {"p": [{"fileId": "f", "path": "x", "numWrites": "many"}]}}',
        b'{"partitionToWriteStats": {"p": [{"fileId": "f", "path": "x", "numWrites": 1e999}]}}',
        b'{"extraMetadata": 5}',
        b'{"extraMetadata": {"tideline.records": "x"}}',
        b'{"extraMetadata": {"tideline.records": "[]"}, "partitionToWriteStats": {"p": [{"fileId": "f", "path": "x"}]}}',
        b'{"partitionToWriteStats": {"p": [{"fileId": "f", "path": "x", "tidelineRecord": "0+a"}]}}',
        b'{"partitionToWriteStats": {"p": [{"fileId": "f", "path": "x", "tidelineRecord": "-1+7"}]}}',
        b'{"partitionToWriteStats": {"p": [{"fileId": "f", "path": "x", "tidelineRecord": "5"}]}}',
        b'{"partitionToReplaceFileIds": {"p": 5}}',
        b"[" * 100_000,
    ],
)
def test_broken_documents_are_typed_errors(content):
    with pytest.raises(CorruptMetadata, match=r"some/file"):
        CommitMetadata.from_bytes(content, "some/file")


@pytest.mark.parametrize("operation", ["cluster", "CLUSTER", "COMPACT", "LOG_COMPACT"])
def test_a_rewrite_inserts_no_rows_although_hudi_counts_them(operation):
    stat = {"fileId": "f", "path": "p/f", "partitionPath": "p", "numInserts": 3, "numWrites": 3}
    document = {"partitionToWriteStats": {"p": [stat]}, "operationType": operation}
    assert CommitMetadata.from_json(document).rows_inserted == 0
    assert CommitMetadata.from_json({**document, "operationType": "UPSERT"}).rows_inserted == 3
