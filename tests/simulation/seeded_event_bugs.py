"""Protections between the table log and those who follow it by events, switched off one at a time."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from typing import Any

from tests.simulation.sabotage import sabotage
from tests.simulation.world import World

from tideline_events import EventLogUnavailable, PublishUnknown
from tideline_events.consumer import Deduplicator
from tideline_mirror.mirroring import MirrorService
from tideline_runtime.event_link import EventLink
from tideline_table.table import Table

_real_mirror = MirrorService._mirror


def _moves_its_cursor_first(service: MirrorService, table: Table) -> None:
    before = service._cursors.get(table.uid, 0)
    try:
        _real_mirror(service, table)
    except (EventLogUnavailable, PublishUnknown):
        service._cursors[table.uid] = before + 1
        raise


def _as_if_settled(link: EventLink) -> None:
    return None


def _own_publisher_of_nobody_else(link: EventLink) -> Any:
    if link._publisher is None:
        link._publisher = link.log.publisher(f"mirror-{uuid.uuid4().hex}")
    return link._publisher


def _no_gap(deduplicator: Deduplicator, table_uid: str, sequence: int) -> None:
    return None


def _never_seen(deduplicator: Deduplicator, table_uid: str, sequence: int) -> bool:
    return False


EVENT_BUGS: Mapping[str, Callable[[World], Any]] = {
    "cursor moves before its events": sabotage((MirrorService, "_mirror", _moves_its_cursor_first)),
    "cursor read while a publication is on its way": sabotage((EventLink, "settle", _as_if_settled)),
    "mirrors do not fence each other": sabotage((EventLink, "_own_publisher", _own_publisher_of_nobody_else)),
    "gaps between events stay": sabotage((Deduplicator, "missing_before", _no_gap)),
    "events twice are two": sabotage((Deduplicator, "is_duplicate", _never_seen)),
}
"""Name → the protection that it takes away. They show only where mirrors publish."""
