"""Payloads of the events: frozen values, one class per event type (docs/events.md lists their fields).

Times are aware datetimes in microseconds, instants strings of digits (17, as `yyyyMMddHHmmssSSS`), table uids lower-case UUID
strings. Actions, states and kinds are plain strings, because readers ignore unknown ones. Constructors raise `InvalidEvent` for a
time without a zone, a uid that is no UUID, and in `Transition` for an instant that has other characters than digits and for a
negative sequence.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from tideline_events.errors import InvalidEvent


@dataclass(frozen=True, slots=True)
class TableIdentity:
    """Identity of a table. `uid` alone identifies it; the other fields are for people and may change."""

    uid: str
    base_path: str
    name: str
    database: str = ""
    type: str = "COPY_ON_WRITE"
    version: int = 6

    def __post_init__(self) -> None:
        _check_uid(self.uid)


class _Payload:
    __slots__: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        values = {name: getattr(self, name) for name in self.__slots__}
        for time in values.values():
            if isinstance(time, datetime) and time.tzinfo is None:
                raise InvalidEvent(f"time {time.isoformat()} without a zone", expected="an aware datetime")
        uid = values.get("table_uid")
        if uid is not None and (uid or not isinstance(self, FindingEvent)):
            _check_uid(uid)


class _OfTable(_Payload):
    __slots__ = ()
    table: TableIdentity

    @property
    def table_uid(self) -> str:
        """Uid of the table, the key of the record."""
        return self.table.uid


@dataclass(frozen=True, slots=True)
class Transition(_OfTable):
    """One transition of a table's timeline. `sequence` is its position in the table log, gapless and in order of completion.

    `encode` caps `partitions` and `checkpoint`, and sets a flag. `datachange` is true if queries may return other rows after the
    step: an unnecessary read is harmless, and a missed change is not. Numbers of rows that the step does not know are None.
    """

    table: TableIdentity
    instant: str
    action: str
    to_state: str
    time: datetime
    requested_time: datetime
    sequence: int
    writer_id: str
    observed_by: str
    timeline_file: str
    from_state: str | None = None
    operation: str | None = None
    completion_time: datetime | None = None
    undone_instant: str | None = None
    datachange: bool = True
    rows_inserted: int | None = None
    rows_updated: int | None = None
    rows_deleted: int | None = None
    files_added: int = 0
    files_deleted: int = 0
    file_groups_replaced: int = 0
    bytes_added: int = 0
    partitions: tuple[str, ...] = ()
    partitions_truncated: bool = False
    schema_hash: str | None = None
    checkpoint: Mapping[str, str] = field(default_factory=dict, hash=False)
    checkpoint_truncated: bool = False

    def __post_init__(self) -> None:
        super(Transition, self).__post_init__()
        if not self.instant.isascii() or not self.instant.isdigit():
            raise InvalidEvent(f"instant {self.instant!r}", expected="an instant of 17 digits")
        if self.sequence < 0:
            raise InvalidEvent(f"sequence {self.sequence}", expected="a position in the table log")


@dataclass(frozen=True, slots=True)
class PendingPlan:
    """A plan on the timeline that is not completed."""

    instant: str
    action: str
    state: str


@dataclass(frozen=True, slots=True)
class TableRecord(_OfTable):
    """Last known state of a table. `sequence` is the last published one, the mirror's cursor. Unknown sizes are None."""

    table: TableIdentity
    sequence: int
    time: datetime
    last_instant: str | None = None
    pending_plans: tuple[PendingPlan, ...] = ()
    pending_plans_truncated: bool = False
    file_count: int | None = None
    size_bytes: int | None = None
    log_file_count: int | None = None
    log_size_bytes: int | None = None
    health: str = "healthy"
    health_reason: str | None = None
    former_uid: str | None = None
    quiet_since: datetime | None = None
    sharing: str | None = None
    fleet: str | None = None
    steps: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TableChange(_OfTable):
    """A change of a table itself: created, moved, renamed, upgraded, shared, unshared, unmanaged, managed or dropped.

    `previous` is the name, base path or version before, `sequence` the last published step.
    """

    table: TableIdentity
    kind: str
    time: datetime
    sequence: int
    previous: str | None = None
    former_uid: str | None = None
    reason: str | None = None
    fleet: str = ""


@dataclass(frozen=True, slots=True)
class Heartbeat(_Payload):
    """A sign of life of one shard of a mirror, at `time`: all its tables were looked at since `visited_since`."""

    fleet: str
    shard: int
    shard_count: int
    time: datetime
    visited_since: datetime
    interval_s: float
    tables: int
    behind: int = 0
    failing: int = 0
    instance: str = ""

    @property
    def publisher(self) -> str:
        """Writer id of the shard, the key of the record."""
        name = f"{self.fleet}.mirror" if self.fleet else "mirror"
        return f"{name}-{self.shard}-of-{self.shard_count}"


@dataclass(frozen=True, slots=True)
class JobEvent(_Payload):
    """A step of a launched application: submitted, running, succeeded, failed, retried or given_up."""

    table_uid: str
    application_id: str
    plan_instant: str
    action: str
    state: str
    time: datetime
    attempt: int = 1
    runner: str = ""
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class LockEvent(_Payload):
    """A step of a lease: acquired, renewed_after_pause, expired, released, taken_over or force_released.

    Or heartbeat_lost of a writer's instant.
    """

    table_uid: str
    kind: str
    owner: str
    time: datetime
    previous_owner: str | None = None
    fencing_token: int | None = None
    instant: str | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class VerdictEvent(_Payload):
    """The planner's decision about a table service, published when it changes: planned, or what holds the service, until when."""

    table_uid: str
    base_path: str
    service: str
    verdict: str
    time: datetime
    previous: str | None = None
    until: datetime | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class FindingEvent(_Payload):
    """A finding that began (`found`) or ended (`cleared`).

    `table_uid` is empty for a finding about a table that cannot be opened, a pattern, or the server of the locks.
    """

    table_uid: str
    base_path: str
    kind: str
    state: str
    time: datetime
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class ActionEvent(_Payload):
    """What a person let a service do to a table: `state` is asked, done or failed, with the same `action_id`.

    An action that is asked, and neither done nor failed, was interrupted; the table log says what became of it.
    """

    table_uid: str
    base_path: str
    action: str
    action_id: str
    state: str
    by: str
    reason: str
    time: datetime
    instant: str | None = None
    outcome: str | None = None


@dataclass(frozen=True, slots=True)
class Hint(_Payload):
    """A request to refresh this table now. It may be lost. `base_path` lets a mirror find a table that it does not know."""

    table_uid: str
    time: datetime
    base_path: str | None = None
    sequence: int | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class DeadLetter(_Payload):
    """A record that the consumers of `group` could not process, unchanged, with the reason. A long `value` is cut, with a flag."""

    topic: str
    partition: int
    offset: int
    group: str
    reason: str
    time: datetime
    key: bytes | None = None
    value: bytes | None = None
    value_truncated: bool = False
    headers: tuple[tuple[str, bytes | None], ...] = ()


Event = (
    Transition
    | TableRecord
    | TableChange
    | Heartbeat
    | JobEvent
    | LockEvent
    | VerdictEvent
    | FindingEvent
    | ActionEvent
    | Hint
    | DeadLetter
)
"""Every payload of the contract."""


def _check_uid(uid: str) -> None:
    try:
        canonical: str | None = str(uuid.UUID(uid))
    except ValueError:
        canonical = None
    if uid != canonical:
        raise InvalidEvent(f"table uid {uid!r}", expected="a UUID in lower case with dashes")
