"""Spark's own Kafka source on a real Kafka into a table: a driver that is killed on either side of a commit leaves every record
once."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.artifacts import REPOSITORY_ROOT
from tests.ingest.applications import Place, contents, row
from tests.real.kafka import spark_source_jars

from tideline_spark.sink import BatchMark, progress_key
from tideline_table.table import Table

RECORDS = 4000
BATCH_RECORDS = 1000
TIMEOUT_S = 280


class Stream:
    """Drivers of one query, one after the other."""

    def __init__(self, place: Place, topic: str, table: str) -> None:
        jars = [str(jar) for jar in spark_source_jars()]
        own = {"brokers": place.bootstrap_servers, "topic": topic, "table": table, "jars": jars}
        self.settings = {**own, "checkpoint": str(Path(place.folder) / "checkpoint"), "batch_records": BATCH_RECORDS}

    def run(self, dies: tuple[int, str] | None) -> tuple[int, list[int]]:
        """The exit code of a driver, and the batches that it ended."""
        settings = json.dumps({**self.settings, "dies": dies})
        command = [sys.executable, "-m", "tests.ingest.spark_stream", settings]
        done = subprocess.run(command, cwd=REPOSITORY_ROOT, capture_output=True, text=True, check=False, timeout=TIMEOUT_S)
        assert done.returncode in (0, -signal.SIGKILL), done.stderr[-4000:]
        return done.returncode, [int(line) for line in done.stdout.split()]


@pytest.mark.timeout(900)  # three times a Spark is started
def test_killed_on_either_side_of_a_commit(place: Place) -> None:
    """Blind inserts, of which a second one would be seen. Records of each batch come from all partitions of the topic."""
    topic, path = place.topic("spark-source"), place.create()
    sent = [(row(f"k{n:05d}", f"r{n % 3}", n, n + 0.5), n % 4) for n in range(RECORDS)]
    place.send(topic, ((found["id"].encode(), json.dumps(found).encode(), partition) for found, partition in sent))
    stream, table = Stream(place, topic, path), Table.open(path)

    assert stream.run((1, "behind")) == (-signal.SIGKILL, [0, 1])
    assert len(table.refresh().completed_writes()) == 2
    # Spark knows nothing of the end of batch 1.
    assert stream.run((2, "before")) == (-signal.SIGKILL, [1])
    assert len(table.refresh().completed_writes()) == 2
    assert len(contents(table)) == 2 * BATCH_RECORDS
    assert stream.run(None) == (0, [2, 3])

    assert len(table.refresh().completed_writes()) == RECORDS // BATCH_RECORDS
    assert contents(table) == sorted(tuple(found.values()) for found, _ in sent)
    progress = table.refresh().progress[progress_key("trips")]
    assert BatchMark.from_text(progress.value).batch_id == 3
