"""Effect of a clean on the slices of a table, and of cleaning by file versions on older queries.

A clean by file versions lists the deleted files but no earliest retained instant.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, MutableMapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from tideline_table.file_group.slice import FileGroupId, FileSlice, is_gone
from tideline_table.hudi.file_names import parse_base_file_name, parse_log_file_name


@dataclass(frozen=True, slots=True)
class CleanedFile:
    """A deleted data file: its file group, the instant in its name, and the newest write before the clean."""

    group: FileGroupId
    instant: str
    known_write: str


def cleaned_files(names: Iterable[tuple[str, str]], known_write: str) -> list[CleanedFile]:
    """Return the data files among pairs of partition path and file name. A clean may put folders before the name."""
    found = []
    for partition, path in names:
        name = path.rsplit("/", 1)[-1]
        if (log := parse_log_file_name(name)) is not None:
            found.append(CleanedFile(FileGroupId(partition, log.file_id), log.instant, known_write))
        elif (base := parse_base_file_name(name)) is not None:
            found.append(CleanedFile(FileGroupId(partition, base.file_id), base.instant, known_write))
    return found


def first_whole(
    cleaned: Iterable[CleanedFile], slices: Mapping[FileGroupId, AbstractSet[str]], replaced: Mapping[FileGroupId, str]
) -> str:
    """Return the first instant as of which no query needs a deleted file; empty if no file was deleted.

    A file was needed until its group got a newer slice or was replaced; in an unknown group, until the last write before the clean.
    """
    return max(
        (_needed_until(file, slices.get(file.group, frozenset()), replaced.get(file.group, "")) for file in cleaned), default=""
    )


def _needed_until(file: CleanedFile, begun: AbstractSet[str], replaced: str) -> str:
    later = [instant for instant in begun if instant > file.instant]
    return min(later, default=replaced or file.known_write)


def remove_cleaned(
    slices: MutableMapping[FileGroupId, Mapping[str, FileSlice]],
    replaced: dict[FileGroupId, str],
    excess: set[FileGroupId],
    gone: frozenset[tuple[str, str]],
) -> None:
    """Remove the slices whose first file is in `gone` (partition path, name).

    `excess` keeps the groups to examine at the next clean.
    """
    for group in sorted(excess):
        known = slices.get(group, {})
        held = {instant: found for instant, found in known.items() if not is_gone(found, gone)}
        if len(held) < len(known):
            slices[group] = held
        if not held:
            slices.pop(group, None)
            replaced.pop(group, None)
            excess.discard(group)
        elif len(held) == 1 and group not in replaced:
            excess.discard(group)
