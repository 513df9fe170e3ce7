"""Compare the metadata table with the table beside writers and cleans: what another process changes meanwhile is no difference."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tideline_table.action.index.requirements import check_exclusive
from tideline_table.errors import StorageRefused
from tideline_table.hudi.instant import State
from tideline_table.hudi.listing import TimelineFolders, list_timeline
from tideline_table.log.metadata import RECORD_INDEX
from tideline_table.metadata_table import Finding, FindingKind, check_metadata, check_stored
from tideline_table.table.facade import Table

_ROUNDS = 5
"""How often a table is compared that other processes change meanwhile."""


def check_index(table: Table) -> list[Finding]:
    """Return the differences between metadata table, table log and storage. Raises `UnsupportedTable` for a table without a log.

    In a table that Apache Hudi also writes, compares the partition `files` with the timeline and with storage, and the other ones
    that Tideline knows.

    The missing files of the last entry are created first, as the next writer would. If other processes change the table while it is
    compared, it is compared again, some times. Of a table that never rests, the differences that two comparisons in a row find are
    returned: the second one begins with what the other processes have changed during the first one.
    """
    if table.is_shared:
        return _confirmed(partial(_compare_shared, table))
    check_exclusive(table)
    return _confirmed(partial(_compare, table))


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


def _compare(table: Table) -> tuple[list[Finding], bool]:
    is_healed = True
    try:
        with table.timeline.healed() as healed:
            state = healed.copy()
    except StorageRefused:
        # Without permission to write: files of the last entry may be missing, because its writer is about to create them.
        state, is_healed = table.refresh().copy(), False
    found = check_metadata(table.storage, state, table.timeline.rule)
    return found, not found or (is_healed and table.refresh().sequence == state.sequence)


def _compare_shared(table: Table) -> tuple[list[Finding], bool]:
    listed = list_timeline(table.storage, TimelineFolders())
    pending = frozenset(i.time for i in listed.instants if i.state is not State.COMPLETED)
    found = check_stored(table.storage, table.refresh().copy(), pending)
    return found, not found or list_timeline(table.storage, TimelineFolders()).instants == listed.instants
