"""Protections of archival, switched off one at a time."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from datetime import datetime
from typing import Any

from tests.simulation.sabotage import sabotage
from tests.simulation.world import World

from tideline_table.action.archival import plan as archival
from tideline_table.action.archival import run as table_archival
from tideline_table.action.archival.late_files import MOST_CHECKED, OrphanCleanup
from tideline_table.config import Options
from tideline_table.hudi.format import TableFormat
from tideline_table.log.action import ActionRecord
from tideline_table.log.state import TableState
from tideline_table.storage import Storage

_real_held_back = archival.held_back


def _clean_up_nothing(storage: Storage, form: TableFormat, state: TableState, rolled_back: Sequence[ActionRecord]) -> OrphanCleanup:
    return OrphanCleanup(frozenset(record.instant for record in rolled_back))


def _due_at_once(state: TableState, rolled_back: Iterable[ActionRecord], options: Options, now: datetime) -> list[ActionRecord]:
    return list(rolled_back)[:MOST_CHECKED]


def _held_back_by_no_cleaning(state: TableState, *arguments: Any) -> archival.Barrier:
    cleaned = copy.copy(state)
    cleaned.replaced = {}
    return _real_held_back(cleaned, *arguments)


def _held_back_by_nothing_unfinished(state: TableState, cleaned_up: AbstractSet[str] = frozenset()) -> list[archival.Barrier]:
    return []


def _removed_first(table: Any, number: int, files: Sequence[archival.StateFile], options: Options) -> str:
    """The archive file comes behind the removal: whichever process dies between has lost what it says."""
    for found in archival.removal_order(files):
        table.storage.delete(found)
    return _real_store(table, number, [], options)


_real_store = table_archival._store

ARCHIVAL_BUGS: Mapping[str, Callable[[World], Any]] = {
    "archival does not clean up orphans": sabotage((table_archival, "clean_up_orphans", _clean_up_nothing)),
    "archival waits for no task": sabotage((table_archival, "due", _due_at_once)),
    "archival before cleaning": sabotage((archival, "held_back", _held_back_by_no_cleaning)),
    "archival passes what is under way": sabotage((archival, "barriers", _held_back_by_nothing_unfinished)),
    "archival leaves the archive out": sabotage((table_archival, "_store", _removed_first)),
}
