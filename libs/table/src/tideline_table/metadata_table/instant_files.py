"""Files of an instant of the metadata table: created only if absent, several at a time."""

from __future__ import annotations

import contextlib
import functools
import logging
import struct
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import pyarrow as pa

from tideline_table.errors import (
    MALFORMED,
    CorruptMetadata,
    InvalidRecord,
    ObjectExists,
    ObjectNotFound,
    SchemaMismatch,
    UnsupportedTable,
)
from tideline_table.hudi.file_names import parse_base_file_name, parse_log_file_name
from tideline_table.hudi.format import TableFormat
from tideline_table.hudi.instant import Action, Instant, State, completed_as, time_from_instant
from tideline_table.hudi.write_stats import SCHEMA_KEY, CommitMetadata, WriteStat
from tideline_table.log.metadata import MetadataPartition
from tideline_table.metadata_table.layout import file_id_of, timeline_path
from tideline_table.metadata_table.records import record_schema_json
from tideline_table.storage import Storage

Result = TypeVar("Result")
_LOGGER = logging.getLogger(__name__)
_AT_ONCE = 8
"""Files of one partition that are encoded and written at the same time."""
UNREADABLE = (
    CorruptMetadata,
    InvalidRecord,
    ObjectNotFound,
    SchemaMismatch,
    UnsupportedTable,
    *MALFORMED,
    ArithmeticError,
    struct.error,
    pa.ArrowException,
)
"""Errors for data files that stay unreadable, and for values that a partition cannot hold; errors of the storage are others."""


def at_once(do: Callable[..., Result], arguments: Iterable[tuple[object, ...]]) -> list[Result]:
    """Call `do` with each of the arguments in some threads, and return the results in order.

    Raises what the first failing call raises.
    """
    calls = list(arguments)
    if len(calls) < 2:
        return [do(*call) for call in calls]
    with ThreadPoolExecutor(min(_AT_ONCE, len(calls)), thread_name_prefix="metadata") as pool:
        return list(pool.map(lambda call: do(*call), calls))


def begin_instant(storage: Storage, form: TableFormat, instant: str, action: Action) -> None:
    """Create the requested and the inflight file of an instant."""
    for state in (State.REQUESTED, State.INFLIGHT):
        put_once(storage, timeline_path(form, Instant(instant, action, state)), b"")


def complete_instant(
    storage: Storage, form: TableFormat, instant: str, action: Action, metadata: CommitMetadata, completion: str = ""
) -> None:
    """Create the completed file of an instant. `completion`: its completion time, if names have it."""
    path = timeline_path(form, Instant(instant, completed_as(action), State.COMPLETED), completion)
    put_once(storage, path, form.commit_content(metadata, indent=None))


def extra_metadata() -> dict[str, str]:
    """Return the extra metadata of a completed instant: the schema of the records."""
    return {SCHEMA_KEY: record_schema_json(with_meta_fields=False)}


def file_info(records: pa.RecordBatch) -> dict[str, bytes]:
    """Return the file info of an HFile with these records, which are not empty."""
    schema, keys = record_schema_json(with_meta_fields=True).encode(), records.column("key")
    return {"schema": schema, "minRecordKey": keys[0].as_py(), "maxRecordKey": keys[-1].as_py()}


@functools.lru_cache(maxsize=64)
def epoch_ms(instant: str) -> int:
    """Return the time of an instant in milliseconds since 1970."""
    return round(time_from_instant(instant).timestamp() * 1000)


def put_once(storage: Storage, path: str, content: bytes) -> None:
    """Create a file. If another process did, its content is the same."""
    with contextlib.suppress(ObjectExists):
        storage.put_if_absent(path, content)


def file_ids(part: MetadataPartition) -> list[str]:
    """Return the file ids of a partition, in order of their numbers."""
    return [file_id_of(part.name, group) for group in range(part.file_groups)]


def lost_files(part: MetadataPartition, names: Sequence[str], error: Exception) -> list[WriteStat]:
    """Record files that cannot be made: a data file is gone or damaged, or the partition cannot hold its values.

    So the instant completes, and writers of the table go on. A reader of the partition finds that files are missing.
    """
    _LOGGER.error("%s of the metadata table lacks records until it is repaired (tideline check --repair): %s", part.name, error)
    found = ((parse_base_file_name(name) or parse_log_file_name(name), name) for name in names)
    return [
        WriteStat(named.file_id, part.name, f"{part.name}/{name}", part.base, 0, 0) for named, name in found if named is not None
    ]
