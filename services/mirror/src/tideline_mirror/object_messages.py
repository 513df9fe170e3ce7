"""Which objects a notification of an object store names, in each form in which S3's events arrive.

S3 sends its events to a queue as they are. SNS and EventBridge wrap them, MinIO adds a name and a key, and servers with S3's API
send the same records.
"""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import unquote_plus

MAX_BYTES = 1 << 20
"""SQS takes messages of 1 MiB; a longer one is foreign."""
_MARK = "/.hoodie/"
_CHANGES = ("ObjectCreated", "ObjectRemoved", "Object Created", "Object Deleted")
_WRAPPED = 3
"""EventBridge or S3 behind SNS behind SQS: no message has more covers."""
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
    return []


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
