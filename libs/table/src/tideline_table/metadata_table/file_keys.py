"""Keys of records about one data file, and the files that an entry of the table log takes away (format reference 15.2, 15.5)."""

from __future__ import annotations

import base64
import functools
import hashlib
from collections.abc import Iterator

import xxhash

from tideline_table.file_group.slice import join_path
from tideline_table.log.body import Cleaned, RestoreBegun
from tideline_table.log.entry import Entry
from tideline_table.log.plan import RestorePlanned
from tideline_table.log.state import TableState
from tideline_table.metadata_table.records import UNPARTITIONED

_SEED = 0xFFFFFFFFDABADABA
"""Apache Hudi's seed of the 64-bit hash, an int that became a long with its sign."""


@functools.lru_cache(65536)
def hash_text(text: str) -> str:
    """Return the part of a key that stands for a column or a partition path: its 64-bit hash in Base64, 12 characters."""
    return _text(xxhash.xxh64(text.encode(), seed=_SEED).digest())


def file_key(path: str) -> str:
    """Return the part of a key that stands for the data file at `path` below the table, 36 characters."""
    partition, _, name = path.rpartition("/")
    return hash_text(partition or UNPARTITIONED) + _text(hashlib.md5(name.encode(), usedforsecurity=False).digest())


def files_gone(entry: Entry, state: TableState) -> list[str]:
    """Return the paths of the data files that a clean deleted, that a restore deletes, or that got other names.

    None for other entries.
    """
    return [*_cleaned(entry), *_undone(entry, state), *(join_path(m.partition_path, m.old_name) for m in entry.moved_logs)]


def _text(digest: bytes) -> str:
    return base64.b64encode(digest).decode()


def _cleaned(entry: Entry) -> Iterator[str]:
    body = entry.body
    if isinstance(body, Cleaned):
        for partition, part in body.metadata["partitionMetadata"].items():
            for pattern in part["deletePathPatterns"]:
                name = str(pattern).rpartition("/")[2]
                yield f"{partition}/{name}" if partition else name


def _undone(entry: Entry, state: TableState) -> Iterator[str]:
    plan = state.plans.get(entry.instant)
    if isinstance(entry.body, RestoreBegun) and isinstance(plan, RestorePlanned):
        for paths in plan.files.values():
            yield from paths
