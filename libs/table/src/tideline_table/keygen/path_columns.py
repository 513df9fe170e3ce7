"""Partition columns stored in partition paths: only there (`hoodie.datasource.write.drop.partition.columns`) or also in files."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import unquote

import pyarrow as pa

from tideline_table.errors import UnsupportedTable
from tideline_table.keygen.generator import DEFAULT_PARTITION


@dataclass(frozen=True, slots=True)
class PathColumns:
    """The partition columns with values in the partition path, in the order of its levels."""

    fields: tuple[str, ...]
    only_fill: bool = False
    """Files contain the columns too; the path only replaces nulls, because Apache Hudi's `MERGE INTO` logs rows without them."""

    def values(self, partition_path: str, schema: pa.Schema) -> dict[str, pa.Scalar]:
        """Return the value of each column in this partition, in its type in `schema`.

        Raises `UnsupportedTable` for a path of another depth and for text that does not match the type. With `only_fill` such paths
        yield no columns instead, and columns of the default partition are omitted.
        """
        if not self.only_fill:
            return self._values(partition_path, schema)
        try:
            return {name: value for name, value in self._values(partition_path, schema).items() if value.is_valid}
        except UnsupportedTable:
            return {}

    def _values(self, partition_path: str, schema: pa.Schema) -> dict[str, pa.Scalar]:
        levels = partition_path.split("/")
        if len(self.fields) == 1:
            # A value may contain slashes, as dates do.
            levels = [partition_path]
        if len(levels) != len(self.fields):
            raise UnsupportedTable(
                f"partition {partition_path!r} of a table that stores {', '.join(self.fields)} only in partition paths",
                expected=f"a path of {len(self.fields)} levels",
            )
        return {
            name: _typed(level.removeprefix(f"{name}="), name, schema)
            for name, level in zip(self.fields, levels, strict=True)
            if name in schema.names
        }


def _typed(text: str, name: str, schema: pa.Schema) -> pa.Scalar:
    kind = schema.field(name).type
    if text == DEFAULT_PARTITION:
        return pa.scalar(None, kind)
    try:
        return pa.scalar(unquote(text), pa.string()).cast(kind)
    except pa.ArrowException as error:
        raise UnsupportedTable(
            f"partition value {text!r} of column {name!r} ({str(error).splitlines()[0]})",
            expected=f"the text of a value of type {kind}",
        ) from None
