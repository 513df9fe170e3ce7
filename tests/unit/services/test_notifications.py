"""Notifications of an object store: the forms of their messages, which tables may rest by them, and queues that are away."""

from __future__ import annotations

import base64
import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

import boto3
import pytest
from moto.server import ThreadedMotoServer
from tests.unit.services.fleet import Fleet, write

from tideline_mirror.mirroring import MirrorService
from tideline_mirror.notices import ALIVE_S, Notices
from tideline_mirror.notification_port import NotificationsUnavailable
from tideline_mirror.notification_source import check_notifications, open_source
from tideline_mirror.object_messages import MAX_BYTES, changed_objects, table_of
from tideline_mirror.pubsub_notifications import PubsubNotifications
from tideline_mirror.settings import MirrorSettings
from tideline_runtime.errors import InvalidSetting
from tideline_runtime.hinted_tables import HintedTables

LAKE = "s3://lake/sales/trips"
ENTRY = f"{LAKE}/.hoodie/.tideline/log/00000000000000000007.json"


def record(key: str, name: str = "ObjectCreated:Put", bucket: str = "lake") -> dict[str, object]:
    """As S3 documents the structure of its event messages (event version 2.1), without what nothing reads."""
    return {
        "eventVersion": "2.1",
        "eventSource": "aws:s3",
        "awsRegion": "us-west-2",
        "eventTime": "1970-01-01T00:00:00.000Z",
        "eventName": name,
        "s3": {"s3SchemaVersion": "1.0", "bucket": {"name": bucket, "arn": f"arn:aws:s3:::{bucket}"}, "object": {"key": key}},
    }


def message(*keys: str) -> str:
    return json.dumps({"Records": [record(key) for key in keys]})


KEY = ENTRY.removeprefix("s3://lake/")
BRIDGE = {
    "version": "0",
    "detail-type": "Object Created",
    "source": "aws.s3",
    "detail": {"version": "0", "bucket": {"name": "lake"}, "object": {"key": KEY, "size": 5}, "reason": "PutObject"},
}
MINIO = {"EventName": "s3:ObjectCreated:Put", "Key": f"lake/{KEY}", "Records": [record(KEY, "s3:ObjectCreated:Put")]}


PAYLOAD = {
    "kind": "storage#object",
    "id": f"lake/{KEY}/1546453283226999",
    "name": KEY,
    "bucket": "lake",
    "generation": "1546453283226999",
    "contentType": "application/json",
    "size": "5",
}
PUBSUB = {
    "attributes": {
        "bucketId": "lake",
        "eventType": "OBJECT_FINALIZE",
        "notificationConfig": "projects/_/buckets/lake/notificationConfigs/1",
        "objectGeneration": "1546453283226999",
        "objectId": KEY,
        "payloadFormat": "JSON_API_V1",
    },
    "data": base64.b64encode(json.dumps(PAYLOAD).encode()).decode(),
    "messageId": "19917247034",
}
"""As Google documents Pub/Sub notifications of Cloud Storage (cloud.google.com/storage/docs/pubsub-notifications), and a received
message of Pub/Sub's REST API."""
BLOB = {
    "api": "PutBlob",
    "contentType": "application/json",
    "contentLength": 5,
    "blobType": "BlockBlob",
    "url": "https://blob.example/x",
}
GRID = {
    "topic": "/subscriptions/{subscription-id}/resourceGroups/Storage/providers/Microsoft.Storage/storageAccounts/lake",
    "subject": f"/blobServices/default/containers/lake/blobs/{KEY}",
    "eventType": "Microsoft.Storage.BlobCreated",
    "eventTime": "2017-06-26T18:41:00.9584103Z",
    "id": "831e1650-001e-001b-66ab-eeb76e069631",
    "data": BLOB,
    "dataVersion": "",
    "metadataVersion": "1",
}
CLOUD = {
    "source": GRID["topic"],
    "subject": GRID["subject"],
    "type": "Microsoft.Storage.BlobCreated",
    "time": GRID["eventTime"],
    "id": GRID["id"],
    "specversion": "1.0",
    "data": BLOB,
}
"""As Microsoft documents Azure Blob Storage as a source of Event Grid
(learn.microsoft.com/azure/event-grid/event-schema-blob-storage)."""


@pytest.mark.parametrize(
    "sent",
    [
        json.dumps(PUBSUB),
        json.dumps(PAYLOAD).encode(),
        json.dumps([GRID]).encode(),
        json.dumps(GRID),
        json.dumps(CLOUD),
        json.dumps([CLOUD]),
        message(KEY),
        json.dumps(BRIDGE),
        json.dumps(MINIO).encode(),
        json.dumps({"Type": "Notification", "Message": message(KEY)}),
        json.dumps({"Type": "Notification", "Message": json.dumps(BRIDGE)}),
    ],
    ids=[
        "Pub/Sub",
        "Pub/Sub's payload",
        "Event Grid, a list",
        "Event Grid",
        "CloudEvents of Event Grid",
        "CloudEvents, a list",
        "S3",
        "EventBridge",
        "MinIO",
        "S3 behind SNS",
        "EventBridge behind SNS",
    ],
)
def test_each_form_of_a_message_names_its_object(sent: str | bytes) -> None:
    assert changed_objects(sent) == [ENTRY]


def test_a_key_is_unescaped_as_s3_escapes_it() -> None:
    assert changed_objects(message("a+b/%E2%82%AC%2B/x")) == ["s3://lake/a b/€+/x"]


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"\xff\xfe",
        "[]",
        "7",
        '{"Records": 1}',
        '{"Records": [1, null, {}, {"eventName": 1, "s3": 2}, {"eventName": "ObjectCreated:Put", "s3": {"bucket": {"name": []}}}]}',
        '{"Message": "no JSON"}',
        '{"detail": {"bucket": 1}}',
        "[" * 100_000,
        "[[[[[]]]]]",
        json.dumps(PUBSUB | {"attributes": PUBSUB["attributes"] | {"eventType": "OBJECT_METADATA_UPDATE"}}),
        json.dumps(PUBSUB | {"attributes": {"eventType": "OBJECT_FINALIZE", "bucketId": ["lake"], "objectId": KEY}}),
        json.dumps(PAYLOAD | {"kind": "storage#bucket"}),
        json.dumps(GRID | {"eventType": "Microsoft.Storage.BlobTierChanged"}),
        json.dumps(GRID | {"subject": "/blobServices/default/containers/lake"}),
        json.dumps(CLOUD | {"subject": 7, "type": []}),
        # S3 sends it when notifications are set up.
        '{"Service": "Amazon S3", "Event": "s3:TestEvent", "Time": "2014-10-13T15:57:02.089Z", "Bucket": "lake"}',
        json.dumps({"Records": [record("a", "ObjectTagging:Put")]}),
        " " * MAX_BYTES + message(KEY),
    ],
)
def test_a_foreign_message_names_nothing(sent: str | bytes) -> None:
    assert changed_objects(sent) == []


@pytest.mark.parametrize(
    ("name", "is_told"),
    [
        (".tideline/log/00000000000000000007.json", True),
        (".tideline/table.json", True),
        ("hoodie.properties", True),
        ("20240101000000000.commit", True),
        ("timeline/20240101000000000_20240101000001000.commit", True),
        (".heartbeat/20240101000000000", False),
        ("metadata/.hoodie/20240101000000000.deltacommit", False),
        ("metadata/files/.files-0000-0_0-0-0", False),
        ("", False),
    ],
)
def test_the_files_of_steps_tell_of_a_table_and_those_of_its_metadata_do_not(name: str, *, is_told: bool) -> None:
    assert table_of(f"{LAKE}/.hoodie/{name}") == ((LAKE, name) if is_told else None)


def test_data_files_tell_of_no_table() -> None:
    assert table_of(f"{LAKE}/oslo/a.parquet") is None


class Clock:
    def __init__(self) -> None:
        self.at_s = 1000.0

    def monotonic_s(self) -> float:
        return self.at_s


class Told:
    """Notices of two tables of one bucket, without a thread."""

    def __init__(self) -> None:
        self.clock, self.hinted, self.woken = Clock(), HintedTables(), 0
        self.notices = Notices(self.clock, self.hinted, self.wake)
        self.notices.know({"t": LAKE, "u": "s3://lake/sales/users"})

    def wake(self) -> None:
        self.woken += 1

    def after(self, seconds: float = 1.0) -> None:
        self.clock.at_s += seconds

    def look(self, base_path: str = LAKE, *, finds: bool = False) -> None:
        self.after()
        if finds:
            self.notices.found(base_path)
        self.notices.looked(base_path, self.clock.at_s)
        self.after()

    def tells(self) -> tuple[bool, bool]:
        return self.notices.tells(LAKE), self.notices.tells("s3://lake/sales/users")


@pytest.fixture
def told() -> Told:
    """The bucket has told of one table, and both were looked at."""
    told = Told()
    told.notices.take([ENTRY])
    told.look()
    told.look("s3://lake/sales/users")
    return told


def test_a_message_hints_at_its_table_once_however_often_it_comes(told: Told) -> None:
    assert (told.hinted.take(), told.woken) == (["t"], 1)
    told.notices.take([ENTRY, ENTRY, "s3://lake/other/.hoodie/.tideline/log/00000000000000000001.json", "s3://lake/x"])
    assert (told.hinted.take(), told.woken) == (["t"], 2)


def test_tables_of_a_bucket_rest_when_it_has_told_and_they_were_looked_at_after_that() -> None:
    told = Told()
    told.look()
    told.notices.take([])
    assert told.tells() == (False, False), "an empty queue proves nothing"
    told.notices.take([ENTRY])
    assert told.tells() == (False, False), "what happened before was not told"
    told.look()
    assert told.tells() == (True, False)


def test_a_source_that_does_not_answer_is_not_believed(told: Told) -> None:
    assert told.tells() == (True, True)
    told.after(ALIVE_S)
    assert (told.tells(), told.notices.places()) == ((False, False), None)
    told.notices.take([])
    assert told.tells() == (True, True)
    told.notices.forget()
    told.notices.take([])
    assert told.tells() == (False, False), "messages may be lost while it was away"


def test_a_step_of_which_nobody_told_ends_the_belief_until_the_table_is_told_of(told: Told) -> None:
    told.look(finds=True)
    assert told.tells() == (False, False)
    told.notices.take(["s3://lake/sales/users/.hoodie/hoodie.properties"])
    told.look()
    told.look("s3://lake/sales/users")
    assert told.tells() == (False, True), "the bucket tells, but not of this table"
    told.notices.take([ENTRY])
    told.look(finds=True)
    assert told.tells() == (True, True)


def test_a_look_before_the_source_answers_is_owed_again(fleet: Fleet) -> None:
    table = fleet.create()
    write(table, 0)
    service, _ = fleet.service(MirrorService, MirrorSettings, "mirror", freshness_s=3600.0)
    service.tick()
    fleet.clock.advance(600)
    service.tick()
    write(table, 10)
    service.tick()
    assert service._known[table.uid].sequence < table.refresh().sequence, "looked at less than a minute before"
    service._notices.take([])
    service.tick()
    assert service._known[table.uid].sequence == table.refresh().sequence
    place = service._tables.known()[table.uid]
    assert not service._notices.owes(place)
    service._notices.take([])
    assert not service._notices.owes(place), "the source was there all the time"
    fleet.clock.advance(1)
    service._notices.forget()
    service._notices.take([])
    assert service._notices.owes(place), "what happened while the source was away, nobody tells"


def test_a_table_that_comes_or_goes_makes_the_search_due(told: Told) -> None:
    before = told.notices.places()
    told.notices.take([ENTRY])
    assert before is not None
    assert told.notices.places() == before
    told.notices.take(["s3://lake/sales/new/.hoodie/hoodie.properties"])
    assert told.notices.places() != before


@pytest.mark.parametrize(
    "url",
    [
        "sqs://host/queue",
        "sqs://host/1/q?x=1",
        "kafka://host",
        "kafka://host/a/b",
        "amqp://host/q",
        "sqs://u:pw@host/1/q",
        "pubsub://host/p",
        "pubsub://host/p/s?region=x",
    ],
)
def test_a_wrong_address_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(InvalidSetting) as refused:
        check_notifications(url, shard_leases=False)
    assert "pw" not in str(refused.value)


def test_instances_that_divide_tables_by_leases_cannot_share_a_queue() -> None:
    check_notifications("kafka://host:9092/lake", shard_leases=True)
    with pytest.raises(InvalidSetting, match="each instance reads whole"):
        check_notifications("sqs://host/1/queue", shard_leases=True)
    with pytest.raises(InvalidSetting, match="each instance reads whole"):
        check_notifications("pubsub://pubsub.googleapis.com/p/s", shard_leases=True)


@pytest.fixture
def queue(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[object, str, str]]:
    """A client of a queue, its URL and the value of the setting."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    server = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        client = boto3.client("sqs", region_name="us-east-1", endpoint_url=f"http://{host}:{port}")
        url = client.create_queue(QueueName="lake", Attributes={"VisibilityTimeout": "0"})["QueueUrl"]
        yield client, url, f"sqs://{host}:{port}{urlsplit(url).path}?region=us-east-1&tls=off"
        client.close()
    finally:
        server.stop()


def test_a_message_is_deleted_only_by_the_call_after_the_one_that_received_it(queue: tuple[object, str, str]) -> None:
    client, url, setting = queue
    client.send_message(QueueUrl=url, MessageBody=message(KEY))
    first, second = open_source(setting, {}), open_source(setting, {})
    assert first.receive(0) == [message(KEY)]
    assert second.receive(0) == [message(KEY)], "whoever died had not dealt with it"
    second.receive(0)
    assert open_source(setting, {}).receive(0) == []
    client.delete_queue(QueueUrl=url)
    with pytest.raises(NotificationsUnavailable):
        second.receive(0)


def until(what) -> None:
    deadline_s = time.monotonic() + 60
    while not what():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def test_a_mirror_receives_from_a_queue_with_foreign_messages_and_polls_when_it_is_gone(
    fleet: Fleet, queue: tuple[object, str, str]
) -> None:
    client, url, setting = queue
    table = fleet.create("trips")
    write(table, 0)
    service, _ = fleet.service(MirrorService, MirrorSettings, "mirror", notifications=setting)
    service.tick()
    service._notices.know({table.uid: LAKE})
    for body in ("noise", message(KEY), message(KEY), "{}"):
        client.send_message(QueueUrl=url, MessageBody=body)
    until(lambda: service._notices.places() is not None)
    until(lambda: table.uid in service._notices._hinted.take() or service._notices._heard_s)
    client.delete_queue(QueueUrl=url)
    until(lambda: service._notices.places() is None)


def test_a_subscription_is_pulled_with_the_token_of_the_metadata_server_until_it_expires(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server speaks as Google documents access tokens of the metadata server; Pub/Sub itself: tests/contract/events."""
    asked: list[tuple[str, str | None]] = []

    class Metadata(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append((self.path, self.headers["Metadata-Flavor"]))
            body = json.dumps({"access_token": f"token-{len(asked)}", "expires_in": 61, "token_type": "Bearer"}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Metadata)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    now_s = [1000.0]
    monkeypatch.setattr("tideline_mirror.pubsub_notifications.time.monotonic", lambda: now_s[0])
    monkeypatch.setenv("GCE_METADATA_HOST", f"127.0.0.1:{server.server_port}")
    source = PubsubNotifications("https://pubsub.invalid", "p", "s")
    try:
        assert [source._fresh_token(), source._fresh_token()] == ["token-1", "token-1"]
        now_s[0] += 1
        assert source._fresh_token() == "token-2"
        with pytest.raises(NotificationsUnavailable, match=r"pubsub\.invalid"):
            source.receive(0)
    finally:
        server.shutdown()
        server.server_close()
    monkeypatch.setenv("GCE_METADATA_HOST", f"127.0.0.1:{server.server_port}")
    now_s[0] += 100
    with pytest.raises(NotificationsUnavailable, match="no token from the metadata server"):
        source.receive(0)
    assert asked == [("/computeMetadata/v1/instance/service-accounts/default/token", "Google")] * 2
