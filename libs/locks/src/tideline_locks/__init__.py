"""The lock port and its adapters: Redis, storage (put-if-absent), in-process, the lock service, and the locks of Apache Hudi.

Locks only save work and let writers queue. Correctness rests on the put-if-absent of the table log, and only in tables shared with
Hudi also on Hudi's lock. Adapters with a client library (`http`, `redis`) are imported when a URL names them. Not here:
decisions about tables, and serving leases over a network (the lock service).
"""

from tideline_locks.errors import InvalidLease, LeaseLost, LockAccessDenied, LockTimeout, LockUnreachable, StaleFence
from tideline_locks.fallback import FallbackLockProvider
from tideline_locks.hudi_lock import HudiLockProvider
from tideline_locks.hudi_table_lock import ProviderHudiLock, open_hudi_lock
from tideline_locks.in_process import InProcessLockProvider
from tideline_locks.lease import Lease
from tideline_locks.location import check_lock_url, hudi_file_lock, hudi_storage_lock, open_lock_provider, open_reservations
from tideline_locks.port import LeaseState, LockProvider, OnUnreachable
from tideline_locks.probe import LockProbe
from tideline_locks.renewal import KeptLease
from tideline_locks.reservations import InProcessReservations, StorageReservations
from tideline_locks.storage_lease import StorageLockProvider
from tideline_locks.table_lock import attach_lock, lock_url
