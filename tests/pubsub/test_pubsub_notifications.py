"""Notifications through Google's own emulator of Pub/Sub (google-cloud-cli-pubsub-emulator): `make test-pubsub`."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import urllib3
from tests.artifacts import java_command
from tests.real.ports import free_ports
from tests.unit.services.test_notifications import ENTRY, PAYLOAD, PUBSUB

from tideline_mirror.notification_port import NotificationsUnavailable
from tideline_mirror.notification_source import open_source
from tideline_mirror.object_messages import changed_objects

_READY_S = 120.0


def _emulator() -> Path | None:
    gcloud = shutil.which("gcloud")
    jars = Path(gcloud).resolve().parents[1].glob("platform/pubsub-emulator/lib/*-all.jar") if gcloud else ()
    return next(iter(jars), None)


@pytest.fixture
def emulator() -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """Host and process of a running emulator."""
    jar = _emulator()
    assert jar is not None, "install google-cloud-cli-pubsub-emulator"
    (port,) = free_ports(1)
    command = [*java_command(), "-Xmx128m", "-jar", str(jar), "--host=127.0.0.1", f"--port={port}"]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline_s = time.monotonic() + _READY_S
        while time.monotonic() < deadline_s:
            try:
                urllib3.request("GET", f"http://127.0.0.1:{port}/", retries=False, timeout=30)
                break
            except urllib3.exceptions.HTTPError:
                assert server.poll() is None
        yield f"127.0.0.1:{port}", server
    finally:
        server.kill()
        server.wait()


@pytest.mark.real
def test_a_message_is_acknowledged_only_by_the_call_after_the_one_that_received_it(
    emulator: tuple[str, subprocess.Popen[bytes]],
) -> None:
    host, server = emulator
    project = f"http://{host}/v1/projects/p"

    def ask(method: str, path: str, body: object) -> None:
        answer = urllib3.request(method, f"{project}/{path}", json=body, timeout=60)
        assert answer.status == 200, answer.data

    ask("PUT", "topics/lake", {})
    for name in ("first", "second"):
        ask("PUT", f"subscriptions/{name}", {"topic": "projects/p/topics/lake", "ackDeadlineSeconds": 10})
    first = open_source(f"pubsub://{host}/p/first?tls=off", {})
    assert first.receive(1) == [], "nothing was sent, and the subscription answers"
    sent = {"data": base64.b64encode(json.dumps(PAYLOAD).encode()).decode(), "attributes": PUBSUB["attributes"]}
    ask("POST", "topics/lake:publish", {"messages": [sent, {"data": base64.b64encode(b"noise").decode()}]})
    received: list[bytes | str] = []
    while len(received) < 2:
        received += first.receive(5)
    assert [place for message in received for place in changed_objects(message)] == [ENTRY]
    dies = open_source(f"pubsub://{host}/p/second?tls=off", {})
    while not dies.receive(5):
        pass
    dies.close()
    survivor = open_source(f"pubsub://{host}/p/second?tls=off", {})
    again: list[str] = []
    while ENTRY not in again:
        again += [place for message in survivor.receive(5) for place in changed_objects(message)]
    with pytest.raises(NotificationsUnavailable, match="404"):
        open_source(f"pubsub://{host}/p/none?tls=off", {}).receive(1)
    server.kill()
    server.wait()
    with pytest.raises(NotificationsUnavailable):
        first.receive(1)
