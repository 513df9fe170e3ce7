"""Commit metadata of either layout: JSON below table version 8, Avro since (format reference 5, 6.6, 16.3)."""

from __future__ import annotations

from tideline_table.errors import CorruptMetadata
from tideline_table.timeline.avro_container import MAGIC, read_one_record
from tideline_table.timeline.write_stats import CommitMetadata


def read_commit_metadata(content: bytes, path: str) -> CommitMetadata:
    """The document of a completed write. Upgraded tables hold both kinds, so the bytes decide. `CorruptMetadata` names a broken file."""
    if not content.startswith(MAGIC):
        return CommitMetadata.from_bytes(content, path)
    document = read_one_record(content, path)
    try:
        # Fields have the names of the JSON document in all releases.
        return CommitMetadata.from_json(document)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise CorruptMetadata(
            f"timeline file {path} cannot be read ({type(error).__name__}: {error})",
            expected="commit metadata in Avro",
            remedy="restore the file; nothing was changed",
        ) from None
