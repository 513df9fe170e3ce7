"""The AsyncAPI document by the official schema, and the examples in other languages, against a real broker."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest
from jsonschema import Draft7Validator
from tests.artifacts import REPOSITORY_ROOT, ensure_artifacts, java_command
from tests.contract.events.samples import new_uid, table_record, transitions
from tests.real.kafka import JARS, KafkaNode
from tests.real.npm import npm_package

from tideline_events import open_event_log

pytestmark = pytest.mark.real
EXAMPLES = REPOSITORY_ROOT / "examples" / "events"
TIMEOUT_S = 120


def published(node: KafkaNode, prefix: str) -> str:
    """The uid of a table with three commits."""
    uid = new_uid()
    with closing(open_event_log(f"{node.url}?prefix={prefix}&partitions=2&format=json")) as log:
        log.ensure_topics()
        with closing(log.publisher("shard")) as publisher:
            publisher.publish_transitions(uid, transitions(uid, 1, 3), table_record(uid, 3))
    return uid


def lines_of(command: Sequence[str | Path], **variables: str) -> list[str]:
    done = subprocess.run(
        [str(word) for word in command],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        env={**os.environ, **variables},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_the_asyncapi_document_is_valid() -> None:
    schema = json.loads((npm_package("@asyncapi/specs") / "schemas" / "3.0.0.json").read_text())
    document = json.loads((REPOSITORY_ROOT / "docs" / "events.asyncapi.json").read_text())
    assert list(Draft7Validator(schema).iter_errors(document)) == []
    document["channels"]["tideline.timeline"]["messages"] = []
    assert list(Draft7Validator(schema).iter_errors(document))


def test_the_example_in_node_prints_the_commits(kafka_node: KafkaNode) -> None:
    uid = published(kafka_node, "node.")
    wanted = [event for event in transitions(uid, 1, 3) if event.datachange]
    modules = npm_package("kafkajs").parent
    command = ["node", EXAMPLES / "consumer.js", kafka_node.bootstrap_servers, "node.timeline", "reports", str(len(wanted))]
    lines = lines_of(command, NODE_PATH=str(modules))
    assert [line.split()[:2] for line in lines] == [[event.table.name, str(event.sequence)] for event in wanted]


def test_the_example_in_java_prints_the_commits(kafka_node: KafkaNode) -> None:
    uid = published(kafka_node, "java.")
    wanted = [event for event in transitions(uid, 1, 3) if event.datachange]
    jars = ":".join(map(str, ensure_artifacts(json.loads(JARS.read_text()))))
    command = [
        *java_command(),
        "--source",
        "17",
        "-cp",
        jars,
        EXAMPLES / "Consumer.java",
        kafka_node.bootstrap_servers,
        "java.timeline",
        "reports",
    ]
    lines = lines_of([*command, str(len(wanted))])
    assert [line.split()[:2] for line in lines] == [[uid, str(event.sequence)] for event in wanted]
