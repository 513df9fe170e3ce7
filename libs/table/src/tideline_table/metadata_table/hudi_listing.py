"""The files of a table that Apache Hudi writes, from its metadata table: a few requests instead of one for each folder.

The metadata table is believed if it has every write and clean of the table's timeline that completed since it was made, in layout 1
also every rollback, which adds blocks that take others back; if not, the caller lists the folders. Format reference of version 6:
15.5 to 15.9, of versions 8 and 9: 4, 8.5.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from collections.abc import Set as AbstractSet

from tideline_table.errors import CorruptMetadata, ObjectNotFound, UnsupportedTable
from tideline_table.file_group.slice import join_path
from tideline_table.hudi.format import TableFormat
from tideline_table.hudi.instant import WRITE_ACTIONS, Action, State
from tideline_table.hudi.listing import TimelineListing, timeline_listing
from tideline_table.hudi.properties import METADATA_PARTITIONS, read_properties
from tideline_table.log.metadata import FILES
from tideline_table.log_format.block import BlockType, read_content
from tideline_table.log_format.delete_block import read_deletes
from tideline_table.log_format.hfile import HFile
from tideline_table.metadata_table.hudi_slices import HudiSlice, newest_slices
from tideline_table.metadata_table.layout import FILES_FOLDER, FILES_ID, timeline_folder
from tideline_table.metadata_table.reading import entries_of, live
from tideline_table.metadata_table.records import DELETED, FilesRecords, decode_records
from tideline_table.schema.meta_fields import MetaField
from tideline_table.storage import UNKNOWN_TIME, ObjectStat, Storage

_LOGGER = logging.getLogger(__name__)


def listed_by_metadata(storage: Storage, form: TableFormat, timeline: TimelineListing) -> list[tuple[str, list[ObjectStat]]] | None:
    """Return the partitions of a table and their files; None if folders must be listed, with a warning if that should not be.

    `timeline` is the table's, listed before. Files have no times.
    """
    if not is_advertised(storage, FILES):
        return None
    try:
        found = _listed(storage, form, timeline)
    except (CorruptMetadata, ObjectNotFound, UnsupportedTable) as error:
        _LOGGER.warning("the folders of the table are listed, because its metadata table cannot be used: %s", error)
        return None
    # It ceases to be named before its files are deleted.
    return found if is_advertised(storage, FILES) else None


def is_advertised(storage: Storage, partition: str) -> bool:
    """Return whether the table's properties say that its metadata table has this partition."""
    return partition in read_properties(storage).get(METADATA_PARTITIONS, "").split(",")


def _listed(storage: Storage, form: TableFormat, timeline: TimelineListing) -> list[tuple[str, list[ObjectStat]]]:
    own = timeline_listing(form, (found.path for found in storage.list_folder(timeline_folder(form)).objects))
    check_follows(timeline, own.completion, changing(form))
    pending = frozenset(i.time for i in timeline.instants if i.state is not State.COMPLETED)
    slice_ = newest_slices(storage, form, own.completion, FILES).get(FILES_ID)
    if slice_ is None or not slice_.base_file:
        raise CorruptMetadata(f"no base file of {FILES_ID} in {FILES_FOLDER}", expected="one of a completed instant")
    merged = _merged(storage, slice_, own.completion.keys() - pending, rolls_back=not form.has_completion_times)
    _check_names(merged)
    there = [partition for partition, size in (merged.partitions or {}).items() if size != DELETED]
    return [
        (
            partition,
            [
                ObjectStat(join_path(partition, name), size, UNKNOWN_TIME)
                for name, size in live(merged.files.get(partition)).items()
            ],
        )
        for partition in sorted(there)
    ]


def _check_names(listed: FilesRecords) -> None:
    # A commit of Hudi in version 6 may name the log file of a write that failed beside it, which it lists by a path.
    for partition, names in listed.files.items():
        for name in names:
            if "/" in name:
                raise CorruptMetadata(f"file {name!r} listed in partition {partition!r}", expected="names")


def changing(form: TableFormat) -> AbstractSet[Action]:
    """Return the actions that have a delta commit of their own instant in the metadata table."""
    return WRITE_ACTIONS | {Action.CLEAN} | (set() if form.has_completion_times else {Action.ROLLBACK})


def check_follows(timeline: TimelineListing, done: Mapping[str, str], actions: AbstractSet[Action]) -> None:
    """Raise `CorruptMetadata` unless the metadata table has all instants of these actions since it was made.

    `done` has its completed instants with their completion times.
    """
    if not done:
        raise CorruptMetadata("a metadata table without completed instants", expected="the one that made it")
    made = min(done.values())
    for instant in timeline.instants:
        if instant.state is not State.COMPLETED or timeline.completion.get(instant.time, "") <= made:
            continue
        if instant.action is Action.RESTORE or (instant.action in actions and instant.time not in done):
            raise CorruptMetadata(
                f"a metadata table without the {instant.action} {instant.time}", expected="all instants since it was made"
            )


def _merged(storage: Storage, slice_: HudiSlice, valid: AbstractSet[str], *, rolls_back: bool) -> FilesRecords:
    """Return what readers merge: the base file, then the blocks of `valid` instants. Raises `CorruptMetadata`."""
    hfile = HFile(storage.read(slice_.base_path))
    merged = decode_records(entries_of(hfile), hfile.file_info.get("schema", b"").decode("utf-8", "replace"), slice_.base_path)
    for block in slice_.blocks(storage, valid, rolls_back=rolls_back):
        if block.type is BlockType.DELETE:
            merged.remove(read_deletes(storage, block).column(MetaField.RECORD_KEY).to_pylist())
        else:
            content = HFile(read_content(storage, block, BlockType.HFILE))
            merged.merge(decode_records(entries_of(content), block.schema_json, block.path))
    return merged
