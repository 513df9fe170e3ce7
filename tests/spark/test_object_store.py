"""Spark on tables in a real object store: writes, Spark's own scans, table services, and where credentials are seen."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from pyspark.sql import SparkSession
from tests.artifacts import REPOSITORY_ROOT
from tests.real.object_store import SECRET_KEY, ObjectStoreServer, running_object_store, spark_s3_jars
from tests.spark.tables import content, rows

from tideline_spark.errors import ObjectStoreScanUnavailable
from tideline_spark.tagging import scan_files
from tideline_table.table import Table

BUCKET = "lake"
TIMEOUT_S = 400

BEFORE = content(rows(0, 40, 1))
AFTER = sorted(content(rows(0, 30, 1)) + content(rows(30, 60, 2)))


@pytest.fixture(scope="module")
def store() -> Iterator[ObjectStoreServer]:
    with running_object_store("minio") as server:
        server.make_bucket(BUCKET)
        yield server


@pytest.fixture(scope="module")
def events(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("events")


@pytest.fixture(scope="module")
def seen(store: ObjectStoreServer, events: Path) -> dict[str, Any]:
    """What a driver saw; see `object_store_driver`."""
    settings = {"root": f"s3://{BUCKET}/tables", "jars": [str(jar) for jar in spark_s3_jars()], "events": events.as_uri()}
    environment = {**{k: v for k, v in os.environ.items() if not k.startswith("AWS_")}, **store.settings}
    command = [sys.executable, "-m", "tests.spark.object_store_driver", json.dumps(settings)]
    done = subprocess.run(
        command, cwd=REPOSITORY_ROOT, env=environment, capture_output=True, text=True, check=False, timeout=TIMEOUT_S
    )
    assert done.returncode == 0, done.stderr[-6000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.real
@pytest.mark.timeout(TIMEOUT_S + 60)
@pytest.mark.parametrize("kind", ["COW", "MOR"])
def test_writes_and_scans_of_spark_agree_with_the_engine(
    store: ObjectStoreServer, seen: dict[str, Any], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = seen[kind]
    assert found["inserted"] == BEFORE
    assert found["files"], "Spark scans the base files itself"
    assert all(unquote(file).startswith(f"s3://{BUCKET}/tables/{kind} é%2F/") for file in found["files"])
    assert found["key_scans"] == [False, True], "the upsert looked its keys up by a scan of Spark"
    assert found["upserted"] == AFTER
    assert found["incremental"] == content(rows(30, 60, 2))
    if kind == "COW":
        assert found["optimized"] == AFTER
    else:
        assert found["optimized"] != AFTER, "updates are in log files, which workers merge"
    for name, value in store.settings.items():
        monkeypatch.setenv(name, value)
    table = Table.open(f"s3://{BUCKET}/tables/{kind} é%2F")
    assert content(table.read()) == AFTER
    assert content(table.read(as_of=found["instant"])) == AFTER


@pytest.mark.real
@pytest.mark.timeout(TIMEOUT_S + 60)
@pytest.mark.parametrize("kind", ["COW", "MOR"])
def test_table_services_run_as_applications(seen: dict[str, Any], kind: str) -> None:
    found = seen[kind]
    assert found["service"]["exit_code"] == 0, found["service"]["log"]
    assert found["serviced"]["rows"] == AFTER
    assert found["serviced"]["with_logs"] == 0
    assert not set(found["serviced"]["files"]) & set(found["files"]), "the scan reads the new base files"


@pytest.mark.real
@pytest.mark.timeout(TIMEOUT_S + 60)
def test_paths_of_spark_itself_work_with_the_same_settings(seen: dict[str, Any]) -> None:
    assert seen["spark"] == {"renamed": True, "sum": 10}


@pytest.mark.real
@pytest.mark.timeout(TIMEOUT_S + 60)
def test_no_setting_plan_or_event_log_holds_credentials(seen: dict[str, Any], store: ObjectStoreServer, events: Path) -> None:
    logged = "".join(path.read_text(errors="replace") for path in events.rglob("*") if path.is_file())
    for shown in (seen["settings"], logged):
        assert store.endpoint in shown, "the settings are among what is looked through"
        assert SECRET_KEY not in shown
    assert SECRET_KEY not in seen["plan"]
    assert "fs.s3a.secret.key" not in seen["settings"]
    # Spark copies AWS_SECRET_ACCESS_KEY into Hadoop's configuration, and shows that with such values replaced.
    assert '"fs.s3a.secret.key":"*********(redacted)"' in logged


@pytest.mark.real
@pytest.mark.timeout(TIMEOUT_S + 60)
def test_credentials_that_the_jvm_lacks_are_refused_by_name(seen: dict[str, Any]) -> None:
    found = seen["refused"]
    assert len(found["said"]) == 2, "the read and the write"
    for said in found["said"]:
        assert said.startswith("AWS_SESSION_TOKEN in this process other than in Spark's JVM; expected the same credentials")
        assert "a-token-of-later" not in said
    assert (found["pending"], found["rows"]) == (0, AFTER), "the write was rolled back"


def test_a_session_without_hadoop_aws_is_one_line_with_coordinates(spark: SparkSession) -> None:
    hadoop = str(spark._jvm.org.apache.hadoop.util.VersionInfo.getVersion())
    with pytest.raises(ObjectStoreScanUnavailable) as caught:
        scan_files(spark, "s3://lake/t", ["a.parquet"], "id string")
    assert caught.value.found == f"Spark {spark.version} with Hadoop {hadoop} and without hadoop-aws"
    assert f"spark.jars.packages=org.apache.hadoop:hadoop-aws:{hadoop}" in str(caught.value)
    assert "\n" not in str(caught.value)
