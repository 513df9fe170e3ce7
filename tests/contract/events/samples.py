"""Events to test with: plain values, one table per uid."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta

from tideline_events import Hint, TableIdentity, TableRecord, Transition

START = datetime(2026, 3, 1, 12, 30, 15, 123456, tzinfo=UTC)


def new_uid() -> str:
    return str(uuid.uuid4())


def table(uid: str) -> TableIdentity:
    return TableIdentity(uid=uid, base_path="s3://lake/sales/trips", name="trips", database="sales", type="MERGE_ON_READ")


def transition(uid: str, sequence: int, **changes: object) -> Transition:
    time = START + timedelta(seconds=sequence)
    instant = time.strftime("%Y%m%d%H%M%S") + "000"
    fields: dict[str, object] = {
        "table": table(uid),
        "instant": instant,
        "action": "deltacommit",
        "from_state": "inflight",
        "to_state": "completed",
        "operation": "upsert",
        "time": time,
        "requested_time": time - timedelta(seconds=1),
        "completion_time": time,
        "sequence": sequence,
        "writer_id": "ingest-1",
        "observed_by": "mirror",
        "timeline_file": f".hoodie/{instant}.deltacommit",
    }
    return Transition(**{**fields, **changes})  # type: ignore[arg-type]


def transitions(uid: str, first: int, last: int) -> list[Transition]:
    return [transition(uid, sequence) for sequence in range(first, last + 1)]


def table_record(uid: str, sequence: int) -> TableRecord:
    return TableRecord(table=table(uid), sequence=sequence, time=START, size_bytes=sequence * 1000)


def hint(uid: str, number: int = 0) -> Hint:
    return Hint(table_uid=uid, time=START + timedelta(milliseconds=number), sequence=number, reason="committed")
