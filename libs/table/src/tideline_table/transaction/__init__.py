"""Begin → stage → validate → publish; rollback and recovery; heartbeats. The one place that appends to the table log."""

from tideline_table.transaction.active_timeline import ActiveTimeline
from tideline_table.transaction.conflict import SchemaStep, WriteSet, find_conflict
from tideline_table.transaction.heartbeat import Heartbeat, is_alive, is_dead
from tideline_table.transaction.lock import NoLock, OpenPeerLock, PeerLock, TableLock
from tideline_table.transaction.rollback import roll_back
from tideline_table.transaction.shared_timeline import SharedTimeline
from tideline_table.transaction.write import Committed, WriteTransaction

__all__ = [
    "ActiveTimeline",
    "Committed",
    "Heartbeat",
    "NoLock",
    "OpenPeerLock",
    "PeerLock",
    "SchemaStep",
    "SharedTimeline",
    "TableLock",
    "WriteSet",
    "WriteTransaction",
    "find_conflict",
    "is_alive",
    "is_dead",
    "roll_back",
]
