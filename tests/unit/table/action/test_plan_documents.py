import io

import fastavro
import pytest
from tests.plans import schedule_clean, schedule_clustering
from tests.unit.table.tables import DEATH_S, cluster, new_table, write

from tideline_table.action import roll_back_dead, run_clean
from tideline_table.action.write.transaction import WriteTransaction
from tideline_table.clock import ManualClock
from tideline_table.errors import CorruptMetadata
from tideline_table.hudi.avro_container import decode_document
from tideline_table.hudi.plans import (
    CLEAN_METADATA,
    CLEANER_PLAN,
    REQUESTED_REPLACE,
    ROLLBACK_METADATA,
    ROLLBACK_PLAN,
    encode_document,
)
from tideline_table.storage import MemoryStorage

# Record → field names in order, from the format reference, 6.1, 6.3 and 6.4.
REFERENCE = {
    "HoodieRequestedReplaceMetadata": "operationType clusteringPlan extraMetadata version",
    "HoodieClusteringPlan": "inputGroups strategy extraMetadata version preserveHoodieMetadata",
    "HoodieClusteringGroup": "slices metrics numOutputFileGroups extraMetadata version",
    "HoodieSliceInfo": "dataFilePath deltaFilePaths fileId partitionPath bootstrapFilePath version",
    "HoodieClusteringStrategy": "strategyClassName strategyParams version",
    "HoodieCleanerPlan": "earliestInstantToRetain lastCompletedCommitTimestamp policy filesToBeDeletedPerPartition version "
    "filePathsToBeDeletedPerPartition partitionsToBeDeleted extraMetadata",
    "HoodieActionInstant": "timestamp action state",
    "HoodieCleanFileInfo": "filePath isBootstrapBaseFile",
    "HoodieCleanMetadata": "startCleanTime timeTakenInMillis totalFilesDeleted earliestCommitToRetain lastCompletedCommitTimestamp "
    "partitionMetadata version bootstrapPartitionMetadata extraMetadata",
    "HoodieCleanPartitionMetadata": "partitionPath policy deletePathPatterns successDeleteFiles failedDeleteFiles "
    "isPartitionDeleted",
    "HoodieRollbackPlan": "instantToRollback RollbackRequests version",
    "HoodieInstantInfo": "commitTime action",
    "HoodieRollbackRequest": "partitionPath fileId latestBaseInstant filesToBeDeleted logBlocksToBeDeleted",
    "HoodieRollbackMetadata": "startRollbackTime timeTakenInMillis totalFilesDeleted commitsRollback partitionMetadata version "
    "instantsRollback",
    "HoodieRollbackPartitionMetadata": "partitionPath successDeleteFiles failedDeleteFiles rollbackLogFiles "
    "logFilesFromFailedCommit",
}


def records(schema):
    if isinstance(schema, list):
        for branch in schema:
            yield from records(branch)
    elif isinstance(schema, dict):
        if schema["type"] == "record":
            yield schema
            for field in schema["fields"]:
                yield from records(field["type"])
        for key in ("items", "values"):
            if key in schema:
                yield from records(schema[key])


def test_schemas_have_the_names_of_the_reference():
    found = {}
    for schema in (REQUESTED_REPLACE, CLEANER_PLAN, CLEAN_METADATA, ROLLBACK_PLAN, ROLLBACK_METADATA):
        assert schema["namespace"] == "org.apache.hudi.avro.model"
        for record in records(schema):
            found[record["name"]] = " ".join(f["name"] for f in record["fields"])
    assert found == REFERENCE


@pytest.fixture
def worked():
    """A table on which every planned action has run. Its base path needs escapes in a URI, and has none in Hadoop."""
    clock = ManualClock()
    table, storage, _ = new_table(clock, MemoryStorage("file:/data/t%201%25", clock=clock))
    for n in range(3):
        write(table, [(f"k{n}", "p", 1, "x"), ("k0", "p", n, "y")], **{"hoodie.parquet.small.file.limit": 10**8})
    schedule_clean(table, {"hoodie.cleaner.commits.retained": 1})
    run_clean(table)
    write(table, [("z", "p", 1, "x")])
    schedule_clustering(table, {"hoodie.clustering.plan.strategy.sort.columns": "v"})
    cluster(table)
    dead = WriteTransaction.begin(table.timeline, table.lock, "UPSERT")
    storage.put(f".hoodie/.temp/{dead.instant}/p/f-0_0-0-0_{dead.instant}.parquet.marker.CREATE", b"")
    dead.abandon()
    clock.advance(DEATH_S)
    roll_back_dead(table)
    return storage


def documents(storage, suffix):
    return [(o.path, storage.read(o.path)) for o in storage.list_folder(".hoodie").objects if o.path.endswith(suffix)]


@pytest.mark.parametrize("suffix", [".clean.requested", ".clean", ".replacecommit.requested", ".rollback.requested", ".rollback"])
def test_written_files_are_one_record_without_codec(worked, suffix):
    ((path, content),) = documents(worked, suffix)
    reader = fastavro.reader(io.BytesIO(content))
    assert reader.codec == "null"
    (record,) = list(reader)
    assert decode_document(content, path) == record


def test_clean_documents(worked):
    ((_, plan),) = documents(worked, ".clean.requested")
    ((path, metadata),) = documents(worked, ".clean")
    plan, metadata = decode_document(plan, ""), decode_document(metadata, "")
    assert plan["policy"] == metadata["partitionMetadata"]["p"]["policy"] == "KEEP_LATEST_COMMITS"
    assert plan["version"] == metadata["version"] == 2
    (file,) = plan["filePathsToBeDeletedPerPartition"]["p"]
    assert file["filePath"].startswith("file:/data/t 1%/p/")
    names = metadata["partitionMetadata"]["p"]["successDeleteFiles"]
    assert names == [file["filePath"].rsplit("/", 1)[1]]
    assert metadata["earliestCommitToRetain"] == plan["earliestInstantToRetain"]["timestamp"]
    assert metadata["startCleanTime"] in path
    assert metadata["totalFilesDeleted"] == 1


def test_clustering_document(worked):
    ((_, content),) = documents(worked, ".replacecommit.requested")
    plan = decode_document(content, "")
    assert plan["operationType"] == "CLUSTER"
    assert plan["clusteringPlan"]["preserveHoodieMetadata"] is True
    assert plan["clusteringPlan"]["strategy"]["strategyParams"] == {"hoodie.clustering.plan.strategy.sort.columns": "v"}
    (group,) = plan["clusteringPlan"]["inputGroups"]
    assert {s["dataFilePath"].rpartition("/")[0] for s in group["slices"]} == {"file:/data/t 1%/p"}
    assert {s["bootstrapFilePath"] for s in group["slices"]} == {""}
    assert set(group["metrics"]) == {
        "TOTAL_LOG_FILES",
        "TOTAL_LOG_FILES_SIZE",
        "TOTAL_IO_READ_MB",
        "TOTAL_IO_WRITE_MB",
        "TOTAL_IO_MB",
        "COLUMN_NULLS.v",
    }


def test_rollback_documents(worked):
    ((_, plan),) = documents(worked, ".rollback.requested")
    ((_, metadata),) = documents(worked, ".rollback")
    plan, metadata = decode_document(plan, ""), decode_document(metadata, "")
    (request,) = plan["RollbackRequests"]
    target = plan["instantToRollback"]["commitTime"]
    assert request["filesToBeDeleted"] == [f"/data/t 1%/p/f-0_0-0-0_{target}.parquet"]
    assert (request["fileId"], request["latestBaseInstant"]) == ("f-0", target)
    assert metadata["commitsRollback"] == [target]
    assert metadata["partitionMetadata"]["p"]["successDeleteFiles"] == request["filesToBeDeleted"]
    assert metadata["instantsRollback"] == [{"commitTime": target, "action": "commit"}]


def test_equal_documents_are_equal_bytes():
    document = {"instantToRollback": {"commitTime": "1", "action": "commit"}, "RollbackRequests": [], "version": 1}
    assert encode_document(ROLLBACK_PLAN, document) == encode_document(ROLLBACK_PLAN, dict(reversed(document.items())))


def test_a_file_of_millions_of_empty_records_is_refused_at_once():
    schema = {"type": "record", "name": "r", "fields": []}
    sink = io.BytesIO()
    fastavro.writer(sink, schema, [])
    marker = sink.getvalue()[-16:]
    block = io.BytesIO()
    fastavro.schemaless_writer(block, {"type": "record", "name": "b", "fields": [{"name": "n", "type": "long"}]}, {"n": 2**50})
    with pytest.raises(CorruptMetadata, match="exactly one record"):
        decode_document(sink.getvalue() + block.getvalue() + b"\x00" + marker, "x")


@pytest.mark.parametrize("content", [b"", b"Obj", b"Obj\x01\x00", b"{}", b"\xff" * 100])
def test_broken_containers_are_typed_errors(content):
    with pytest.raises(CorruptMetadata, match="some/file"):
        decode_document(content, "some/file")
