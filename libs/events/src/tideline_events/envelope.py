"""The envelope of an event: CloudEvents 1.0 in Kafka binary mode around an Avro payload (docs/events.md).

`decode` returns the event that `encode` got, except for lists and texts above their caps. Both are pure. Publishers add
`ce_recordedtime` (`stamped`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from cloudevents.core.base import BaseCloudEvent
from cloudevents.core.bindings.kafka import KafkaMessage, from_binary, to_binary
from cloudevents.core.exceptions import BaseCloudEventException
from cloudevents.core.formats.json import JSONFormat
from cloudevents.core.v1.event import CloudEvent

from tideline_events.errors import InvalidEvent, PoisonEvent
from tideline_events.fields import bounded, payload_fields, payload_value
from tideline_events.payload import (
    ActionEvent,
    DeadLetter,
    Event,
    FindingEvent,
    Heartbeat,
    Hint,
    JobEvent,
    LockEvent,
    TableChange,
    TableRecord,
    Transition,
    VerdictEvent,
)
from tideline_events.record import MAX_RECORD_BYTES, Record
from tideline_events.schema import revisions, write_payload
from tideline_events.topics import CATALOG, DEAD_LETTER, DECISIONS, HINTS, JOBS, LOCKS, MIRRORS, TABLES, TIMELINE
from tideline_events.wire import AVRO, JSON, REGISTERED, read_value

CONTENT_TYPES = {kind.encode(): kind for kind in (AVRO, JSON, REGISTERED)}
RECORDED_TIME = "ce_recordedtime"
STRUCTURED = JSONFormat.CONTENT_TYPE
SEQUENCE_DIGITS = 20
# The binding requires a format, but in binary mode it does not change bytes, and reading never passes the payload to it.
_FORMAT = JSONFormat()
_REQUIRED = ("ce_specversion", "ce_id", "ce_source", "ce_type", "ce_time", "ce_dataschema")


@dataclass(frozen=True, slots=True)
class EventKind:
    """An event type of the contract: its CloudEvents type, its topic and the class of its payload."""

    event_type: str
    topic: str
    payload: type[Event]


KINDS = (
    EventKind("tideline.timeline.transition.v1", TIMELINE.name, Transition),
    EventKind("tideline.tables.state.v1", TABLES.name, TableRecord),
    EventKind("tideline.catalog.change.v1", CATALOG.name, TableChange),
    EventKind("tideline.mirrors.heartbeat.v1", MIRRORS.name, Heartbeat),
    EventKind("tideline.jobs.lifecycle.v1", JOBS.name, JobEvent),
    EventKind("tideline.locks.lease.v1", LOCKS.name, LockEvent),
    EventKind("tideline.decisions.verdict.v1", DECISIONS.name, VerdictEvent),
    EventKind("tideline.decisions.finding.v1", DECISIONS.name, FindingEvent),
    EventKind("tideline.decisions.action.v1", DECISIONS.name, ActionEvent),
    EventKind("tideline.hints.look.v1", HINTS.name, Hint),
    EventKind("tideline.deadletter.record.v1", DEAD_LETTER.name, DeadLetter),
)
"""Every event type of the contract."""

_BY_PAYLOAD = {kind.payload: kind for kind in KINDS}
_BY_TYPE = {kind.event_type: kind for kind in KINDS}


@dataclass(frozen=True, slots=True)
class UnknownEvent:
    """An event of a type that this version of Tideline does not know. Readers ignore it."""

    type: str
    source: str
    id: str


@dataclass(frozen=True, slots=True)
class TableDeleted:
    """The removal of a table from `tideline.tables`."""

    table_uid: str


@dataclass(frozen=True, slots=True)
class Envelope:
    """Attributes of an event, readable without its payload. Only transitions have the last four."""

    id: str
    source: str
    type: str
    time: datetime
    dataschema: str
    content_type: str = AVRO
    subject: str | None = None
    recorded_time: datetime | None = None
    partition_key: str | None = None
    traceparent: str | None = None
    sequence: int | None = None
    action: str | None = None
    to_state: str | None = None
    datachange: bool | None = None


def encode(event: Event, *, traceparent: str | None = None) -> Record:
    """Return the record of an event. Lists and texts above their caps are cut (`fields.bounded`).

    Raises `InvalidEvent` for a payload above `MAX_RECORD_BYTES`, and for values that the schema or CloudEvents does not allow.
    """
    kind = _BY_PAYLOAD[type(event)]
    event = bounded(event)
    schema = revisions(kind.event_type)[-1]
    payload = write_payload(schema, payload_fields(event))
    if len(payload) > MAX_RECORD_BYTES:
        raise InvalidEvent(f"a payload of {len(payload)} bytes", expected=f"at most {MAX_RECORD_BYTES}")
    attributes = _attributes(event, kind.event_type, payload)
    attributes |= {"specversion": "1.0", "type": kind.event_type, "dataschema": schema.uri, "datacontenttype": AVRO}
    attributes["time"] = event.time.astimezone(UTC)
    if traceparent is not None:
        attributes["traceparent"] = traceparent
    try:
        message = to_binary(CloudEvent(attributes, payload), _FORMAT, key_mapper=lambda _: _key(event))
    except BaseCloudEventException as error:
        raise InvalidEvent(
            f"attributes that CloudEvents does not allow: {error}", expected="attributes of CloudEvents 1.0"
        ) from error
    key = message.key.encode() if isinstance(message.key, str) else message.key
    return Record(kind.topic, key, message.value, tuple(sorted(message.headers.items())))


def structured(event: Event) -> tuple[str, bytes]:
    """Return the id of an event, and the event as JSON in CloudEvents' structured mode, whose content type is `STRUCTURED`.

    The attributes are those of its record, `data` has the fields of its payload. Raises `InvalidEvent`.
    """
    kind = _BY_PAYLOAD[type(event)]
    event = bounded(event)
    schema, fields = revisions(kind.event_type)[-1], payload_fields(event)
    attributes = _attributes(event, kind.event_type, write_payload(schema, fields))
    attributes |= {"specversion": "1.0", "type": kind.event_type, "dataschema": schema.uri, "datacontenttype": "application/json"}
    attributes["time"] = event.time.astimezone(UTC)
    try:
        return attributes["id"], _FORMAT.write(CloudEvent(attributes, fields))
    except BaseCloudEventException as error:
        raise InvalidEvent(
            f"attributes that CloudEvents does not allow: {error}", expected="attributes of CloudEvents 1.0"
        ) from error


def stamped(record: Record, recorded: datetime) -> Record:
    """Return `record` with `recorded` as its time of publication, in place of an earlier one. A deletion (no value) gets none."""
    if record.value is None:
        return record
    kept = tuple(header for header in record.headers if header[0] != RECORDED_TIME)
    text = recorded.astimezone(UTC).isoformat().replace("+00:00", "Z")
    return Record(record.topic, record.key, record.value, (*kept, (RECORDED_TIME, text.encode())))


def table_deletion(table_uid: str) -> Record:
    """Return the record that removes a table from `tideline.tables`."""
    return Record(TABLES.name, table_uid.encode(), None)


def decode(record: Record) -> Event | TableDeleted | UnknownEvent:
    """Return the event in a record: `UnknownEvent` for an unknown type, `TableDeleted` for a deletion in `tideline.tables`.

    Raises `PoisonEvent` for a record that holds no event of the contract.
    """
    if record.value is None and record.topic == TABLES.name and record.key is not None:
        return TableDeleted(record.key.decode(errors="replace"))
    if record.value is None or len(record.value) > MAX_RECORD_BYTES:
        raise PoisonEvent(
            "a record without a value" if record.value is None else f"a value of {len(record.value)} bytes",
            expected=f"a value of at most {MAX_RECORD_BYTES} bytes",
        )
    envelope = read_envelope(record)
    kind = _BY_TYPE.get(envelope.type)
    if kind is None:
        return UnknownEvent(envelope.type, envelope.source, envelope.id)
    try:
        event = payload_value(kind.payload, read_value(envelope.content_type, kind.event_type, envelope.dataschema, record.value))
    except InvalidEvent as error:
        raise PoisonEvent(error.found, expected=error.expected) from error
    _check_agreement(record, envelope, event)
    return event


def read_envelope(record: Record) -> Envelope:
    """Return the attributes of a record without reading its payload.

    Raises `PoisonEvent` if they are no CloudEvents 1.0 envelope.
    """
    headers = {name.lower(): value for name, value in record.headers if value is not None}
    # Proxies and tracers add headers of their own, which need not be text.
    headers = {name: value for name, value in headers.items() if name.startswith("ce_") or name == "content-type"}
    missing = [name for name in _REQUIRED if name not in headers]
    if missing:
        raise PoisonEvent(f"a record without {', '.join(missing)}", expected="CloudEvents 1.0 in Kafka binary mode")
    content_type = CONTENT_TYPES.get(headers.pop("content-type", b""))
    if content_type is None:
        raise PoisonEvent(f"content type {record.header('content-type')!r}", expected=" or ".join(CONTENT_TYPES.values()))
    try:
        event = from_binary(KafkaMessage(headers, None, b""), _FORMAT, CloudEvent)
        return _envelope(event, content_type)
    except (BaseCloudEventException, ValueError, OverflowError) as error:
        raise PoisonEvent(f"headers that cannot be read: {error}", expected="CloudEvents 1.0 in Kafka binary mode") from error


def event_id(*parts: str | int | None) -> str:
    """Return the id of an event: SHA-256, in hexadecimal digits, of the JSON list of `parts`. A retry gives the same id."""
    return hashlib.sha256(json.dumps(parts, separators=(",", ":")).encode()).hexdigest()


def _key(event: Event) -> bytes | None:
    if isinstance(event, DeadLetter):
        return event.key
    return (event.publisher if isinstance(event, Heartbeat) else event.table_uid).encode()


def _attributes(event: Event, event_type: str, payload: bytes) -> dict[str, Any]:
    if isinstance(event, DeadLetter):
        source = f"/topics/{event.topic}"
        # An event that has no offset, because it was read from a table log, is told from others by its bytes.
        place = event.offset if event.offset >= 0 else hashlib.sha256(event.value or b"").hexdigest()
        return {"id": event_id(event.topic, event.partition, place, event.group), "source": source}
    if isinstance(event, Heartbeat):
        return {"id": event_id(event_type, event.publisher, event.time.isoformat()), "source": f"/mirrors/{event.publisher}"}
    attributes: dict[str, Any] = {"source": f"/tables/{event.table_uid}", "partitionkey": event.table_uid}
    if isinstance(event, Transition):
        attributes |= {
            "id": event_id(event.table_uid, event.sequence, event.instant, event.action, event.from_state, event.to_state),
            "subject": f"{event.instant}.{event.action}",
            "sequence": f"{event.sequence:0{SEQUENCE_DIGITS}d}",
            "action": event.action,
            "tostate": event.to_state,
            "datachange": "true" if event.datachange else "false",
        }
    elif isinstance(event, TableChange) and event.kind == "created":
        # Published again after the loss of the event log, it is the same event.
        attributes["id"] = event_id(event_type, event.table_uid, event.kind)
    else:
        attributes["id"] = event_id(event_type, hashlib.sha256(payload).hexdigest())
    return attributes


def _envelope(event: BaseCloudEvent, content_type: str) -> Envelope:
    attributes: Mapping[str, Any] = event.get_attributes()
    sequence, recorded, datachange = (attributes.get(name) for name in ("sequence", "recordedtime", "datachange"))
    return Envelope(
        id=attributes["id"],
        source=attributes["source"],
        type=attributes["type"],
        time=attributes["time"],
        dataschema=attributes["dataschema"],
        content_type=content_type,
        subject=attributes.get("subject"),
        recorded_time=None if recorded is None else datetime.fromisoformat(recorded),
        partition_key=attributes.get("partitionkey"),
        traceparent=attributes.get("traceparent"),
        sequence=None if sequence is None else int(sequence),
        action=attributes.get("action"),
        to_state=attributes.get("tostate"),
        datachange=None if datachange is None else datachange == "true",
    )


def _check_agreement(record: Record, envelope: Envelope, event: Event) -> None:
    """Raise `PoisonEvent` if the payload contradicts the key or the headers, which decide routing, order and skipping."""
    if isinstance(event, DeadLetter):
        return
    if isinstance(event, Heartbeat):
        if record.key != event.publisher.encode():
            raise PoisonEvent(f"key {record.key!r}", expected=event.publisher)
        return
    if record.key != event.table_uid.encode() or envelope.source != f"/tables/{event.table_uid}":
        raise PoisonEvent(f"key {record.key!r} and source {envelope.source!r}", expected=f"those of table {event.table_uid}")
    if isinstance(event, Transition) and envelope.sequence != event.sequence:
        raise PoisonEvent(f"sequence {envelope.sequence} in the headers", expected=f"{event.sequence} as in the payload")
