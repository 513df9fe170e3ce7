"""One event of every type with every field set: what the golden files hold."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from tideline_events import (
    DeadLetter,
    Event,
    FindingEvent,
    Hint,
    JobEvent,
    LockEvent,
    PendingPlan,
    TableIdentity,
    TableRecord,
    Transition,
    VerdictEvent,
)

UID = "3f2b8c1e-6a54-4d0f-9b7e-0c1d2e3f4a5b"
TIME = datetime(2026, 3, 1, 12, 30, 15, 123456, tzinfo=UTC)
TABLE = TableIdentity(uid=UID, base_path="s3://lake/sales/trips", name="trips", database="sales", type="MERGE_ON_READ", version=6)

TRANSITION = Transition(
    table=TABLE,
    instant="20260301123014000",
    action="commit",
    operation="compact",
    from_state="inflight",
    to_state="completed",
    time=TIME,
    requested_time=datetime(2026, 3, 1, 12, 30, 14, tzinfo=UTC),
    completion_time=TIME,
    sequence=4711,
    writer_id="compactor-é",
    undone_instant="20260301122000000",
    datachange=False,
    rows_inserted=1_000_000,
    rows_updated=17,
    rows_deleted=None,
    files_added=3,
    files_deleted=2,
    file_groups_replaced=5,
    bytes_added=123_456_789_012,
    partitions=("day=2026-02-28", "day=2026-03-01"),
    partitions_truncated=True,
    schema_hash="c0ffee",
    checkpoint={"topic": "orders", "offsets": "0:42"},
    checkpoint_truncated=False,
    observed_by="mirror",
    timeline_file=".hoodie/20260301123014000.commit",
)

EVERY_TYPE: dict[str, Event] = {
    "tideline.timeline.transition.v1": TRANSITION,
    "tideline.tables.state.v1": TableRecord(
        table=TABLE,
        sequence=4711,
        time=TIME,
        last_instant="20260301123014000",
        pending_plans=(
            PendingPlan("20260301123100000", "clustering", "requested"),
            PendingPlan("20260301123200000", "clean", "inflight"),
        ),
        pending_plans_truncated=False,
        file_count=12,
        size_bytes=345_678,
        log_file_count=4,
        log_size_bytes=5_678,
        health="stuck",
        health_reason="writer w died",
        former_uid="0c1d2e3f-6a54-4d0f-9b7e-3f2b8c1e4a5b",
    ),
    "tideline.jobs.lifecycle.v1": JobEvent(
        table_uid=UID,
        application_id="compaction-20260301123000000",
        plan_instant="20260301123000000",
        action="compaction",
        state="failed",
        time=TIME,
        attempt=3,
        runner="kubernetes",
        reason="OOMKilled",
    ),
    "tideline.decisions.verdict.v1": VerdictEvent(
        table_uid=UID,
        base_path="s3://lake/sales/trips",
        service="clustering",
        verdict="window",
        time=TIME,
        previous="not_due",
        until=TIME + timedelta(hours=2),
        reason="the window opens at 14:30",
    ),
    "tideline.decisions.finding.v1": FindingEvent(
        table_uid=UID, base_path="s3://lake/sales/trips", kind="backlog", state="found", time=TIME, reason="120 log files"
    ),
    "tideline.locks.lease.v1": LockEvent(
        table_uid=UID,
        kind="taken_over",
        owner="ingest-2",
        time=TIME,
        previous_owner="ingest-1",
        fencing_token=4710,
        instant="20260301123014000",
        reason="lease expired",
    ),
    "tideline.hints.look.v1": Hint(table_uid=UID, time=TIME, base_path="s3://lake/sales/trips", sequence=4711, reason="committed"),
    "tideline.deadletter.record.v1": DeadLetter(
        topic="tideline.timeline",
        partition=3,
        offset=99,
        group="planner",
        reason="5 bytes that are no event",
        time=TIME,
        key=b"\xffkey",
        value=b"\x00\x01\xff",
        value_truncated=True,
        headers=(("ce_id", b"1"), ("empty", None), ("ce_id", b"\xfe")),
    ),
}
