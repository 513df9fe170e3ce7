"""Write operations of the specification."""

from __future__ import annotations

import enum

from tideline_table.config import INSERT_DUP_POLICY, Options


class Operation(enum.StrEnum):
    """What a write does with its rows. Values are Hudi's operation names in lower case."""

    UPSERT = "upsert"
    """Update the rows whose key exists, insert the others."""
    INSERT = "insert"
    """Add rows without looking keys up (unless the duplicate policy asks for it); fills small files."""
    BULK_INSERT = "bulk_insert"
    """Add rows to new file groups, sorted; for first loads."""
    DELETE = "delete"
    """Remove rows by key."""

    @property
    def hudi_name(self) -> str:
        """As commit metadata spells it."""
        return self.value.upper()

    @property
    def looks_up_keys(self) -> bool:
        """Whether each key has to be found before rows can be routed."""
        return self in (Operation.UPSERT, Operation.DELETE)


def promises_unique_keys(operation: Operation, options: Options) -> bool:
    """Whether keys that this write adds must not have been added by anybody else meanwhile."""
    return operation.looks_up_keys or options[INSERT_DUP_POLICY] != "none"
