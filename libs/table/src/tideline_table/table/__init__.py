"""The open table: creation, opening, definition, identity, queries, health. Actions on a table are in `tideline_table.action`."""

from tideline_table.log.savepoint import Savepoint
from tideline_table.log.sharing import DEFAULT_EXPIRE_MIN, PeerLockKind, Sharing
from tideline_table.table.changes import is_sequence, newest_write, parse_point, sequence_of
from tideline_table.table.create import TableRequest, create_table, default_name, folder_name, index_request
from tideline_table.table.definition import TableDefinition, TableType
from tideline_table.table.facade import Table
from tideline_table.table.health import TableHealth, TableSummary, health_of, summarise
from tideline_table.table.identity import check_stands, read_identity
from tideline_table.table.images import Images, images_schema
from tideline_table.table.query import CommitTimes, Snapshot, sorted_keys
from tideline_table.table.sharing import share_table, why_unsharable

__all__ = [
    "DEFAULT_EXPIRE_MIN",
    "CommitTimes",
    "Images",
    "PeerLockKind",
    "Savepoint",
    "Sharing",
    "Snapshot",
    "Table",
    "TableDefinition",
    "TableHealth",
    "TableRequest",
    "TableSummary",
    "TableType",
    "check_stands",
    "create_table",
    "default_name",
    "folder_name",
    "health_of",
    "images_schema",
    "index_request",
    "is_sequence",
    "newest_write",
    "parse_point",
    "read_identity",
    "sequence_of",
    "share_table",
    "sorted_keys",
    "summarise",
    "why_unsharable",
]
