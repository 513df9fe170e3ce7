"""The look-up of a write's keys in what other writes added."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from tideline_table.action.write.transaction import LookUp
from tideline_table.file_group.slice import FileSlice
from tideline_table.index.scope import KeyScope
from tideline_table.index.simple import partition_rows
from tideline_table.table.facade import Table
from tideline_table.writer import PreparedInput


def key_look_up(table: Table, prepared: PreparedInput) -> LookUp:
    """Return a look-up of the keys of `prepared` in slices that another write added."""

    def find(written: Sequence[FileSlice]) -> str | None:
        rows = partition_rows(prepared.partition_paths)
        for file_slice in written:
            partition = file_slice.group.partition_path
            if prepared.scope is KeyScope.TABLE:
                keys = prepared.keys
            elif partition in rows:
                keys = prepared.keys.take(pa.array(rows[partition]))
            else:
                continue
            if table.index.locate(keys, [file_slice]).slices:
                return partition
        return None

    return LookUp(prepared.scope, find)
