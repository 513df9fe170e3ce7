"""File groups and their slices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class FileGroupId(NamedTuple):
    """A file group of a table: partition path and file id."""

    partition_path: str
    file_id: str


@dataclass(frozen=True, slots=True)
class FileSlice:
    """One version of a file group: a base file and the log files on top of it. `rows` is -1 where only a footer would know."""

    group: FileGroupId
    base_instant: str
    base_file: str
    size_bytes: int
    rows: int
    log_files: tuple[str, ...] = ()

    @property
    def path(self) -> str:
        """The base file below the base path."""
        return join_path(self.group.partition_path, self.base_file)

    def to_list(self) -> list[object]:
        """Compact form for checkpoints."""
        return [self.base_instant, self.base_file, self.size_bytes, self.rows]


def join_path(partition_path: str, name: str) -> str:
    """`<partition>/<name>`, just the name in a table without partitions."""
    return f"{partition_path}/{name}" if partition_path else name
