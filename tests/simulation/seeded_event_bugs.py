"""Protections between the table log and the processes that follow it by events, switched off one at a time."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from typing import Any

from tests.simulation.sabotage import sabotage
from tests.simulation.world import World

from tideline_events import EventConsumer, EventLogUnavailable, PublishUnknown, TableIdentity, Transition
from tideline_mirror.mirroring import MirrorService
from tideline_runtime.shard_publishers import ShardPublishers
from tideline_table.table import Table

_real_mirror = MirrorService._mirror


def _moves_its_cursor_first(service: MirrorService, table: Table) -> None:
    _, before = service._cursors.get(table.uid, (0, 0))
    try:
        _real_mirror(service, table)
    except (EventLogUnavailable, PublishUnknown):
        service._cursors[table.uid] = _as_if_settled(service._publishers, 0), before + 1
        raise


def _as_if_settled(publishers: ShardPublishers, shard: int) -> int:
    """The number of the publisher that is open, or of the one that the next publication opens."""
    opened = publishers._opened.get(shard)
    return publishers._count + 1 if opened is None else opened.number


def _writer_id_of_nobody_else(publishers: ShardPublishers, shard: int) -> str:
    return f"mirror-{uuid.uuid4().hex}"


def _no_gap(consumer: EventConsumer, table: TableIdentity, first: int, last: int) -> list[Transition]:
    return []


def _never_seen(consumer: EventConsumer, table_uid: str, sequence: int) -> bool:
    return False


EVENT_BUGS: Mapping[str, Callable[[World], Any]] = {
    "cursor moves before its events": sabotage((MirrorService, "_mirror", _moves_its_cursor_first)),
    "cursor read while a publication is on its way": sabotage((ShardPublishers, "settle", _as_if_settled)),
    "mirrors do not fence each other": sabotage((ShardPublishers, "_writer_id", _writer_id_of_nobody_else)),
    "gaps between events stay": sabotage((EventConsumer, "_filled", _no_gap)),
    "events twice are two": sabotage((EventConsumer, "_is_duplicate", _never_seen)),
}
"""Name → the protection that it takes away. They show only where mirrors publish."""
