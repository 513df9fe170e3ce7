"""The matrix of the conformance suite: what was compared with whom, cell by cell.

A cell is good only when a comparison of rows inside `Matrix.cell` held; leaving a cell without one is an error of the test.
"""

from __future__ import annotations

import contextlib
import enum
import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import pyarrow as pa
from tests.conformance.peers.rows import difference


class Kind(enum.StrEnum):
    """The table types, as Hudi spells them."""

    COW = "COPY_ON_WRITE"
    MOR = "MERGE_ON_READ"


class Topic(enum.StrEnum):
    """The rows of the matrix."""

    BULK_INSERT = "bulk insert"
    INSERT = "insert"
    UPSERT = "upsert"
    DELETE = "delete"
    COMPACTION = "compaction"
    CLUSTERING = "clustering"
    CLEAN = "clean"
    ARCHIVAL = "archival"
    ROLLBACK = "rollback"
    SAVEPOINT = "savepoint"
    INSERT_OVERWRITE = "insert-overwrite"
    SCHEMA_EVOLUTION = "schema evolution"
    TYPES = "types"


class Direction(enum.StrEnum):
    """Who writes and who reads."""

    THERE_HERE = "Hudi → here"
    HERE_THERE = "here → Hudi, hudi-rs"
    IN_TURN = "both in turn"


class Cell(NamedTuple):
    """A cell of one of the matrices: a row (`Topic` or `Strategy`), a table type, a column (`Direction` or `Proof`)."""

    topic: enum.StrEnum
    kind: Kind
    direction: enum.StrEnum


def every_cell(rows: Iterable[enum.StrEnum], columns: Iterable[enum.StrEnum]) -> list[Cell]:
    """All cells of a matrix with these rows and, for each table type, these columns."""
    wanted = list(columns)
    return [Cell(row, kind, column) for row in rows for kind in Kind for column in wanted]


EVERY_CELL = every_cell(Topic, Direction)

KEY = ("_hoodie_record_key", "_hoodie_partition_path", "_hoodie_commit_seqno")
"""What makes a row unique in every table, with duplicate record keys too."""


@dataclass
class Comparison:
    """What a test does inside a cell: it compares rows."""

    key: tuple[str, ...] = KEY
    count: int = 0
    peer_differences: set[int] = field(default_factory=set)

    def rows(self, ours: pa.Table, theirs: pa.Table, what: str, peer: str = "Apache Hudi", *, key: tuple[str, ...] = ()) -> None:
        """Fail unless both hold the same rows, meta fields included."""
        problem = difference(ours, theirs, key or self.key, names=("tideline", peer))
        assert problem is None, f"{what}: {problem}"
        self.count += 1

    def excused(self, number: int) -> None:
        """Something was left out of this cell because of entry `number` of docs/peer-differences.md."""
        self.peer_differences.add(number)


@dataclass
class Result:
    """What is known of one cell."""

    comparisons: int = 0
    failures: list[str] = field(default_factory=list)
    peer_differences: set[int] = field(default_factory=set)
    tests: set[str] = field(default_factory=set)
    """The tests that filled it, as file::test."""


class Matrix:
    """Collects the results of a session. `reasons` says why a cell is empty, `impossible` are cells that mean nothing.

    `names_tests` lets the text name the tests that filled each row.
    """

    def __init__(
        self,
        reasons: Mapping[Cell, str],
        impossible: Collection[Cell] = (),
        *,
        rows: type[enum.StrEnum] = Topic,
        columns: type[enum.StrEnum] = Direction,
        names_tests: bool = False,
    ) -> None:
        self.reasons = reasons
        self.impossible = impossible
        self.results: dict[Cell, Result] = {}
        self._rows = list(rows)
        self._columns = list(columns)
        self._names_tests = names_tests

    @contextlib.contextmanager
    def cells(self, *cells: Cell, label: str, key: tuple[str, ...] = KEY) -> Iterator[Comparison]:
        """The block compares rows for these cells; whatever it raises makes them fail."""
        claimed = [cell for cell in cells if cell in self.reasons or cell in self.impossible]
        assert not claimed, f"{claimed} count as empty or impossible; take them off that list"
        comparison = Comparison(key)
        try:
            yield comparison
            assert comparison.count, f"{label}: no rows were compared"
        except BaseException:
            for cell in cells:
                self._result(cell).failures.append(label)
            raise
        test = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition("/")[2].partition(" ")[0].partition("[")[0]
        for cell in cells:
            self._result(cell).tests.add(test)
            self._result(cell).comparisons += comparison.count
            self._result(cell).peer_differences |= comparison.peer_differences

    def _result(self, cell: Cell) -> Result:
        return self.results.setdefault(cell, Result())

    def empty_cells(self) -> list[Cell]:
        """Cells that no test of this session compared, and for whose emptiness nobody gave a reason."""
        known = {*self.results, *self.reasons, *self.impossible}
        return [cell for cell in every_cell(self._rows, self._columns) if cell not in known]

    def lines(self) -> list[str]:
        """The matrix as text, with what the marks in it mean below."""
        reasons = list(dict.fromkeys(self.reasons.values()))
        columns = [(kind, direction) for kind in Kind for direction in self._columns]
        heads = [f"{'CoW' if kind is Kind.COW else 'MoR'}: {direction}" for kind, direction in columns]
        rows = [["", *heads]]
        for topic in self._rows:
            rows.append([topic.value, *(self._text(Cell(topic, *column), reasons) for column in columns)])
        widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
        found = ["  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows]
        found += [
            "",
            (
                "ok N: N comparisons of all rows held; -: not run in this session; blank: means nothing; #N: see "
                "docs/peer-differences.md"
            ),
        ]
        found += [f"empty [{number}]: {reason}" for number, reason in enumerate(reasons, 1)]
        if self._names_tests:
            by_tests: dict[str, list[str]] = {}
            for topic in self._rows:
                by_tests.setdefault(", ".join(self._tests(topic)), []).append(topic.value)
            found += [f"{tests}: {'; '.join(topics)}" for tests, topics in by_tests.items() if tests]
        for cell, result in self.results.items():
            found += [f"FAIL {cell.topic}, {cell.kind}, {cell.direction}: {label}" for label in result.failures]
        return found

    def _tests(self, topic: enum.StrEnum) -> list[str]:
        return sorted({test for cell, result in self.results.items() if cell.topic is topic for test in result.tests})

    def _text(self, cell: Cell, reasons: list[str]) -> str:
        if cell in self.impossible:
            return ""
        if cell in self.reasons:
            return f"empty [{reasons.index(self.reasons[cell]) + 1}]"
        result = self.results.get(cell)
        if result is None:
            return "-"
        excuses = "".join(f" #{number}" for number in sorted(result.peer_differences))
        if result.failures:
            return f"FAIL {len(result.failures)}{excuses}"
        return f"ok {result.comparisons}{excuses}"
