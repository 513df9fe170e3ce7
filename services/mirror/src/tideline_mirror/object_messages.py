"""Which objects a notification of an object store names, in each form in which it arrives.

S3 sends its events to a queue as they are. SNS and EventBridge wrap them, MinIO adds a name and a key, and servers with S3's API
send the same records. Google's store sends messages of Pub/Sub, Azure's one sends events of Event Grid in its own schema or as
CloudEvents. All name the object as `s3://bucket/key`, because services open tables by S3's API; Azure's container is the bucket.
"""

from __future__ import annotations

import json
import re
from typing import Any
from urllib.parse import unquote_plus

MAX_BYTES = 1 << 20
"""SQS takes messages of 1 MiB; a longer one is foreign."""
_MARK = "/.hoodie/"
_CHANGES = ("ObjectCreated", "ObjectRemoved", "Object Created", "Object Deleted")
_GOOGLE_CHANGES = ("OBJECT_FINALIZE", "OBJECT_DELETE", "OBJECT_ARCHIVE")
_AZURE_CHANGES = ("Microsoft.Storage.BlobCreated", "Microsoft.Storage.BlobDeleted")
_AZURE_SUBJECT = re.compile(r"/blobServices/default/containers/([^/]+)/blobs/(.+)", re.DOTALL)
_WRAPPED = 3
"""EventBridge or S3 behind SNS behind SQS: no message has more covers. Event Grid sends lists of events."""
PROPERTIES = "hoodie.properties"
_STEPS = ("", "timeline/", ".tideline/", ".tideline/log/")
"""Folders of `.hoodie` whose files tell of a step or of the table itself; those of metadata tables and heartbeats do not."""


def changed_objects(message: bytes | str) -> list[str]:
    """Return the objects that a message says were created or deleted, as `s3://bucket/key`; none for a foreign message.

    Never raises: anybody may send to a queue.
    """
    if len(message) > MAX_BYTES:
        return []
    try:
        found = json.loads(message)
    except (ValueError, RecursionError):
        return []
    return _in(found, _WRAPPED)


def table_of(location: str) -> tuple[str, str] | None:
    """Return the base path of the table and the name below `.hoodie/` if the object tells of a step or a table, else None."""
    base_path, mark, name = location.partition(_MARK)
    folder, slash, _ = name.rpartition("/")
    return (base_path, name) if mark and name and folder + slash in _STEPS else None


def _in(found: Any, covers: int) -> list[str]:
    if isinstance(found, list) and covers:
        return [location for event in found for location in _in(event, covers - 1)]
    if not isinstance(found, dict):
        return []
    records = found.get("Records")
    if isinstance(records, list):
        return [location for record in records if (location := _of_record(record)) is not None]
    if isinstance(found.get("detail"), dict):
        return _of_bridge(found)
    cover = found.get("Message")
    if covers and isinstance(cover, str):
        try:
            return _in(json.loads(cover), covers - 1)
        except (ValueError, RecursionError):
            return []
    return _of_google(found) or _of_azure(found)


def _of_record(record: Any) -> str | None:
    try:
        name, bucket, key = record["eventName"], record["s3"]["bucket"]["name"], record["s3"]["object"]["key"]
        is_change = name.removeprefix("s3:").startswith(_CHANGES)
        # S3 and MinIO escape the key as in a form: a blank is a plus.
        return f"s3://{bucket}/{unquote_plus(key)}" if is_change and isinstance(bucket, str) else None
    except (KeyError, TypeError, AttributeError):
        return None


def _of_bridge(found: dict[str, Any]) -> list[str]:
    try:
        bucket, key = found["detail"]["bucket"]["name"], found["detail"]["object"]["key"]
    except (KeyError, TypeError):
        return []
    # EventBridge sends the key as it is.
    is_whole = found.get("detail-type") in _CHANGES and isinstance(bucket, str) and isinstance(key, str)
    return [f"s3://{bucket}/{key}"] if is_whole else []


def _of_google(found: dict[str, Any]) -> list[str]:
    attributes = found.get("attributes")
    if isinstance(attributes, dict):
        bucket, key = attributes.get("bucketId"), attributes.get("objectId")
        is_change = attributes.get("eventType") in _GOOGLE_CHANGES
    else:
        # The payload alone, as a bridge to Kafka sends it. It does not say what happened: a look at the table will.
        bucket, key, is_change = found.get("bucket"), found.get("name"), found.get("kind") == "storage#object"
    return [f"s3://{bucket}/{key}"] if is_change and isinstance(bucket, str) and isinstance(key, str) else []


def _of_azure(found: dict[str, Any]) -> list[str]:
    subject = found.get("subject")
    place = _AZURE_SUBJECT.fullmatch(subject) if isinstance(subject, str) else None
    # Event Grid's own schema says `eventType`, CloudEvents say `type`.
    is_change = found.get("eventType", found.get("type")) in _AZURE_CHANGES
    return [f"s3://{place[1]}/{place[2]}"] if place is not None and is_change else []
