"""Checkpoints of tables with many file groups: file slices lie in parts, beside the checkpoint, and only what changed is written.

A checkpoint names each part by its first file group, with the file that holds it, the offset, the size and the XXH3. One file holds
all parts that were new at one checkpoint. When most bytes of the named files belong to no part any more, one file gets all parts.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Any

from tideline_table.errors import MALFORMED, CorruptMetadata, ObjectNotFound
from tideline_table.file_group.slice import FileGroupId
from tideline_table.json_text import parse_sealed
from tideline_table.log.entry import sequence_in
from tideline_table.log.packed import PackedSlices, Part, Place
from tideline_table.log.part_summary import PartSummary
from tideline_table.log.retention import TRIM_FOLDER
from tideline_table.storage import Folder, Storage, digest_of

PARTS = "parts"
"""The key of the parts in a checkpoint."""
_SUFFIX, _WHOLE = ".parts", ".whole.parts"
_LEAST_BYTES = 1024 * 1024
KEPT_FOR = timedelta(days=1)
"""How long a file stays that no checkpoint names any more: a process that has the table open may still read it."""


def write_parts(storage: Storage, slices: PackedSlices, sequence: int) -> None:
    """Write the parts that no file holds yet, or all of them if the files of the others hold more garbage than parts."""
    parts = slices.parts
    fresh = [part for part in parts if part.place is None]
    is_whole = len(fresh) == len(parts) or _garbage(parts) > max(sum(part.size_bytes for part in parts), _LEAST_BYTES)
    if is_whole:
        slices.hold()
        fresh = list(parts)
    if not fresh:
        return
    content = b"".join(part.content or b"" for part in fresh)
    file = f"{sequence:020d}-{digest_of(content)}{_WHOLE if is_whole else _SUFFIX}"
    storage.put(_path(file), content)
    offset = 0
    for part in fresh:
        part.place = Place(file, offset, len(content))
        offset += part.size_bytes


def _garbage(parts: Iterable[Part]) -> int:
    """Return the bytes of the files of the parts that belong to none of them."""
    files = {part.place.file: part.place.file_bytes for part in parts if part.place is not None}
    return sum(files.values()) - sum(part.size_bytes for part in parts if part.place is not None)


def parts_json(slices: PackedSlices) -> dict[str, Any]:
    """Return what a checkpoint says of the parts, all of them written. `parts_from` parses it."""
    files: dict[str, int] = {}
    rows = []
    for part in slices.parts:
        assert part.place is not None, "`write_parts` has written them"
        number = files.setdefault(part.place.file, len(files))
        rows.append([*part.first, part.groups, number, part.place.offset, part.size_bytes, part.raw_bytes, part.digest])
    sizes = {part.place.file: part.place.file_bytes for part in slices.parts if part.place is not None}
    known = [part.summary.to_list() if part.summary is not None else None for part in slices.parts]
    return {"files": [[file, sizes[file]] for file in files], "parts": rows, "summaries": known}


def parts_from(document: dict[str, Any], storage: Storage) -> PackedSlices:
    """Return the slices that a checkpoint names. Reads none of them."""
    files = [(str(file), int(file_bytes)) for file, file_bytes in document["files"]]
    parts = []
    known = document.get("summaries") or [None] * len(document["parts"])  # earlier releases wrote none
    for summary, row in zip(known, document["parts"], strict=True):
        partition, file_id, groups, number, offset, size_bytes, raw_bytes, digest = row
        file, file_bytes = files[number]
        place = Place(file, int(offset), file_bytes)
        first = FileGroupId(str(partition), str(file_id))
        made = None if summary is None else PartSummary.from_list(summary)
        parts.append(Part(first, int(groups), int(raw_bytes), int(size_bytes), str(digest), None, place, made))
    return PackedSlices(parts, lambda file, start, length: _read(storage, file, start, length))


def files_of(slices: PackedSlices, sequence: int) -> set[str]:
    """Return the paths of the files that the checkpoint at this sequence wrote."""
    return {
        _path(part.place.file) for part in slices.parts if part.place is not None and sequence_in(part.place.file[:20]) == sequence
    }


def has_lost(slices: PackedSlices, listing: Folder) -> bool:
    """Return whether a file of the parts is not in the listing. Its parts count as not written from then on.

    Raises `CorruptMetadata` if this process did not read all of them before the file was deleted.
    """
    present = {found.path for found in listing.objects}
    lost = [part for part in slices.parts if part.place is not None and _path(part.place.file) not in present]
    for part in lost:
        if part.content is None:
            assert part.place is not None, "these are placed"
            raise _missing(part.place.file)
        part.place = None
    return bool(lost)


def delete_unnamed(storage: Storage, slices: PackedSlices, listing: Folder, kept: Iterable[str]) -> None:
    """Delete files of parts that neither the newest checkpoint (`slices`) names nor another kept one, by the paths of those.

    Only files before the last file of all parts that has been there for `KEPT_FOR`: since then no process began to read them.
    """
    unnamed = _unnamed(listing, {part.place.file for part in slices.parts if part.place is not None})
    for path in kept if unnamed else ():
        try:
            unnamed -= {str(file) for file, _ in parse_sealed(storage.read(path)).get(PARTS, {"files": ()})["files"]}
        except (ObjectNotFound, *MALFORMED):
            return  # What it names is not known; the next checkpoint looks again
    for file in sorted(unnamed):
        storage.delete(_path(file))


def _unnamed(listing: Folder, named: set[str]) -> set[str]:
    now = max((found.modified for found in listing.objects), default=None)
    files = {found.path.rpartition("/")[2]: found for found in listing.objects if found.path.endswith(_SUFFIX)}
    if now is None:
        return set()
    last = max((name for name, found in files.items() if name.endswith(_WHOLE) and now - found.modified > KEPT_FOR), default="")
    return {name for name in files if name[:20] < last[:20] and sequence_in(name[:20]) is not None} - named


def _read(storage: Storage, file: str, start: int, length: int) -> bytes:
    try:
        return storage.read_range(_path(file), start, length)
    except ObjectNotFound:
        raise _missing(file) from None


def _missing(file: str) -> CorruptMetadata:
    return CorruptMetadata(
        f"{_path(file)} with file slices of the table is missing",
        expected="the file that the checkpoint names with which this process opened the table",
        remedy=f"open the table again: such files stay for {KEPT_FOR.days} day(s) after the last checkpoint that names them",
    )


def _path(file: str) -> str:
    return f"{TRIM_FOLDER}/{file}"
