"""Opens tables for commands that write."""

from __future__ import annotations

from collections.abc import Mapping

from tideline_locks import open_peer_lock
from tideline_locks.table_lock import attach_lock
from tideline_table.table import Table


def open_writable(path: str, settings: Mapping[str, object], lock_url: str = "") -> Table:
    """Open the table at `path` and check that it is writable, before any input is read. Commits use `lock_url` if given.

    Raises the errors of `Table.open` and `Table.check_writable`, and `InvalidOption` for a lock URL that no provider supports.
    """
    table = Table.open(path, options=settings, peer_lock=open_peer_lock)
    attach_lock(table, lock_url)
    # The operation itself checks whether it needs record keys.
    table.check_writable(keyed=False)
    return table
