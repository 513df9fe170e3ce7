"""hudi-rs (PyPI `hudi`) as a second, independent reader of tables."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
from hudi import HudiReadOptions, HudiTable


def read_hudi_rs(base_path: str | Path, as_of: str | None = None) -> pa.Table:
    """The snapshot of a table, meta columns included, in no particular order; `as_of` is an instant (time travel).

    Errors of hudi-rs pass through unchanged.
    """
    table = HudiTable(str(base_path))
    options = HudiReadOptions()
    if as_of is not None:
        options = options.with_as_of_timestamp(as_of)
    batches = table.read(options)
    if not batches:
        return table.get_schema_with_meta_fields().empty_table()
    # File groups may differ in nullability only (each batch carries the schema of its own base file).
    parts = [pa.Table.from_batches([batch]) for batch in batches]
    return pa.concat_tables(parts, promote_options="permissive")
