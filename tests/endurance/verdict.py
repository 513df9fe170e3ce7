"""What must hold when everybody has stopped and the dead were recovered: nothing acknowledged is lost, nothing else is there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.endurance.ledger import Ledger
from tests.endurance.member import digest, operation_id, read_values
from tests.endurance.workload import LISTS, Model, Op
from tests.simulation.recovery import timeline_of, timeline_on_disk

from tideline_table.hudi.instant import Action, State
from tideline_table.log.entry import Entry
from tideline_table.log.state import TableState
from tideline_table.table import Table


@dataclass(frozen=True, slots=True)
class Told:
    """What the writers of a run were told, and what readers saw."""

    begun: dict[str, Op]
    done: dict[str, int]
    """Operation → the sequence at which it counts."""
    void: frozenset[str]
    """Operations of which a writer learned once that they did not count; begun again, most of them."""
    snapshots: tuple[dict[str, Any], ...]
    problems: tuple[str, ...]


def told(folder: Path) -> Told:
    """Everything that the members of a run noted."""
    begun: dict[str, Op] = {}
    done: dict[str, int] = {}
    void: set[str] = set()
    snapshots: list[dict[str, Any]] = []
    problems: list[str] = []
    for path in sorted(folder.glob("*.jsonl")):
        for note in Ledger(path).read():
            if note["event"] == "begins":
                begun[note["op"]["id"]] = Op.from_json(note["op"])
            elif note["event"] == "done":
                if note["id"] in done:
                    problems.append(f"operation {note['id']} was acknowledged twice, at {done[note['id']]} and {note['sequence']}")
                done[note["id"]] = note["sequence"]
            elif note["event"] == "void":
                void.add(note["id"])
            elif note["event"] == "snapshot":
                snapshots.append(note)
    return Told(begun, done, frozenset(void), tuple(snapshots), tuple(problems))


def problems(table: Table, told: Told) -> list[str]:
    """Why the table is not what its writers were told; empty when it is."""
    entries = list(table.timeline.log.after(0))
    found = list(told.problems)
    models: dict[int, Model] = {}
    found += _replay(entries, told, models)
    values = read_values(table)
    expected = models[len(entries)]
    odd = sorted(key for key in values.keys() | expected.keys() if values.get(key) != expected.get(key))
    found += [f"key {key} is {values.get(key)!r}, its operations make it {expected.get(key)!r}" for key in odd]
    found += _lost_tokens(values, told, entries)
    for seen in told.snapshots:
        model = models[seen["sequence"]]
        if seen["digest"] != digest(model):
            lists = {k: (seen["lists"][k], model.get(k, "")) for k in LISTS if seen["lists"][k] != model.get(k, "")}
            found.append(
                f"a reader saw another table at {seen['sequence']} than its operations make: {lists or 'not in the lists'}"
            )
    return [*found, *_stuck(table, entries), *_files(table, entries)]


def _replay(entries: list[Entry], told: Told, models: dict[int, Model]) -> Iterator[str]:
    """Fill in the table after each entry, as the operations in the order of the log make it."""
    model: Model = {}
    models[0] = {}
    counted: dict[str, int] = {}
    for entry in entries:
        op = operation_id(entry.body) if entry.after is State.COMPLETED else ""
        if op:
            if op in counted:
                yield f"operation {op} counts twice, at {counted[op]} and {entry.sequence}"
            counted[op] = entry.sequence
            model = dict(model)
            told.begun[op].apply(model, deleted=any(s.num_deletes for s in entry.body.metadata.stats))
        models[entry.sequence] = model
    for op, sequence in told.done.items():
        if counted.get(op) != sequence:
            yield f"operation {op} was acknowledged at {sequence}, the log has it at {counted.get(op)}"
    for op in sorted(counted.keys() - told.done.keys()):
        yield f"operation {op} counts at {counted[op]} and its writer never learned it"


def _lost_tokens(values: Model, told: Told, entries: list[Entry]) -> Iterator[str]:
    """Said without the model: each acknowledged append stands in its lists once, in the order of the log, and nothing else does."""
    appended: dict[str, list[str]] = {key: [] for key in LISTS}
    for _, op in sorted((sequence, op) for op, sequence in told.done.items()):
        for key in told.begun[op].keys:
            if key in appended and told.begun[op].kind == "append":
                appended[key].append(op)
    for key, expected in appended.items():
        found = values.get(key, "").split()
        if found != expected:
            lost = [op for op in expected if op not in found]
            extra = [op for op in found if op not in expected]
            yield f"list {key}: lost {lost}, not acknowledged {extra}, {len(found)} instead of {len(expected)}"


def _stuck(table: Table, entries: list[Entry]) -> Iterator[str]:
    whole = TableState()
    for entry in entries:
        whole.apply(entry)
    if whole != table.state:
        yield "the state that checkpoints give is not the fold of the log"
    for action in table.state.pending():
        yield f"stuck: {action}"
    living = {o.path.rsplit("/", 1)[-1] for o in table.storage.list_objects(".hoodie/.heartbeat")} - set(table.state.actions)
    if living:
        yield f"heartbeats of nobody: {sorted(living)}"


def _files(table: Table, entries: list[Entry]) -> Iterator[str]:
    on_disk = {o.path for o in table.storage.list_objects("") if not o.path.startswith(".hoodie/") and not _is_mark(o.path)}
    known = {path for s in table.state.every_slice() for path in s.paths}
    for path in sorted(known - on_disk):
        yield f"the committed file {path} is missing"
    for path in sorted(on_disk - known):
        yield f"{path} is a stray file"
    expected, found = timeline_of(entries), timeline_on_disk(table.storage)
    for path in sorted(expected.keys() | found.keys()):
        if expected.get(path) != found.get(path):
            why = (
                "is missing"
                if path not in found
                else "should not be there"
                if path not in expected
                else "is not what its entry says"
            )
            yield f"timeline file {path} {why}"


def _is_mark(path: str) -> bool:
    name = path.rsplit("/", 1)[-1]
    return name.startswith(".hoodie_partition_metadata") or name.endswith(".crc")


def counts_of(entries: list[Entry]) -> dict[Action, int]:
    """Completed actions by kind."""
    completed = [e.action for e in entries if e.after is State.COMPLETED]
    return {action: completed.count(action) for action in set(completed)}
