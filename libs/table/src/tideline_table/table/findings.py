"""Findings about a table: what is wrong or will soon be, since when, and what ends it. A healthy table has none."""

from __future__ import annotations

import contextlib
import enum
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta, tzinfo

from tideline_table.config import BACKLOG_LOG_FILES, CLUSTERING_PRIORITY_LAPSE_S, INSTANT_SKEW_S, PLAN_AGE_S
from tideline_table.coordination import allowed_silence, eager_until, last_sign, may_live
from tideline_table.errors import MALFORMED, ObjectNotFound, TidelineError
from tideline_table.hudi.instant import Action, State, instant_from_time, time_from_instant
from tideline_table.hudi.listing import list_timeline
from tideline_table.hudi.properties import TIMEZONE
from tideline_table.hudi.zone import LOCAL
from tideline_table.json_text import parse_json
from tideline_table.log.action import ActionRecord
from tideline_table.log.hidden import hidden_files
from tideline_table.log.state import TableState
from tideline_table.storage import Storage
from tideline_table.table.facade import Table
from tideline_table.table.standing import lost_completions, lost_files, why_refused

JOBS = ".hoodie/.tideline/jobs"
"""The folder of what the launcher keeps with a table: these records, and logs of attempts that failed."""
_SUFFIX = ".given_up"


@dataclass(frozen=True, slots=True)
class GivenUp:
    """Why and when (ISO 8601, UTC) the launcher stopped running a plan, after so many attempts."""

    instant: str
    service: str
    attempts: int
    reason: str
    time: str


def keep_given_up(storage: Storage, record: GivenUp) -> None:
    """Store the record of a plan."""
    storage.put(_path(record.instant), json.dumps(asdict(record)).encode())


def given_up_plans(storage: Storage) -> Mapping[str, GivenUp]:
    """Return the records by the instant of the plan, in one listing and one request for each.

    A record that cannot be read is left out.
    """
    found = {}
    for path in (o.path for o in storage.list_folder(JOBS).objects):
        if path.endswith(_SUFFIX):
            with contextlib.suppress(ObjectNotFound, *MALFORMED):
                document = parse_json(storage.read(path))
                named = {name: str(document[name]) for name in ("instant", "service", "reason", "time")}
                record = GivenUp(**named, attempts=int(document["attempts"]))
                found[record.instant] = record
    return found


def is_given_up_plan(storage: Storage, instant: str) -> bool:
    """Return whether there is a record of the plan. One request."""
    with contextlib.suppress(ObjectNotFound):
        storage.stat(_path(instant))
        return True
    return False


def forget_given_up(storage: Storage, instant: str) -> bool:
    """Delete the record of a plan, so that a launcher runs it again. Return whether there was one."""
    was_there = is_given_up_plan(storage, instant)
    if was_there:
        storage.delete(_path(instant))
    return was_there


def _path(instant: str) -> str:
    return f"{JOBS}/{instant}{_SUFFIX}"


_PLANNED = frozenset({Action.COMPACTION, Action.CLEAN, Action.ARCHIVAL})


class FindingKind(enum.StrEnum):
    """What a finding is about. The names are label values of metrics and fields of JSON documents."""

    DEAD_WRITER = "dead_writer"
    STUCK_PLAN = "stuck_plan"
    WAITING_PLAN = "waiting_plan"
    BACKLOG = "backlog"
    OBJECTIVE = "objective"
    """The backlog is beyond an objective of the table's policy."""
    CLOCK = "clock"
    CANNOT_OPEN = "cannot_open"
    CANNOT_PLAN = "cannot_plan"
    LOCKS = "locks"
    NO_TABLE = "no_table"
    GONE = "gone"
    """A table that was found before is not at its place any more."""
    POLICY = "policy"
    """The policy file is not valid: that of before stays in force."""
    GIVEN_UP = "given_up"
    REFUSED = "refused"
    """Writers refuse the table: a copy, another writer's instant, an upgrade, a lost log."""
    DAMAGED = "damaged"
    HIDDEN_COMMIT = "hidden_commit"
    """A completed write of Apache Hudi has log files that a compaction does not read."""
    UNLOCKED_WRITER = "unlocked_writer"
    """A write of Apache Hudi completed without the common lock: services stop on the table."""
    PROBATION = "probation"
    """Not every writer of Apache Hudi was seen with the common lock: services wait."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding. `text` names what was found and what to do, and is the same as long as nothing changes."""

    kind: FindingKind
    text: str
    age_s: float | None = None
    """Since when, in seconds before the look. None if that is not known."""
    ends_in_s: float | None = None
    """When the services end it by themselves, in seconds after the look: 0 at their next visit. None if they do not."""


def findings_of(table: Table) -> tuple[Finding, ...]:
    """Return the findings about the last refreshed state.

    Costs five requests (`why_refused`), a few for each pending action, and a listing if a plan is pending.
    """
    return findings_beside(table, why_refused(table))


def findings_beside(table: Table, refused: TidelineError | None) -> tuple[Finding, ...]:
    """As `findings_of`, for a caller that knows why writers refuse the table."""
    if refused is not None:
        # The other findings name services that would help. None of them can run.
        return (Finding(FindingKind.REFUSED, str(refused)),)
    state = table.state
    late = [found for record in state.pending() if (found := _late_heartbeat(table, record)) is not None]
    return (*_problems(table, state), *late, *_of_probation(state), *_of_given_up(table, state))


def problems_of(table: Table) -> tuple[Finding, ...]:
    """Return the findings that the health of a table names.

    Costs five requests (`why_refused`), and one for each pending action that should have a live process.
    """
    refused = why_refused(table)
    return (Finding(FindingKind.REFUSED, str(refused)),) if refused is not None else _problems(table, table.state)


def _problems(table: Table, state: TableState) -> tuple[Finding, ...]:
    found = [finding for record in state.pending() if (finding := _of_action(table, record)) is not None]
    return (*found, *_of_unlocked(table, state), *_of_hidden(state), *_of_backlog(table, state), *_of_clock(table))


def _of_probation(state: TableState) -> list[Finding]:
    """Return a finding while services wait for writers that were not seen with the lock."""
    if state.sharing is None or not state.probation:
        return []
    until, seen = state.sharing.probation_ends, state.probation.removeprefix(f"{FindingKind.PROBATION}: ")
    return [Finding(FindingKind.PROBATION, f"{seen}; no service plans, runs or cleans here until {until}")]


def _of_unlocked(table: Table, state: TableState) -> list[Finding]:
    """Return one finding for the writes that completed without the common lock."""
    if not state.unlocked:
        return []
    first, last = min(state.unlocked), max(state.unlocked)
    writers = ", ".join(sorted(set(state.unlocked.values())))
    text = (
        f"{len(state.unlocked)} write(s) of Apache Hudi, the last {last}, completed without the lock of the table: {writers}; no "
        "service plans, runs or cleans here until each of its jobs has the options that tideline share PATH prints; then: tideline "
        "share PATH --resume"
    )
    return [Finding(FindingKind.UNLOCKED_WRITER, text, age_s(first, table.clock.now(), table.zone))]


def _of_hidden(state: TableState) -> list[Finding]:
    """Return a finding for each write of which a compaction or a clustering hides files.

    Not of one that began as Tideline planned a compaction, with the later instant: the compaction reads it when it runs.
    """
    by_write: dict[tuple[str, str], list[str]] = {}
    for hidden in hidden_files(state):
        is_awaited = state.is_pending(hidden.behind) and not state.actions[hidden.behind].is_by_hudi
        if not (is_awaited and hidden.behind < hidden.instant):
            by_write.setdefault((hidden.instant, hidden.behind), []).append(hidden.path)
    return [
        Finding(
            FindingKind.HIDDEN_COMMIT,
            f"write {write} of Apache Hudi completed after {_rewrite(state, behind)} was planned over it: the plan lacks "
            f"{len(paths)} of its file(s), the first {paths[0]}; {_end_of_hidden(state, behind)}; give its job the options "
            "that tideline share PATH prints",
        )
        for (write, behind), paths in by_write.items()
    ]


def _rewrite(state: TableState, instant: str) -> str:
    return f"{'clustering' if state.actions[instant].is_clustering else 'compaction'} {instant}"


def _end_of_hidden(state: TableState, compaction: str) -> str:
    """Return what makes the rows visible."""
    if state.is_pending(compaction):
        return f"they stay visible if Tideline runs it (tideline run compaction PATH {compaction}), not if Apache Hudi does"
    return "readers do not read them: append these rows again before Apache Hudi cleans: tideline reappend PATH"


def damage_of(table: Table, *, everywhere: bool = False) -> tuple[Finding, ...]:
    """Return a finding if files of the newest slices are gone or have wrong sizes (`lost_files`).

    One listing for each partition that it looks at.
    """
    found = lost_files(table, everywhere=everywhere)
    if not found:
        return ()
    more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
    return (Finding(FindingKind.DAMAGED, f"{found[0]}{more}"),)


def lost_of(table: Table) -> tuple[Finding, ...]:
    """Return a finding if the completed timeline file of a write is gone. One listing of the timeline."""
    if not table.capabilities.keeps_log:
        return ()
    state = table.state
    return lost_finding(lost_completions(table, list_timeline(table.storage, table.timeline.format), state))


def lost_finding(paths: Sequence[str]) -> tuple[Finding, ...]:
    """Return the finding about completed timeline files that are gone."""
    if not paths:
        return ()
    more = f" (and {len(paths) - 1} more)" if len(paths) > 1 else ""
    text = f"timeline file {paths[0]}{more} is gone, and its action had completed: the next job of Apache Hudi rolls it back"
    return (Finding(FindingKind.DAMAGED, f"{text}; restore the file from a copy, with all writers stopped meanwhile"),)


def _of_given_up(table: Table, state: TableState) -> list[Finding]:
    plans = {a.instant for a in state.pending() if a.action in _PLANNED or a.is_clustering}
    if not plans:
        return []
    records = [record for instant, record in sorted(given_up_plans(table.storage).items()) if instant in plans]
    now = table.clock.now()
    return [
        Finding(
            FindingKind.GIVEN_UP,
            f"the launcher gave up {r.service} {r.instant} after {r.attempts} attempt(s): {r.reason}; remove the cause, then: "
            f"tideline job retry PATH {r.instant}, or: tideline job cancel PATH {r.instant}",
            max(0.0, (now - datetime.fromisoformat(r.time)).total_seconds()),
        )
        for r in records
    ]


def most_log_files(state: TableState) -> int:
    """Return the number of log files of the slice that has the most of them."""
    return state.totals()[0].most_log_files


def age_s(instant: str, now: datetime, zone: tzinfo) -> float:
    """Return the age of an instant in `zone` in seconds, 0 for one that lies ahead of the clock."""
    return max(0.0, (now - time_from_instant(instant, zone)).total_seconds())


_LEFT_TO_HUDI = "the next job of Apache Hudi that cleans failed writes, or runs pending plans, ends it"


def _of_action(table: Table, record: ActionRecord) -> Finding | None:
    """Return the finding about a pending action that no process continues, or whose writer missed a heartbeat."""
    state, now = table.state, table.clock.now()
    # From its request on, a restore blocks all writers, and a clustering with priority blocks updates of its file groups.
    goes_first = record.is_clustering and not record.fenced_by and state.has_priority(record.instant)
    driven = record.state is State.INFLIGHT or record.action is Action.RESTORE
    pending_s = age_s(record.instant, now, table.zone)
    if not (driven or goes_first):
        is_old = pending_s > table.options[PLAN_AGE_S]
        return Finding(FindingKind.WAITING_PLAN, _waiting(record), pending_s) if is_old else None
    if may_live(table.storage, record, table.clock, table.options):
        return None
    found = f"{record.action} {record.instant} is {record.state} and "
    found += (
        f"its writer {record.writer_id or 'unknown'} shows no heartbeat" if driven else f"no executor ran it since {record.since}"
    )
    if goes_first:
        groups, lapse_s = len(state.planned_groups(record.instant)), table.options[CLUSTERING_PRIORITY_LAPSE_S]
        found += f"; it has priority: updates of its {groups} file group(s) wait for it, for {lapse_s:g} s"
    is_plan, is_served = repair(record) != "rollback", table.capabilities.keeps_log
    return Finding(
        FindingKind.STUCK_PLAN if is_plan else FindingKind.DEAD_WRITER,
        f"{found}; " + (f"run: tideline run {repair(record)} PATH" if is_served else _LEFT_TO_HUDI),
        pending_s,
        # The cleaner rolls back dead writers, and the launcher or the cleaner runs plans again.
        0.0 if is_served else None,
    )


def _late_heartbeat(table: Table, record: ActionRecord) -> Finding | None:
    """Return the finding about a writer that is alive, but has missed its heartbeat for three quarters of what is allowed."""
    allowed = allowed_silence(table.options)
    if record.state is not State.INFLIGHT or repair(record) != "rollback":
        return None
    silence = last_sign(table.storage, record, table.clock, table.options)
    if silence is None or not allowed * 0.75 < silence <= allowed:
        return None
    if eager_until(table.storage, record, table.clock, table.options):
        return None  # its job may make no heartbeats
    text = (
        f"writer {record.writer_id or 'unknown'} of {record.action} {record.instant} misses its heartbeat; the cleaner rolls "
        "it back "
    )
    text += f"after {allowed.total_seconds():g} s without one"
    return Finding(FindingKind.DEAD_WRITER, text, silence.total_seconds(), max(timedelta(), allowed - silence).total_seconds())


def _waiting(record: ActionRecord) -> str:
    service = repair(record)
    end = f"tideline job cancel PATH {record.instant}" if service != "rollback" else "tideline run rollback PATH"
    return (
        f"{service} {record.instant} was planned and no process runs it; start a launcher, or: tideline run {service} PATH, "
        f"or: {end}"
    )


def _of_backlog(table: Table, state: TableState) -> list[Finding]:
    most, limit = most_log_files(state), table.options[BACKLOG_LOG_FILES]
    if most < limit:
        return []
    slices = [s for s in state.each_latest(lambda part, _: part.most_log_files >= limit) if len(s.applied.log_files) >= limit]
    oldest = min((log.instant for s in slices for log in s.log_files if log.instant), default="")
    planned = {group: a.instant for a in state.pending_compactions() for group in state.planned_groups(a.instant)}
    waits = sorted({planned[s.group] for s in slices if s.group in planned})
    why = f"compaction {waits[0]} has to run first" if waits else "no compaction is planned for them"
    text = (
        f"writers outrun compaction: {len(slices)} file slice(s) have {limit} or more log files ({BACKLOG_LOG_FILES.key}); {why}: "
    )
    return [
        Finding(
            FindingKind.BACKLOG,
            f"{text}tideline run compaction PATH",
            age_s(oldest, table.clock.now(), table.zone) if oldest else None,
        )
    ]


def _of_clock(table: Table) -> list[Finding]:
    """Return the finding of a last instant ahead of this machine's clock; store times show whose clock is wrong. Writes nothing."""
    state, now = table.state, table.clock.now()
    allowed = timedelta(seconds=table.options[INSTANT_SKEW_S])
    present = instant_from_time(now + allowed, table.zone)
    first = min(
        (a for a in state.actions.values() if a.instant > present), key=lambda a: (a.started_sequence, a.instant), default=None
    )
    if first is None:
        return []
    ahead = time_from_instant(state.last_instant, table.zone) - now
    found = f"the last instant {state.last_instant} lies {ahead.total_seconds():.0f} s ahead of this machine's clock"
    if table.zone is LOCAL:
        text = (
            f"{found}: {TIMEZONE} is LOCAL, so its writers' zone may be east of this machine's; give this process their zone (TZ)"
        )
        return [Finding(FindingKind.CLOCK, f"{text}, or set the clock of that writer by NTP", ends_in_s=ahead.total_seconds())]
    # Later instants only add milliseconds to this one. Its first entry names the writer, and the store knows when it was written.
    entry = table.timeline.log.read(first.started_sequence) if table.capabilities.keeps_log else None
    writer = (
        "Apache Hudi" if first.is_by_hudi or not table.capabilities.keeps_log else entry.writer_id if entry else first.writer_id
    )
    brought = f"writer {writer} brought it with {first.instant}"
    if entry is not None:
        at = table.storage.stat(entry.path).modified
        skew = time_from_instant(first.instant) - at
        if skew <= allowed + timedelta(seconds=1):
            behind_s = (at - now).total_seconds()
            return [
                Finding(
                    FindingKind.CLOCK, f"{found}, which lies {behind_s:.0f} s or more behind the time of the store; set it by NTP"
                )
            ]
        brought += f", {skew.total_seconds():.0f} s ahead of the time of the store"
    waits = "writes wait" if table.sharing is not None else "writes go on above it, compactions wait"
    text = f"{found}: {brought}; set the clock of that writer by NTP, {waits} until that time has come"
    return [Finding(FindingKind.CLOCK, text, ends_in_s=ahead.total_seconds())]


def repair(record: ActionRecord) -> str:
    """Return the service that ends the action: plans are run again, all other actions are rolled back (`roll_back_dead`).

    A log compaction that has begun is rolled back like a write; until then it is a plan.
    """
    if record.fenced_by:
        return "rollback"
    if record.is_clustering and not record.is_by_hudi:
        return "clustering"
    if record.action is Action.LOG_COMPACTION and record.state is State.REQUESTED and not record.is_by_hudi:
        return record.action.value
    return record.action.value if record.action in _PLANNED else "rollback"
