"""Rows of the read model from events other than steps: what a person reads about each kind."""

from __future__ import annotations

import json
from typing import Any

from tideline_events import (
    ActionEvent,
    Event,
    FindingEvent,
    Heartbeat,
    JobEvent,
    LockEvent,
    Record,
    TableChange,
    TableDeleted,
    UnknownEvent,
    VerdictEvent,
)
from tideline_events.envelope import structured


def event_row(event: Event | TableDeleted | UnknownEvent, record: Record) -> dict[str, Any] | None:
    """Return the row of an event of jobs, decisions, locks or the catalog; None for others."""
    if isinstance(event, JobEvent):
        shown = ("job", f"{event.action} {event.state}", event.plan_instant, event.reason or f"attempt {event.attempt}")
    elif isinstance(event, VerdictEvent):
        shown = ("decision", f"{event.service} {event.verdict}", "", event.reason or "")
    elif isinstance(event, FindingEvent):
        shown = ("finding", f"{event.kind} {event.state}", "", event.reason or "")
    elif isinstance(event, ActionEvent):
        outcome = f"; {event.outcome}" if event.outcome else ""
        text = f"{event.by}: {event.reason}{outcome} ({event.action_id})"
        shown = ("action", f"{event.action} {event.state}", event.instant or "", text)
    elif isinstance(event, LockEvent):
        shown = ("lock", event.kind, event.instant or "", f"owner {event.owner}{f': {event.reason}' if event.reason else ''}")
    elif isinstance(event, TableChange):
        before = f"before: {event.previous}" if event.previous is not None else ""
        shown = ("table", event.kind, "", "; ".join(text for text in (before, event.reason or "") if text))
    else:
        return None
    base_path = event.table.base_path if isinstance(event, TableChange) else getattr(event, "base_path", "")
    _, document = structured(event)
    kind, what, instant, text = shown
    return {
        "id": record.header("ce_id") or f"{record.topic}/{record.partition}/{record.offset}",
        "uid": event.table_uid,
        "base_path": base_path,
        "kind": kind,
        "what": what,
        "instant": instant,
        "text": text,
        "time_s": event.time.timestamp(),
        "document": json.loads(document),
    }


def shard_row(event: Heartbeat) -> dict[str, Any]:
    """Return the row of the heartbeat of a mirror's shard."""
    names = ("shard_count", "interval_s", "tables", "behind", "failing", "instance")
    document = {name: getattr(event, name) for name in names}
    return {
        "service": "mirror",
        "fleet": event.fleet,
        "shard": event.shard,
        "time_s": event.time.timestamp(),
        "document": document,
    }
