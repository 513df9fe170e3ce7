"""The data files that hold a state of a table, for readers that do not know its timeline."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tideline_table.errors import UnsafePath
from tideline_table.hudi import Point
from tideline_table.storage import hudi_root
from tideline_table.table.facade import Table


@dataclass(frozen=True, slots=True)
class DataFile:
    """The files of one file slice that queries read. Paths are absolute: of the local disk, or `s3://bucket/...`.

    `path` is the base file, None if the slice has only log files. With `log_files`, the base file alone is not the newest rows: log
    files update and delete rows of it and add others.
    """

    path: str | None
    partition: str
    instant: str
    """The write that made the base file, or opened the slice."""
    size_bytes: int
    """The size of the base file."""
    rows: int | None
    """The number of rows in the base file, None if only its footer says it."""
    log_files: tuple[str, ...] = ()
    """The paths of the log files that a reader has to merge, in this order."""


def data_files(table: Table, as_of: Point = "") -> tuple[DataFile, ...]:
    """Return the files that a query now or as of a point in time reads, by partition and path.

    Raises the errors of `Table.slices`.
    """
    root = hudi_root(table.storage.root).removeprefix("file:").rstrip("/")
    found = []
    for file_slice in table.slices(as_of):
        read = file_slice.applied
        found.append(
            DataFile(
                path=f"{root}/{read.path}" if read.base_file else None,
                partition=read.group.partition_path,
                instant=read.base_instant,
                size_bytes=read.size_bytes,
                rows=read.rows if read.base_file and read.rows >= 0 else None,
                log_files=tuple(f"{root}/{path}" for path in read.log_paths),
            )
        )
    return tuple(sorted(found, key=lambda f: (f.partition, f.path or "", f.log_files)))


def manifest_of(files: Iterable[DataFile]) -> str:
    """Return the paths of the base files, one on each line. Raises `UnsafePath` for a path with a line end."""
    paths = [found.path for found in files if found.path is not None]
    for path in paths:
        if len(path.splitlines()) > 1:
            raise UnsafePath(f"path {path!r} with a line end", expected="paths of one line each", remedy="use the list of --json")
    return "".join(f"{path}\n" for path in paths)
