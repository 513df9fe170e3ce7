"""Derive file slices from the names in a listing, without I/O (format reference 8.1, 9.1, 11.1 to 11.3, 16.3)."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace

from tideline_table.errors import UnsupportedTable
from tideline_table.file_group.slice import FileGroupId, FileSlice, LogFile
from tideline_table.hudi.file_names import LogFileName, parse_base_file_name, parse_log_file_name
from tideline_table.hudi.format import TableFormat
from tideline_table.reader.log_blocks import VisibleInstants
from tideline_table.storage import NOTHING_RECORDED, UNKNOWN_TIME, ObjectStat


@dataclass(frozen=True, slots=True)
class ListedFile:
    """A log file of a listing. The write token separates files with the same instant and version (9.1)."""

    name: str
    size_bytes: int
    parsed: LogFileName

    @property
    def order(self) -> tuple[str, int, str]:
        """Merge order of log files: instant in the name, version as a number, write token as text."""
        return (self.parsed.instant, self.parsed.version, self.parsed.write_token)


@dataclass(slots=True)
class ListedGroup:
    """Files of one file group in a listing: base files by instant, and log files.

    Several base files of one instant come from several attempts to write the file; at most one of them was committed.
    """

    base_files: dict[str, list[ObjectStat]] = field(default_factory=dict)
    log_files: list[ListedFile] = field(default_factory=list)


ListedGroups = Mapping[FileGroupId, ListedGroup]
Slices = dict[FileGroupId, dict[str, FileSlice]]
_OF_ANOTHER_SYSTEM = "_hudiext"


def listed_groups(partitions: Iterable[tuple[str, Iterable[ObjectStat]]]) -> dict[FileGroupId, ListedGroup]:
    """Group the base and log files of partitions by file group. Checksum files, CDC log files and unknown names are left out.

    Raises `UnsupportedTable` for a name in a metadata table by which a translator of table formats lists a file of another system:
    no file has that name, and the commit that names it may be archived.
    """
    found: dict[FileGroupId, ListedGroup] = {}
    for partition, objects in partitions:
        for stat in objects:
            name = stat.path.rsplit("/", 1)[-1]
            log = parse_log_file_name(name)
            if log is not None:
                if not log.is_cdc:
                    group = found.setdefault(FileGroupId(partition, log.file_id), ListedGroup())
                    group.log_files.append(ListedFile(name, stat.size_bytes, log))
                continue
            base = parse_base_file_name(name)
            if base is None and name.endswith(_OF_ANOTHER_SYSTEM):
                raise UnsupportedTable(
                    f"the metadata table lists file {stat.path}",
                    expected="names of Hudi's writers",
                    remedy="read the table in its own format (XTable and UniForm translate commits, not files)",
                )
            if base is not None and base.extension != "crc":
                group = found.setdefault(FileGroupId(partition, base.file_id), ListedGroup())
                group.base_files.setdefault(base.instant, []).append(stat)
    return found


def tried_again(groups: ListedGroups) -> frozenset[str]:
    """Return the instants with several attempts at a base file. Their commit metadata names the committed attempt."""
    return frozenset(instant for listed in groups.values() for instant, attempts in listed.base_files.items() if len(attempts) > 1)


def slices_of(
    groups: ListedGroups,
    form: TableFormat,
    committed: VisibleInstants,
    compactions: Mapping[FileGroupId, str],
    completion: Callable[[str], str],
    named: AbstractSet[str] = frozenset(),
) -> Slices:
    """Return the slices of a table of this format. Of several attempts at a base file, the one whose path is in `named` is used.

    Log files of uncommitted writes are left out, if their names say the write; if not, block headers decide which blocks are valid.
    A pending compaction opens a slice in each group that it names, to which queries add the slice before it (11.2,
    `visible_slice`). It has no base file, even if a partly written one exists. `completion` returns the completion time of a
    committed instant.
    """
    found: Slices = {}
    opened = frozenset(compactions.values())
    for group, listed in groups.items():
        slices = _base_slices(group, listed, committed, named)
        begun = sorted({*slices, compactions[group]} if group in compactions else slices)
        for log in sorted(listed.log_files, key=lambda f: f.order):
            writer = form.writer_of(log.parsed)
            if log.parsed.instant not in committed and (writer or log.parsed.instant not in opened):
                continue
            base_instant = form.slice_of(log.parsed, begun, completion)
            if base_instant not in begun:
                bisect.insort(begun, base_instant)
            _add_log(slices, group, base_instant, LogFile(log.name, log.size_bytes, writer, log.parsed.version))
        _keep(found, group, slices)
    return found


def _base_slices(
    group: FileGroupId, listed: ListedGroup, committed: VisibleInstants, named: AbstractSet[str]
) -> dict[str, FileSlice]:
    found = {}
    for instant, attempts in listed.base_files.items():
        if instant in committed:
            stat = max(attempts, key=lambda a: (a.path in named, _attempt(a)))
            # A size that nobody saw is not expected of the file: tools may have rewritten it.
            record = NOTHING_RECORDED if stat.modified == UNKNOWN_TIME else ""
            found[instant] = FileSlice(group, instant, stat.path.rsplit("/", 1)[-1], stat.size_bytes, -1, record=record)
    return found


def _attempt(stat: ObjectStat) -> tuple[int, ...]:
    """Return the stage and attempt numbers of the write token. They are larger for later attempts."""
    parsed = parse_base_file_name(stat.path.rsplit("/", 1)[-1])
    numbers = parsed.write_token.split("-")[1:] if parsed else ()
    return tuple(int(number) for number in numbers if number.isdecimal() and len(number) < 19)


def _add_log(slices: dict[str, FileSlice], group: FileGroupId, base_instant: str, log: LogFile) -> None:
    below = slices.get(base_instant) or FileSlice(group, base_instant, "", 0, -1)
    slices[base_instant] = replace(below, log_files=(*below.log_files, log))


def _keep(found: Slices, group: FileGroupId, slices: dict[str, FileSlice]) -> None:
    if slices:
        found[group] = dict(sorted(slices.items()))
