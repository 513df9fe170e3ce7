"""Storage port and adapters: the only way to a table's bytes.

Paths are relative to the root that a `Storage` was opened on, with `/` between parts. Decisions about tables do not belong here.
"""

from tideline_table.storage.local import STAGING, LocalStorage
from tideline_table.storage.location import open_storage, root_uri
from tideline_table.storage.memory import MemoryStorage
from tideline_table.storage.object_store import ObjectStorage
from tideline_table.storage.port import ConditionalStorage, Folder, ObjectStat, Storage, checked_path, exists, holds

__all__ = [
    "STAGING",
    "ConditionalStorage",
    "Folder",
    "LocalStorage",
    "MemoryStorage",
    "ObjectStat",
    "ObjectStorage",
    "Storage",
    "checked_path",
    "exists",
    "holds",
    "open_storage",
    "root_uri",
]
