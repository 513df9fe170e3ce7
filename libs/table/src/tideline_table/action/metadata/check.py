"""Compare the metadata table with the table beside writers and cleans: what another process changes meanwhile is no difference."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tideline_table.action.metadata.data_files import damaged_files
from tideline_table.errors import StorageRefused
from tideline_table.hudi.instant import State
from tideline_table.hudi.listing import list_timeline
from tideline_table.hudi.properties import METADATA_PARTITIONS, read_properties
from tideline_table.log.metadata import RECORD_INDEX
from tideline_table.log.state import TableState
from tideline_table.metadata_table import Finding, FindingKind, check_metadata, check_stored
from tideline_table.table.facade import Table

_ROUNDS = 5
"""How often a table is compared that other processes change meanwhile."""


def check_table(table: Table, *, deep: bool = False) -> list[Finding]:
    """Return the differences between metadata table, table log and storage, and the data files that are damaged (`damaged_files`).

    Of a table that only Apache Hudi writes, the data files are compared with its timeline.

    In a table that Apache Hudi also writes, compares the partition `files` with the timeline and with storage, and the other ones
    that Tideline knows.

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
    found = _with_data(table, state, check_metadata(table.storage, table.timeline.format, state, table.timeline.rule), deep=deep)
    return found, not found or (is_healed and table.refresh().sequence == state.sequence)


def _compare_hudi_written(table: Table, *, deep: bool) -> tuple[list[Finding], bool]:
    before = table.refresh().copy()
    found = damaged_files(table.storage, before, deep=deep)
    return found, not found or table.refresh().actions == before.actions


def _with_data(table: Table, state: TableState, found: list[Finding], *, deep: bool) -> list[Finding]:
    named = {finding.path for finding in found if finding.kind is FindingKind.GONE}
    return [*found, *(each for each in damaged_files(table.storage, state, deep=deep) if each.path not in named)]


def _compare_shared(table: Table, *, deep: bool) -> tuple[list[Finding], bool]:
    listed = list_timeline(table.storage, table.timeline.format)
    pending = frozenset(i.time for i in listed.instants if i.state is not State.COMPLETED)
    state = table.refresh().copy()
    found = _with_data(table, state, check_stored(table.storage, table.timeline.format, state, pending), deep=deep)
    return found, not found or list_timeline(table.storage, table.timeline.format).instants == listed.instants
