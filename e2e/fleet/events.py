"""The events in Kafka, read as any consumer reads them: each entry of a table log once and in its sequence."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from uuid import uuid4

from e2e.fleet.servers import Servers
from e2e.fleet.writers import Acknowledged
from tideline_events import TIMELINE, Transition, decode, open_event_log
from tideline_table.hudi import State

READ_TIMEOUT_S = 60.0
QUIET_S = 2.0
SHOWN = 5


def read_transitions(servers: Servers, heads: Mapping[str, int]) -> list[Transition]:
    """Return all transitions, at least up to `heads` (newest sequence by table uid) if they come in time, and what follows
    within 2 s."""
    log = open_event_log(servers.kafka.url)
    subscription = log.subscribe([TIMELINE.name], f"e2e-{uuid4()}")
    found: list[Transition] = []
    reached: dict[str, int] = defaultdict(int)
    deadline_s = time.monotonic() + READ_TIMEOUT_S
    try:
        while time.monotonic() < deadline_s:
            is_complete = all(reached[uid] >= head for uid, head in heads.items())
            records = subscription.poll(QUIET_S)
            if is_complete and not records:
                break
            for record in records:
                event = decode(record)
                if isinstance(event, Transition):
                    found.append(event)
                    reached[event.table_uid] = max(reached[event.table_uid], event.sequence)
    finally:
        subscription.close()
        log.close()
    return found


def problems(
    transitions: Sequence[Transition], heads: Mapping[str, int], uids: Mapping[str, str], commits: Sequence[Acknowledged]
) -> list[str]:
    """Return what is wrong with the events: sequences other than 1 to the head, acknowledged commits without their one event.

    `uids` holds the uid of each table by its name.
    """
    wrong = []
    sequences: dict[str, list[int]] = defaultdict(list)
    completed: dict[tuple[str, str], list[int]] = defaultdict(list)
    for event in transitions:
        sequences[event.table_uid].append(event.sequence)
        if event.to_state == State.COMPLETED.value:
            completed[event.table_uid, event.instant].append(event.sequence)
    for uid, head in heads.items():
        # The services may have added entries since the head was read.
        if sequences[uid] != list(range(1, max(head, len(sequences[uid])) + 1)):
            wrong.append(f"table {uid}: found sequences {_shown(sequences[uid])}; expected 1 to {head}, each once and in order")
    for commit in commits:
        found = completed[uids[commit.table], commit.instant]
        if found != [commit.sequence]:
            wrong.append(f"commit {commit.instant} of {commit.table}: found completions {found}; expected one at {commit.sequence}")
    return wrong


def completed_actions(transitions: Sequence[Transition]) -> dict[str, int]:
    """Return how many actions completed, by table name and action."""
    counts: dict[str, int] = defaultdict(int)
    for event in transitions:
        if event.to_state == State.COMPLETED.value:
            counts[f"{event.table.name} {event.action}"] += 1
    return dict(sorted(counts.items()))


def missing(names: Sequence[str], transitions: Sequence[Transition]) -> list[str]:
    """Return those of the names, each of a table and an action, that no completed action has."""
    counts = completed_actions(transitions)
    return [name for name in names if name not in counts]


def _shown(sequences: list[int]) -> str:
    """Return the sequences around the first that is not one more than the one before."""
    for place, (before, after) in enumerate(zip([0, *sequences], sequences, strict=False)):
        if after != before + 1:
            return f"... {sequences[max(0, place - SHOWN) : place + SHOWN]} ..."
    return f"1 to {sequences[-1]}" if sequences else "none"
