"""The document of a savepoint (format reference 6.4): the files of the slices that a query as of its instant reads."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from tideline_table.file_group.slice import FileSlice
from tideline_table.log.savepoint import every_saved_slice
from tideline_table.log.state import TableState

OPERATION = "SAVEPOINT"


def saved_files(state: TableState, instant: str) -> list[FileSlice]:
    """Return the slices that a savepoint of `instant` keeps."""
    return every_saved_slice(state.slices, state.replaced, {instant: frozenset()})


def savepoint_metadata(state: TableState, instant: str, user: str, comment: str, now: datetime) -> dict[str, Any]:
    """Return the completed document (HoodieSavepointMetadata)."""
    names: dict[str, list[str]] = {}
    for file_slice in saved_files(state, instant):
        partition = names.setdefault(file_slice.group.partition_path, [])
        partition += [path.rsplit("/", 1)[-1] for path in file_slice.paths]
    return {
        "savepointedBy": user,
        "savepointedAt": int(now.timestamp() * 1000),
        "comments": comment,
        "partitionMetadata": {
            partition: {"partitionPath": partition, "savepointDataFile": sorted(files)}
            for partition, files in sorted(names.items())
        },
        "version": 1,
    }
