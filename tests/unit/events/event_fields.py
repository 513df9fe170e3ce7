"""`python -m tests.unit.events.event_fields`: the table of docs/event-fields.md, from events of each action and table type."""

from __future__ import annotations

import itertools
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

from tests.unit.events.test_transitions import VERSIONS, history

from tideline_events import Transition
from tideline_table.table import TableType

PAGE = Path(__file__).parents[3] / "docs" / "event-fields.md"
BEGIN, END = "<!-- by tests/unit/events/event_fields.py -->\n", "<!-- end -->\n"
FIELDS = (
    "datachange",
    "rows_inserted",
    "rows_updated",
    "rows_deleted",
    "files_added",
    "bytes_added",
    "files_deleted",
    "file_groups_replaced",
    "partitions",
    "schema_hash",
    "undone_instant",
    "timeline_file",
)


def kind_of(value: object) -> str:
    """What a cell says of a value."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return "n" if value else "0"
    return "set" if value else "empty"


def lines(events: Iterable[Transition]) -> list[str]:
    """The table: a line for each step of each action and operation, with the kinds of values that were found."""
    found: dict[tuple[str, ...], list[set[str]]] = {}
    for event in events:
        key = (event.action, event.operation or "", event.from_state or "", event.to_state)
        cells = found.setdefault(key, [set() for _ in FIELDS])
        for cell, name in zip(cells, FIELDS, strict=True):
            cell.add(kind_of(getattr(event, name)))
    head = ("action", "operation", "from", "to", *FIELDS)
    rows = [(*key, *(", ".join(sorted(cell)) for cell in cells)) for key, cells in sorted(found.items())]
    return [f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows)]


def text() -> str:
    """The lines of the table, from new tables."""
    with tempfile.TemporaryDirectory() as folder:
        made = [history(k, Path(folder) / f"{k.value}-{v}", v) for k, v in itertools.product(TableType, VERSIONS)]
        events = [event for table in made for _, event in table]
    return "".join(f"{line}\n" for line in lines(events))


def written(page: str) -> str:
    """The lines of the table on the page."""
    return page.partition(BEGIN)[2].partition(END)[0]


if __name__ == "__main__":
    before = PAGE.read_text()
    PAGE.write_text(before.replace(BEGIN + written(before) + END, BEGIN + text() + END))
    sys.stdout.write(f"written: {PAGE}\n")
