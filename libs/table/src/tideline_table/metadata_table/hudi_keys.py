"""Which file groups of a table that Apache Hudi writes hold record keys, by the record index of its metadata table.

The index names one file group for a key, whichever groups hold it. So it decides only where each key is once: its writers look keys
up in the whole table, as the option `hoodie.index.type` of the reader says, or the table has one partition; and no write, of which
none may be archived, adds rows without a look-up. The index also forgets keys that the table has: a deletion in a log file takes a
key out of it even if it loses against a row with a greater ordering value. So it decides only where deletions always win, and never
that a key is nowhere. It has to be as old as the state of the query, and to name groups of it; otherwise all groups are read.
Format reference of version 6: 15.3 to 15.8.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import pyarrow as pa

from tideline_table.config import Options
from tideline_table.errors import CorruptMetadata, ObjectNotFound, UnsupportedTable
from tideline_table.file_group.slice import FileGroupId, FileSlice
from tideline_table.hudi.format import TableFormat
from tideline_table.hudi.formats import format_of
from tideline_table.hudi.instant import Action, State
from tideline_table.hudi.listing import TimelineListing, list_timeline, timeline_listing
from tideline_table.hudi.merge_rules import COMMIT_TIME
from tideline_table.hudi.properties import MERGE_MODE, TYPE
from tideline_table.index.java_hash import string_hashes
from tideline_table.index.scope import KeyScope
from tideline_table.log.metadata import RECORD_INDEX
from tideline_table.log.state import TableState
from tideline_table.metadata_table.hudi_listing import changing, check_follows, is_advertised
from tideline_table.metadata_table.hudi_slices import HudiSlice, changes_of, newest_slices
from tideline_table.metadata_table.layout import file_id_of, timeline_folder
from tideline_table.metadata_table.partition import groups_of_hashes
from tideline_table.metadata_table.record_index import decode_location
from tideline_table.storage import Storage

_LOGGER = logging.getLogger(__name__)
_BY_LOOK_UP = {"UPSERT", "UPSERT_PREPPED", "DELETE", "DELETE_PREPPED"}
_WITHOUT_NEW_KEYS = {"DELETE_PARTITION", "COMPACT", "LOG_COMPACT", "CLUSTER", "ALTER_SCHEMA"}
_REPEAT_NO_KEY = frozenset(_BY_LOOK_UP | _WITHOUT_NEW_KEYS)
"""Operations that look keys up, or add none. Others may repeat a key, the first write of a table within itself."""


class HudiKeys:
    """Looks record keys up in the record index of one table."""

    def __init__(self, storage: Storage, properties: Mapping[str, str], options: Options) -> None:
        self._storage, self._form = storage, format_of(properties)
        self._forgets = _deletions_may_lose(properties, self._form)
        self._is_global = KeyScope.of(options) is KeyScope.TABLE
        self._judged: tuple[TableState, bool] | None = None

    def holding(self, keys: pa.Array, state: TableState, slices: Sequence[FileSlice]) -> tuple[FileSlice, ...]:
        """Return those of `slices`, all of a query, that may hold one of `keys`.

        All of them if the query shows another state than `state`, or, with a warning, if the index cannot be used.
        """
        every = tuple(slices)
        if self._forgets or not (self._is_global or all(not one.group.partition_path for one in every)):
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
        """Return whether no write can have put a key into two places. What archived ones did is not known."""
        if self._judged is None or self._judged[0] is not state:
            done = {found.operation.upper() for found in state.completed_writes()}
            self._judged = state, done <= _REPEAT_NO_KEY and not self._form.has_archive(self._storage)
        return self._judged[1]

    def _groups(self, keys: pa.Array, state: TableState) -> set[FileGroupId] | None:
        """Return the file groups of `keys`, None if the index lacks one, or is not that of `state`. Raises if it cannot be read."""
        if not is_advertised(self._storage, RECORD_INDEX):
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
        if own.keys() & {i.time for i in timeline.instants if i.state is not State.COMPLETED}:
            return None  # a compaction of the metadata table may have merged what a writer that died says of its keys
        numbers = groups_of_hashes(string_hashes(keys), len(found))
        groups: set[FileGroupId] = set()
        for number in np.unique(numbers):
            wanted = keys.filter(pa.array(numbers == number)).cast(pa.binary()).to_pylist()
            located = self._located(found[ordered[number]], sorted(wanted), own.keys())
            if set(located) != set(wanted):
                return None
            groups |= set(located.values())
        # A writer that began meanwhile may have moved keys, and one that drops the index deletes files of it one by one.
        is_whole = is_advertised(self._storage, RECORD_INDEX)
        return groups if is_whole and _is_of(list_timeline(self._storage, self._form), state) else None

    def _located(self, slice_: HudiSlice, keys: Sequence[bytes], valid: Iterable[str]) -> dict[bytes, FileGroupId]:
        located: dict[bytes, FileGroupId] = {}
        rolls_back = not self._form.has_completion_times
        for change in changes_of(self._storage, slice_, keys, frozenset(valid), rolls_back=rolls_back):
            for key in change.deletes:
                located.pop(key, None)
            located |= {key: decode_location(datum, change.schema_json).group for key, datum in change.updates}
        return located


def _deletions_may_lose(properties: Mapping[str, str], form: TableFormat) -> bool:
    """Return whether a row may outlive a deletion in a log file, by its ordering value or by a rule that is code.

    In version 6 it may by any rule: releases before 1.0 compare ordering values of log files also with the payload class that does
    not, and a compaction then keeps the row.
    """
    is_copied = properties.get(TYPE) == "COPY_ON_WRITE"
    return not is_copied and not (form.has_merge_modes and properties.get(MERGE_MODE) == COMMIT_TIME)


def _check_known(groups: Iterable[FileGroupId], slices: Iterable[FileSlice]) -> None:
    if unknown := set(groups) - {one.group for one in slices}:
        raise CorruptMetadata(f"a record index that names file group {min(unknown)}", expected="file groups of the table")


def _is_of(timeline: TimelineListing, state: TableState) -> bool:
    """Return whether the timeline is that of `state`, and no index is being made."""
    if any(i.action is Action.INDEXING and i.state is not State.COMPLETED for i in timeline.instants):
        return False
    held = {a.instant: a.state for a in state.actions.values() if a.action is not Action.SAVEPOINT}
    return held == {i.time: i.state for i in timeline.instants if i.action is not Action.SAVEPOINT}
