"""Writes of Apache Hudi without a heartbeat file: their job may clean failed writes eagerly, and then it makes none.

A job whose write failed with an error deletes its heartbeat, so no other process can distinguish the two. The cleaner, maintenance,
`leave`, findings and the lock service ask here whether a process is dead. Only an operator who rolls back on purpose does not wait.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from tideline_table.clock import Clock
from tideline_table.config import CLUSTERING_EXPIRATION_MIN, Options
from tideline_table.coordination.heartbeat import allowed_silence, is_alive, is_silent, last_beat
from tideline_table.hudi.instant import WRITE_ACTIONS, time_from_instant
from tideline_table.log.action import ActionRecord
from tideline_table.storage import Storage
from tideline_table.writer.marker import last_marked


def eager_until(storage: Storage, record: ActionRecord, clock: Clock, options: Options) -> datetime | None:
    """Return until when `record` counts as the write of a living job without heartbeats; None if it does not.

    That is an hour after its newest sign of life, its instant or its last marker (`hoodie.clustering.expiration.threshold.mins`).
    One request for a write with a heartbeat, none for an action of Tideline or one that is being rolled back.
    """
    if not _may_have_no_heartbeat(record) or last_beat(storage, record.instant) is not None:
        return None
    signs = [time_from_instant(record.instant), last_marked(storage, record.instant)]
    until = max(sign for sign in signs if sign is not None) + timedelta(minutes=options[CLUSTERING_EXPIRATION_MIN])
    return until if clock.now() <= until else None


def has_first_turn(storage: Storage, record: ActionRecord, clock: Clock, options: Options) -> bool:
    """Return whether a dead write of Apache Hudi is left to its jobs for now: half as long again as one may be silent.

    A job that cleans lazily rolls it back at its next commit, and fails if another process does so at the same time.
    """
    return _may_have_no_heartbeat(record) and not is_silent(storage, record, clock, allowed_silence(options) * 1.5)


def may_live(storage: Storage, record: ActionRecord, clock: Clock, options: Options) -> bool:
    """Return whether the process that runs `record` showed a sign of life recently, or may live without showing one.

    One request, and a listing of the markers of a write of Apache Hudi without a heartbeat whose instant is an hour old.
    """
    if not _may_have_no_heartbeat(record):
        return is_alive(storage, record, clock, options)
    now, beat = clock.now(), last_beat(storage, record.instant)
    if beat is not None:
        return is_alive(storage, record, clock, options, beat)
    allowed = max(timedelta(minutes=options[CLUSTERING_EXPIRATION_MIN]), allowed_silence(options))
    if now - time_from_instant(record.instant) <= allowed:
        return True
    marked = last_marked(storage, record.instant)
    return marked is not None and now - marked <= timedelta(minutes=options[CLUSTERING_EXPIRATION_MIN])


def _may_have_no_heartbeat(record: ActionRecord) -> bool:
    # In a table without a log no record names its writer: all are Apache Hudi's.
    is_by_hudi = record.is_by_hudi or not record.writer_id
    return is_by_hudi and not record.fenced_by and record.action in WRITE_ACTIONS
