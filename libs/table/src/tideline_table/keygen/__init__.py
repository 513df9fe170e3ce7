"""Key generators: vectorised derivation of record keys and partition paths from columns (format reference 2.1, 3.2, 3.3).

`table.declared_keys` reads the key generator of a table from its properties.
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
)
from tideline_table.keygen.path_columns import PathColumns
from tideline_table.keygen.timebased import TimeBased
