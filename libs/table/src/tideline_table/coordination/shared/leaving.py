"""What remains of Tideline in a table is removed, and its writers of Apache Hudi have it alone (docs/design/observed-tables.md).

The mark comes first. Without the identity the table is one of Apache Hudi; the mark tells readers that the rest of the log
belongs to no lost identity. A process that dies in between leaves the rest, and the next call removes it.
"""

from __future__ import annotations

from contextlib import suppress

from tideline_table.errors import ObjectNotFound, TableFrozen, WriteConflict, parsing
from tideline_table.json_text import parse_sealed
from tideline_table.log.entry import IDENTITY_PATH, LEAVING_PATH, TIDELINE_FOLDER
from tideline_table.log.state import TableState
from tideline_table.storage import Storage, exists


def check_nothing_begun(state: TableState) -> None:
    """Raise `WriteConflict` if a step of Tideline is pending."""
    begun = next((a for a in state.pending() if not a.is_by_hudi), None)
    if begun is not None:
        raise WriteConflict(
            f"{begun.action} {begun.instant} of writer {begun.writer_id or 'unknown'} is {begun.state}",
            with_instant=begun.instant,
            remedy="wait for it, stop Tideline's services and writers of this table, then leave it again",
        )


def check_still_shared(storage: Storage, uid: str) -> None:
    """Raise `TableFrozen` if the table was returned to its writers since it was opened with `uid`. One request.

    If it was shared again since, it has another uid and another log. Raises `CorruptMetadata` for an identity that cannot be read.
    """
    found = ""
    with suppress(ObjectNotFound), parsing(IDENTITY_PATH, "the table's uid and base path in JSON"):
        found = str(parse_sealed(storage.read(IDENTITY_PATH))["uid"])
    if found != uid:
        raise TableFrozen(
            f"a table with uid {found}" if found else f"a table without {IDENTITY_PATH}, which it had when it was opened",
            expected=f"the shared table {uid}, which was opened",
            remedy="it was returned to Apache Hudi's writers (tideline leave), and perhaps shared again, or removed: open it again",
        )


def is_leaving(storage: Storage) -> bool:
    """Return whether a process began to remove what is Tideline's. One request."""
    return exists(storage, LEAVING_PATH)


def remove_tideline(storage: Storage) -> None:
    """Remove the identity, then all other files of Tideline. Each call goes on where the last one ended."""
    storage.put(LEAVING_PATH, b"")
    storage.delete(IDENTITY_PATH)
    level = storage.list_folder(TIDELINE_FOLDER)
    for name in level.folders:
        storage.delete_below(f"{TIDELINE_FOLDER}/{name}")
    for found in level.objects:
        if found.path != LEAVING_PATH:
            storage.delete(found.path)
    storage.delete(LEAVING_PATH)
    storage.delete_below(TIDELINE_FOLDER)
