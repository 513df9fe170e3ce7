"""Checkpoints of the table log: the fold up to a sequence, so that opening a table does not read its whole history."""

from __future__ import annotations

import json
from typing import Any

from tideline_table.errors import CorruptMetadata, ObjectNotFound
from tideline_table.file_group.slice import FileGroupId, FileSlice
from tideline_table.file_group.state import ActionRecord, TableState
from tideline_table.storage import Storage
from tideline_table.timeline.instant import Action, State

CHECKPOINT_FOLDER = ".hoodie/.tideline/checkpoint"
POINTER = ".hoodie/.tideline/checkpoint/latest"
CHECKPOINT_FORMAT = 1
_KEPT = 3
"""Checkpoints that stay: who opens the table just now may be reading the one before."""


def write_checkpoint(storage: Storage, state: TableState) -> None:
    """Store the fold and keep the newest few; the pointer is a hint, an old or missing one only costs reads."""
    path = f"{CHECKPOINT_FOLDER}/{state.sequence:020d}.json"
    storage.put(path, json.dumps(_to_json(state)).encode())
    storage.put(POINTER, str(state.sequence).encode())
    kept = sorted(o.path for o in storage.list_folder(CHECKPOINT_FOLDER).objects if o.path.endswith(".json"))
    for old in kept[:-_KEPT]:
        storage.delete(old)


def read_checkpoint(storage: Storage) -> TableState:
    """The fold at the latest checkpoint, the empty state when there is none or it cannot be used: the log has everything."""
    try:
        sequence = int(storage.read(POINTER))
        return _from_json(json.loads(storage.read(f"{CHECKPOINT_FOLDER}/{sequence:020d}.json")), sequence)
    except (ObjectNotFound, CorruptMetadata, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return TableState()


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
        "last_clean_retained": state.last_clean_retained,
    }


def _from_json(document: dict[str, Any], sequence: int) -> TableState:
    if document["format"] != CHECKPOINT_FORMAT or document["sequence"] != sequence:
        raise CorruptMetadata(f"checkpoint {sequence} in format {document['format']}", expected=f"format {CHECKPOINT_FORMAT}")
    state = TableState(sequence=sequence, last_instant=document["last_instant"], schema_json=document["schema"])
    state.last_clean_retained = document["last_clean_retained"]
    for instant, action, name, operation, seq, started, writer, since, fenced in document["actions"]:
        state.actions[instant] = ActionRecord(instant, Action(action), State(name), operation, seq, started, writer, since, fenced)
    for partition, file_id, slices in document["slices"]:
        group = FileGroupId(partition, file_id)
        state.slices[group] = {s[0]: FileSlice(group, *s) for s in slices}
        if len(slices) > 1:
            state.excess.add(group)
    for partition, file_id, instant in document["replaced"]:
        state.replaced[FileGroupId(partition, file_id)] = instant
        state.excess.add(FileGroupId(partition, file_id))
    state.plans = document["plans"]
    state.clustering_losses = {FileGroupId(p, f): n for p, f, n in document["clustering_losses"]}
    return state
