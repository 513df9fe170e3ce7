"""What the commits of a Hudi-written table recorded about its files, compared with a listing without I/O."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from tideline_table.file_group.slice import FileGroupId, FileSlice, LogFile, join_path
from tideline_table.hudi.file_names import parse_base_file_name, parse_log_file_name
from tideline_table.hudi.write_stats import WriteStat
from tideline_table.hudi_written.slices import ListedFile, ListedGroup, Slices
from tideline_table.reader.log_blocks import VisibleInstants
from tideline_table.storage import NOTHING_RECORDED, UNKNOWN_TIME, ByteRange, ObjectStat, record_text


class RecordedFiles:
    """The files that completed commits of the active timeline name."""

    def __init__(self) -> None:
        self._files: dict[str, list[WriteStat]] = {}

    def add(self, stats: Iterable[WriteStat]) -> None:
        """Add the files of a completed commit. A file without a size is left out."""
        for stat in stats:
            name = stat.path.rsplit("/", 1)[-1]
            if stat.file_size_bytes > 0 and stat.path == join_path(stat.partition_path, name):
                self._files.setdefault(stat.path, []).append(stat)

    def add_missing(
        self, groups: dict[FileGroupId, ListedGroup], replaced: Collection[FileGroupId], committed: VisibleInstants
    ) -> None:
        """Add the files to a listing that it should have: those of the newest slice of each file group, which no clean deletes.

        So a query of the group fails, instead of reading an older slice.
        """
        missing = {path: stats[-1] for path, stats in self._files.items() if not _lists(groups, stats[-1])}
        for path, stat in missing.items():
            name = path.rsplit("/", 1)[-1]
            base, group = parse_base_file_name(name), FileGroupId(stat.partition_path, stat.file_id)
            listed = groups.get(group, ListedGroup())
            newest = max((at for at in listed.base_files if at in committed), default="")
            if base is not None and group not in replaced and base.instant > newest:
                for instant in [at for at in listed.base_files if at == base.instant]:
                    del listed.base_files[instant]
                listed.base_files[base.instant] = [ObjectStat(path, stat.file_size_bytes, UNKNOWN_TIME)]
                groups[group] = listed
        for path, stat in missing.items():
            name = path.rsplit("/", 1)[-1]
            log, group = parse_log_file_name(name), FileGroupId(stat.partition_path, stat.file_id)
            listed = groups.get(group, ListedGroup())
            newest = max((at for at in listed.base_files if at in committed), default="")
            if log is None or log.is_cdc or group in replaced or log.instant < newest:
                continue
            file = ListedFile(name, stat.end_bytes, log)
            if not any(_is_moved(file, other) for other in listed.log_files):
                listed.log_files.append(file)
                groups[group] = listed

    def applied_to(self, slices: Slices) -> dict[FileGroupId, Mapping[str, FileSlice]]:
        """Return the slices with what commits recorded about the bytes of their files.

        A base file keeps its size in the listing: tools may have rewritten it, and its footer shows whether it is whole.
        """
        return {group: {at: self._recorded(found) for at, found in known.items()} for group, known in slices.items()}

    def _recorded(self, found: FileSlice) -> FileSlice:
        partition = found.group.partition_path
        logs = tuple(self._log(partition, log) for log in found.log_files)
        stats = self._files.get(found.path, ()) if found.base_file else ()
        record = (stats[-1].record if stats else "") or found.record
        return replace(found, log_files=logs, record=record) if logs or record != found.record else found

    def _log(self, partition: str, log: LogFile) -> LogFile:
        stats = self._files.get(join_path(partition, log.name), ())
        record = stats[-1].record if stats else NOTHING_RECORDED
        return replace(log, record=record or record_text([ByteRange(s.log_offset, s.file_size_bytes) for s in stats]))


def _is_moved(file: ListedFile, other: ListedFile) -> bool:
    """Whether `other` is the copy of `file` that a cancelled compaction put behind the slice before, ahead of its deletion."""
    return (
        other.parsed.instant < file.parsed.instant
        and other.parsed.write_token == file.parsed.write_token
        and other.size_bytes == file.size_bytes
    )


def _lists(groups: Mapping[FileGroupId, ListedGroup], stat: WriteStat) -> bool:
    listed = groups.get(FileGroupId(stat.partition_path, stat.file_id))
    if listed is None:
        return False
    name = stat.path.rsplit("/", 1)[-1]
    bases = (found.path for attempts in listed.base_files.values() for found in attempts)
    return stat.path in bases or any(log.name == name for log in listed.log_files)
