"""Repairs of findings: the command of each finding that a person may end from a page, and what it touches.

Other findings have other actions (cancel, retry, plan) or need a person at the writer or at the store; their text says what.
"""

from __future__ import annotations

from dataclasses import dataclass

from tideline_table.action import TableStatus
from tideline_table.errors import InvalidOption
from tideline_table.table import FindingKind, Table

METADATA = "metadata"
"""The repair of what no finding tells: whether the metadata table agrees with the table."""


@dataclass(frozen=True, slots=True)
class Repair:
    """A command before `-- PATH`, its name on buttons, and what it does."""

    command: tuple[str, ...]
    label: str
    effect: str


REPAIRS = {
    FindingKind.DEAD_WRITER.value: Repair(
        ("run", "--json", "--", "rollback"),
        "Roll back dead writers",
        "the actions of writers without a heartbeat are rolled back and their files deleted; committed rows stay",
    ),
    FindingKind.HIDDEN_COMMIT.value: Repair(
        ("reappend", "--json", "--"),
        "Append hidden rows again",
        "each hidden write becomes one commit of its rows; rows that were written again since stay as they are",
    ),
    FindingKind.UNLOCKED_WRITER.value: Repair(
        ("share", "--resume", "--json", "--"),
        "Let services work again",
        "services work on the table again; do it only when each job of Apache Hudi has the printed lock options",
    ),
    METADATA: Repair(
        ("check", "--repair", "--json", "--"),
        "Check and repair the metadata table",
        "the metadata table is compared with the table and, if it differs, deleted and made anew; meanwhile readers of Apache Hudi "
        "list folders; no row changes",
    ),
}


def repair_of(table: Table, status: TableStatus, kind: str) -> tuple[Repair, list[str]]:
    """Return the repair of a kind of finding and the findings that it ends. Raises `InvalidOption` if there is none now."""
    if kind not in REPAIRS:
        raise InvalidOption(f"repair {kind!r}", expected=f"one of {', '.join(REPAIRS)}")
    found = [finding.text for finding in status.findings if finding.kind == kind]
    if not found and not (kind == METADATA and table.state.metadata is not None):
        expected = "a metadata table" if kind == METADATA else f"a finding {kind}"
        raise InvalidOption("nothing to repair", expected=expected, remedy="it ended meanwhile; look at the table")
    return REPAIRS[kind], found
