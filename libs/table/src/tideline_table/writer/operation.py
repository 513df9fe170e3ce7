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
    INSERT_OVERWRITE = "insert_overwrite"
    """Put the rows in place of everything that their partitions hold."""
    INSERT_OVERWRITE_TABLE = "insert_overwrite_table"
    """Put the rows in place of everything that the table holds."""
    DELETE_PARTITION = "delete_partition"
    """Remove whole partitions; takes no rows."""

    @property
    def hudi_name(self) -> str:
        """As commit metadata spells it."""
        return self.value.upper()

    @property
    def looks_up_keys(self) -> bool:
        """Whether each key has to be found before rows can be routed."""
        return self in (Operation.UPSERT, Operation.DELETE)

    @property
    def overwrites(self) -> bool:
        """Whether file groups that exist are replaced as a whole: a replace commit."""
        return self in (Operation.INSERT_OVERWRITE, Operation.INSERT_OVERWRITE_TABLE, Operation.DELETE_PARTITION)

    @property
    def opens_groups_only(self) -> bool:
        """Whether rows go to new file groups alone, never into small ones that exist."""
        return self is Operation.BULK_INSERT or self.overwrites


ROW_OPERATIONS = tuple(operation for operation in Operation if operation is not Operation.DELETE_PARTITION)
"""Operations that take rows."""


def minds_known_keys(operation: Operation, options: Options) -> bool:
    """Whether rows whose key the table holds already are looked for, to be updated, dropped or refused."""
    return operation.looks_up_keys or (options[INSERT_DUP_POLICY] != "none" and not operation.overwrites)


def promises_unique_keys(operation: Operation, options: Options) -> bool:
    """Whether keys that this write adds must not have been added by anybody else meanwhile."""
    # What others add to an overwritten partition meanwhile is replaced with the rest of it.
    return minds_known_keys(operation, options)
