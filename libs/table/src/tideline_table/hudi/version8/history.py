"""The archived timeline of layout 2 ("history"): Parquet files that a manifest names (format reference 16.3).

Hudi merges small files into larger ones from time to time, and keeps the files of the last few versions. A reader reads the version
file, then the manifest of that version, then the files that it names. Only times and actions are read, never the metadata columns.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable

import pyarrow as pa
import pyarrow.parquet as pq

from tideline_table.errors import RESTORE_FILE, CorruptMetadata, ObjectNotFound, parsing
from tideline_table.hudi.format import ArchivedInstant
from tideline_table.storage import Storage

VERSION_FILE = "_version_"
MANIFEST_PREFIX = "manifest_"
MAX_INSTANTS = 5_000_000
"""Limit for one file. An archival writes tens of instants and merges tens of files."""
_MANIFEST = re.compile(r"^manifest_(\d{1,18})\Z", re.ASCII)
FILE_NAME = re.compile(r"^(\d{14,20})_(\d{14,20})_(\d{1,3})\.parquet\Z", re.ASCII)
_TIME = re.compile(r"\d{14,20}", re.ASCII)
_COLUMNS = ["instantTime", "completionTime", "action"]
_MAX_TEXT_BYTES = 4 * 1024 * 1024
_ATTEMPTS = 3
_BATCH_ROWS = 8192


def read_history(storage: Storage, folder: str, first: str = "", last: str = "") -> list[ArchivedInstant]:
    """Return the archived instants from `first` to `last` (both inclusive; empty: no limit), in order; none if there is no history.

    Raises `CorruptMetadata` for a malformed or missing manifest or file.
    """
    for attempt in range(_ATTEMPTS):
        try:
            return sorted(instants_of(storage, folder, _files(storage, folder), first, last))
        except ObjectNotFound as error:
            # Archivals may have deleted the file, or the manifest, after what names it was read; the newest do not name it.
            if attempt + 1 == _ATTEMPTS:
                is_manifest = _MANIFEST.match(error.path.rpartition("/")[2])
                expected = (
                    "the manifest that the version file names" if is_manifest else "a file that the manifest of the history names"
                )
                raise _broken(error.path, "is missing", expected) from None
    return []


def instants_of(storage: Storage, folder: str, names: Iterable[str], first: str = "", last: str = "") -> set[ArchivedInstant]:
    """Return the instants from `first` to `last` in files of the history. Raises `ObjectNotFound` if one of them is missing."""
    found = (i for name in names if _overlaps(name, first, last) for i in _read(storage, f"{folder}/{name}"))
    return {i for i in found if first <= i.time and (not last or i.time <= last)}


def _broken(path: str, found: str, expected: str) -> CorruptMetadata:
    return CorruptMetadata(f"{path} {found}", expected=expected, remedy=RESTORE_FILE)


def _files(storage: Storage, folder: str) -> list[str]:
    version = current_version(storage, folder)
    if version is None:
        return []
    path = f"{folder}/{MANIFEST_PREFIX}{version}"
    return manifest_files(storage.read(path), path)


def current_version(storage: Storage, folder: str) -> int | None:
    """Return the number of the manifest that counts, None without a history."""
    try:
        text = storage.read(f"{folder}/{VERSION_FILE}")[:32].decode("ascii", "replace").strip()
    except ObjectNotFound:
        text = ""
    if text.isascii() and text.isdecimal():
        return int(text)
    # If the version file is unreadable, use the newest manifest, as Hudi does.
    names = (o.path.rsplit("/", 1)[-1] for o in storage.list_folder(folder).objects)
    return max((int(m.group(1)) for m in map(_MANIFEST.match, names) if m), default=None)


def manifest_files(content: bytes, path: str) -> list[str]:
    """Return the file names in a manifest. Raises `CorruptMetadata`, which names `path`, for a malformed manifest."""
    if len(content) > _MAX_TEXT_BYTES:
        raise _broken(path, f"has {len(content)} bytes", f"at most {_MAX_TEXT_BYTES}")
    with parsing(path, "a manifest in JSON"):
        document = json.loads(content) if content.strip() else {}
        names = [str(entry["fileName"]) for entry in document.get("files") or ()]
    for name in names:
        if not FILE_NAME.match(name):
            raise _broken(path, f"names the file {name!r}", "<first>_<last>_<layer>.parquet")
    return names


def _overlaps(name: str, first: str, last: str) -> bool:
    match = FILE_NAME.match(name)
    assert match is not None
    least, most, _ = match.groups()
    # An upgrade by Apache Hudi writes instants in the order in which it read older archives, and names a file by the first and the
    # last of them.
    return least > most or (most >= first and (not last or least <= last))


def _read(storage: Storage, path: str) -> list[ArchivedInstant]:
    try:
        with storage.open_input(path) as source:
            return history_instants(source, path)
    except OSError as error:
        raise _broken(path, f"cannot be read ({error})", "Parquet") from None


def history_instants(source: pa.NativeFile, path: str) -> list[ArchivedInstant]:
    """Return the instants in one file of the history. Raises `CorruptMetadata`, which names `path`, for a malformed file."""
    found: list[ArchivedInstant] = []
    try:
        # Dictionary encoding: a long value that a file repeats takes memory only once.
        file = pq.ParquetFile(source, read_dictionary=_COLUMNS)
        if file.metadata.num_rows > MAX_INSTANTS:
            raise _broken(path, f"has {file.metadata.num_rows} instants", f"at most {MAX_INSTANTS}")
        for batch in file.iter_batches(_BATCH_ROWS, columns=_COLUMNS):
            found += _instants(batch, path)
            if len(found) > MAX_INSTANTS:
                raise _broken(path, "has more instants than its footer says", f"at most {MAX_INSTANTS}")
    except (pa.ArrowException, OSError, ValueError, KeyError) as error:
        raise _broken(path, f"cannot be read ({type(error).__name__}: {error})", "Parquet with times and actions") from None
    return found


def _instants(batch: pa.RecordBatch, path: str) -> list[ArchivedInstant]:
    # Remove duplicates first: a small file may repeat a value millions of times, which would take minutes and gigabytes as objects.
    grouped = pa.Table.from_batches([batch]).group_by(batch.schema.names, use_threads=False).aggregate([])
    (distinct,) = grouped.combine_chunks().to_batches() or [batch]
    columns = [_texts(distinct, name, path) for name in _COLUMNS]
    found = []
    for time, completion, action in zip(*columns, strict=True):
        if time is None or action is None or not _TIME.fullmatch(time) or (completion and not _TIME.fullmatch(completion)):
            raise _broken(
                path, f"has the instant {time!r} ({action!r}, completed {completion!r})", "yyyyMMddHHmmssSSS and an action"
            )
        found.append(ArchivedInstant(time, action, completion or time))
    return found


def _texts(batch: pa.RecordBatch, name: str, path: str) -> list[str | None]:
    if name not in batch.schema.names:
        raise _broken(path, f"has no column {name!r}", ", ".join(_COLUMNS))
    column = batch.column(name)
    if not pa.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    if not pa.types.is_string(column.type.value_type):
        raise _broken(path, f"has {column.type} in {name!r}", "strings")
    values = column.dictionary.to_pylist()
    return [None if i is None else values[i] for i in column.indices.to_pylist()]
