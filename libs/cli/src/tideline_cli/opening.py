"""Opening tables for commands that write."""

from __future__ import annotations

from collections.abc import Mapping

from tideline_locks import open_peer_lock
from tideline_locks.table_lock import attach_lock
from tideline_table.table import Table


def open_writable(path: str, settings: Mapping[str, object], lock_url: str = "") -> Table:
    """The table at `path`, checked to be writable before any input is read; commits go through the lock behind `lock_url` if given.

    Raises what `Table.open` and `Table.check_writable` raise, and `InvalidOption` for a lock URL that no provider understands.
    """
    table = Table.open(path, options=settings, peer_lock=open_peer_lock)
    attach_lock(table, lock_url)
    # Whether rows have to be found by their keys is for the operation to say.
    table.check_writable(keyed=False)
    return table
