"""The steps of docs/onboarding.md for tables that jobs of Apache Hudi write, and what must hold behind them."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from tests.fleet.checks import CLEARED, FOUND, findings_by_kind
from tests.fleet.hudi_tables import HudiJobs, HudiTable, command, files_of_tideline, rows_here
from tests.fleet.instances import Instances, wait_until

from tideline_events import FindingEvent, Transition
from tideline_table.hudi.instant import WRITE_ACTIONS, State
from tideline_table.table import Table

Note = Callable[[str, float], None]
EXPECTED_FINDINGS = frozenset({"probation", "objective", "backlog"})
"""What may be found about a table whose jobs do as they were told: it waits for its writers, or its services are behind."""
PASSING_FINDINGS = frozenset({"stuck_plan"})
"""What may be found, and ends: the run kills an instance, and the compaction that it ran waits for another."""
WITHOUT_TRACE = frozenset(
    {
        "hoodie.write.concurrency.mode",
        "hoodie.write.lock.provider",
        "hoodie.write.lock.filesystem.expire",
        "hoodie.write.lock.client.num_retries",
        "hoodie.write.lock.client.wait_time_ms_between_retry",
        "hoodie.write.table.version",
        "hoodie.write.auto.upgrade",
    }
)
"""Options that the check goes on to list on a disk."""
LIMIT_S = 1200.0
RETRY_S = 2.0
VISITS_S = 5.0
"""In which a service that still has a table visits it again."""


def observed(jobs: HudiJobs, instances: Instances) -> list[str]:
    """Return what is wrong with how the fleet API describes the tables before they are shared."""
    documents = _documents(jobs.tables, instances)
    wrong = [f"{t.name}: the fleet API does not name it" for t in jobs.tables if t.base_path not in documents]
    for path, document in documents.items():
        wrong += [] if document["state"] == "unmanaged" else [f"{path} is {document['state']}, expected unmanaged"]
        wrong += [f"{path}: {f['kind']}: {f['text']}" for f in document["findings"] if f["kind"] not in EXPECTED_FINDINGS]
    return wrong + [f"{t.name}: {files_of_tideline(t)} while it is observed" for t in jobs.tables if files_of_tideline(t)]


def take_over(jobs: HudiJobs, instances: Instances, note: Note) -> list[str]:
    """Check each table, give its job what it lacks, share it, and wait until its probation ends. The jobs write meanwhile."""
    began_s = time.monotonic()
    wrong = []
    for table in jobs.tables:
        code, document, said = command("share", table.base_path, "--check")
        lacks = [writer["lacks"] for writer in document.get("writers", ())]
        wrong += [] if code == 1 and len(lacks) == 1 and lacks[0] else [f"{table.name}: the first check: {code} {document} {said}"]
        for options in lacks:
            table.options |= options
    note("Hudi tables checked", time.monotonic() - began_s)
    assert not wrong, wrong
    have_written = lambda: all(table.with_options or table.died for table in jobs.tables)  # noqa: E731
    note("Hudi jobs wrote with the options", wait_until("Hudi jobs wrote with the options", have_written, instances, LIMIT_S))
    began_s = time.monotonic()
    for table in jobs.tables:
        code, document, said = command("share", table.base_path, "--check")
        left = {key for writer in document.get("writers", ()) for key in writer["lacks"]} - WITHOUT_TRACE
        wrong += (
            [f"{table.name}: the second check: {document.get('refused')} {left} {said}"] if left or document.get("refused") else []
        )
        code, document, said = command("share", table.base_path)
        table.options |= document.get("hudi_options", {})
        wrong += [] if code == 0 else [f"{table.name}: share: {code} {said}"]
    note("Hudi tables shared", time.monotonic() - began_s)

    def are_managed() -> bool:
        documents = _documents(jobs.tables, instances)
        found = [documents.get(table.base_path) for table in jobs.tables]
        return all(d is not None and d["state"] == "managed" and "probation" not in kinds(d) for d in found)

    note("every Hudi writer seen with the lock", wait_until("probation ends", are_managed, instances, LIMIT_S))
    return wrong


def give_back(jobs: HudiJobs, instances: Instances, note: Note) -> list[str]:
    """Leave each table while the services run; its job goes on as before. No service may come back to it."""
    began_s, refused, wrong = time.monotonic(), Counter[str](), []
    for table in jobs.tables:
        deadline_s = time.monotonic() + LIMIT_S
        while (answer := command("leave", table.base_path))[0] and time.monotonic() < deadline_s:
            refused[answer[2]] += 1
            time.sleep(RETRY_S)
        wrong += [f"{table.name}: leave: {answer[2]}"] if answer[0] else []
        table.options.clear()
    note("Hudi tables left", time.monotonic() - began_s)
    jobs.round()

    def are_observed() -> bool:
        documents = _documents(jobs.tables, instances)
        return all(documents.get(t.base_path, {}).get("state") == "unmanaged" for t in jobs.tables)

    note("Hudi tables observed again", wait_until("tables that were left are observed", are_observed, instances, LIMIT_S))
    time.sleep(VISITS_S)
    wrong += [f"leave refused {count} times: {text}" for text, count in refused.items()]
    return wrong + [f"{t.name}: left behind {files_of_tideline(t)}" for t in jobs.tables if files_of_tideline(t)]


def problems(jobs: HudiJobs, transitions: Sequence[Transition], findings: Iterable[FindingEvent]) -> Iterator[str]:
    """Yield what is wrong with the tables at the end."""
    by_path: dict[str, list[Transition]] = defaultdict(list)
    for event in transitions:
        by_path[event.table.base_path].append(event)
    events = list(findings)
    passed = {found for found, states in findings_by_kind(events).items() if found[0] in PASSING_FINDINGS and states[-1] == CLEARED}
    found = {(e.base_path, e.kind, e.reason) for e in events if e.state == FOUND and e.kind not in EXPECTED_FINDINGS}
    false = {(path, kind, reason) for path, kind, reason in found if (kind, path) not in passed}
    for table in jobs.tables:
        yield from (f"{table.name}: its job died: {text}" for text in table.died)
        for reader, rows in (("Tideline", rows_here(table)), ("Apache Hudi", jobs.read(table))):
            differ = sorted(key for key in {*rows, *table.model} if rows.get(key) != table.model.get(key))
            if differ:
                shown = [(key, rows.get(key), table.model.get(key)) for key in differ[:5]]
                yield f"{table.name}: {reader} reads {shown} (key, found, expected) and {len(differ) - len(shown)} more"
        yield from _of_events(table, by_path[table.base_path])
        yield from (f"{table.name}: {kind}: {reason}" for path, kind, reason in false if path == table.base_path)
        service = "compaction" if table.type == "MERGE_ON_READ" else "clustering"
        if not any(e.action == service and e.to_state == State.COMPLETED.value for e in by_path[table.base_path]):
            yield f"{table.name}: no completed {service}"


def _of_events(table: HudiTable, events: Sequence[Transition]) -> Iterator[str]:
    """Each uid of the table has its transitions once and in order, and each write of a job completed once for it."""
    sequences: dict[str, list[int]] = defaultdict(list)
    for event in events:
        sequences[event.table_uid].append(event.sequence)
    for uid, found in sequences.items():
        if found != list(range(1, len(found) + 1)):
            yield f"{table.name}: uid {uid} has sequences {found}"
    completed = Counter((e.table_uid, e.instant) for e in events if e.to_state == State.COMPLETED.value)
    yield from (
        f"{table.name}: {instant} completed {times} times for {uid}" for (uid, instant), times in completed.items() if times > 1
    )
    known = {instant for _, instant in completed}
    actions = Table.open(table.base_path).state.actions.values()
    missed = [a.instant for a in actions if a.action in WRITE_ACTIONS and a.state is State.COMPLETED and a.instant not in known]
    if missed:
        yield f"{table.name}: no event says that {missed} completed"


def figures(jobs: HudiJobs) -> str:
    """Return what the jobs did, for a report."""
    commits, locked = (sum(found) for found in zip(*((t.commits, t.with_options) for t in jobs.tables), strict=True))
    died, most = sum(len(t.died) for t in jobs.tables), max(t.most_log_files for t in jobs.tables)
    return (
        f"{len(jobs.tables)} tables of Apache Hudi: {commits} commits, {locked} of them with the lock options; {died} jobs died; "
        f"at most {most} log files in a slice"
    )


def kinds(document: Mapping[str, Any]) -> set[str]:
    return {found["kind"] for found in document["findings"]}


def _documents(tables: Sequence[HudiTable], instances: Instances) -> dict[str, dict[str, Any]]:
    paths = {table.base_path.removeprefix("file:"): table.base_path for table in tables}
    found = {str(document["base_path"]).removeprefix("file:"): document for document in instances.documents()}
    return {paths[path]: document for path, document in found.items() if path in paths}
