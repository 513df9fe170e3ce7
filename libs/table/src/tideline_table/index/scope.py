"""Among which rows a record key is unique, as the index type of a writer has it."""

from __future__ import annotations

import enum

from tideline_table.config import (
    BLOOM_INDEX_UPDATE_PARTITION_PATH,
    INDEX_TYPE,
    SIMPLE_INDEX_UPDATE_PARTITION_PATH,
    Options,
)


class KeyScope(enum.Enum):
    """What a record key names one row of."""

    PARTITION = "partition"
    TABLE = "table"

    @classmethod
    def of(cls, options: Options) -> KeyScope:
        """As `hoodie.index.type` says."""
        return cls.TABLE if options[INDEX_TYPE].startswith("GLOBAL_") else cls.PARTITION


def moves_rows(options: Options) -> bool:
    """Whether a row of a key that another partition holds moves to its own; otherwise it is written where the key is."""
    bloom = options[INDEX_TYPE].endswith("BLOOM")
    return options[BLOOM_INDEX_UPDATE_PARTITION_PATH if bloom else SIMPLE_INDEX_UPDATE_PARTITION_PATH]
