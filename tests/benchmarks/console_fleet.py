"""A console over tables that are generated, in a process of its own: `tests.benchmarks.console` starts it and asks it.

Rows of tables, steps and events are made here and given to the read model as the follower gives them; two tables are real: one with
many partitions, and one whose steps are many instants. The service is `ConsoleService`, with its event log, follower and server.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa

from tideline_console.follower import _Known
from tideline_console.model import URGENCY
from tideline_console.service import ConsoleService
from tideline_console.settings import ConsoleSettings
from tideline_events import TableIdentity, Transition
from tideline_runtime.contract import ServiceContext
from tideline_runtime.health import Health
from tideline_runtime.metrics import Metrics
from tideline_table.action import write_rows
from tideline_table.clock import SystemClock
from tideline_table.config import SMALL_FILE_LIMIT
from tideline_table.hudi.instant import instant_from_time
from tideline_table.table import Table, TableRequest, create_table
from tideline_table.writer import Operation

SCHEMA = pa.schema([pa.field("id", pa.string(), nullable=False), pa.field("city", pa.string()), pa.field("fare", pa.float64())])
FOLDERS, WRITERS = 40, 60
PARTITIONS_AT_ONCE = 2500
BATCH = 5000
EVENTS = 50_000
LONG, WIDE = "long", "wide"
_SERVICES = ("clustering", "compaction", "clean")
_POLICY = """\
version: 1
defaults:
  objectives: {small_files: 500}
rules:
"""


def uid_of(number: int) -> str:
    """Return the uid of a generated table."""
    return str(uuid.UUID(int=number + 1))


def path_of(number: int) -> str:
    """Return the base path of a generated table."""
    return f"file:/lake/{number % FOLDERS:02}/t{number:05}"


def steps_of(number: int, uid: str, base_path: str, instants: int, now: datetime, every: timedelta) -> Iterator[Transition]:
    """Yield two steps for each instant of a table, the newest ones now: writes, and a service for every fourth."""
    identity = TableIdentity(uid, base_path, base_path.rpartition("/")[2])
    for at in range(instants):
        begun = now - every * (instants - at) + timedelta(milliseconds=number % 1000)
        ended = begun + timedelta(seconds=2)
        action = ("commit", "deltacommit", "commit", _SERVICES[(number + at) % 3])[at % 4]
        common: dict[str, Any] = {
            "table": identity,
            "instant": instant_from_time(begun, UTC),
            "action": action,
            "requested_time": begun,
            "writer_id": f"writer-{(number + at // 7) % WRITERS}",
            "observed_by": "mirror",
            "operation": "upsert",
        }
        file = f"{common['instant']}.{action}"
        yield Transition(**common, to_state="inflight", time=begun, sequence=2 * at + 1, timeline_file=f"{file}.inflight")
        yield Transition(
            **common,
            from_state="inflight",
            to_state="completed",
            time=ended,
            completion_time=ended,
            sequence=2 * at + 2,
            timeline_file=file,
            rows_inserted=1000,
            rows_updated=at % 100,
            rows_deleted=0,
            files_added=3,
            bytes_added=3_000_000 + at,
            partitions=(f"day={at % 30:02}",),
        )


def row_of(number: int, now_s: float) -> dict[str, Any]:
    """Return the row of a generated table: of twelve, one needs a person, one works, two have something due."""
    path, uid = path_of(number), uid_of(number)
    verdict = ("attention", "working", "due", "due", *["idle"] * 7, "unmanaged")[number % 12]
    finding = {"kind": "dead_writer", "text": f"writer-{number % WRITERS} died", "age_s": 5.0 + number, "ends_in_s": None}
    job = {"instant": "20260101000000000", "service": "clean", "state": "requested", "age_s": 1.0 + number, "is_running": False}
    outcome = "due" if verdict == "due" else "not_due"
    services = {
        name: {"service": name, "outcome": outcome, "reason": f"{number % 90} small files", "until": "", "last_run": None}
        for name in _SERVICES
    }
    document = {
        "table": f"t{number:05}",
        "base_path": path,
        "findings": [finding] if verdict == "attention" else [],
        "pending": [{**job, "writer_id": "planner"}] if verdict == "working" else [],
        "services": services,
        "backlog": None,
    }
    sizes = {"size_bytes": number << 20, "file_groups": number % 700, "small_files": number % 90, "log_files": number % 50}
    return {
        "base_path": path,
        "uid": uid,
        "name": f"t{number:05}",
        "folder": f"{number % FOLDERS:02}",
        "type": "mor" if number % 2 else "cow",
        "version": 6 + number % 3,
        "mode": "foreign" if verdict == "unmanaged" else "exclusive",
        "verdict": verdict,
        "urgency": URGENCY[verdict],
        "state": None,
        "sequence": 40,
        **sizes,
        "log_bytes": number << 10,
        "pending": len(document["pending"]),
        "due": 3 if verdict == "due" else 0,
        "findings": len(document["findings"]),
        "last_write_s": now_s - number % 5000,
        "tags": "gold" if number % 10 == 0 else "",
        "examined_s": now_s,
        "document": document,
    }


def event_of(number: int, tables: int, now_s: float) -> dict[str, Any]:
    """Return the row of a generated event of a job."""
    of = number % tables
    document = {"table_uid": uid_of(of), "action": "clustering", "state": "succeeded", "attempt": 1}
    row = {"id": f"job-{number}", "uid": uid_of(of), "base_path": path_of(of), "kind": "job", "what": "clustering succeeded"}
    return {**row, "instant": f"{20260101000000000 + number}", "text": "attempt 1", "time_s": now_s - number, "document": document}


def real_tables(folder: Path, partitions: int) -> None:
    """Make the two real tables; the wide one has a small file in each of so many partitions."""
    clock = SystemClock()
    for name in (LONG, WIDE):
        create_table(str(folder / name), TableRequest(name, SCHEMA, ("id",), ("city",)), clock)
    table = Table.open(str(folder / WIDE), writer_id="benchmark")
    for first in range(0, partitions, PARTITIONS_AT_ONCE):
        numbers = range(first, min(partitions, first + PARTITIONS_AT_ONCE))
        rows = pa.table([[str(n) for n in numbers], [f"city{n:05}" for n in numbers], [float(n) for n in numbers]], SCHEMA)
        write_rows(table, rows, Operation.INSERT, options={SMALL_FILE_LIMIT.key: 0}, parallelism=1)


def policy_text(rules: int) -> str:
    """Return a policy file with so many rules, which match folders of the generated tables."""
    rule = "  - name: rule {0}\n    match: {{paths: ['file:/lake/{1:02}/*']}}\n    priority: {0}\n"
    return _POLICY + "".join(rule.format(n + 1, n % FOLDERS) for n in range(rules))


def serve(given: argparse.Namespace) -> None:
    """Serve until standard input ends. Prints the address and what filling the read model took, as one line of JSON."""
    folder: Path = given.folder
    tables = folder / "tables"
    if not tables.exists():
        real_tables(tables, given.partitions)
    state = folder / "state"
    shutil.rmtree(state, ignore_errors=True)
    state.mkdir()
    policies = folder / "policies.yaml"
    policies.write_text(policy_text(given.rules))
    settings = ConsoleSettings.load(
        environment={},
        tables=(f"{tables}/*",),
        state_folder=str(state),
        policy_file=str(policies),
        tables_rescan_s=1e6,
        examine_interval_s=1e6,
        listen_port=0,
    )
    clock = SystemClock()
    service = ConsoleService(settings, ServiceContext("console", clock, Metrics("console"), Health(clock, 300)))
    service.start()
    service.tick()
    model, follower = service._model, service._follower
    assert model is not None, "started"
    assert follower is not None, "started"
    now, began_s = datetime.now(UTC), time.monotonic()
    kept = follower.policies()
    for number in range(given.tables):
        model.put_table(row_of(number, now.timestamp()))
        follower._known[path_of(number)] = _Known(examined_s=clock.monotonic_s(), is_hinted=False, policies=kept)
        model.add_steps(steps_of(number, uid_of(number), path_of(number), given.steps // 2, now, timedelta(hours=1)))
    for first in range(0, EVENTS, BATCH):
        model.add_events([event_of(number, given.tables, now.timestamp()) for number in range(first, first + BATCH)])
    long_table = Table.open(str(tables / LONG))
    batch: list[Transition] = []
    for step in steps_of(0, long_table.uid, long_table.base_path, given.instants, now, timedelta(minutes=1)):
        batch.append(step)
        if len(batch) == BATCH:
            model.add_steps(batch)
            batch = []
    model.add_steps(batch)
    filled_s = time.monotonic() - began_s
    sys.stdout.write(json.dumps({"address": service.address.rstrip("/"), "filled_s": filled_s}) + "\n")
    sys.stdout.flush()
    ended = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
    while not ended.wait(service.tick()):
        pass
    service.stop()


def main() -> None:
    """Read the arguments, and serve."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.console_fleet", description=__doc__)
    parser.add_argument("folder", type=Path)
    for name, default in (("tables", 10_000), ("steps", 40), ("instants", 100_000), ("partitions", 50_000), ("rules", 20)):
        parser.add_argument(f"--{name}", type=int, default=default)
    serve(parser.parse_args())


if __name__ == "__main__":
    main()
