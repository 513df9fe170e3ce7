"""What cleaning by file versions leaves of the past: such cleans name the files that went, and no instant that they retain."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from tideline_table.file_group.names import parse_base_file_name, parse_log_file_name
from tideline_table.file_group.slice import FileGroupId


@dataclass(frozen=True, slots=True)
class CleanedFile:
    """A file that went: its group, the instant in its name, and the newest write that the clean knew."""

    group: FileGroupId
    instant: str
    known_write: str


def cleaned_files(names: Iterable[tuple[str, str]], known_write: str) -> list[CleanedFile]:
    """The data files among these names, each with its partition path; a clean may name them with their folders."""
    found = []
    for partition, path in names:
        name = path.rsplit("/", 1)[-1]
        if (log := parse_log_file_name(name)) is not None:
            found.append(CleanedFile(FileGroupId(partition, log.file_id), log.base_instant, known_write))
        elif (base := parse_base_file_name(name)) is not None:
            found.append(CleanedFile(FileGroupId(partition, base.file_id), base.instant, known_write))
    return found


def first_whole(
    cleaned: Iterable[CleanedFile], slices: Mapping[FileGroupId, AbstractSet[str]], replaced: Mapping[FileGroupId, str]
) -> str:
    """The first instant as of which no query needs a file that went; empty where none did.

    A file was needed until its group had a newer slice or was replaced; of a group that nothing is known of any more, until the last write before the clean.
    """
    return max(
        (_needed_until(file, slices.get(file.group, frozenset()), replaced.get(file.group, "")) for file in cleaned), default=""
    )


def _needed_until(file: CleanedFile, begun: AbstractSet[str], replaced: str) -> str:
    later = [instant for instant in begun if instant > file.instant]
    return min(later, default=replaced or file.known_write)
