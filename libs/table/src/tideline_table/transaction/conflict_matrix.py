"""What conflicts with what, as values.

`docs/conflicts.md` is written from them, and `tests/unit/table/test_conflict_matrix.py` names what shows each cell.
`conflict.find_conflict` and its neighbours decide; nothing here does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Matrix:
    """Own action → what another did meanwhile → what comes of it."""

    title: str
    cells: Mapping[str, Mapping[str, str]]


WRITES = Matrix(
    "Writes, clustering and compaction",
    {
        "update or delete of a group": {
            "completed write": "same group: conflict",
            "completed clustering": "group replaced: conflict",
            "pending clustering": "waits for one with priority that somebody runs; one of Apache Hudi, or by strategy `reject`: conflict",
            "compaction, pending or completed": "same group: conflict",
            "rollback of own": "rolled back",
        },
        "append to a group's log": {
            "completed write": "group rewritten, or same row appended: conflict; other rows appended: moves behind them",
            "completed clustering": "group replaced: conflict",
            "pending clustering": "waits for one with priority that somebody runs; one of Apache Hudi, or by strategy `reject`: conflict",
            "compaction, pending or completed": "same group: conflict",
            "rollback of own": "rolled back",
        },
        "overwrite, delete-partition": {
            "completed write": "no: it replaces what the other wrote",
            "completed clustering": "no: it replaces the new groups",
            "pending clustering": "waits for one with priority on a group of it, as an update",
            "compaction, pending or completed": "pending on a group of it: conflict",
            "rollback of own": "rolled back",
        },
        "insert of keys": {
            "completed write": "same key inserted, in the same partition or with a global index in any: conflict",
            "completed clustering": "no",
            "pending clustering": "no",
            "compaction, pending or completed": "no",
            "rollback of own": "rolled back",
        },
        "move of a row to another partition": {
            "completed write": "group that it leaves written, or same key inserted anywhere: conflict",
            "completed clustering": "group that it leaves replaced: conflict",
            "pending clustering": "waits for one with priority that somebody runs; one of Apache Hudi, or by strategy `reject`: conflict",
            "compaction, pending or completed": "same group: conflict",
            "rollback of own": "rolled back",
        },
        "clustering": {
            "completed write": "input group written: conflict",
            "completed clustering": "input replaced: conflict",
            "pending clustering": "no (plans never share a group)",
            "compaction, pending or completed": "same group: conflict (plans never share one)",
            "rollback of own": "rolled back",
        },
        "compaction": {
            "completed write": "no: it reads what its plan names",
            "completed clustering": "no",
            "pending clustering": "no",
            "compaction, pending or completed": "no",
            "rollback of own": "never",
        },
    },
)

CARE = Matrix(
    "Savepoints, cleaning and archival",
    {
        "savepoint": {
            "write, clustering, compaction": "no: it protects a completed one",
            "pending clean": "names files that it would keep: conflict",
            "completed clean": "keeps only later commits readable: refused",
            "savepoint of the same write": "refused",
            "archival": "of the same write, pending: conflict; completed: refused",
        },
        "clean": {
            "write, clustering, compaction": "no",
            "pending clean": "no plan beside another",
            "completed clean": "no",
            "savepoint of the same write": "what it keeps is left out",
            "archival": "no",
        },
        "archival": {
            "write, clustering, compaction": "pending: the timeline goes on beginning before it",
            "pending clean": "no",
            "completed clean": "frees the replacements whose files are gone",
            "savepoint of the same write": "the timeline goes on beginning with it, or before",
            "archival": "no plan beside another",
        },
    },
)

RESTORES = Matrix(
    "Restores",
    {
        "write, clustering, rollback under way, newer compaction": {
            "requested or inflight restore": "fenced: `RestoredMeanwhile`",
            "completed restore": "fenced: `RestoredMeanwhile`",
            "restore asked for": "it fences them",
        },
        "compaction planned before the savepoint": {
            "requested or inflight restore": "waits: `RestorePending`",
            "completed restore": "goes on: it holds rows of its time",
            "restore asked for": "it leaves the plan",
        },
        "whatever begins, a savepoint": {
            "requested or inflight restore": "waits: `RestorePending`",
            "completed restore": "no",
            "restore asked for": "no",
        },
        "clean": {
            "requested or inflight restore": "waits: `RestorePending`",
            "completed restore": "no",
            "restore asked for": "pending: conflict, it ends first",
        },
        "restore": {
            "requested or inflight restore": "waits: `RestorePending`",
            "completed restore": "no, as long as its savepoint is there",
            "restore asked for": "one of them",
        },
        "incremental read": {
            "requested or inflight restore": "no",
            "completed restore": "has read what is undone: `HistoryRewritten`",
            "restore asked for": "no",
        },
        "archival": {
            "requested or inflight restore": "waits: `RestorePending`",
            "completed restore": "no: what it takes is older than the savepoint",
            "restore asked for": "no",
        },
    },
)

DEFINITION = Matrix(
    "Schema, progress, properties, overwrites and rollbacks",
    {
        "write of rows": {
            "schema changed": "to another than its own: conflict",
            "progress of the same key moved": "it holds the same records: `ProgressMoved`",
            "properties changed": "upgraded, or made anew: `TableFrozen`; others hold from the next step on",
            "overwrite of a partition": "its groups replaced, or same key brought: conflict",
            "rollback of the same instant": "fenced: `TransactionRolledBack`",
        },
        "clustering, compaction": {
            "schema changed": "no: it publishes the one that stands",
            "progress of the same key moved": "no: it moves none",
            "properties changed": "upgraded, or made anew: `TableFrozen`; others hold from the next step on",
            "overwrite of a partition": "clustering: its groups replaced: conflict; compaction: its groups are not overwritten",
            "rollback of the same instant": "clustering: yields; compaction: is never rolled back",
        },
        "rollback": {
            "schema changed": "no",
            "progress of the same key moved": "no: what is pending has moved none",
            "properties changed": "upgraded, or made anew: `TableFrozen`",
            "overwrite of a partition": "no",
            "rollback of the same instant": "one of them; whoever comes later finds it done, or ends it for the dead",
        },
    },
)

MATRICES = (WRITES, CARE, RESTORES, DEFINITION)
