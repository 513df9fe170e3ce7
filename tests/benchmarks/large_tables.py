"""What planning, cleaning, archiving and looking at a table of many partitions costs: processor time, peak memory.

The table is made of log entries and of sparse files without content, because none of these works reads a data file. A first commit
writes every file group; each further one replaces all of them, or as many as `--changed` says. A checkpoint follows, as one does
every 50 entries. Each work runs in a process of its own.

`python -m tests.benchmarks.large_tables --partitions 20000 40000 --folder DIR`

With `--packed`, the table is made from parts of checkpoints (`packed_tables`), in minutes for millions of partitions.

With `--commits`, instead: what upserts of one row cost, beside so many file groups or so many instants of the active timeline.
Storage is in memory and notes each request. `python -m tests.benchmarks.large_tables --commits 10 10000`
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
from tests.benchmarks.packed_tables import make_packed
from tests.unit.table.counting import NotingStorage, publish

from tideline_planner.rules import rules_of, thresholds_of
from tideline_planner.settings import PlannerSettings
from tideline_runtime.planning import examination
from tideline_runtime.planning.examination import services_of
from tideline_runtime.planning.ledger import Ledger
from tideline_runtime.policy import Policies
from tideline_table.action import archive, examine, request_clean, run_clean
from tideline_table.action.write.run import write_rows
from tideline_table.clock import SystemClock
from tideline_table.config import ARCHIVAL_MIN_AGE_S
from tideline_table.hudi.instant import Action, Instant, State, instant_from_time
from tideline_table.hudi.write_stats import NO_PREVIOUS_COMMIT, WriteStat
from tideline_table.log.action import ActionRecord
from tideline_table.log.checkpoint import write_checkpoint
from tideline_table.log.retention import trim
from tideline_table.storage import LocalStorage
from tideline_table.table import Table, TableRequest, TableType, create_table, summarise
from tideline_table.writer import Operation

SCHEMA = pa.schema([pa.field("id", pa.string(), nullable=False), ("part", pa.string())])
PER_PARTITION = 2.5
COMMITS = 4
SIZE_BYTES = 1 << 20
UPSERTS, WARM = 100, 30
OPTIONS = {
    "hoodie.cleaner.commits.retained": 1,
    "hoodie.keep.min.commits": 2,
    "hoodie.keep.max.commits": 3,
    "hoodie.metadata.enable": False,
    ARCHIVAL_MIN_AGE_S.key: 1,
}


def make(base_path: str, partitions: int, changed: int | None = None) -> None:
    """Create the table with `COMMITS` commits of `PER_PARTITION` file groups for each partition."""
    create_table(base_path, TableRequest("large", SCHEMA, ("id",), ("part",)))
    table, at = opened(base_path), time.time_ns()
    groups = [(f"part={n // PER_PARTITION:.0f}", str(uuid.UUID(int=at + n)) + "-0") for n in range(int(partitions * PER_PARTITION))]
    before = NO_PREVIOUS_COMMIT
    for folder in {partition for partition, _ in groups}:
        os.makedirs(os.path.join(base_path, folder))

    def stats(instant: str) -> list[WriteStat]:
        named = [(partition, file_id, f"{partition}/{file_id}_0-0-0_{instant}.parquet") for partition, file_id in groups]
        for _, _, path in named:
            with open(os.path.join(base_path, path), "wb") as file:
                file.truncate(SIZE_BYTES)
        return [WriteStat(file_id, partition, path, before, 1000, SIZE_BYTES, 1000) for partition, file_id, path in named]

    for _ in range(COMMITS):
        before = publish(table, stats, Action.COMMIT)
        groups = groups[:changed]
    write_checkpoint(table.storage, table.state)


def opened(base_path: str) -> Table:
    return Table.open(base_path, options=OPTIONS, storage=LocalStorage(Path(base_path)))


def status(base_path: str) -> str:
    table = opened(base_path)
    settings = PlannerSettings.load(environment={}, tables=(base_path,))
    found = examine(table, rules_of(settings, Policies().of(base_path, table.uid), table))
    return found.verdict


def cleaned(base_path: str) -> str:
    return f"{run_clean(opened(base_path))} files"


def planned(base_path: str) -> list[str]:
    """Decide about the plans of all services, as the planner does for a table of which an event came."""
    table, settings = opened(base_path), PlannerSettings.load(environment={}, tables=(base_path,))
    policy, view, now = Policies().of(base_path, table.uid), table.view(), datetime.now(UTC)
    decided = [examination.examine(name, view, policy, thresholds_of(settings), Ledger(), now) for name in services_of(view)]
    return [found.reason for found in decided]


WORKS: dict[str, Callable[[str], object]] = {
    "open": lambda base_path: opened(base_path).state.sequence,
    "one partition": lambda base_path: len(opened(base_path).state.latest_slices(partitions=["part=7", "part=000000000007"])),
    "status": status,
    "show": lambda base_path: summarise(opened(base_path)).file_groups,
    "planner": planned,
    "plan clean": lambda base_path: request_clean(opened(base_path)),
    "run clean": cleaned,
    "archive": lambda base_path: archive(opened(base_path)),
    "open after": lambda base_path: opened(base_path).state.sequence,
}


def measured(work: str, base_path: str) -> dict[str, object]:
    """Do one work in this process and return its cost, without what the process takes at its start."""
    begun_s, begun_kib = time.process_time(), _peak_kib()
    result = WORKS[work](base_path)
    return {
        "work": work,
        "processor_s": round(time.process_time() - begun_s, 2),
        "peak_mib": round((_peak_kib() - begun_kib) / 1024),
        "result": str(result)[:60],
    }


def commit_costs(table_type: TableType, *, groups: int, instants: int) -> dict[str, object]:
    """Return what `UPSERTS` upserts of one row cost in a table with `groups` other file groups and `instants` completed commits."""
    storage = NotingStorage(SystemClock())
    create_table("memory", TableRequest("large", SCHEMA, ("id",), ("part",), type=table_type), storage=storage)
    table = Table.open("memory", options={"hoodie.metadata.enable": False}, storage=storage)
    rows = pa.Table.from_pylist([{"id": "a", "part": "x"}], schema=SCHEMA)
    add_commits(table, instants - 1)
    first = table.state.sequence
    write_rows(table, rows, Operation.UPSERT)
    stats = [
        WriteStat(f"{uuid.UUID(int=n)}-0", f"part=n{n // PER_PARTITION:.0f}", "", NO_PREVIOUS_COMMIT, 1000, SIZE_BYTES, 1000)
        for n in range(groups)
    ]
    publish(table, lambda instant: [replace(s, path=path_of(s, instant)) for s in stats], keeps=False)
    write_checkpoint(storage, table.state)
    while trim(storage, first) < first:
        pass
    costs: list[tuple[float, int, int]] = []
    table = Table.open("memory", options={"hoodie.metadata.enable": False}, storage=storage)
    for _ in range(UPSERTS + WARM):
        storage.requests.clear()
        begun_s = time.process_time()
        write_rows(table, rows, Operation.UPSERT)
        costs.append((time.process_time() - begun_s, *storage.cost))
    times, calls, sizes = zip(*costs[WARM:], strict=True)
    return {
        "type": table_type.value,
        "groups": groups,
        "instants": instants,
        "median_ms": round(statistics.median(times) * 1000, 2),
        "mean_ms": round(statistics.mean(times) * 1000, 2),
        "most_ms": round(max(times) * 1000, 2),
        "calls": round(statistics.mean(calls), 2),
        "kib": round(statistics.mean(sizes) / 1024, 1),
    }


def add_commits(table: Table, count: int) -> None:
    """Add commits without files, one a minute until now, of which the log was trimmed."""
    state, now = table.state, datetime.now(UTC)
    action, writer_id = table.write_action(), table.timeline.log.writer_id
    for minutes in range(count, 0, -1):
        at = now - timedelta(minutes=minutes)
        state.sequence, state.last_instant = state.sequence + 2, instant_from_time(at)
        state.actions[state.last_instant] = ActionRecord(
            state.last_instant, action, State.COMPLETED, "UPSERT", state.sequence, state.sequence - 1, writer_id, at.isoformat()
        )
        for each in (State.REQUESTED, State.INFLIGHT, State.COMPLETED):
            table.storage.put(table.timeline.format.timeline_path(Instant(state.last_instant, action, each)), b"")


def path_of(stat: WriteStat, instant: str) -> str:
    return f"{stat.partition_path}/{stat.file_id}_0-0-0_{instant}.parquet"


def _peak_kib() -> int:
    """Return the largest resident memory so far. That of `getrusage` begins with the memory of the parent process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--partitions", type=int, nargs="+", default=[20_000, 40_000])
    parser.add_argument("--changed", type=int, help="file groups that each further commit replaces; all if not given")
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--packed", action="store_true")
    parser.add_argument("--keep", action="store_true", help="leave the tables there")
    parser.add_argument("--work", choices=WORKS)
    parser.add_argument("--commits", type=int, nargs="+", help="numbers of file groups, and of instants")
    given = parser.parse_args(arguments)
    for number in given.commits or ():
        for counts in ({"groups": number, "instants": 1}, {"groups": 10, "instants": number}):
            for table_type in TableType:
                print(json.dumps(commit_costs(table_type, **counts)), flush=True)
    if given.commits:
        return
    if given.folder is None:
        parser.error("--folder is missing")
    if given.work:
        print(json.dumps(measured(given.work, str(given.folder))))
        return
    for partitions in given.partitions:
        base_path = given.folder / f"large-{partitions}"
        shutil.rmtree(base_path, ignore_errors=True)
        begun_s = time.process_time()
        if given.packed:
            create_table(str(base_path), TableRequest("large", SCHEMA, ("id",), ("part",)))
            make_packed(opened(str(base_path)), partitions, given.changed or 100)
        else:
            make(str(base_path), partitions, given.changed)
        print(partitions, f"made in {time.process_time() - begun_s:.0f} s of processor", flush=True)
        for work in WORKS:
            command = [sys.executable, "-m", "tests.benchmarks.large_tables", "--folder", str(base_path), "--work", work]
            begun = time.monotonic()
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            answer = done.stdout.strip() or done.stderr[-400:]
            print(partitions, f"{time.monotonic() - begun:.1f} s", answer, flush=True)
        if not given.keep:
            shutil.rmtree(base_path)


if __name__ == "__main__":
    main()
