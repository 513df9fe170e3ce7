"""Conversion between payload classes and fields of their Avro schemas, and the caps that keep records small enough to publish."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from tideline_events.payload import ActionEvent, DeadLetter, Event, Heartbeat, PendingPlan, TableIdentity, TableRecord, Transition

MAX_PARTITIONS = 100
MAX_PARTITIONS_BYTES = 64 * 1024
MAX_CHECKPOINT_BYTES = 64 * 1024
MAX_PENDING_PLANS = 1000
MAX_TEXT_CHARS = 8 * 1024
"""Cap of free text (reasons)."""
MAX_DEAD_VALUE_BYTES = 512 * 1024
MAX_DEAD_KEY_BYTES = 16 * 1024
MAX_DEAD_HEADERS_BYTES = 64 * 1024


def bounded(event: Event) -> Event:
    """Return `event` with lists, reasons and bytes cut to their caps. The original event is not changed.

    A `*_truncated` field flags each cut, except cuts of reasons, and of the key and headers of a dead letter. A checkpoint
    above its cap becomes empty.
    """
    if isinstance(event, Transition):
        return _bounded_transition(event)
    if isinstance(event, TableRecord):
        return dataclasses.replace(
            event,
            pending_plans=event.pending_plans[:MAX_PENDING_PLANS],
            pending_plans_truncated=event.pending_plans_truncated or len(event.pending_plans) > MAX_PENDING_PLANS,
            health_reason=None if event.health_reason is None else event.health_reason[:MAX_TEXT_CHARS],
        )
    if isinstance(event, DeadLetter):
        return _bounded_dead_letter(event)
    if isinstance(event, ActionEvent) and event.outcome is not None:
        event = dataclasses.replace(event, outcome=event.outcome[:MAX_TEXT_CHARS])
    if isinstance(event, Heartbeat) or event.reason is None:
        return event
    return dataclasses.replace(event, reason=event.reason[:MAX_TEXT_CHARS])


def payload_fields(event: Event) -> dict[str, Any]:
    """Return the fields of the event's Avro record. Maps are in order of their keys, so that equal events have equal bytes."""
    return {field.name: _plain(field.name, getattr(event, field.name)) for field in dataclasses.fields(event)}


def payload_value(kind: type[Event], fields: Mapping[str, Any]) -> Event:
    """Return the payload of a decoded Avro record. Raises `InvalidEvent` if a value breaks the rules of the class `kind`."""
    values = dict(fields)
    if "table" in values:
        values["table"] = TableIdentity(**values["table"])
    if "partitions" in values:
        values["partitions"] = tuple(values["partitions"])
    if "steps" in values:
        values["steps"] = tuple(values["steps"])
    if "pending_plans" in values:
        values["pending_plans"] = tuple(PendingPlan(**plan) for plan in values["pending_plans"])
    if "headers" in values:
        values["headers"] = tuple((header["name"], header["value"]) for header in values["headers"])
    return kind(**values)


def _plain(name: str, value: object) -> object:
    if dataclasses.is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if name == "headers" and isinstance(value, tuple):
        return [{"name": header, "value": text} for header, text in value]
    if isinstance(value, tuple):
        return [_plain("", item) for item in value]
    if isinstance(value, Mapping):
        return dict(sorted(value.items()))
    return value


def _bounded_transition(event: Transition) -> Transition:
    partitions: list[str] = []
    left_bytes = MAX_PARTITIONS_BYTES
    for partition in event.partitions[:MAX_PARTITIONS]:
        left_bytes -= len(partition.encode())
        if left_bytes < 0:
            break
        partitions.append(partition)
    checkpoint_bytes = sum(len(key.encode()) + len(value.encode()) for key, value in event.checkpoint.items())
    too_large = checkpoint_bytes > MAX_CHECKPOINT_BYTES
    return dataclasses.replace(
        event,
        partitions=tuple(partitions),
        partitions_truncated=event.partitions_truncated or len(partitions) < len(event.partitions),
        # A reader would resume from a partial checkpoint.
        checkpoint={} if too_large else event.checkpoint,
        checkpoint_truncated=event.checkpoint_truncated or too_large,
    )


def _bounded_dead_letter(event: DeadLetter) -> DeadLetter:
    headers: list[tuple[str, bytes | None]] = []
    left_bytes = MAX_DEAD_HEADERS_BYTES
    for name, value in event.headers:
        left_bytes -= len(name.encode()) + len(value or b"")
        if left_bytes < 0:
            break
        headers.append((name, value))
    return dataclasses.replace(
        event,
        reason=event.reason[:MAX_TEXT_CHARS],
        key=None if event.key is None else event.key[:MAX_DEAD_KEY_BYTES],
        value=None if event.value is None else event.value[:MAX_DEAD_VALUE_BYTES],
        value_truncated=event.value_truncated or len(event.value or b"") > MAX_DEAD_VALUE_BYTES,
        headers=tuple(headers),
    )
