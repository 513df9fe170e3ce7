"""Key generators: from columns to record keys and partition paths, vectorised (format reference 2.1, 3.2, 3.3).

Which generator a table has is read from its properties in `table.declared_keys`.
"""

from tideline_table.keygen.generator import (
    DEFAULT_PARTITION,
    EMPTY_KEY,
    ESCAPED,
    NULL_KEY,
    KeyGenerator,
    KeyGeneratorType,
    PartitionType,
    check_key_columns,
    observed_single_key,
)
from tideline_table.keygen.path_columns import PathColumns
from tideline_table.keygen.text import key_text
from tideline_table.keygen.timebased import TimeBased

__all__ = [
    "DEFAULT_PARTITION",
    "EMPTY_KEY",
    "ESCAPED",
    "NULL_KEY",
    "KeyGenerator",
    "KeyGeneratorType",
    "PartitionType",
    "PathColumns",
    "TimeBased",
    "check_key_columns",
    "key_text",
    "observed_single_key",
]
