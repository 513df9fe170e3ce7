"""Which file groups of a table that Apache Hudi writes hold record keys, by the record index of its metadata table.

The index names one file group for a key, whichever groups hold it. So it decides only where each key is once: its writers look keys
up in the whole table, as the option `hoodie.index.type` of the reader says, or the table has one partition; and no write on the
timeline adds rows without a look-up. It has to be as old as the state of the query, and to name groups of it; otherwise all groups
are read. Format reference of version 6: 15.3 to 15.8.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa

from tideline_table.config import Options
from tideline_table.errors import CorruptMetadata, ObjectNotFound, UnsupportedTable
from tideline_table.file_group.slice import FileGroupId, FileSlice
from tideline_table.hudi.format import TableFormat
from tideline_table.hudi.instant import Action, State
from tideline_table.hudi.listing import TimelineListing, list_timeline, timeline_listing
from tideline_table.hudi.properties import METADATA_PARTITIONS, read_properties
from tideline_table.index.java_hash import string_hashes
from tideline_table.index.scope import KeyScope
from tideline_table.log.metadata import RECORD_INDEX
from tideline_table.log.state import TableState
from tideline_table.metadata_table.hudi_listing import changing, check_follows
from tideline_table.metadata_table.hudi_slices import HudiSlice, changes_of, newest_slices
from tideline_table.metadata_table.layout import file_id_of, timeline_folder
from tideline_table.metadata_table.partition import groups_of_hashes
from tideline_table.metadata_table.record_index import decode_location
from tideline_table.storage import Storage

_LOGGER = logging.getLogger(__name__)
_WITHOUT_LOOK_UP = frozenset({"INSERT", "INSERT_PREPPED", "BULK_INSERT", "BULK_INSERT_PREPPED", "INSERT_OVERWRITE"})


class HudiKeys:
    """Looks record keys up in the record index of one table."""

    def __init__(self, storage: Storage, form: TableFormat, options: Options) -> None:
        self._storage, self._form = storage, form
        self._is_global = KeyScope.of(options) is KeyScope.TABLE
        self._judged: tuple[TableState, bool] | None = None

    def holding(self, keys: pa.Array, state: TableState, slices: Sequence[FileSlice]) -> tuple[FileSlice, ...]:
        """Return those of `slices`, all of a query, that may hold one of `keys`.

        All of them if the query shows another state than `state`, or, with a warning, if the index cannot be used.
        """
        every = tuple(slices)
        if not (self._is_global or all(not one.group.partition_path for one in every)):
            return every
        if every != tuple(state.latest_slices()) or not self._holds_keys_once(state):
            return every
        try:
            groups = self._groups(keys, state)
            _check_known(groups or (), every)
        except (CorruptMetadata, ObjectNotFound, UnsupportedTable) as error:
            _LOGGER.warning("keys are looked up without the record index of Apache Hudi: %s", error)
            return every
        # With another index than these, writers add keys to log files that the record index does not name.
        return every if groups is None else tuple(s for s in every if s.group in groups or self._may_add(s))

    def _may_add(self, one: FileSlice) -> bool:
        return not one.base_file or (bool(one.log_files) and not self._is_global)

    def _holds_keys_once(self, state: TableState) -> bool:
        """Return whether no write can have put a key into two places.

        What archived ones did is not known: they can, unless the index type says otherwise.
        """
        if self._judged is None or self._judged[0] is not state:
            done = {found.instant: found.operation.upper() for found in state.completed_writes()}
            is_once = bool(done) and _WITHOUT_LOOK_UP.isdisjoint(done.values())
            if is_once and not self._is_global:
                is_once = not self._form.archived_instants(self._storage, "", min(done))
            self._judged = state, is_once
        return self._judged[1]

    def _groups(self, keys: pa.Array, state: TableState) -> set[FileGroupId] | None:
        """Return the file groups of `keys`, None if the index is not that of `state`. Raises if it cannot be read."""
        if RECORD_INDEX not in read_properties(self._storage).get(METADATA_PARTITIONS, "").split(","):
            return None
        timeline = list_timeline(self._storage, self._form)
        if not _is_of(timeline, state):
            return None
        folder = self._storage.list_folder(timeline_folder(self._form))
        own = timeline_listing(self._form, (found.path for found in folder.objects)).completion
        check_follows(timeline, own, changing(self._form))
        found = newest_slices(self._storage, self._form, own, RECORD_INDEX)
        ordered = [file_id_of(RECORD_INDEX, number) for number in range(len(found))]
        if not found or ordered != sorted(found):
            raise UnsupportedTable(f"{len(found)} file group(s) of a record index", expected="those of an index of the whole table")
        pending = {i.time for i in timeline.instants if i.state is not State.COMPLETED}
        numbers = groups_of_hashes(string_hashes(keys), len(found))
        groups: set[FileGroupId] = set()
        for number in np.unique(numbers):
            wanted = keys.filter(pa.array(numbers == number)).cast(pa.binary()).to_pylist()
            groups |= self._in_group(found[ordered[number]], sorted(wanted), own.keys() - pending)
        # A writer that began meanwhile may have moved keys.
        return groups if _is_of(list_timeline(self._storage, self._form), state) else None

    def _in_group(self, slice_: HudiSlice, keys: Sequence[bytes], valid: Iterable[str]) -> set[FileGroupId]:
        located: dict[bytes, FileGroupId] = {}
        rolls_back = not self._form.has_completion_times
        for change in changes_of(self._storage, slice_, keys, frozenset(valid), rolls_back=rolls_back):
            for key in change.deletes:
                located.pop(key, None)
            located |= {key: decode_location(datum, change.schema_json).group for key, datum in change.updates}
        return set(located.values())


def _check_known(groups: Iterable[FileGroupId], slices: Iterable[FileSlice]) -> None:
    if unknown := set(groups) - {one.group for one in slices}:
        raise CorruptMetadata(f"a record index that names file group {min(unknown)}", expected="file groups of the table")


def _is_of(timeline: TimelineListing, state: TableState) -> bool:
    """Return whether the timeline is that of `state`, and no index is being made."""
    if any(i.action is Action.INDEXING and i.state is not State.COMPLETED for i in timeline.instants):
        return False
    held = {a.instant: a.state for a in state.actions.values() if a.action is not Action.SAVEPOINT}
    return held == {i.time: i.state for i in timeline.instants if i.action is not Action.SAVEPOINT}
