"""Instants of the archived timeline of layout 1 (format reference 7): log files of Avro blocks.

Snapshot queries do not need them: every instant older than the active timeline was completed when it was archived.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import pyarrow as pa
import pyarrow.compute as pc

from tideline_table.errors import RESTORE_FILE, CorruptMetadata, SchemaMismatch
from tideline_table.hudi.format import ArchivedInstant
from tideline_table.hudi.instant import State
from tideline_table.log_format import BlockType, LogBlock, read_rows, scan_log
from tideline_table.storage import Storage

_FILE = re.compile(r"^\.commits_\.archive\.(\d{1,18})(?:_\d+-\d+-\d+)?\Z", re.ASCII)
_TIME, _ACTION, _STATE = "commitTime", "actionType", "actionState"
_COMMITS, _EXTRA = ("hoodieCommitMetadata", "hoodieReplaceCommitMetadata"), "extraMetadata"
_STATES = {"REQUESTED": State.REQUESTED, "INFLIGHT": State.INFLIGHT, "COMPLETED": State.COMPLETED}
_COMPLETED_AS = {"compaction": "commit", "logcompaction": "deltacommit", "clustering": "replacecommit"}
_ORDER = (State.REQUESTED, State.INFLIGHT, State.COMPLETED)


def read_archive(storage: Storage, folder: str) -> list[ArchivedInstant]:
    """Return the archived instants in order; none if the archive was deleted.

    Raises `CorruptMetadata` for a malformed archive. A truncated end of a file, left by a failed archival, is skipped.
    """
    best: dict[tuple[str, str], ArchivedInstant] = {}
    for path in _files(storage, folder):
        for instant in _instants(storage, path):
            key = (instant.time, _COMPLETED_AS.get(instant.action, instant.action))
            known = best.get(key)
            if known is None or _ORDER.index(known.state) < _ORDER.index(instant.state):
                best[key] = instant
    return sorted(best.values())


def archived_extra(storage: Storage, folder: str) -> Iterator[tuple[str, Mapping[str, str]]]:
    """Yield the instants of completed writes with the extra metadata of their commits; errors as `read_archive`."""
    for block in (block for path in _files(storage, folder) for block in _blocks(storage, path)):
        try:
            rows = read_rows(storage, block, columns=[_TIME, _STATE, *_COMMITS])
        except SchemaMismatch:
            continue  # written by a release without these fields
        times, states = (rows.column(name).to_pylist() for name in (_TIME, _STATE))
        for column in _COMMITS:
            said = pc.struct_field(rows.column(column), _EXTRA).to_pylist()
            for time, state, extra in zip(times, states, said, strict=True):
                if extra and state == State.COMPLETED.value.upper():
                    yield time, dict(extra)


def _files(storage: Storage, folder: str) -> list[str]:
    named = ((_FILE.match(o.path.rsplit("/", 1)[-1]), o.path) for o in storage.list_folder(folder).objects)
    return [path for _, path in sorted((int(match.group(1)), path) for match, path in named if match)]


def _blocks(storage: Storage, path: str) -> Iterator[LogBlock]:
    for block in scan_log(storage, path, needs_instant=False).blocks:
        if block.type is not BlockType.AVRO:
            raise _broken(path, f"a block of type {block.type.name}", "blocks of archived entries")
        yield block


def _instants(storage: Storage, path: str) -> list[ArchivedInstant]:
    found: list[ArchivedInstant] = []
    for block in _blocks(storage, path):
        rows = read_rows(storage, block, columns=[_TIME, _ACTION, _STATE])
        if any(not pa.types.is_string(kind) for kind in rows.schema.types):
            raise _broken(path, f"columns of types {rows.schema.types}", "strings")
        for time, action, state in zip(*(c.to_pylist() for c in rows.columns), strict=True):
            if time is None or action is None or state not in _STATES:
                raise _broken(path, f"the entry {time!r} ({action!r}, {state!r})", "an instant, its action and state")
            found.append(ArchivedInstant(time, action, state=_STATES[state]))
    return found


def _broken(path: str, found: str, expected: str) -> CorruptMetadata:
    return CorruptMetadata(f"archive {path} with {found}", expected=expected, remedy=RESTORE_FILE)
