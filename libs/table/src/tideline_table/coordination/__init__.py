"""Steps on the timeline: refresh, append a decision, heal; heartbeats, locks, conflicts, reservations and rollback.

Decisions about what a write or a table service does belong to `tideline_table.action`.
"""

from tideline_table.coordination.committed import Committed
from tideline_table.coordination.conflict import find_conflict
from tideline_table.coordination.exclusive import ExclusiveTimeline
from tideline_table.coordination.heartbeat import Heartbeat, allowed_silence, is_alive, is_dead, last_sign
from tideline_table.coordination.hudi_timeline import HudiTimeline
from tideline_table.coordination.leases import forget_expired
from tideline_table.coordination.lock import HeldHudiTableLock, NoLock, OpenHudiTableLock, TableLock
from tideline_table.coordination.observation import check_as_opened, observe, observed_uid
from tideline_table.coordination.replica import LogReplica
from tideline_table.coordination.reservations import NoReservations, PostedReservation, Reservation, Reservations, going_first
from tideline_table.coordination.rollback import roll_back
from tideline_table.coordination.shared.eager_writes import eager_until, may_live
from tideline_table.coordination.shared.timeline import SharedTimeline
from tideline_table.coordination.timeline import ActiveTimeline
from tideline_table.coordination.write_set import SchemaStep, WriteSet
