"""Opening tables for commands that write."""

from __future__ import annotations

from collections.abc import Mapping

from tideline_locks import open_intent_board, open_lock_provider, open_peer_lock
from tideline_service.table_lock import ProviderLock, lock_name
from tideline_table.clock import SystemClock
from tideline_table.config import LOCK_TTL_S, LOCK_WAIT_S
from tideline_table.table import Table

BESIDE_TABLE = "storage:"
"""Lock URL without a place: leases beside the table."""


def open_writable(path: str, settings: Mapping[str, object], lock_url: str = "") -> Table:
    """The table at `path`, checked to be writable before any input is read; commits go through the lock behind `lock_url` if given.

    Raises what `Table.open` and `Table.check_writable` raise, and `InvalidOption` for a lock URL that no provider understands.
    """
    table = Table.open(path, options=settings, peer_lock=open_peer_lock)
    if lock_url and not table.is_shared:  # every step of a shared one takes the lock that Hudi takes
        url = f"{BESIDE_TABLE}{path}" if lock_url == BESIDE_TABLE else lock_url
        table.lock = ProviderLock(
            open_lock_provider(url, clock=SystemClock()),
            lock_name(table.uid),
            table.timeline.log.writer_id,
            ttl_s=table.options[LOCK_TTL_S],
            wait_s=table.options[LOCK_WAIT_S],
        )
        table.intents = open_intent_board(url, lock_name(table.uid), clock=SystemClock())
    # Whether rows have to be found by their keys is for the operation to say.
    table.check_writable(keyed=False)
    return table
