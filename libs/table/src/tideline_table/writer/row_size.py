"""The size of a row in a base file, measured on rows that are about to be written: for tables whose files do not tell it yet."""

from __future__ import annotations

import pyarrow as pa

from tideline_table.config import Options
from tideline_table.schema.meta_fields import MetaField
from tideline_table.storage import MemoryStorage
from tideline_table.writer.base_file import write_base_file

SAMPLE_ROWS = 8192
_BLOCKS = 4


def measured_row_bytes(rows: pa.Table, options: Options) -> float:
    """Return the mean number of bytes of these rows in a base file: a sample of them, with their record keys, is encoded as one."""
    sample = rows
    if rows.num_rows > SAMPLE_ROWS:
        size = SAMPLE_ROWS // _BLOCKS
        starts = [number * (rows.num_rows - size) // (_BLOCKS - 1) for number in range(_BLOCKS)]
        sample = pa.concat_tables([rows.slice(start, size) for start in starts])
    # Of the meta fields, only these two have another value in every row.
    numbers = pa.array([f"00000000000000000_0_{number}" for number in range(sample.num_rows)], pa.string())
    sample = sample.append_column(MetaField.COMMIT_SEQNO.value, numbers).combine_chunks()
    size_bytes: int = write_base_file(MemoryStorage(), "sample.parquet", sample, "", options).size_bytes
    return max(1.0, size_bytes / max(1, int(sample.num_rows)))
