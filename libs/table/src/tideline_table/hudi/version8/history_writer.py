"""Archival into the history of layout 2: a file of instants, a manifest that names it, and the version file that names that.

A manifest is created once with its whole content, so the newest manifest is the present one, whatever the version file says. Many
small files become a larger one of the next layer; files that none of the last manifests names are deleted.
"""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from tideline_table.errors import ObjectExists, ObjectNotFound
from tideline_table.hudi.instant import Action, Instant, State, completed_as
from tideline_table.hudi.version8.history import (
    FILE_NAME,
    MANIFEST_PREFIX,
    VERSION_FILE,
    current_version,
    instants_of,
    manifest_files,
)
from tideline_table.storage import Storage

_SCHEMA = pa.schema(
    [
        ("instantTime", pa.string()),
        ("completionTime", pa.string()),
        ("action", pa.string()),
        ("metadata", pa.binary()),
        ("plan", pa.binary()),
        pa.field("version", pa.int32(), nullable=False),
    ]
)
_WITH_PLANS = frozenset({Action.CLEAN, Action.COMPACTION, Action.LOG_COMPACTION, Action.REPLACE_COMMIT})
MERGED_FILES = 10
"""As many files of a layer become one of the next."""
KEPT_MANIFESTS = 3
_LAST_LAYER = 9
_ATTEMPTS = 5
_COMPRESSION = "gzip"

_Found = TypeVar("_Found")
Archived = tuple[Instant, str, str]
"""An instant in a state, its completion time if it is completed, and the path of its file."""


def archive(storage: Storage, folder: str, files: Sequence[Archived]) -> str:
    """Add timeline files to the history and return the path of their file; as `TableFormat.archive`."""
    times = sorted({instant.time for instant, _, _ in files})
    name = f"{times[0]}_{times[-1]}_0.parquet"
    path = f"{folder}/{name}"

    def is_in(held: Sequence[str]) -> bool:
        """Return whether the files `held` have it all: another run may be ahead, also by a merge of this file with others."""
        if name in held:
            return True
        merged = [one for one in held if _parts(one)[2] > 0]
        return set(times) <= {i.time for i in instants_of(storage, folder, merged, times[0], times[-1])}

    def is_published() -> bool:
        return _again(lambda: is_in(_newest(storage, folder)[1]))

    if not is_published():
        try:
            content = _content(storage, files)
        except ObjectNotFound:
            # The other run deletes timeline files only after its manifest names this file.
            if not is_published():
                raise
        else:
            storage.put(path, content)
            _publish(storage, folder, lambda held: None if is_in(held) else [*held, name])
    _merge_layers(storage, folder)
    _publish(storage, folder, lambda _: None)  # a run that died may have left the version file behind
    _forget_old(storage, folder)
    return path


def _content(storage: Storage, files: Iterable[Archived]) -> bytes:
    rows: dict[str, dict[str, object]] = {}
    for instant, completion, path in sorted(files):
        row = rows.setdefault(instant.time, {"instantTime": instant.time, "metadata": None, "plan": None, "version": 1})
        content = storage.read(path)
        if instant.state is State.COMPLETED:
            row |= {"completionTime": completion, "action": completed_as(instant.action).value, "metadata": content or None}
        elif instant.state is State.REQUESTED and instant.action in _WITH_PLANS:
            row["plan"] = content or None
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(list(rows.values()), _SCHEMA), sink, compression=_COMPRESSION)
    return sink.getvalue()


def _again(read: Callable[[], _Found]) -> _Found:
    """Return what `read` finds in the newest manifest and the files that it names: other archivals may delete them meanwhile."""
    for _ in range(_ATTEMPTS - 1):
        with contextlib.suppress(ObjectNotFound):
            return read()
    return read()


def _newest(storage: Storage, folder: str) -> tuple[int, list[str]]:
    """Return the newest manifest's number and the files that it names; 0 and none without one."""
    number = max((current_version(storage, folder) or 0, *_numbers(_names(storage, folder))))
    path = f"{folder}/{MANIFEST_PREFIX}{number}"
    return (number, manifest_files(storage.read(path), path)) if number else (0, [])


def _present(storage: Storage, folder: str) -> tuple[int, list[str]]:
    return _again(lambda: _newest(storage, folder))


def _names(storage: Storage, folder: str) -> set[str]:
    return {found.path.rpartition("/")[2] for found in storage.list_folder(folder).objects}


def _numbers(names: Iterable[str]) -> list[int]:
    """Return the numbers of manifests in order."""
    return sorted(int(n) for name in names if (n := name.removeprefix(MANIFEST_PREFIX)) != name and n.isdecimal())


def _version_file(storage: Storage, folder: str) -> bytes:
    try:
        return storage.read(f"{folder}/{VERSION_FILE}").strip()
    except ObjectNotFound:
        return b""


def _publish(storage: Storage, folder: str, change: Callable[[list[str]], list[str] | None]) -> None:
    """Create the next manifest with what `change` makes of the newest one (None: none), and let the version file name the newest.

    Once more if another process was faster, even one whose manifest of the same number is deleted by now.
    """

    def proposed() -> tuple[int, list[dict[str, object]] | None]:
        number, held = _newest(storage, folder)
        names = change(held)
        if names is None:
            return number, None
        return number, [{"fileName": name, "fileLen": storage.stat(f"{folder}/{name}").size_bytes} for name in names]

    while True:
        number, entries = _again(proposed)
        if entries is not None:
            number += 1
            try:
                storage.put_if_absent(f"{folder}/{MANIFEST_PREFIX}{number}", json.dumps({"files": entries}, indent=2).encode())
            except ObjectExists:
                continue
        elif not number or _version_file(storage, folder) == str(number).encode():
            return
        storage.put(f"{folder}/{VERSION_FILE}", str(number).encode())
        if _present(storage, folder)[0] == number:
            return


def _merge_layers(storage: Storage, folder: str) -> None:
    held = _present(storage, folder)[1]
    for layer in range(_LAST_LAYER):
        chosen = sorted(name for name in held if _parts(name)[2] == layer)[:MERGED_FILES]
        if len(chosen) < MERGED_FILES:
            continue
        spans = [_parts(name) for name in chosen]
        ends = [at for first, last, _ in spans for at in (first, last)]
        merged = f"{min(ends)}_{max(ends)}_{layer + 1}.parquet"
        try:
            with (
                storage.open_output(f"{folder}/{merged}") as sink,
                pq.ParquetWriter(sink, _SCHEMA, compression=_COMPRESSION) as writer,
            ):
                for name in chosen:
                    with storage.open_input(f"{folder}/{name}") as source:
                        writer.write_table(pq.read_table(source, columns=_SCHEMA.names).cast(_SCHEMA))
        except ObjectNotFound:
            return  # another process merged them, and deleted them since

        def instead(now: list[str], chosen: Sequence[str] = chosen, merged: str = merged) -> list[str] | None:
            return [*(n for n in now if n not in chosen), merged] if set(chosen) <= set(now) else None

        _publish(storage, folder, instead)
        held = _present(storage, folder)[1]


def _parts(name: str) -> tuple[str, str, int]:
    match = FILE_NAME.match(name)
    assert match is not None, "manifests name nothing else"
    first, last, layer = match.groups()
    return first, last, int(layer)


def _forget_old(storage: Storage, folder: str) -> None:
    """Delete manifests older than the last ones, files that only they name, and files that no manifest names any more."""
    names = _names(storage, folder)
    numbers = _numbers(names)
    contents: dict[int, set[str]] = {}
    for number in numbers:
        path = f"{folder}/{MANIFEST_PREFIX}{number}"
        try:
            contents[number] = set(manifest_files(storage.read(path), path))
        except ObjectNotFound:
            return  # another process deletes them
    kept = set[str]().union(*(contents[number] for number in numbers[-KEPT_MANIFESTS:]))
    for number in numbers[:-KEPT_MANIFESTS]:
        for name in sorted(contents[number] - kept):
            storage.delete(f"{folder}/{name}")
        storage.delete(f"{folder}/{MANIFEST_PREFIX}{number}")
    for name in sorted(n for n in names if FILE_NAME.match(n) and n not in kept.union(*contents.values())):
        # A slow process wrote it once more after it was merged. A file that waits for its manifest is in no other one.
        if any(_is_part(name, of) for of in kept):
            storage.delete(f"{folder}/{name}")


def _is_part(name: str, of: str) -> bool:
    first, last, layer = _parts(name)
    least, most, higher = _parts(of)
    return layer < higher and least <= first and last <= most
