"""Tables that others wrote: their state from timeline files and a listing, without a table log (format reference 4, 7, 11, 16.3)."""

from tideline_table.table.foreign.state import foreign_state, visible_instants
from tideline_table.transaction.archive import ArchivedInstant, is_archived, read_archived_instants

__all__ = [
    "ArchivedInstant",
    "foreign_state",
    "is_archived",
    "read_archived_instants",
    "visible_instants",
]
