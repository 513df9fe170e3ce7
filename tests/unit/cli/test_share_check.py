"""`tideline share --check`: what the commits of Apache Hudi's writers show about them."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from tests.unit.services.test_unlocked_writers import write_of_hudi
from tests.unit.table.fixtures import unpacked
from tests.unit.table.shared import upgrade

from tideline_locks import open_hudi_lock
from tideline_table.storage import LocalStorage
from tideline_table.table import Table, TableRequest, create_table

STAT = {"partitionPath": "p", "fileId": "f-0", "path": "p/f-0_0-{stage}-9_{instant}.parquet", "numWrites": 1, "fileSizeInBytes": 9}
FROM_1 = {"prevBaseFile": None, "numUpdates": 0}
STREAMER = {"deltastreamer.checkpoint.key": "topic,0:1"}


@pytest.fixture
def hudis(tmp_path) -> Path:
    """A version-6 table without writes that Apache Hudi could have made."""
    path = tmp_path / "trips"
    (path / ".hoodie").mkdir(parents=True)
    lines = {
        "hoodie.table.name": "trips",
        "hoodie.table.type": "COPY_ON_WRITE",
        "hoodie.table.version": "6",
        "hoodie.timeline.layout.version": "1",
        "hoodie.table.recordkey.fields": "id",
        "hoodie.table.partition.fields": "city",
        "hoodie.table.base.file.format": "PARQUET",
        "hoodie.archivelog.folder": "archived",
        "hoodie.table.timeline.timezone": "UTC",
        "hoodie.table.keygenerator.class": "org.apache.hudi.keygen.SimpleKeyGenerator",
    }
    text = "".join(f"{key}={value}\n" for key, value in lines.items())
    (path / ".hoodie" / "hoodie.properties").write_text(text)
    return path


def commit(table: Path, second: int, *, stage: int, operation: str = "UPSERT", fields=(), **extra: str) -> str:
    """What a job leaves of a write, as far as the check reads it."""
    instant = f"20260101000{second:03}000"
    stat = {**STAT, "path": STAT["path"].format(stage=stage, instant=instant), **dict(fields)}
    document = {"partitionToWriteStats": {"p": [stat]}, "extraMetadata": extra, "operationType": operation}
    for suffix, content in (("commit.requested", ""), ("inflight", ""), ("commit", json.dumps(document))):
        (table / ".hoodie" / f"{instant}.{suffix}").write_text(content)
    return instant


def check(cli, table: Path, *arguments: str) -> dict:
    return cli("share", table, "--check", "--json", *arguments).document


def test_each_kind_and_release_is_a_writer_with_what_it_lacks(cli, hudis, snapshot):
    first = commit(hudis, 1, stage=12, **STREAMER)
    last = commit(hudis, 2, stage=40, **STREAMER)
    commit(hudis, 3, stage=3, fields=FROM_1.items(), _hudi_streaming_sink_checkpoint='{"orders": "7"}')
    commit(hudis, 4, stage=9, operation="CLUSTER")
    before = snapshot(hudis)
    outcome = cli("share", hudis, "--check", "--json")
    assert snapshot(hudis) == before
    assert outcome.code == 1
    found = outcome.document
    old, new = found["writers"]
    assert (old["name"], old["commits"], old["first"], old["last"]) == ("Hudi streamer (0.x)", 2, first, last)
    assert (new["name"], new["identifiers"]) == ("Spark streaming sink orders (1.x)", ["orders"])
    assert found["services"] == ["clustering"]
    assert {old["verdict"], new["verdict"]} == {"lacks_options"}
    assert old["lacks"]["hoodie.cleaner.policy.failed.writes"] == "LAZY"
    assert "hoodie.write.auto.upgrade" not in old["lacks"]
    assert new["lacks"]["hoodie.write.auto.upgrade"] == "false"
    assert "hoodie.metadata.enable" not in old["lacks"]


def test_a_stage_that_falls_is_another_application(cli, hudis):
    for second, stage in enumerate((12, 40, 3, 8, 2), 1):
        commit(hudis, second, stage=stage)
    (writer,) = check(cli, hudis)["writers"]
    assert writer["applications"] == 3
    (writer,) = check(cli, hudis, "--commits", "2")["writers"]
    assert (writer["applications"], writer["commits"]) == (2, 2)


@pytest.mark.parametrize("fields", [(), FROM_1.items()], ids=["0.x", "1.x"])
def test_traces_of_lock_and_heartbeats_count_and_a_metadata_table_does(cli, hudis, fields):
    commit(hudis, 1, stage=12, fields=fields)
    (hudis / ".hoodie" / ".heartbeat").mkdir()
    taken = hudis / ".hoodie" / ".locks" / "table_lock.json"
    taken.parent.mkdir()
    taken.write_text('{"expired": true, "owner": "x", "tideline": {"lease_id": "x"}}')  # as Tideline leaves it
    assert "hoodie.write.lock.provider" in check(cli, hudis)["writers"][0]["lacks"]
    taken.write_text('{"expired": true, "owner": "x"}')
    found = cli("share", hudis, "--check", "--json")
    assert (found.code, found.document["is_ready"]) == (0, True)
    assert found.document["writers"][0]["verdict"] == "ready"
    properties = hudis / ".hoodie" / "hoodie.properties"
    properties.write_text(properties.read_text() + "hoodie.table.metadata.partitions=files\n")
    (writer,) = check(cli, hudis)["writers"]
    assert writer["lacks"]["hoodie.metadata.enable"] == "false"
    assert "hoodie.write.lock.provider" not in writer["lacks"]


def test_releases_before_1_have_no_lock_in_an_object_store(cli, hudis):
    commit(hudis, 1, stage=12)
    (writer,) = check(cli, hudis, "--lock-provider", "storage")["writers"]
    assert writer["verdict"] == "no_common_lock"
    assert "hoodie.write.concurrency.mode" in writer["lacks"]
    assert "hoodie.write.lock.provider" not in writer["lacks"], "it names a class that these releases lack"


def test_each_lock_is_chosen_by_its_name(cli, hudis):
    commit(hudis, 1, stage=12)
    (writer,) = check(cli, hudis, "--lock-provider", "hive-metastore", "--lock-place", "hive.example:9083/locks/trips")["writers"]
    assert writer["lacks"]["hoodie.write.lock.hivemetastore.database"] == "locks"


def test_people_see_the_options_of_each_writer(cli, hudis):
    commit(hudis, 1, stage=12)
    text = cli("share", hudis, "--check").text
    assert "nothing was changed" in text
    assert "Spark or Flink job (0.x): no heartbeat was ever written" in text
    assert "org.apache.hudi.client.transaction.lock.FileSystemBasedLockProvider" in text


def test_a_table_that_cannot_be_shared_says_why(cli, hudis):
    properties = hudis / ".hoodie" / "hoodie.properties"
    properties.write_text(properties.read_text().replace("table.version=6", "table.version=5"))
    commit(hudis, 1, stage=12)
    assert "version" in check(cli, hudis)["refused"]


def test_writes_of_tideline_are_none_of_hudis(cli, done, filled):
    done("share", filled)
    found = check(cli, filled)
    assert (found["writers"], found["commits"]) == ([], 0)


def test_a_real_table_of_two_releases_has_two_writers(cli, tmp_path):
    table = unpacked("reported", "trips_logical_types_json_cow_read_v6", tmp_path)
    old, new = check(cli, table)["writers"]
    assert (old["name"], new["name"]) == ("Hudi streamer (0.x)", "Hudi streamer (1.x)")
    assert (old["operations"], old["commits"], new["commits"]) == (["UPSERT"], 1, 1)


def test_a_real_table_of_version_5_says_what_its_writers_run(cli, tmp_path):
    found = check(cli, unpacked("reported", "unsup_hudi-v5-table", tmp_path))
    assert [writer["release"] for writer in found["writers"]] == ["0.x"]
    assert "version 5" in found["refused"]


def test_services_are_resumed_when_every_job_takes_the_lock(cli, tmp_path):
    path = tmp_path / "trips"
    create_table(str(path), TableRequest("trips", pa.schema([("id", pa.string()), ("city", pa.string())]), ("id",), ("city",)))
    refused = cli("share", path, "--resume")
    assert refused.code == 2
    assert "is not shared" in refused.stderr
    cli("share", path, "--lock-provider", "filesystem")
    assert cli("share", path, "--resume", "--json").document["without_lock"] == []
    instant = write_of_hudi(Table.open(str(path), hudi_lock=open_hudi_lock), unlocked=True)
    assert "unlocked_writer" in cli("status", path).text
    (writer,) = check(cli, path)["writers"]
    assert (writer["reasons"][-1], writer["verdict"]) == (
        f"its write {instant} completed without the lock of the table",
        "lacks_options",
    )
    assert "the last " + instant in cli("share", path, "--resume").text
    assert "unlocked_writer" not in cli("status", path).text


def test_the_log_of_a_shared_table_says_who_takes_the_lock(cli, done, hudis):
    """Tideline takes it, too: that it was taken says nothing about a job."""
    commit(hudis, 1, stage=12)
    (hudis / ".hoodie" / ".heartbeat").mkdir()
    done("share", hudis)
    assert "trips: probation: seen 0 of 1 writers" in done("status", hudis).text
    (hudis / ".hoodie" / "lock").touch()
    (writer,) = check(cli, hudis)["writers"]
    assert writer["reasons"] == ["it was not yet seen with the lock since the table was shared"]
    assert "hoodie.write.lock.provider" in writer["lacks"]
    (hudis / ".hoodie" / "lock").unlink()
    other = cli("share", hudis, "--lock-provider", "filesystem", "--lock-expiry", "5").stderr
    assert "that of the table: filesystem, 10 min; tideline share PATH prints its options" in other
    done("share", hudis, "--resume")
    found = cli("share", hudis, "--check", "--json")
    assert (found.code, found.document["writers"][0]["verdict"]) == (0, "ready")


def test_a_dead_job_of_an_unmanaged_table_is_left_to_apache_hudi(cli, done, hudis):
    commit(hudis, 1, stage=12)
    begun = commit(hudis, 2, stage=13)
    (hudis / ".hoodie" / f"{begun}.commit").unlink()
    (document,) = done("status", hudis, "--json").document["tables"]
    (found,) = (each for each in document["findings"] if each["kind"] == "dead_writer")
    assert found["ends_in_s"] is None
    assert "the next job of Apache Hudi" in found["text"]
    assert cli("run", "rollback", hudis).code != 0, "what the finding must not advise"


def test_share_goes_on_in_the_version_that_apache_hudi_gave_a_shared_table(done, filled):
    """Without --lock-provider, too: the table keeps its lock, its log and its uid."""
    before = json.loads(done("share", filled, "--json").text)
    upgrade(LocalStorage(filled))
    after = json.loads(done("share", filled, "--json").text)
    assert after["uid"] == before["uid"]
    assert after["hudi_options"]["hoodie.write.table.version"] == "9"
    assert "refused" not in done("status", filled).text
