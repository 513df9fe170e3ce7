"""Mergers that other packages register under an entry point: code that makes one row of two versions."""

from __future__ import annotations

import functools
import uuid
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Protocol

import numpy as np
import pyarrow as pa

from tideline_table.errors import MergerUnusable
from tideline_table.merge.parts import in_step
from tideline_table.schema.arrow import with_column
from tideline_table.schema.evolution import IS_DELETED, PURGED
from tideline_table.schema.meta_fields import META_FIELDS

GROUP = "tideline.mergers"
_IDS = uuid.UUID("6c3f1f4e-3a9e-4f0c-9d4c-7a2f6f3b1c58")


class Merger(Protocol):
    """What an entry point names: an object, or a class without arguments.

    It may have the `strategy_id` (`hoodie.record.merge.strategy.id`) of a merger of Apache Hudi that does the same.
    """

    def merge(self, older: pa.Table, newer: pa.Table) -> pa.Table:
        """Return for each pair of rows with one record key the row that they become.

        Both tables have the columns of the table, as many rows, and no meta fields. `newer` was written later, or is the later one
        in an input. The result depends on nothing else: it is computed again by each reader.
        """


@dataclass(frozen=True, slots=True)
class NamedMerger:
    """A merger by its name, which processes send to each other; each loads it when it merges."""

    name: str
    fixed: frozenset[str] = frozenset()
    """The columns that name a row and its place: they stay as they are."""

    @property
    def strategy_id(self) -> str:
        """The strategy of Apache Hudi that it stands for, empty for none. Raises `MergerUnusable`."""
        return str(getattr(_loaded(self.name), "strategy_id", ""))

    def check(self) -> None:
        """Raise `MergerUnusable` if no package registers it."""
        _loaded(self.name)

    def merged(self, older: pa.Table, newer: pa.Table) -> pa.Table:
        """Return `newer` with the values that the merger gives its columns, pair by pair. Raises `MergerUnusable`."""
        if not newer.num_rows:
            return newer
        beside = {*META_FIELDS, IS_DELETED, PURGED}
        names = [name for name in newer.column_names if name not in beside and name in older.column_names]
        given = newer.select(names)
        try:
            found = _loaded(self.name).merge(older.select(names).cast(given.schema), given).select(names).cast(given.schema)
        except Exception as error:
            raise MergerUnusable(
                f"merger {self.name!r} failed ({type(error).__name__}: {error})", expected="the merged rows, with the same columns"
            ) from error
        if found.num_rows != newer.num_rows:
            raise MergerUnusable(f"{found.num_rows} rows of merger {self.name!r}", expected=f"{newer.num_rows}, one for each pair")
        for name in names:
            newer = newer if name in self.fixed else with_column(newer, name, found.column(name))
        return newer

    def folded(self, number: np.ndarray, is_record: np.ndarray, row_of: np.ndarray, rows: pa.Table, state: np.ndarray) -> pa.Table:
        """Merge events one after the other; return `rows` with the merged ones behind them.

        Event `i` is a version of the key `number[i]`: row `row_of[i]`, or a deletion. `state` has the row of each key, -1 for none,
        before the first event, and afterwards behind the last one. So the result is the same wherever a log was compacted.
        """
        for events in in_step(number, len(state)):
            state[number[events[~is_record[events]]]] = -1
            written = events[is_record[events]]
            keys, after = number[written], row_of[written].copy()
            meets = state[keys] >= 0
            if meets.any():
                merged = self.merged(rows.take(pa.array(state[keys[meets]])), rows.take(pa.array(after[meets])))
                after[meets] = np.arange(rows.num_rows, rows.num_rows + merged.num_rows)
                rows = pa.concat_tables([rows, merged])
            state[keys] = after
        return rows


def strategy_of(name: str) -> str:
    """Return the strategy id that a new table declares for a merger, empty if no package registers it. Raises `MergerUnusable`."""
    found = entry_points(group=GROUP, name=name)
    return (NamedMerger(name).strategy_id or str(uuid.uuid5(_IDS, name))) if found else ""


def merger_for(strategy_id: str) -> str:
    """Return the name of the registered merger that stands for a strategy of Apache Hudi, empty for none."""
    names = sorted(found.name for found in entry_points(group=GROUP))
    return next((name for name in names if strategy_id and NamedMerger(name).strategy_id == strategy_id), "")


@functools.cache
def _loaded(name: str) -> Merger:
    for found in entry_points(group=GROUP, name=name):
        try:
            loaded = found.load()
            merger: Merger = loaded() if isinstance(loaded, type) else loaded
        except Exception as error:
            raise MergerUnusable(
                f"merger {name!r}, which cannot be loaded ({type(error).__name__}: {error})", expected=f"an object at {found.value}"
            ) from error
        return merger
    raise MergerUnusable(
        f"merger {name!r}, which no installed package registers",
        expected=f"an entry point of this name in the group {GROUP!r}",
        remedy="install the package of the merger wherever the table is read or written",
    )
