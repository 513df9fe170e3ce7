"""The storage port and its adapters: the only way to read and write the files of a table.

Paths are relative to the root of the `Storage`, with `/` between their parts. Decisions about tables do not belong here.
"""

from tideline_table.storage.data_path import (
    NOTHING_RECORDED,
    ByteRange,
    DataPath,
    check_bytes,
    check_pieces,
    check_size,
    digest_of,
    ranges_of,
    record_text,
    recorded_ranges,
)
from tideline_table.storage.local import STAGING, LocalStorage
from tideline_table.storage.location import hudi_root, open_storage, root_spellings, root_uri, task_storage
from tideline_table.storage.memory import MemoryStorage
from tideline_table.storage.object_store import ObjectStorage, object_store_endpoint, object_store_region, object_store_settings
from tideline_table.storage.port import (
    UNKNOWN_TIME,
    Folder,
    ObjectStat,
    Storage,
    checked_path,
    exists,
    holds,
    refused_write,
    writing,
)
from tideline_table.storage.wrapper import LogOnlyStorage, ReadOnlyStorage, StorageWrapper, continues_log_only, unwrapped
