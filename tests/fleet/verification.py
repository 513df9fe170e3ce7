"""The end of a run: events in Kafka, the tables and the ledgers of the writers against each other."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import uuid4

import pyarrow as pa
from e2e.fleet.events import problems as event_problems
from e2e.fleet.events import read_transitions
from e2e.fleet.verification import difference
from e2e.fleet.writers import Acknowledged
from tests.fleet import checks, taking_over
from tests.fleet.checks import Interval
from tests.fleet.instances import LETTERS
from tests.fleet.policies import BUDGET_BYTES, PENDING_PLANS
from tests.fleet.story import Run
from tests.fleet.tables import EARLY, FREE, FRUGAL, LATE, PAUSED, SCHEMA, TIMED, opened
from tests.fleet.writer import Batch, rows_of

from tideline_events import DECISIONS, FindingEvent, Transition, VerdictEvent, decode, open_event_log
from tideline_table.table import Table

READ_TIMEOUT_S = 300.0
QUIET_S = 1.0
DELTA_COMMITS = 3


def problems(run: Run) -> tuple[list[str], Figures]:
    """Return what is wrong at the end of a run, and its figures. The servers still run."""
    began_s = time.monotonic()
    tables = {member.base_path: opened(member.base_path) for member in run.tables}
    transitions = read_transitions(run.servers, {table.uid: table.state.sequence for table in tables.values()})
    findings, verdicts = decisions(run)
    found = [
        *_of_events(run, tables, transitions),
        *_of_policies(run, transitions),
        *_of_work(run, transitions, findings, verdicts),
    ]
    found += [*_of_rows(run, tables), *_of_leftovers(tables), *run.causes.problems()]
    found += taking_over.problems(run.hudi, transitions, findings)
    run.note("checks", time.monotonic() - began_s)
    return [*run.wrong, *found], _figures(run, transitions)


def _of_events(run: Run, tables: dict[str, Table], transitions: Sequence[Transition]) -> list[str]:
    commits = [
        Acknowledged(line.base_path, str(line.round), line.instant, line.sequence, line.attempts, line.errors)
        for lines in run.lines().values()
        for line in lines
    ]
    least = run.size.rounds * len(run.tables) * 2
    few = [f"{len(commits)} commits were acknowledged, expected {least} at least"] if len(commits) < least else []
    heads = {table.uid: table.state.sequence for table in tables.values()}
    return few + event_problems(transitions, heads, {path: table.uid for path, table in tables.items()}, commits)


def _of_policies(run: Run, transitions: Sequence[Transition]) -> list[str]:
    (began, first), (changed, _), (ended, _) = run.rules.phases
    far = ended + timedelta(days=1)
    windows = {EARLY: [Interval(began, run.in_force[1]), Interval(ended, far)], LATE: [Interval(changed, far)]}
    if first.timed is not None:
        windows[TIMED] = [Interval(first.timed.opens, first.timed.closes), Interval(ended, far)]
    allowed = {m.base_path: windows[m.group] for m in run.tables if m.group in windows}
    allowed |= {m.base_path: [Interval(ended, far)] for m in run.tables if m.group == PAUSED}
    frugal = [m.base_path for m in run.tables if m.group == FRUGAL]
    found = checks.outside_of_windows(transitions, allowed) + checks.over_budget(transitions, frugal, BUDGET_BYTES, ended)
    for group, window in windows.items():
        inside = [
            e
            for e in transitions
            if e.table.base_path in {m.base_path for m in run.tables if m.group == group}
            and e.action in checks.REWRITES
            and e.to_state == "requested"
            and window[0].has(e.time)
        ]
        found += [] if inside else [f"no plan of the group {group} was published within {window[0]}"]
    most = checks.most_pending(transitions)
    return found + ([f"{most} plans were pending at once; the fleet allows {PENDING_PLANS}"] if most > PENDING_PLANS else [])


def _of_work(
    run: Run, transitions: Sequence[Transition], findings: Sequence[FindingEvent], verdicts: Sequence[VerdictEvent]
) -> list[str]:
    free = [m for m in run.tables if m.group == FREE]
    ended, _ = run.rules.phases[-1]
    # Where a window, pause or budget held services back, one clustering may follow, which merges the log files, too.
    expected = {
        m.base_path: [
            *(["clustering"] if m.kind.is_clustered else []),
            *(["compaction"] if m.kind.type == "mor" and (m.group == FREE or not m.kind.is_clustered) else []),
        ]
        for m in run.tables
    }
    by_group = {group: [m.base_path for m in run.tables if m.group == group] for group in (LATE, FRUGAL, PAUSED)}
    return [
        *checks.unheard(findings, run.caused()),
        # The last phase has a tighter objective, which is met when nothing is left to do.
        *checks.missed_objectives([e for e in findings if e.time < ended], [m.base_path for m in free]),
        *checks.without_work(transitions, expected),
        *checks.never_held(verdicts, {"window": by_group[LATE], "budget": by_group[FRUGAL], "paused": by_group[PAUSED]}),
    ]


def _of_rows(run: Run, tables: dict[str, Table]) -> Iterator[str]:
    written: dict[str, list[pa.Table]] = {path: [] for path in tables}
    for writer, lines in run.lines().items():
        for line in lines:
            written[line.base_path].append(rows_of(Batch(line.base_path, line.round, writer)))
    for path, table in tables.items():
        rows = pa.concat_tables(written[path]).sort_by([("id", "ascending"), ("n", "descending")])
        newest = rows.group_by("id", use_threads=False).aggregate([("part", "first"), ("n", "first"), ("by", "first")])
        expected = newest.rename_columns(["id", "part", "n", "by"]).select(SCHEMA.names).cast(SCHEMA)
        differs = difference(expected, table.read().select(SCHEMA.names).cast(SCHEMA))
        if differs:
            yield f"{path}: {differs}"


def _of_leftovers(tables: dict[str, Table]) -> list[str]:
    return [f"{path}: {a.action} {a.instant} is {a.state}" for path, table in tables.items() for a in table.state.pending()]


def decisions(run: Run) -> tuple[list[FindingEvent], list[VerdictEvent]]:
    """Return all findings and verdicts that were published."""
    found: list[FindingEvent] = []
    verdicts: list[VerdictEvent] = []
    with (
        closing(open_event_log(run.servers.kafka.url)) as log,
        closing(log.subscribe([DECISIONS.name], f"fleet-{uuid4()}")) as topic,
    ):
        deadline_s = time.monotonic() + READ_TIMEOUT_S
        while time.monotonic() < deadline_s:
            records = topic.poll(QUIET_S)
            if not records and (found or verdicts):
                return found, verdicts
            for event in map(decode, records):
                if isinstance(event, FindingEvent):
                    found.append(event)
                elif isinstance(event, VerdictEvent):
                    verdicts.append(event)
    return found, verdicts


@dataclass(frozen=True)
class Figures:
    """What a run amounts to, for its report."""

    commits: int
    repeated: int
    """Commits that needed more than one attempt, or met an error before."""
    events: int
    rewrites: int
    rewritten_bytes: int
    plan_p50_s: float
    plan_p99_s: float
    plan_max_s: float
    most_pending: int
    instances: int = len(LETTERS)

    def text(self) -> str:
        return (
            f"{self.commits} commits ({self.repeated} repeated), {self.events} events, {self.rewrites} clusterings and "
            "compactions of "
            f"{self.rewritten_bytes / 2**20:.1f} MiB; compactions planned {self.plan_p50_s:.1f} s (median), "
            f"{self.plan_p99_s:.1f} s (p99) "
            f"and {self.plan_max_s:.1f} s (longest) after the commit that made them due; {self.most_pending} plans pending at most"
        )


def _figures(run: Run, transitions: Sequence[Transition]) -> Figures:
    lines = [line for found in run.lines().values() for line in found]
    free = {m.base_path for m in run.tables if m.group == FREE}
    delays = checks.delays_s([e for e in transitions if e.table.base_path in free], DELTA_COMMITS)
    done = [e for e in transitions if e.action in checks.REWRITES and e.to_state == "completed"]
    return Figures(
        len(lines),
        sum(line.attempts > 1 or line.errors > 0 for line in lines),
        len(transitions),
        len(done),
        sum(checks.rewritten(done, datetime.max.replace(tzinfo=run.in_force[0].tzinfo)).values()),
        checks.percentile(delays, 0.5),
        checks.percentile(delays, 0.99),
        max(delays, default=float("nan")),
        checks.most_pending(transitions),
    )
