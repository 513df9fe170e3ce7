"""The reserve: space that a table on local storage keeps so that a full disk can be cleaned (docs/full-disk.md).

It consists of a few meaningless files beside the log. On a full disk, steps that free space (clean, rollback) delete them one by
one and append again. The reserve has no part in the protocol, so losing it at any time loses no table data.
"""

from __future__ import annotations

import logging
import os

from tideline_table.errors import StorageError
from tideline_table.log.checkpoint import POINTER
from tideline_table.storage import Storage, exists

_LOGGER = logging.getLogger(__name__)

RESERVE_FOLDER = ".hoodie/.tideline/reserve"
FILES = 8
"""The reserve keeps as many inodes, too: a clean needs five before it deletes."""
FILE_BYTES = 128 * 1024
KEPT_BY_ROLLBACKS = 5
"""Files that only a clean may spend: repeated failed writes with their rollbacks would use up the whole reserve."""


def fill_reserve(storage: Storage) -> None:
    """Write the missing files as far as there is space. Object stores have no reserve, because a deletion there needs no space."""
    if not storage.root.startswith("file:"):
        return
    try:
        there = {found.path for found in storage.list_folder(RESERVE_FOLDER).objects}
        for path in sorted({f"{RESERVE_FOLDER}/{number}" for number in range(FILES)} - there):
            # Random bytes, which no file system compresses or stores sparsely.
            storage.put(path, os.urandom(FILE_BYTES))
    except StorageError as error:
        _LOGGER.debug("the reserve is not full: %s", error)


def release_reserve(storage: Storage, keep: int) -> bool:
    """Free one file of the reserve unless `keep` are left; with `keep` 0, then the checkpoint pointer. False: nothing was left."""
    left = [found.path for found in storage.list_folder(RESERVE_FOLDER).objects]
    if len(left) > keep:
        storage.delete(left[-1])
        return True
    if keep or not exists(storage, POINTER):
        return False
    storage.delete(POINTER)
    return True
