"""The units of a task: rows that are written together, because they belong to one file slice or one bucket (see `layout`)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from tideline_spark.tagging import PARTITION, UNIT
from tideline_table.errors import DuplicateKey
from tideline_table.writer import PreparedInput


@dataclass(slots=True)
class Unit:
    """Rows of one unit that have arrived and are not written yet."""

    partition: str
    name: str
    pieces: list[pa.Table] = field(default_factory=list)
    rows: int = 0
    new_groups: int = 0
    filled: bool = False

    @property
    def bucket(self) -> int | None:
        """The number of the bucket, None if the unit is a file slice."""
        return int(self.name) if self.name.isdigit() else None


def rows_by_unit(rows: pa.Table) -> Iterator[tuple[str, str, pa.Table]]:
    """Split rows of one `tagging.ORDER` hash by unit; units rarely share a hash.

    Yield partition path, name of the unit and rows.
    """
    partitions, units = rows.column(PARTITION), rows.column(UNIT)
    partition, name = partitions[0].as_py(), units[0].as_py()
    mine = pc.and_(pc.equal(partitions, partition), pc.equal(units, name))
    if pc.all(mine).as_py():
        yield partition, name, rows
        return
    yield partition, name, rows.filter(mine)
    yield from rows_by_unit(rows.filter(pc.invert(mine)))


def refuse_known(prepared: PreparedInput, known: pa.ChunkedArray) -> None:
    """Raise `DuplicateKey` if the table shows the key of a row: `known` is the column `tagging.KNOWN`."""
    # The look-up join repeats a row whose key several file groups hold.
    count = pc.count_distinct(prepared.keys.filter(known)).as_py()
    if count:
        raise DuplicateKey(
            f"{count} record key(s) already in the table", expected="new keys only", remedy="use upsert, or remove these rows"
        )


def refuse_twice(prepared: PreparedInput, twice: pa.ChunkedArray) -> None:
    """Raise `DuplicateKey` if another row of the source has the key of a row: `twice` is the column `tagging.TWICE`."""
    # The other row may be in another partition and task, so the tasks themselves cannot detect the duplicate.
    named = pc.unique(prepared.keys.filter(twice))
    if len(named):
        shown = ", ".join(map(repr, named[:3].to_pylist()))
        raise DuplicateKey(f"record key(s) {shown} occur more than once in the input", expected="each key once")
