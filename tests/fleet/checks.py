"""What must hold at the end of a run: pure functions of the events, the ledgers and the rows, each of which returns what is
wrong."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from tideline_events import FindingEvent, Transition, VerdictEvent
from tideline_table.hudi import State

REWRITES = ("clustering", "compaction")
FOUND, CLEARED = "found", "cleared"


@dataclass(frozen=True)
class Interval:
    """A time in which something is allowed, with both ends."""

    begins: datetime
    ends: datetime

    def has(self, at: datetime) -> bool:
        return self.begins <= at <= self.ends


def outside_of_windows(transitions: Iterable[Transition], allowed: Mapping[str, Sequence[Interval]]) -> list[str]:
    """Return the plans of clustering and compaction that were published at another time than their table's policy allowed.

    `allowed` holds the times by base path; tables that it does not name have no window.
    """
    return [
        f"{event.table.base_path}: {event.action} {event.instant} was planned at {event.time}; allowed were "
        f"{allowed[event.table.base_path]}"
        for event in transitions
        if event.action in REWRITES
        and event.to_state == State.REQUESTED.value
        and event.table.base_path in allowed
        and not any(interval.has(event.time) for interval in allowed[event.table.base_path])
    ]


def rewritten(transitions: Iterable[Transition], until: datetime) -> dict[str, int]:
    """Return the bytes that completed clusterings and compactions wrote before `until`, by base path."""
    found: dict[str, int] = defaultdict(int)
    for event in transitions:
        if event.action in REWRITES and event.to_state == State.COMPLETED.value and event.time < until:
            found[event.table.base_path] += event.bytes_added
    return found


def over_budget(transitions: Iterable[Transition], tables: Iterable[str], budget_bytes: int, until: datetime) -> list[str]:
    """Return the tables that rewrote more than their budget before `until`, when it was lifted."""
    found = rewritten(transitions, until)
    return [f"{path} rewrote {found[path]} bytes of {budget_bytes}" for path in tables if found.get(path, 0) > budget_bytes]


def most_pending(transitions: Iterable[Transition]) -> int:
    """Return the largest number of plans of clustering and compaction that were pending in the fleet at one time."""
    pending: set[tuple[str, str]] = set()
    most = 0
    for event in sorted(transitions, key=lambda e: e.time):
        plan = event.table_uid, event.instant
        if event.action in REWRITES and event.to_state == State.REQUESTED.value:
            pending.add(plan)
        elif event.to_state in (State.COMPLETED.value, State.NONE.value):
            pending.discard(plan)
            if event.undone_instant is not None:
                pending.discard((event.table_uid, event.undone_instant))
        most = max(most, len(pending))
    return most


def findings_by_kind(events: Iterable[FindingEvent]) -> dict[tuple[str, str], list[str]]:
    """Return the states of findings in their order, by kind and base path."""
    found: dict[tuple[str, str], list[str]] = defaultdict(list)
    for event in sorted(events, key=lambda e: e.time):
        found[event.kind, event.base_path].append(event.state)
    return found


def unheard(events: Sequence[FindingEvent], caused: Mapping[str, str]) -> list[str]:
    """Return the findings that were caused and that events do not show, or do not show cleared at last. `caused`: place by kind.

    A planner that takes a shard over says again what it finds, so that a finding may begin several times.
    """
    states = findings_by_kind(events)
    wrong = []
    for kind, place in caused.items():
        said = [state for (of, path), found in states.items() if of == kind and path.endswith(place) for state in found]
        if FOUND not in said:
            wrong.append(f"no event says that {kind} was found about {place}")
        elif said[-1] != CLEARED:
            wrong.append(f"events about {kind} of {place} end with {said[-1]!r}: {said}")
    return wrong


def missed_objectives(events: Iterable[FindingEvent], paths: Iterable[str]) -> list[str]:
    """Return the findings about objectives of tables whose services were held back by nothing."""
    free = set(paths)
    return [f"{e.base_path}: {e.reason}" for e in events if e.kind == "objective" and e.state == FOUND and e.base_path in free]


def without_work(transitions: Iterable[Transition], expected: Mapping[str, Iterable[str]]) -> list[str]:
    """Return the tables in which an expected action never completed. `expected`: actions by base path."""
    done: dict[str, set[str]] = defaultdict(set)
    for event in transitions:
        if event.to_state == State.COMPLETED.value:
            done[event.table.base_path].add(event.action)
    return [
        f"{path} has no completed {action}" for path, actions in expected.items() for action in actions if action not in done[path]
    ]


def never_held(verdicts: Iterable[VerdictEvent], expected: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the verdicts of the planner that no table of their group ever had. `expected`: base paths by verdict."""
    said: dict[str, set[str]] = defaultdict(set)
    for event in verdicts:
        said[event.verdict].add(event.base_path)
    return [f"no table was held by {verdict}" for verdict, paths in expected.items() if paths and not said[verdict] & set(paths)]


def delays_s(transitions: Iterable[Transition], delta_commits: int) -> list[float]:
    """Return the seconds from the commit that made a compaction due to its plan, in tables in which that many commits make it due.

    Commits beside a plan that is pending do not count: the plan has to be completed first.
    """
    found = []
    by_table: dict[str, list[Transition]] = defaultdict(list)
    for event in transitions:
        by_table[event.table_uid].append(event)
    for events in by_table.values():
        commits, due, is_pending = 0, None, False
        for event in events:
            if event.action == "compaction" and event.to_state == State.REQUESTED.value:
                found += [(event.time - due).total_seconds()] if due is not None else []
                commits, due, is_pending = 0, None, True
            elif event.action == "compaction" and event.to_state == State.COMPLETED.value:
                is_pending = False
            elif event.action == "deltacommit" and event.to_state == State.COMPLETED.value:
                commits += 1
                due = event.time if commits == delta_commits and not is_pending else due
    return found


def percentile(values: Sequence[float], part: float) -> float:
    """Return the value below which that part of the values lies, NaN without one."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))] if ordered else float("nan")


def unfinished(documents: Iterable[Mapping[str, object]]) -> list[str]:
    """Return what status documents show of work that is due, pending or failed, and of findings."""
    found = []
    for document in documents:
        path = document["base_path"]
        services: Mapping[str, Mapping[str, object]] = document["services"]  # type: ignore[assignment]
        found += [f"{path}: {finding['kind']}: {finding['text']}" for finding in document["findings"]]  # type: ignore[attr-defined]
        found += [
            f"{path}: {name} is {s['outcome']}: {s['reason']}" for name, s in services.items() if not _rests(name, s["outcome"])
        ]
        found += [f"{path}: {job['service']} {job['instant']} is pending" for job in document["pending"]]  # type: ignore[attr-defined]
    return found


def _rests(service: str, outcome: object) -> bool:
    """Return whether the service has nothing to do. Log compaction is off by the engine's options; the others must be on."""
    return outcome in ("not_due", "not_applicable") or (service, outcome) == ("logcompaction", "off")
