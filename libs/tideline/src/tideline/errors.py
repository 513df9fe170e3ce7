"""What callers catch: one class for each thing that they can do (docs/errors.md).

The engine raises these or subclasses of them. Each states what was found, what was expected and what to do.
"""

from tideline_table.errors import (
    CommitUnknown,
    Conflict,
    DamagedTable,
    HistoryUnavailable,
    InstantNotFound,
    InvalidInput,
    Recovery,
    SchemaMismatch,
    TableExists,
    TableNotFound,
    TidelineError,
    Unavailable,
)

__all__ = [
    "CommitUnknown",
    "Conflict",
    "DamagedTable",
    "HistoryUnavailable",
    "InstantNotFound",
    "InvalidInput",
    "Recovery",
    "SchemaMismatch",
    "TableExists",
    "TableNotFound",
    "TidelineError",
    "Unavailable",
]
