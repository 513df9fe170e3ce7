"""Rows of a write that are computed from the table itself: made anew for each attempt, and valid while what they came from is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias

import numpy as np
import pyarrow as pa

from tideline_table.log.state import TableState

if TYPE_CHECKING:
    from tideline_table.action.write.choices import WriteChoices


class Reads(Protocol):
    """What the rows of a write were computed from."""

    def check(self, state: TableState) -> None:
        """Raise `WriteConflict` if it is no longer the same in `state`, the newest one. May read files."""


@dataclass(frozen=True, eq=False, slots=True)
class WriteInput:
    """Rows to write, the keys (with partition columns) to remove beside them, and what both were computed from."""

    rows: pa.Table
    removed: pa.Table | None = None
    reads: Reads | None = None
    parts: tuple[frozenset[str], np.ndarray] | None = None
    """Columns, and which rows are rows of the table with other values in these alone; None for none that a log file may have so."""


RowSource: TypeAlias = Callable[["WriteChoices"], WriteInput]
"""Computes the rows of an attempt from the table as of its last refresh. While that is the same, it returns the same object."""
