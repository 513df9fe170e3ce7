"""Write operations of the specification."""

from __future__ import annotations

import enum

from tideline_table.config import INSERT_DUP_POLICY, Options
from tideline_table.errors import InvalidOption


class Operation(enum.StrEnum):
    """What a write does with its rows. Values are Hudi's operation names in lower case."""

    UPSERT = "upsert"
    """Update the rows whose key exists, insert the others."""
    INSERT = "insert"
    """Add rows without looking up keys (unless the duplicate policy needs it); fills small files."""
    BULK_INSERT = "bulk_insert"
    """Add rows to new file groups, sorted; for first loads."""
    DELETE = "delete"
    """Remove rows by key."""
    INSERT_OVERWRITE = "insert_overwrite"
    """Replace everything in the partitions of the rows."""
    INSERT_OVERWRITE_TABLE = "insert_overwrite_table"
    """Replace everything in the table."""
    DELETE_PARTITION = "delete_partition"
    """Remove whole partitions; takes no rows."""

    @classmethod
    def _missing_(cls, value: object) -> Operation:
        """Take Hudi's own spelling, too. Raises `InvalidOption` for what is no operation."""
        if isinstance(value, str) and value != value.lower():
            return cls(value.lower())
        raise InvalidOption(f"operation {str(value)!r}", expected=f"one of {', '.join(cls)}")

    @property
    def hudi_name(self) -> str:
        """The name in commit metadata."""
        return self.value.upper()

    @property
    def looks_up_keys(self) -> bool:
        """Whether each key must be looked up before rows can be routed."""
        return self in (Operation.UPSERT, Operation.DELETE)

    @property
    def overwrites(self) -> bool:
        """Whether existing file groups are replaced as a whole, by a replace commit."""
        return self in (Operation.INSERT_OVERWRITE, Operation.INSERT_OVERWRITE_TABLE, Operation.DELETE_PARTITION)

    @property
    def opens_groups_only(self) -> bool:
        """Whether rows are written to new file groups only, never to existing small ones."""
        return self is Operation.BULK_INSERT or self.overwrites


ROW_OPERATIONS = tuple(operation for operation in Operation if operation is not Operation.DELETE_PARTITION)
"""Operations that take rows."""


def minds_known_keys(operation: Operation, options: Options) -> bool:
    """Return whether the write looks for rows whose key the table holds, to update, drop or refuse them."""
    return operation.looks_up_keys or (options[INSERT_DUP_POLICY] != "none" and not operation.overwrites)


def promises_unique_keys(operation: Operation, options: Options) -> bool:
    """Return whether the keys that this write adds must not be added by another writer meanwhile."""
    # An overwrite also replaces what other writers add to its partitions meanwhile.
    return minds_known_keys(operation, options)
