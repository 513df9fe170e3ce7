"""Builds parts of the JSON documents about tables that several commands print."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from tideline_table.coordination import Committed
from tideline_table.file_group import FileSlice


def column_documents(schema: pa.Schema) -> list[dict[str, Any]]:
    """Return the name, Arrow type and nullability of each column."""
    return [{"name": f.name, "type": str(f.type), "nullable": f.nullable} for f in schema]


def slice_document(file_slice: FileSlice) -> dict[str, Any]:
    """Return the document of a file slice. `rows` is null if the number of rows is known only from the file's footer."""
    return {
        "partition": file_slice.group.partition_path,
        "file_id": file_slice.group.file_id,
        "base_file": file_slice.base_file,
        "instant": file_slice.base_instant,
        "size_bytes": file_slice.size_bytes,
        "rows": known_rows(file_slice.rows),
        "log_files": file_slice.log_files,
    }


def committed_document(committed: Committed) -> dict[str, Any]:
    """Return the document of a committed transaction."""
    return {
        "instant": committed.instant,
        "sequence": committed.sequence,
        "rows_inserted": committed.rows_inserted,
        "rows_updated": committed.rows_updated,
        "rows_deleted": known_rows(committed.rows_deleted),
        "files_written": len(committed.stats),
        "bytes_written": sum(s.file_size_bytes for s in committed.stats),
        "conflicts_retried": committed.attempts - 1,
    }


def known_rows(rows: int) -> int | None:
    """Return `rows`, or None for the engine's -1 (unknown)."""
    return None if rows < 0 else rows
