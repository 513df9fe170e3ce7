"""One process of the cluster: python -m tests.endurance.member ROLE NUMBER GENERATION SETTINGS.

A line on stdout for everything that others wait for; storage credentials come from the environment.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from dataclasses import fields as dataclass_fields
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
from tests.endurance.ledger import Ledger
from tests.endurance.workload import LISTS, OP_KEY, OPERATIONS, Op, operation_of, rows_of
from tests.plans import schedule_clean, schedule_clustering, schedule_compaction
from tests.real.skewed_clock import SKEWED

from tideline_locks.errors import LockTimeout, LockUnreachable
from tideline_locks.table_lock import attach_lock
from tideline_table.action import roll_back_dead, run_clean, run_clustering, run_compaction, write_rows
from tideline_table.action.write import run as table_write
from tideline_table.action.write.transaction import WriteTransaction
from tideline_table.config import Options
from tideline_table.coordination.committed import Committed
from tideline_table.errors import (
    ClockSkew,
    CommitUnknown,
    HistoryUnavailable,
    ObjectNotFound,
    StorageError,
    TransactionRolledBack,
    WriteConflict,
)
from tideline_table.hudi.instant import Action, State
from tideline_table.log.body import Published
from tideline_table.log.progress import ProgressStep
from tideline_table.table import Table
from tideline_table.writer import Operation, prepare_input

LEASE_S = 2.0
HEARTBEAT_MS = 1000
DEAD_AFTER_S = 2 * HEARTBEAT_MS / 1000
OPTIONS: dict[str, object] = {
    "hoodie.client.heartbeat.interval_in_ms": HEARTBEAT_MS,
    "hoodie.client.heartbeat.tolerable.misses": 2,
    "hoodie.cleaner.commits.retained": 6,
    # Every insert opens file groups: clustering never runs out of work, and one key can be in two of them.
    "hoodie.parquet.small.file.limit": 0,
    "hoodie.compact.inline.max.delta.commits": 4,
    "tideline.clustering.min.input.files": 2,
    "tideline.clustering.yields": 2,
    "tideline.log.checkpoint.interval": 10,
    "tideline.write.conflict.retries": 1000,
    "tideline.lock.ttl": LEASE_S,
    "tideline.lock.wait": 30,
}
GOES_WRONG = (StorageError, WriteConflict, TransactionRolledBack, CommitUnknown, LockTimeout, LockUnreachable, ObjectNotFound)
"""What a service meets when others are faster, or die, or are not there. Any other error ends the process, and the test."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What all members of one run share."""

    seed: int
    base_path: str
    redis_url: str
    folder: str
    commits: int
    max_skew_s: float = 2.0

    def to_json(self) -> str:
        return json.dumps(asdict(self))


@dataclass(frozen=True, slots=True)
class Member:
    """This process: `name` outlives it, `writer_id` does not."""

    settings: Settings
    name: str
    generation: int
    table: Table
    ledger: Ledger

    @property
    def writer_id(self) -> str:
        return f"{self.name}#{self.generation}"

    def tell(self, what: str) -> None:
        """A line for the process that started this one."""
        print(what, flush=True)


def enough(settings: Settings) -> Path:
    """The file that tells the writers to stop when they have their commits."""
    return Path(settings.folder) / "enough"


def open_table(settings: Settings, writer_id: str) -> Table:
    """The table as any member opens it, under the lock in Redis, its reservations beside it."""
    options = {**OPTIONS, "tideline.instant.max.skew": settings.max_skew_s}
    table = Table.open(settings.base_path, options=options, writer_id=writer_id)
    attach_lock(table, settings.redis_url)
    return table


# --- writers -----------------------------------------------------------------------------------------------------------------


def writer(me: Member, number: int) -> None:
    """The operations of one writer, in order, each until it counts; beyond its commits until every service had its turn.

    Ends early when its clock is too far ahead: its successor goes on.
    """
    noted = me.ledger.read()
    done = sum(1 for note in noted if note["event"] == "done")
    last = next((note for note in reversed(noted) if note["event"] != "refused"), {"event": ""})
    if last["event"] == "begins":
        # Our predecessor was killed or gave up: did its last operation count? Only the log knows.
        done += learn(me, Op.from_json(last["op"]), last["head"])
    while done < me.settings.commits or not enough(me.settings).exists():
        op = operation_of(me.settings.seed, number, done)
        head = me.table.refresh().sequence
        me.ledger.note(event="begins", op=op.to_json(), head=head, by=me.writer_id)
        try:
            committed = write_once(me.table, op)
        except ClockSkew as error:
            me.ledger.note(event="refused", op=op.to_json(), error=str(error))
            me.tell("refused")
            return
        except (StorageError, CommitUnknown, LockTimeout, LockUnreachable) as error:
            me.ledger.note(event="troubled", op=op.to_json(), head=head, error=str(error))
            done += learn(me, op, head)
        else:
            me.ledger.note(event="done", id=op.id, sequence=committed.sequence, attempts=committed.attempts)
            me.tell("done")
            done += 1


def learn(me: Member, op: Op, head: int) -> int:
    """Ask the log whether `op`, begun behind entry `head`, counts: 1 or 0.

    It can not count later: nothing of Tideline is pending any more.
    """
    while True:
        with suppress(*GOES_WRONG):
            roll_back_dead(me.table)
            if not any(a.writer_id.startswith(f"{me.name}#") for a in me.table.refresh().pending()):
                break
        time.sleep(0.1)  # until its heartbeat has run out: nobody tells
    for entry in me.table.timeline.log.after(head):
        if entry.after is State.COMPLETED and operation_id(entry.body) == op.id:
            me.ledger.note(event="done", id=op.id, sequence=entry.sequence, learned=True)
            me.tell("done")
            return 1
    me.ledger.note(event="void", id=op.id)
    return 0


def operation_id(body: Any) -> str:
    """Which operation the completed entry with this body is; empty for others."""
    return body.metadata.extra.get(OP_KEY, "") if isinstance(body, Published) else ""


class _Append(table_write._Attempt):
    """Makes its rows of what it reads, again whenever it looks at the table anew: who waited for others routes its rows by a
    later state."""

    def __init__(self, op: Op, **fields: Any) -> None:
        table_write._Attempt.__init__(self, **fields)
        object.__setattr__(self, "_op", op)

    def _route(self, transaction: WriteTransaction) -> Any:
        op, table = self._op, self.table
        try:
            before = read_values(table)
        except HistoryUnavailable as error:
            raise WriteConflict(error.found, with_instant="") from error  # cleaned since the begin: another process wrote over it
        rows, definition = rows_of({k: op.value(before.get(k)) for k in op.keys}), table.definition
        prepared = prepare_input(rows, table.schema, definition.keygen, definition.merging, self.choices.operation, combine=True)
        object.__setattr__(self, "prepared", prepared)
        return table_write._Attempt._route(self, transaction)


def write_once(table: Table, op: Op) -> Committed:
    """Do `op` by production code. Appends read what they change between the begin of the transaction and its staging."""
    rows = rows_of(dict.fromkeys(op.keys, op.id))
    given = {"hoodie.datasource.insert.dup.policy": "drop"} if op.kind == "insert" else {}
    write = functools.partial(write_rows, table, rows, OPERATIONS[op.kind], options=given, extra={OP_KEY: op.id}, parallelism=2)
    if op.kind != "append":
        return write()
    begin = table_write.in_transaction

    def in_transaction(
        table: Table, operation: Operation, options: Options, stage: Any, progress: ProgressStep | None = None
    ) -> Committed:
        attempt = stage.__self__
        fields = {f.name: getattr(attempt, f.name) for f in dataclass_fields(attempt)}
        return begin(table, operation, options, _Append(op, **fields)._stage, progress)

    with patch.object(table_write, "in_transaction", in_transaction):
        return write()


# --- readers -----------------------------------------------------------------------------------------------------------------


def values_of(rows: pa.Table) -> dict[str, str]:
    """Values by key. Raises `AssertionError` for a key that stands twice."""
    values = dict(zip(rows.column("id").to_pylist(), rows.column("v").to_pylist(), strict=True))
    keys = rows.column("id").to_pylist()
    assert len(values) == len(keys), f"keys that stand twice: {sorted({k for k in keys if keys.count(k) > 1})}"
    return values


def read_values(table: Table) -> dict[str, str]:
    """Values by key in the table's present state."""
    return values_of(table.read(["id", "v"]))


def digest(values: dict[str, str]) -> str:
    """Of a whole table."""
    return hashlib.sha256(json.dumps(sorted(values.items())).encode()).hexdigest()


def read_once(me: Member) -> Sequence[str]:
    """One snapshot, noted with its sequence, read again from the same files a little later."""
    table = me.table
    sequence = table.refresh().sequence
    snapshot = table.snapshot()
    values = values_of(snapshot.read(["id", "v"]))
    me.ledger.note(event="snapshot", sequence=sequence, digest=digest(values), lists={k: values.get(k, "") for k in LISTS})
    time.sleep(0.05)
    again = values_of(snapshot.read(["id", "v"]))
    assert again == values, f"the snapshot at {sequence} changed under its reader: {set(values.items()) ^ set(again.items())}"
    return ["reading"]


# --- table services ----------------------------------------------------------------------------------------------------------


def arrange(me: Member) -> Sequence[str]:
    """Clustering, and compaction where there are logs: by turns one of them finds the table first."""
    arrangers = [(Action.REPLACE_COMMIT, schedule_clustering, run_clustering)]
    if me.table.definition.has_logs:
        arrangers.insert(me.table.refresh().sequence % 2, (Action.COMPACTION, schedule_compaction, run_compaction))
    done = []
    for action, schedule, run in arrangers:
        schedule(me.table)
        if run(me.table) is not None:
            done.append(action.value)
    return done


def clean(me: Member) -> Sequence[str]:
    """Rolls the dead back, finishes cleans that died, cleans."""
    done = [Action.ROLLBACK.value] if roll_back_dead(me.table) else []
    if not any(a.action is Action.CLEAN for a in me.table.state.pending()):
        schedule_clean(me.table)
    return [*done, Action.CLEAN.value] if run_clean(me.table) is not None else done


def serve(me: Member, once: Callable[[Member], Sequence[str]], pause_s: float) -> None:
    """Do `once` again and again until told to stop."""
    stopping: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: stopping.append(number))
    while not stopping:
        try:
            for done in once(me):
                me.tell(f"worked {done}")
        except GOES_WRONG as error:
            me.ledger.note(event="yielded", to=f"{type(error).__name__}: {error}"[:200])
        except HistoryUnavailable:
            me.ledger.note(event="overtaken")  # cleaned under a reader slower than the commits that cleaning retains
        time.sleep(pause_s)


SERVICES: dict[str, tuple[Callable[[Member], Sequence[str]], float]] = {
    "arranger": (arrange, 0.3),
    "cleaner": (clean, 0.5),
    "reader": (read_once, 0.5),
}


def main() -> None:
    """Run one member until its work is done or it is told to stop."""
    if SKEWED in os.environ:
        # libfaketime breaks sleeps until a time of the monotonic clock, as those of Python are.
        time.sleep = functools.partial(select.select, [], [], [])
    role, number, generation, settings_json = sys.argv[1:]
    settings = Settings(**json.loads(settings_json))
    name = f"{role}{number}"
    table = open_table(settings, f"{name}#{generation}")
    me = Member(settings, name, int(generation), table, Ledger(Path(settings.folder) / f"{name}.jsonl"))
    me.tell("ready")
    if role == "writer":
        writer(me, int(number))
    else:
        once, pause_s = SERVICES[role]
        serve(me, once, pause_s)


if __name__ == "__main__":
    main()
