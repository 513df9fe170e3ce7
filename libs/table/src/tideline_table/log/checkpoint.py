"""Checkpoints of the table log. A checkpoint stores the fold up to a sequence, so that opening a table costs few requests.

The object `latest` names the newest checkpoint and repeats the entries after it. Both only save requests: an outdated `latest`
costs one GET per missing entry, a missing `latest` costs a listing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import Field, dataclass, fields, replace
from operator import attrgetter
from typing import Any, TypeAlias

from tideline_table.errors import MALFORMED, CorruptMetadata, ObjectNotFound, TableIncomplete, UnsupportedTable
from tideline_table.file_group.slice import FileGroupId
from tideline_table.hudi.instant import Action, State
from tideline_table.json_text import parse_sealed, sealed
from tideline_table.log.action import ActionRecord
from tideline_table.log.adopted import slices_from, slices_json
from tideline_table.log.body import Published
from tideline_table.log.checkpoint_parts import PARTS, delete_unnamed, files_of, has_lost, parts_from, parts_json, write_parts
from tideline_table.log.entry import LOG_FOLDER, Entry, entry_path, sequence_in
from tideline_table.log.metadata import MetadataTable
from tideline_table.log.packed import PackedSlices
from tideline_table.log.plan import parse_plan
from tideline_table.log.progress import Progress
from tideline_table.log.retention import TRIM_FOLDER, Mark, markers_among, trimmed_to
from tideline_table.log.savepoint import Savepoint
from tideline_table.log.sharing import Sharing
from tideline_table.log.state import TableState
from tideline_table.log.undo import Rewritten, excess_groups
from tideline_table.storage import Folder, Storage, exists

CHECKPOINT_FOLDER = TRIM_FOLDER
POINTER = ".hoodie/.tideline/checkpoint/latest"
CHECKPOINT_FORMAT = 1
PARTS_FORMAT = 2
"""The format of a checkpoint whose file slices lie in parts beside it. Earlier releases refuse it, as any format but 1."""
TAIL_BYTES = 512 * 1024
"""Limit for the total size of the entries that `latest` repeats."""
MARKS_KEPT = 64
RESTORE_LOG = (
    "restore .hoodie/.tideline from a copy; without one, delete that folder: then the timeline alone says what the table holds, as "
    "in a table of Apache Hudi, and tideline share PATH makes it writable; delete no instant"
)
_KEPT = 3
"""Number of checkpoints to keep: a process that opens the table at this moment may be reading an older one."""
ActionTexts: TypeAlias = dict[str, tuple[ActionRecord, str]]
"""By instant: actions, and how a checkpoint writes each. Kept from one checkpoint to the next by a process that writes them."""
_MANY_ACTIONS = 1000
_UNCOMPARED = {"marks": None, "xxh3": None}
_UNUSABLE = (CorruptMetadata, *MALFORMED)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A stored checkpoint: its sequence, its size, and the marks of the checkpoints up to it. Sequence 0: no checkpoint yet."""

    sequence: int = 0
    size_bytes: int = 0
    marks: tuple[Mark, ...] = ()


@dataclass(frozen=True, slots=True)
class Opening:
    """Start of opening a table: the fold at a checkpoint, and the entries after it that `latest` repeats."""

    state: TableState
    checkpoint: Checkpoint
    tail: tuple[Entry, ...] = ()
    end: int = 0
    """A sequence that the log reached, by `latest`: an earlier end means that entries were lost."""


def write_checkpoint(
    storage: Storage, state: TableState, marks: Sequence[Mark] = (), texts: ActionTexts | None = None
) -> tuple[Checkpoint, int]:
    """Store the fold and delete old checkpoints. Return the newest checkpoint and the sequence of the oldest one that is kept.

    `texts` are of the checkpoint that this process wrote before; they become those of this one.
    If another writer has stored a newer checkpoint, return that one and do not change `latest`.
    """
    packed = state.pack()
    size_bytes, listing = _put(storage, state, texts)
    try:
        is_lost = packed is not None and has_lost(packed, listing)
    except CorruptMetadata:
        storage.delete(_path(state.sequence))
        raise
    if is_lost:
        # Other processes had deleted a file of parts that this one still named: its parts are written again.
        size_bytes, listing = _put(storage, state, texts)
    written = Checkpoint(state.sequence, size_bytes, _thinned(marks))
    kept = sorted({*_kept(listing), state.sequence})
    if kept[-1] == state.sequence:
        write_tail(storage, written, ())
    else:
        written = Checkpoint(kept[-1])
    for old in kept[:-_KEPT]:
        storage.delete(_path(old))
    if packed is not None:
        delete_unnamed(storage, packed, listing, [_path(sequence) for sequence in kept[-_KEPT:]])
    return written, min(kept[-_KEPT:])


def _put(storage: Storage, state: TableState, texts: ActionTexts | None) -> tuple[int, Folder]:
    """Store the fold. Return its size in bytes, without that of its parts, and what the folder holds then."""
    if isinstance(state.slices, PackedSlices):
        write_parts(storage, state.slices, state.sequence)
    content = _content(state, texts)
    storage.put(_path(state.sequence), content)
    return len(content), storage.list_folder(CHECKPOINT_FOLDER)


def write_tail(storage: Storage, checkpoint: Checkpoint, tail: Sequence[bytes]) -> None:
    """Write `latest`: the name of `checkpoint`, the entries directly after it (`tail_bytes` of each), the last sequence.

    Entries beyond `TAIL_BYTES` are left out.
    """
    storage.put(POINTER, _tail_content(checkpoint, tail))


def delete_written(storage: Storage, state: TableState, checkpoint: Checkpoint, tail: Sequence[bytes]) -> None:
    """Delete `latest` and the checkpoint of `state` if they are what this process wrote with these values: the log was removed.

    What is there otherwise belongs to a log that began since. Costs two requests if nothing is to delete.
    """

    def holds(path: str, content: bytes) -> bool:
        try:
            # Trimming shortens the marks of this process after it wrote them.
            return bool(parse_sealed(storage.read(path)) | _UNCOMPARED == parse_sealed(content) | _UNCOMPARED)
        except (ObjectNotFound, *_UNUSABLE):
            return False

    if holds(POINTER, _tail_content(checkpoint, tail)):
        storage.delete(POINTER)
    packed = state.slices if isinstance(state.slices, PackedSlices) else None
    if packed is not None and any(part.place is None for part in packed.parts):
        return  # the state was not written
    if holds(_path(state.sequence), _content(state)):
        storage.delete(_path(state.sequence))
        for file in files_of(packed, state.sequence) if packed is not None else ():
            storage.delete(file)


def _content(state: TableState, texts: ActionTexts | None = None) -> bytes:
    if texts is None or len(state.actions) < _MANY_ACTIONS:
        return sealed(json.dumps(_to_json(state)).encode())
    # An action that did not change has the text of the last checkpoint: of 10,000, a checkpoint encodes those of the last entries.
    now = {
        at: held if held is not None and held[0] is action else (action, json.dumps(*_action_rows({at: action})))
        for (at, action), held in zip(state.actions.items(), map(texts.get, state.actions), strict=True)
    }
    texts.clear()
    texts |= now
    rest = json.dumps(_to_json(state, "actions"))
    return sealed(f'{rest[:-1]}, "actions": [{", ".join([text for _, text in now.values()])}]}}'.encode())


def _tail_content(checkpoint: Checkpoint, tail: Sequence[bytes]) -> bytes:
    kept: list[bytes] = []
    size_bytes = 0
    for content in tail:
        size_bytes += len(content)
        if size_bytes > TAIL_BYTES:
            break
        kept.append(content)
    marks = json.dumps([[m.sequence, m.recorded] for m in checkpoint.marks])
    end = checkpoint.sequence + len(tail)
    head = (
        f'{{"checkpoint": {checkpoint.sequence}, "size_bytes": {checkpoint.size_bytes}, "marks": {marks}, "end": {end}, "tail": ['
    )
    return sealed(head.encode() + b",".join(kept) + b"]}")


def tail_bytes(entry: Entry) -> bytes:
    """Return the content of `entry` for `latest`: only what the fold needs."""
    if entry.body_reference is None and isinstance(entry.body, Published):
        entry = replace(entry, body=entry.body.for_the_fold)
    return entry.to_bytes()


def latest_checkpoint(storage: Storage) -> Checkpoint:
    """Return the checkpoint that `latest` names, or sequence 0 if there is none or `latest` is unusable. Costs one request."""
    try:
        return _pointer(storage)[0]
    except (ObjectNotFound, *_UNUSABLE):
        return Checkpoint()


def read_opening(storage: Storage) -> Opening:
    """Return the state from which to continue reading the log. Usually costs two requests.

    If `latest` or its checkpoint is unusable, start from the newest usable checkpoint. If there is none, start from the first
    entry; raises `CorruptMetadata` if the log was trimmed. Then a listing shows whether the log goes on from there without a gap;
    raises `TableIncomplete` if it does not.
    """
    tail: tuple[Entry, ...] = ()
    end = 0
    try:
        checkpoint, tail, end = _pointer(storage)
        if checkpoint.sequence:
            return Opening(_read(storage, checkpoint.sequence), checkpoint, tail, end)
    except (ObjectNotFound, *_UNUSABLE):
        checkpoint = None
    listing = storage.list_folder(CHECKPOINT_FOLDER)
    floor = max(markers_among(listing), default=0)
    if checkpoint is not None and not checkpoint.sequence and not floor:
        return Opening(TableState(), checkpoint, tail, end)
    for sequence in reversed([n for n in _kept(listing) if n >= floor]):
        try:
            state = _read(storage, sequence)
        except (ObjectNotFound, *_UNUSABLE):
            continue
        _check_no_gap(storage, sequence)
        return Opening(state, Checkpoint(sequence), end=end)
    if floor:
        raise CorruptMetadata(
            f"the table log begins after entry {floor} and no checkpoint can be read",
            expected=f"a checkpoint in {CHECKPOINT_FOLDER}",
            remedy="restore the folder from a copy; nothing was changed",
        )
    _check_no_gap(storage, 0)
    return Opening(TableState(), Checkpoint(), end=end)


def log_sequences(storage: Storage) -> list[int]:
    """Return the sequences of the entries in the log, sorted, by one listing."""
    names = (found.path.rpartition("/")[2] for found in storage.list_folder(LOG_FOLDER).objects)
    found = (sequence_in(name.removesuffix(".json")) for name in names)
    return sorted(sequence for sequence in found if sequence is not None)


def missing_entry(storage: Storage, checkpoint: int) -> int:
    """Return the first entry that the log lacks between a checkpoint and the last entry, 0 if none. The head is never trimmed."""
    present = set(log_sequences(storage))
    after = {sequence for sequence in present if sequence > checkpoint}
    if not after and checkpoint and checkpoint not in present:
        return checkpoint
    return next((n for n in range(checkpoint + 1, max(after, default=0)) if n not in after), 0)


def _check_no_gap(storage: Storage, checkpoint: int) -> None:
    missing = missing_entry(storage, checkpoint)
    # Entries may be appended, or trimmed behind a newer checkpoint, during the listing.
    if missing and not exists(storage, entry_path(missing)) and trimmed_to(storage) <= checkpoint:
        raise TableIncomplete(
            f"the table log lacks entry {missing} ({entry_path(missing)})",
            expected=f"every entry after {f'checkpoint {checkpoint}' if checkpoint else 'the beginning'}: the rows of the table "
            "depend on each",
            remedy=RESTORE_LOG,
        )


def _pointer(storage: Storage) -> tuple[Checkpoint, tuple[Entry, ...], int]:
    document = parse_sealed(storage.read(POINTER))
    if isinstance(document, int):  # an early release stored only the sequence
        return Checkpoint(document), (), 0
    marks = tuple(Mark(int(sequence), str(recorded)) for sequence, recorded in document["marks"])
    checkpoint = Checkpoint(int(document["checkpoint"]), int(document["size_bytes"]), marks)
    tail: list[Entry] = []
    for found in document["tail"]:
        try:
            entry = Entry.from_json(found, POINTER)
        except (CorruptMetadata, UnsupportedTable):
            break  # the caller reads the remaining entries from the log
        if entry.sequence != checkpoint.sequence + len(tail) + 1:
            break
        tail.append(entry)
    # Earlier releases wrote no end.
    return checkpoint, tuple(tail), int(document.get("end", 0))


def _read(storage: Storage, sequence: int) -> TableState:
    return _from_json(parse_sealed(storage.read(_path(sequence))), sequence, storage)


def _path(sequence: int) -> str:
    return f"{CHECKPOINT_FOLDER}/{sequence:020d}.json"


def _kept(listing: Folder) -> list[int]:
    names = [found.path.rpartition("/")[2] for found in listing.objects]
    found = (sequence_in(name.removesuffix(".json")) for name in names if name.endswith(".json"))
    return sorted(sequence for sequence in found if sequence is not None)


def _thinned(marks: Sequence[Mark]) -> tuple[Mark, ...]:
    """Return at most `MARKS_KEPT` of the marks, in even steps."""
    step = -(-len(marks) // MARKS_KEPT) or 1
    return tuple(marks[::step])


@dataclass(frozen=True, slots=True)
class _Form:
    """JSON form of one field of the state. A checkpoint without a required field, which every release wrote, is unusable."""

    write: Callable[[Any], object]
    read: Callable[[Any], Any]
    is_required: bool = False


def _by_group(read: Callable[[Any], Any]) -> _Form:
    return _Form(
        lambda held: [[*group, value] for group, value in held.items()],
        lambda rows: {FileGroupId(str(p), str(f)): read(value) for p, f, value in rows},
        is_required=True,
    )


def _actions(rows: Iterable[Any]) -> dict[str, ActionRecord]:
    return {
        str(at): ActionRecord(str(at), Action(a), State(s), str(o), int(n), int(b), str(w), str(t), *map(str, more))
        for at, a, s, o, n, b, w, t, *more in rows
    }


_ACTION_FIELDS = attrgetter(*(f.name for f in fields(ActionRecord) if f.name != "completion"))


def _action_rows(actions: Mapping[str, ActionRecord]) -> list[tuple[object, ...]]:
    """Return the fields of actions; the completion time only if the names of the table's timeline files have it."""
    return [(*_ACTION_FIELDS(a), a.completion) if a.completion else _ACTION_FIELDS(a) for a in actions.values()]


_SPECIAL = {
    "actions": _Form(_action_rows, _actions, is_required=True),
    "slices": _Form(lambda held: [] if isinstance(held, PackedSlices) else slices_json(held), slices_from, is_required=True),
    "replaced": _by_group(str),
    "plans": _Form(lambda held: {at: plan.to_json() for at, plan in held.items()}, dict, is_required=True),
    "clustering_losses": _by_group(int),
    "progress": _Form(
        lambda held: [[key, p.value, p.instant] for key, p in held.items()],
        lambda rows: {str(key): Progress(str(value), str(instant)) for key, value, instant in rows},
    ),
    "schemas": _Form(dict, lambda document: {str(at): str(text) for at, text in document.items()}),
    "bucket_numbers": _Form(dict, lambda document: {str(at): int(number) for at, number in document.items()}),
    "bucket_rules": _Form(dict, lambda document: {str(at): str(text) for at, text in document.items()}),
    "ring_resizes": _Form(dict, lambda document: {str(at): tuple(map(str, names)) for at, names in document.items()}),
    "unlocked": _Form(dict, lambda document: {str(at): str(text) for at, text in document.items()}),
    "writers": _Form(
        lambda held: held, lambda document: {str(name): str(at) for name, at in document.items()} if document is not None else None
    ),
    "reappended": _Form(dict, lambda document: {str(at): str(by) for at, by in document.items()}),
    "ring_clusterings": _Form(sorted, lambda names: set(map(str, names))),
    "identified_schemas": _Form(list, lambda texts: tuple(map(str, texts))),
    "savepoints": _Form(
        lambda held: [s.to_json() for s in held.values()], lambda rows: {s.instant: s for s in map(Savepoint.from_json, rows)}
    ),
    "rewritten": _Form(
        lambda held: [[r.first, r.sequence, r.instant] for r in held],
        lambda rows: tuple(Rewritten(int(first), int(last), str(at)) for first, last, at in rows),
    ),
    "metadata": _Form(
        lambda held: held.to_json() if held else None, lambda document: MetadataTable.from_json(document) if document else None
    ),
    "sharing": _Form(
        lambda sharing: sharing.to_json() if sharing else None, lambda document: Sharing.from_json(document) if document else None
    ),
}
_SCALARS = {name: _Form(str, str, is_required=True) for name in ("last_instant", "schema_json", "last_clean_retained")}
_KEYS = {"schema_json": "schema"}
_DERIVED = frozenset({"excess"})


def _form(field: Field[Any]) -> _Form:
    kind = type(field.default)
    assert kind in (str, int), f"TableState.{field.name} needs a form in checkpoints"
    return _Form(kind, kind)


_FORMS = {
    f.name: (_KEYS.get(f.name, f.name), _SPECIAL.get(f.name) or _SCALARS.get(f.name) or _form(f))
    for f in fields(TableState)
    if f.init and f.name not in _DERIVED
}
"""Field name → key in the document and form. A new field without a form fails the import."""


def _to_json(state: TableState, without: str = "") -> dict[str, Any]:
    document = {key: form.write(getattr(state, name)) for name, (key, form) in _FORMS.items() if name != without}
    if not isinstance(state.slices, PackedSlices):
        return {"format": CHECKPOINT_FORMAT} | document
    excess = [list(group) for group in sorted(state.excess)]
    return {"format": PARTS_FORMAT} | document | {PARTS: parts_json(state.slices), "excess": excess}


def _from_json(document: dict[str, Any], sequence: int, storage: Storage | None = None) -> TableState:
    forms = (CHECKPOINT_FORMAT,) if storage is None else (CHECKPOINT_FORMAT, PARTS_FORMAT)
    if document["format"] not in forms or document["sequence"] != sequence:
        raise CorruptMetadata(
            f"checkpoint {sequence} in format {document['format']}", expected=f"format {' or '.join(map(str, forms))}"
        )
    held = {name: form.read(document[key]) for name, (key, form) in _FORMS.items() if form.is_required or key in document}
    if document["format"] == PARTS_FORMAT:
        assert storage is not None
        held["slices"] = parts_from(document[PARTS], storage)
        held["excess"] = {FileGroupId(str(partition), str(file_id)) for partition, file_id in document["excess"]}
    held["plans"] = {str(at): parse_plan(held["actions"][at].action, body) for at, body in held["plans"].items()}
    state = TableState(**held)
    if "schemas" not in held and state.schema_json:
        state.schemas = {"": state.schema_json}  # earlier releases kept the newest schema only
    if "excess" not in held:
        state.excess = excess_groups(state.slices, state.replaced)
    return state
