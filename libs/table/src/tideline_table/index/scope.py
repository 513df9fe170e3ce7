"""The scope in which a record key is unique, by the index type of a writer."""

from __future__ import annotations

import enum

from tideline_table.config import (
    BLOOM_INDEX_UPDATE_PARTITION_PATH,
    INDEX_TYPE,
    SIMPLE_INDEX_UPDATE_PARTITION_PATH,
    Options,
)


class KeyScope(enum.Enum):
    """The scope in which a record key names one row."""

    PARTITION = "partition"
    TABLE = "table"

    @classmethod
    def of(cls, options: Options) -> KeyScope:
        """Return the scope that `hoodie.index.type` names."""
        return cls.TABLE if options[INDEX_TYPE].startswith("GLOBAL_") else cls.PARTITION


def moves_rows(options: Options) -> bool:
    """Return whether a row moves to its own partition if another one holds its key; otherwise it is written where the key is."""
    bloom = options[INDEX_TYPE].endswith("BLOOM")
    return options[BLOOM_INDEX_UPDATE_PARTITION_PATH if bloom else SIMPLE_INDEX_UPDATE_PARTITION_PATH]
