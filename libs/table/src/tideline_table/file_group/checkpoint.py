"""Checkpoints of the table log: the fold up to a sequence, and beside it the entries since, so that opening a table costs few requests.

`latest` names the checkpoint and repeats the entries behind it. Both only spare requests: an old `latest` costs a GET per entry that it
lacks, a missing one a listing.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tideline_table.errors import CorruptMetadata, ObjectNotFound, UnsupportedTable
from tideline_table.file_group.action import ActionRecord
from tideline_table.file_group.content import compacted_groups, planned_groups
from tideline_table.file_group.savepoint import Savepoint
from tideline_table.file_group.slice import FileGroupId, FileSlice
from tideline_table.file_group.state import TableState
from tideline_table.file_group.undo import Rewritten
from tideline_table.json_text import parse_json
from tideline_table.storage import Folder, Storage
from tideline_table.timeline.entry import Entry
from tideline_table.timeline.instant import Action, State
from tideline_table.timeline.progress import Progress
from tideline_table.timeline.retention import TRIM_FOLDER, Mark, markers_among
from tideline_table.timeline.sharing import Sharing

CHECKPOINT_FOLDER = TRIM_FOLDER
POINTER = ".hoodie/.tideline/checkpoint/latest"
CHECKPOINT_FORMAT = 1
TAIL_BYTES = 512 * 1024
"""Entries behind the checkpoint are repeated up to this size."""
MARKS_KEPT = 64
_KEPT = 3
"""Checkpoints that stay: who opens the table just now may be reading the one before."""
_NOT_FOLDED = frozenset({"inserted_key_hashes", "inserted_key_hashes_of_table"})
"""Large, and of use only to transactions, which read the entry itself."""
_UNUSABLE = (CorruptMetadata, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError, IndexError)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One that was written: the sequence that it folds, its size, and the marks of those before it. Sequence 0: none yet."""

    sequence: int = 0
    size_bytes: int = 0
    marks: tuple[Mark, ...] = ()


@dataclass(frozen=True, slots=True)
class Opening:
    """What opening a table starts from: the fold at a checkpoint and the entries behind it that `latest` repeats."""

    state: TableState
    checkpoint: Checkpoint
    tail: tuple[Entry, ...] = ()


def write_checkpoint(storage: Storage, state: TableState, marks: Sequence[Mark] = ()) -> tuple[Checkpoint, int]:
    """Store the fold and keep the newest few checkpoints; returns the newest and the sequence of the oldest that stays.

    The newest is another one where somebody went on meanwhile: `latest` is left to them.
    """
    content = json.dumps(_to_json(state)).encode()
    written = Checkpoint(state.sequence, len(content), _thinned(marks))
    storage.put(_path(state.sequence), content)
    kept = sorted({*_kept(storage.list_folder(CHECKPOINT_FOLDER)), state.sequence})
    if kept[-1] == state.sequence:
        write_tail(storage, written, ())
    else:
        written = Checkpoint(kept[-1])
    for old in kept[:-_KEPT]:
        storage.delete(_path(old))
    return written, min(kept[-_KEPT:])


def write_tail(storage: Storage, checkpoint: Checkpoint, tail: Sequence[bytes]) -> None:
    """Let `latest` name `checkpoint` and repeat the entries right behind it (`tail_bytes` of each)."""
    kept: list[bytes] = []
    size_bytes = 0
    for content in tail:
        size_bytes += len(content)
        if size_bytes > TAIL_BYTES:
            break
        kept.append(content)
    marks = json.dumps([[m.sequence, m.recorded] for m in checkpoint.marks])
    head = f'{{"checkpoint": {checkpoint.sequence}, "size_bytes": {checkpoint.size_bytes}, "marks": {marks}, "tail": ['
    storage.put(POINTER, head.encode() + b",".join(kept) + b"]}")


def tail_bytes(entry: Entry) -> bytes:
    """`entry` as `latest` repeats it: what the fold needs."""
    if entry.body_reference is None and not _NOT_FOLDED.isdisjoint(entry.body):
        entry = entry.with_body({key: value for key, value in entry.body.items() if key not in _NOT_FOLDED})
    return entry.to_bytes()


def latest_checkpoint(storage: Storage) -> Checkpoint:
    """The checkpoint that `latest` names now, sequence 0 when there is none or `latest` cannot be used. One request."""
    try:
        return _pointer(storage)[0]
    except (ObjectNotFound, *_UNUSABLE):
        return Checkpoint()


def read_opening(storage: Storage) -> Opening:
    """From where to read on: two requests as a rule.

    Where `latest` or what it names cannot be used, the newest checkpoint that can; without one the whole log has to be there. Raises
    `CorruptMetadata` when it is not.
    """
    tail: tuple[Entry, ...] = ()
    try:
        checkpoint, tail = _pointer(storage)
        if checkpoint.sequence:
            return Opening(_read(storage, checkpoint.sequence), checkpoint, tail)
    except (ObjectNotFound, *_UNUSABLE):
        checkpoint = None
    listing = storage.list_folder(CHECKPOINT_FOLDER)
    floor = max(markers_among(listing), default=0)
    if checkpoint is not None and not checkpoint.sequence and not floor:
        return Opening(TableState(), checkpoint, tail)
    for sequence in reversed([n for n in _kept(listing) if n >= floor]):
        try:
            return Opening(_read(storage, sequence), Checkpoint(sequence))
        except (ObjectNotFound, *_UNUSABLE):
            continue
    if floor:
        raise CorruptMetadata(
            f"the table log begins after entry {floor} and no checkpoint can be read",
            expected=f"a checkpoint in {CHECKPOINT_FOLDER}",
            remedy="restore the folder from a copy; nothing was changed",
        )
    return Opening(TableState(), Checkpoint())


def read_checkpoint(storage: Storage) -> TableState:
    """The fold at the latest checkpoint, the empty state when there is none: then the log has everything."""
    return read_opening(storage).state


def _pointer(storage: Storage) -> tuple[Checkpoint, tuple[Entry, ...]]:
    document = parse_json(storage.read(POINTER))
    if isinstance(document, int):  # the whole of an early one
        return Checkpoint(document), ()
    marks = tuple(Mark(int(sequence), str(recorded)) for sequence, recorded in document["marks"])
    checkpoint = Checkpoint(int(document["checkpoint"]), int(document["size_bytes"]), marks)
    tail: list[Entry] = []
    for found in document["tail"]:
        try:
            entry = Entry.from_json(found, POINTER)
        except (CorruptMetadata, UnsupportedTable):
            break  # read from the log instead
        if entry.sequence != checkpoint.sequence + len(tail) + 1:
            break
        tail.append(entry)
    return checkpoint, tuple(tail)


def _read(storage: Storage, sequence: int) -> TableState:
    return _from_json(parse_json(storage.read(_path(sequence))), sequence)


def _path(sequence: int) -> str:
    return f"{CHECKPOINT_FOLDER}/{sequence:020d}.json"


def _kept(listing: Folder) -> list[int]:
    names = [found.path.rpartition("/")[2] for found in listing.objects]
    numbers = [name.removesuffix(".json") for name in names if name.endswith(".json")]
    return sorted(int(n) for n in numbers if len(n) == 20 and n.isascii() and n.isdecimal())


def _thinned(marks: Sequence[Mark]) -> tuple[Mark, ...]:
    """At most `MARKS_KEPT`, spread evenly over the time that they cover."""
    step = -(-len(marks) // MARKS_KEPT) or 1
    return tuple(marks[::step])


def _to_json(state: TableState) -> dict[str, Any]:
    return {
        "format": CHECKPOINT_FORMAT,
        "sequence": state.sequence,
        "last_instant": state.last_instant,
        "actions": [
            [
                a.instant,
                a.action.value,
                a.state.value,
                a.operation,
                a.sequence,
                a.started_sequence,
                a.writer_id,
                a.since,
                a.fenced_by,
            ]
            for a in state.actions.values()
        ],
        "slices": [[*group, [s.to_list() for s in slices.values()]] for group, slices in state.slices.items()],
        "replaced": [[*group, instant] for group, instant in state.replaced.items()],
        "plans": dict(state.plans),
        "clustering_losses": [[*group, losses] for group, losses in state.clustering_losses.items()],
        "schema": state.schema_json,
        "progress": [[key, held.value, held.instant] for key, held in state.progress.items()],
        "schemas": state.schemas,
        "last_clean_retained": state.last_clean_retained,
        "whole_since": state.whole_since,
        "archived_before": state.archived_before,
        "savepoints": [s.to_json() for s in state.savepoints.values()],
        "rewritten": [[r.first, r.sequence, r.instant] for r in state.rewritten],
        "archived_sequence": state.archived_sequence,
        "sharing": state.sharing.to_json() if state.sharing else None,
        "eager_rollback": state.eager_rollback,
    }


def _from_json(document: dict[str, Any], sequence: int) -> TableState:
    if document["format"] != CHECKPOINT_FORMAT or document["sequence"] != sequence:
        raise CorruptMetadata(f"checkpoint {sequence} in format {document['format']}", expected=f"format {CHECKPOINT_FORMAT}")
    state = TableState(sequence=sequence, last_instant=str(document["last_instant"]), schema_json=str(document["schema"]))
    # Earlier releases kept the newest schema only.
    state.schemas = {
        str(at): str(text) for at, text in document.get("schemas", {"": state.schema_json} if state.schema_json else {}).items()
    }
    state.last_clean_retained = str(document["last_clean_retained"])
    state.whole_since = str(document.get("whole_since", ""))
    state.progress = {str(key): Progress(str(value), str(instant)) for key, value, instant in document.get("progress", ())}
    state.savepoints = {s.instant: s for s in map(Savepoint.from_json, document.get("savepoints", ()))}
    state.rewritten = tuple(Rewritten(int(first), int(last), str(at)) for first, last, at in document.get("rewritten", ()))
    state.archived_before = str(document.get("archived_before", ""))
    state.archived_sequence = int(document.get("archived_sequence", 0))
    state.sharing = Sharing.from_json(document["sharing"]) if document.get("sharing") else None
    state.eager_rollback = str(document.get("eager_rollback", ""))
    for fields in document["actions"]:
        state.actions[str(fields[0])] = _action(*fields)
    for partition, file_id, slices in document["slices"]:
        group = FileGroupId(str(partition), str(file_id))
        state.slices[group] = {s[0]: FileSlice.from_list(group, s) for s in slices}
        if len(slices) > 1:
            state.excess.add(group)
    for partition, file_id, instant in document["replaced"]:
        state.replaced[FileGroupId(str(partition), str(file_id))] = str(instant)
        state.excess.add(FileGroupId(str(partition), str(file_id)))
    state.plans = {str(instant): dict(body) for instant, body in document["plans"].items()}
    for body in state.plans.values():
        # What cannot be understood would otherwise be found out when somebody asks for it.
        planned_groups(body)
        compacted_groups(body)
    state.clustering_losses = {FileGroupId(str(p), str(f)): int(n) for p, f, n in document["clustering_losses"]}
    return state


def _action(
    instant: object,
    action: str,
    state: str,
    operation: object,
    sequence: int,
    started: int,
    writer: object,
    since: object,
    fenced: object,
) -> ActionRecord:
    texts = (str(writer), str(since), str(fenced))
    return ActionRecord(str(instant), Action(action), State(state), str(operation), int(sequence), int(started), *texts)
