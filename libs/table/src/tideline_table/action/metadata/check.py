"""Compare the metadata table with the table beside writers and cleans: what another process changes meanwhile is no difference."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial

import pyarrow as pa

from tideline_table.coordination.other_writers import check_log_ends
from tideline_table.errors import CorruptMetadata, ObjectNotFound, StorageRefused, TableFrozen, UnsupportedTable
from tideline_table.hudi.file_names import is_log_path
from tideline_table.hudi.instant import State
from tideline_table.hudi.listing import list_timeline
from tideline_table.hudi.properties import METADATA_PARTITIONS, read_properties
from tideline_table.log.entry import LOG_FOLDER, entry_path, sequence_in
from tideline_table.log.metadata import RECORD_INDEX
from tideline_table.log.state import TableState
from tideline_table.log_format import BlockType, read_deletes, read_rows, scan_log
from tideline_table.log_format.block import whole_block
from tideline_table.metadata_table import Finding, FindingKind, check_metadata, check_stored
from tideline_table.metadata_table.finding import gone, without_leaving
from tideline_table.reader.base_file import open_checked, parquet_file, readable
from tideline_table.reader.orc_file import ORC
from tideline_table.storage import DataPath, Storage, check_pieces
from tideline_table.table.facade import Table
from tideline_table.table.standing import lost_completions

_ROUNDS = 5
"""How often a table is compared that other processes change meanwhile."""


def check_table(table: Table, *, deep: bool = False) -> list[Finding]:
    """Return the differences between metadata table, table log and storage, and the data files that are damaged (`damaged_files`).

    Of a table that only Apache Hudi writes, the data files are compared with its timeline.

    In a table that Apache Hudi also writes, compares the partition `files` with the timeline and with storage, and the other ones
    that Tideline knows.

    Raises `TableIncomplete` if the timeline shows that the newest entries of the table log were lost.

    The missing files of the last entry are created first, as the next writer would. If other processes change the table while it is
    compared, it is compared again, some times. Of a table that never rests, the differences that two comparisons in a row find are
    returned: the second one begins with what the other processes have changed during the first one.
    """
    can = table.capabilities
    compare = _compare if can.log_is_truth else _compare_shared if can.keeps_log else _compare_hudi_written
    return _confirmed(partial(compare, table, deep=deep))


def has_metadata_table(table: Table) -> bool:
    """Return whether the properties tell readers of a metadata table."""
    return bool(read_properties(table.storage).get(METADATA_PARTITIONS, ""))


def _confirmed(compare: Callable[[], tuple[list[Finding], bool]]) -> list[Finding]:
    """Return the findings of `compare`, which also returns whether no other process changed the table meanwhile."""
    found, is_at_rest = compare()
    confirmed: list[Finding] = []
    for _ in range(_ROUNDS - 1):
        if is_at_rest:
            break
        earlier = {_subject(finding) for finding in found}
        found, is_at_rest = compare()
        confirmed = [finding for finding in found if _subject(finding) in earlier]
        if len(confirmed) == len(found):
            break
    return found if is_at_rest else confirmed


def _subject(finding: Finding) -> tuple[FindingKind, str, str]:
    """Return what two findings about one difference have in common."""
    # Numbers of keys and of bytes may have changed. Of a damaged file and of keys, the path is that of a folder.
    is_folder = finding.kind is FindingKind.DAMAGED_FILE or finding.path == RECORD_INDEX
    return finding.kind, finding.path, finding.found if is_folder else ""


def _compare(table: Table, *, deep: bool) -> tuple[list[Finding], bool]:
    is_healed = True
    try:
        with table.timeline.healed() as healed:
            state = healed.copy()
    except StorageRefused:
        # Without permission to write: files of the last entry may be missing, because its writer is about to create them.
        state, is_healed = table.refresh().copy(), False
    check_log_ends(table.timeline)
    found = _with_data(table, state, check_metadata(table.storage, table.timeline.format, state, table.timeline.rule), deep=deep)
    return found, not found or (is_healed and table.refresh().sequence == state.sequence)


def _compare_hudi_written(table: Table, *, deep: bool) -> tuple[list[Finding], bool]:
    with suppress(TableFrozen, UnsupportedTable):  # Status says so; here a lost end of the log counts.
        table.timeline.check_not_upgraded()
    before = table.refresh().copy()
    found = damaged_files(table.storage, before, deep=deep)
    return found, not found or table.refresh().actions == before.actions


def _with_data(table: Table, state: TableState, found: list[Finding], *, deep: bool) -> list[Finding]:
    named = {finding.path for finding in found if finding.kind is FindingKind.GONE}
    damaged = (each for each in damaged_files(table.storage, state, deep=deep) if each.path not in named)
    return [*found, *damaged, *_lost_entries(table)]


def _lost_entries(table: Table) -> Iterator[Finding]:
    """Yield a finding for each entry that the log lost: a checkpoint holds its effect, but its step cannot be told again."""
    head = table.timeline.state.sequence
    names = (found.path.rpartition("/")[2].removesuffix(".json") for found in table.storage.list_folder(LOG_FOLDER).objects)
    present = {sequence_in(name) for name in names}
    floor = table.timeline.log.trimmed_to()  # after the listing: what was trimmed meanwhile is not lost
    for sequence in sorted(set(range(floor + 1, head + 1)) - present):
        yield Finding(FindingKind.GONE, entry_path(sequence), "a lost entry of the table log: its event cannot be told again")


def _compare_shared(table: Table, *, deep: bool) -> tuple[list[Finding], bool]:
    listed = list_timeline(table.storage, table.timeline.format)
    pending = frozenset(i.time for i in listed.instants if i.state is not State.COMPLETED)
    state = table.refresh().copy()
    found = _with_data(
        table, state, check_stored(table.storage, table.timeline.format, state, pending, table.timeline.rule), deep=deep
    )
    found += [Finding(FindingKind.GONE, path, _LOST) for path in lost_completions(table, listed, state)]
    return found, not found or list_timeline(table.storage, table.timeline.format).instants == listed.instants


_LOST = "the timeline file of a completed action: the next job of Apache Hudi rolls it back; restore the file"
_THREADS = 8
_PIECE_BYTES = 8 * 1024 * 1024
_ROWS = (BlockType.AVRO, BlockType.PARQUET, BlockType.HFILE)


def damaged_files(storage: Storage, state: TableState, *, deep: bool) -> list[Finding]:
    """Return the committed data files that are gone or not what their commits recorded, by path.

    Compares sizes, reads the footers of base files and the blocks of log files. `deep` reads all bytes of base files, and
    decodes what has no digest. Files that a pending clean deletes may be gone.
    """
    paths = sorted({path: path for found in state.every_slice() for path in found.paths}.values())
    with ThreadPoolExecutor(_THREADS) as pool:
        found = pool.map(lambda path: _finding(path, lambda: _check_file(storage, path, deep=deep)), paths)
        return list(without_leaving((each for each in found if each is not None), state))


def _finding(path: str, check: Callable[[], None]) -> Finding | None:
    try:
        check()
    except ObjectNotFound as error:
        return gone(error)
    except (CorruptMetadata, UnsupportedTable) as error:
        return Finding(FindingKind.DAMAGED_DATA, str(path), f"{error.found}; expected {error.expected}")
    return None


def _check_file(storage: Storage, path: DataPath, *, deep: bool) -> None:
    if is_log_path(path):
        _check_log(storage, path, deep=deep)
    else:
        _check_base(storage, path, deep=deep)


def _check_log(storage: Storage, path: DataPath, *, deep: bool) -> None:
    for block in scan_log(storage, path).blocks:
        if block.written is not None:
            whole_block(storage, block, block.written)
        elif deep and block.type is BlockType.DELETE:
            read_deletes(storage, block)
        elif deep and block.type in _ROWS:
            read_rows(storage, block)


def _check_base(storage: Storage, path: DataPath, *, deep: bool) -> None:
    with readable(path):
        source = open_checked(storage, path)
        file = parquet_file(source)
        if not deep or path.endswith(ORC):  # an ORC file was compared and decoded as a whole when it was opened
            return
        body = path.ranges[0] if path.ranges else None
        if body is not None and body.digest:
            source.seek(body.start)
            check_pieces(path, body, _pieces(source, body.size_bytes))
            return
        for batch in file.iter_batches():
            batch.validate(full=True)


def _pieces(source: pa.NativeFile, size_bytes: int) -> Iterator[bytes]:
    while size_bytes and (piece := source.read(min(size_bytes, _PIECE_BYTES))):
        size_bytes -= len(piece)
        yield piece
