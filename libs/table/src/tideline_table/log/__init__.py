"""The table log: typed entries, the append-only log, the fold of entries to the table state, checkpoints and retention.

Decisions of table services and writes do not belong here; see `tideline_table.action`.
"""

from tideline_table.log.action import ActionRecord
from tideline_table.log.body import Archived, Body, Cleaned, Published, RestoreBegun, Restored
from tideline_table.log.entry import LOCK_GUARD_PATH, Entry, entry_path
from tideline_table.log.plan import RestorePlanned, RollbackStep
from tideline_table.log.progress import ProgressStep
from tideline_table.log.savepoint import Savepoint
from tideline_table.log.sharing import DEFAULT_EXPIRE_MIN, HUDI_WRITER, PLACES, HudiLockKind, Sharing
from tideline_table.log.state import TableState
