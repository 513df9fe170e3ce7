"""Writes of Apache Hudi without a heartbeat file: their job may clean failed writes eagerly, and then it makes none.

The job of a write that failed with an error has deleted its heartbeat, so the two cannot be distinguished. Whoever asks whether a
process is dead (the cleaner, maintenance, `leave`, findings) asks here. Only an operator who rolls back on purpose does not wait.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from tideline_table.clock import Clock
from tideline_table.config import CLUSTERING_EXPIRATION_MIN, Options
from tideline_table.coordination.heartbeat import heartbeat_path, is_alive
from tideline_table.hudi.instant import WRITE_ACTIONS, time_from_instant
from tideline_table.log.action import ActionRecord
from tideline_table.storage import Storage, exists
from tideline_table.writer.marker import last_marked


def eager_until(storage: Storage, record: ActionRecord, clock: Clock, options: Options) -> datetime | None:
    """Return until when `record` counts as the write of a living job without heartbeats; None if it does not.

    That is an hour after its newest sign of life, its instant or its last marker (`hoodie.clustering.expiration.threshold.mins`).
    One request for a write with a heartbeat, none for an action of Tideline or one that is being rolled back.
    """
    if not record.is_by_hudi or record.fenced_by or record.action not in WRITE_ACTIONS:
        return None
    if exists(storage, heartbeat_path(record.instant)):
        return None
    signs = [time_from_instant(record.instant), last_marked(storage, record.instant)]
    until = max(sign for sign in signs if sign is not None) + timedelta(minutes=options[CLUSTERING_EXPIRATION_MIN])
    return until if clock.now() <= until else None


def may_live(storage: Storage, record: ActionRecord, clock: Clock, options: Options) -> bool:
    """Return whether the process that runs `record` showed a sign of life recently, or may live without showing one."""
    return is_alive(storage, record, clock, options) or eager_until(storage, record, clock, options) is not None
