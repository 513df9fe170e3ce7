"""Counts what one upsert of one row runs of this repository's own code: `python scripts/measure_upsert.py [--most N] [mor]`.

Time depends on the machine, these counts do not: they show how many functions a person meets who follows a write.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType

import pyarrow as pa

from tideline_table.action.write.run import write_rows
from tideline_table.table import Table, TableRequest, TableType, create_table

_ROOTS = tuple(str(Path(__file__).resolve().parents[1] / member) for member in ("libs", "services"))


@dataclass(slots=True)
class Calls:
    """The calls of our own functions, by function, and how often one came from another file than the call before."""

    functions: Counter[CodeType] = field(default_factory=Counter)
    changes_of_file: int = 0
    _last: str = ""

    def add(self, code: CodeType) -> None:
        """Count one call, unless it is of other code."""
        if not code.co_filename.startswith(_ROOTS):
            return
        self.functions[code] += 1
        self.changes_of_file += code.co_filename != self._last
        self._last = code.co_filename

    @property
    def calls(self) -> int:
        """All calls."""
        return self.functions.total()

    @property
    def files(self) -> Counter[str]:
        """The calls by file."""
        found: Counter[str] = Counter()
        for code, count in self.functions.items():
            found[code.co_filename] += count
        return found

    def text(self, most: int) -> str:
        """Return the counts, and the files and functions with the most calls."""
        lines = [
            (
                f"{self.calls} calls of {len(self.functions)} functions in {len(self.files)} files, {self.changes_of_file} "
                "changes of file"
            )
        ]
        lines += [f"{count:6} {Path(name).name:28} {name}" for name, count in self.files.most_common(most)]
        for code, count in self.functions.most_common(most):
            lines.append(f"{count:6} {code.co_qualname} ({Path(code.co_filename).name}:{code.co_firstlineno})")
        return "\n".join(lines)


def calls_of(do: Callable[[], object]) -> Calls:
    """Return the calls of our own functions in this thread while `do` runs."""
    found = Calls()

    def seen(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            found.add(frame.f_code)

    sys.setprofile(seen)
    try:
        do()
    finally:
        sys.setprofile(None)
    return found


def calls_of_upsert(base_path: str, table_type: TableType = TableType.COW) -> Calls:
    """Return what the third upsert of a process runs: one row into a new table of 100 rows at `base_path`."""
    rows = pa.table({"id": [f"k{n}" for n in range(100)], "ts": list(range(100)), "name": ["a"] * 100})
    create_table(base_path, TableRequest("measured", rows.schema, ("id",), type=table_type, ordering_field="ts"))
    table = Table.open(base_path)
    for _ in range(2):
        write_rows(table, rows, "upsert")
    return calls_of(lambda: write_rows(table, rows.slice(7, 1), "upsert"))


def main() -> None:
    """Print the counts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--most", type=int, default=0, help="list so many files and functions")
    parser.add_argument("kind", nargs="?", default="cow", choices=["cow", "mor"])
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        print(calls_of_upsert(folder + "/table", TableType.MOR if given.kind == "mor" else TableType.COW).text(given.most))


if __name__ == "__main__":
    main()
