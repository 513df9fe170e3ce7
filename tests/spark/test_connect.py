"""Spark Connect: the data source in a session whose JVM is out of reach."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import tideline
from tideline_spark.java import find_java


def test_a_job_of_apache_hudi_runs_as_a_client_of_spark_connect(tmp_path: Path) -> None:
    table = tmp_path / "trips"
    environment = {**os.environ, "JAVA_HOME": str(find_java()), "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    # A process has sessions of one kind.
    ran = subprocess.run(
        [sys.executable, "-m", "tests.spark.connect_client", str(table), str(tmp_path)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    seen = json.loads(ran.stdout.splitlines()[-1])
    assert seen["class"].startswith("pyspark.sql.connect")
    assert seen["dear"] == [2, 3]
    assert seen["total"] == 1.0 + 9.0 + 3.0 + 4.0
    assert seen["refused"] == "a session of Spark Connect"
    rows = tideline.open(table).read(columns=["id", "fare"]).sort_by("id").to_pylist()
    assert rows == [{"id": 1, "fare": 1.0}, {"id": 2, "fare": 9.0}, {"id": 3, "fare": 3.0}, {"id": 4, "fare": 4.0}]
