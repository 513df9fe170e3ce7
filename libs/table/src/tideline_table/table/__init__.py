"""The open table: creation, opening, definition, identity, queries, health. Actions on a table are in `tideline_table.action`."""

from tideline_table.coordination.leases import Lease
from tideline_table.index.colocation import BucketTable, KeyCheck, colocated_groups, colocated_join, slices_by_part
from tideline_table.log.entry import IDENTITY_PATH
from tideline_table.log.savepoint import Savepoint
from tideline_table.log.sharing import DEFAULT_EXPIRE_MIN, HudiLockKind, Sharing
from tideline_table.table.advice import Advice, advise
from tideline_table.table.changes import newest_write
from tideline_table.table.create import TableRequest, create_table, default_name, folder_name
from tideline_table.table.definition import TableDefinition, TableType, TableView
from tideline_table.table.facade import Table
from tideline_table.table.file_list import DataFile, data_files, manifest_of
from tideline_table.table.findings import (
    Finding,
    FindingKind,
    GivenUp,
    damage_of,
    findings_of,
    forget_given_up,
    given_up_plans,
    is_given_up_plan,
    keep_given_up,
    lost_finding,
    lost_of,
)
from tideline_table.table.health import TableSummary, health_of, summarise
from tideline_table.table.identity import check_stands, read_identity
from tideline_table.table.images import Images, images_schema
from tideline_table.table.key_index import BloomIndex, BucketIndex, KeyIndex, RecordIndex
from tideline_table.table.lease import HeldLease, known_lease, leases_of, release_lease, renew_lease, take_lease
from tideline_table.table.query import CommitTimes, Snapshot, sorted_keys
from tideline_table.table.remains import renew_identity
from tideline_table.table.rings import TableRings
from tideline_table.table.sharing import resume_services, share_table, upgraded_sharing, why_unsharable
from tideline_table.table.standing import why_refused
from tideline_table.table.writer_check import CHECKED_COMMITS, WritersFound, WriterVerdict, find_writers, writer_names
