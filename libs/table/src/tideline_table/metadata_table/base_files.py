"""The base files of the record index that a process which stays open keeps: they never change."""

from __future__ import annotations

import threading

from tideline_table.log.metadata import MetadataPartition
from tideline_table.log_format.hfile import HFile
from tideline_table.metadata_table.layout import base_name, file_id_of, file_path
from tideline_table.metadata_table.reading import open_base
from tideline_table.storage import Storage

MOST_BYTES = 64 * 1024 * 1024
"""Bytes of base files that a process keeps. Others are read for each look-up whose keys are in their range."""


class BaseFiles:
    """Opens base files of the newest slice, and keeps them and their key ranges until the next slice. Safe to share between threads."""

    def __init__(self, storage: Storage, most_bytes: int = MOST_BYTES) -> None:
        self._storage = storage
        self._most_bytes = most_bytes
        self._base = ""
        self._files: dict[int, HFile] = {}
        self._ranges: dict[int, tuple[bytes, bytes | None]] = {}
        self._mutex = threading.Lock()

    def may_hold(self, part: MetadataPartition, group: int, low: bytes, high: bytes) -> bool:
        """Return whether the base file of a file group may hold a key between `low` and `high` (both inclusive). Reads nothing."""
        with self._mutex:
            known = self._ranges.get(group) if part.base == self._base else None
        return known is None or (known[0] <= high and (known[1] is None or low <= known[1]))

    def open(self, part: MetadataPartition, group: int) -> HFile:
        """Return the base file of a file group. Errors as `open_base`."""
        with self._mutex:
            if part.base == self._base and group in self._files:
                return self._files[group]
        found = open_base(self._storage, file_path(base_name(part.base, file_id_of(part.name, group)), part.name))
        with self._mutex:
            if part.base > self._base:
                self._base, self._files, self._ranges = part.base, {}, {}
            # A look-up in an older slice keeps nothing.
            if part.base == self._base:
                self._ranges[group] = (found.first_key, found.last_key)
                if sum(file.size_bytes for file in self._files.values()) + found.size_bytes <= self._most_bytes:
                    self._files[group] = found
        return found
