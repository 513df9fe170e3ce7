"""The statistics that an open table has read: from the newest statistics files, and from the entries of the log after them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, TypeVar

from tideline_table.log.entry import Entry
from tideline_table.log.state import TableState
from tideline_table.log.statistics import ReadEntry, Written, read_statistics_file, read_written
from tideline_table.log.statistics_file import BROKEN, PartitionsFile, StatisticsFile, read_partitions
from tideline_table.statistics import FileStatistics, PartitionBounds
from tideline_table.storage import Storage

_LOGGER = logging.getLogger(__name__)

ENTRIES_BEFORE_REOPENING = 200
"""After so many entries, an open table looks for newer statistics files, so that it does not keep what all later writes
published."""

_Found = TypeVar("_Found")


class StatisticsSource(Protocol):
    """Where a query finds statistics of data files."""

    def of(self, paths: Sequence[str], columns: Iterable[str], state: TableState) -> list[FileStatistics | None]:
        """Return what is known of these columns of the files at `paths`, of the table in `state`."""

    def of_partitions(
        self, partitions: Sequence[str], columns: Iterable[str], state: TableState, sequence: int
    ) -> PartitionBounds | None:
        """Return what is known of these columns in all files of `partitions`, of the table in `state` since entry `sequence`.

        None if only the statistics of files decide.
        """


class KnownStatistics:
    """The statistics of the files of one open table, read when a query first needs them and kept up with its log. Thread-safe.

    Data files never change, so what was read stays true. Files whose statistics are not found are not known, which is no error.
    """

    def __init__(self, storage: Storage, read_entry: ReadEntry) -> None:
        self._storage = storage
        self._read_entry = read_entry
        self._mutex = threading.Lock()
        self._start_over()

    def _start_over(self) -> None:
        self._file: StatisticsFile | None = None
        self._partitions: PartitionsFile | None = None
        self._refused = -1
        """The sequence of statistics of partitions that cannot be read."""
        self._sequence = -1
        """The last entry whose statistics are known; -1: nothing was read yet."""
        self._opened_at = 0
        """The last entry of the table when the statistics file was opened."""
        self._written = Written()

    def saw(self, entry: Entry) -> None:
        """Take the statistics of a whole entry that the caller has anyway, if it is the next one and no query reads others now.

        Never waits: a query may read from a slow storage meanwhile. It, or a later one, then reads the entry itself.
        """
        if not self._mutex.acquire(blocking=False):
            return
        try:
            if 0 <= self._sequence == entry.sequence - 1:
                self._written.add(entry)
                self._sequence = entry.sequence
        finally:
            self._mutex.release()

    def of(self, paths: Sequence[str], columns: Iterable[str], state: TableState) -> list[FileStatistics | None]:
        """Return what is known of these columns of the files at `paths`, of the table in `state`."""
        wanted = list(columns)

        def find() -> list[FileStatistics | None]:
            self._catch_up(state)
            missing = [path for path in paths if path not in self._written.files]
            found = self._file.of(missing, wanted) if self._file is not None and missing else [None] * len(missing)
            stored = dict(zip(missing, found, strict=True))
            return [self._written.files.get(path) or stored.get(path) for path in paths]

        with self._mutex:
            try:
                return self._twice(find)
            except BROKEN as error:
                _LOGGER.warning("statistics cannot be read (%s); more data files are read instead", error)
                return [self._written.files.get(path) for path in paths]

    def of_partitions(
        self, partitions: Sequence[str], columns: Iterable[str], state: TableState, sequence: int
    ) -> PartitionBounds | None:
        """Return what is known of these columns in all files of `partitions`, of the table in `state` since entry `sequence`.

        The bounds hold for all slices of `state` since then, older and replaced ones too, that are not cleaned. None if the
        table has no statistics of partitions that are so old, or they cannot be read: the statistics of files decide then.
        """
        wanted = list(columns)

        def find() -> PartitionBounds | None:
            self._catch_up(state)
            file = self._file
            # A later file says nothing of slices that were cleaned before it.
            is_usable = file is not None and file.has_partitions and file.sequence <= sequence and self._written.is_whole
            if file is None or not is_usable or file.sequence == self._refused:
                return None
            if self._partitions is None:
                self._partitions = read_partitions(self._storage, file.sequence)
            columns = self._partitions.columns(wanted)
            return PartitionBounds(partitions, self._partitions.partitions, columns, self._written.partitions)

        with self._mutex:
            try:
                return self._twice(find)
            except BROKEN as error:
                _LOGGER.warning("statistics of partitions cannot be read (%s); those of files are read instead", error)
                self._refused = self._file.sequence if self._file is not None else -1
                return None

    def _twice(self, find: Callable[[], _Found]) -> _Found:
        try:
            return find()
        except BROKEN:
            # Another process may have deleted the statistics files, as there are newer ones.
            self._start_over()
        return find()

    def _catch_up(self, state: TableState) -> None:
        """Read what is new since the last call."""
        if self._sequence >= 0 and state.sequence - self._opened_at >= ENTRIES_BEFORE_REOPENING:
            self._start_over()
        if self._sequence < 0:
            self._opened_at = state.sequence
            self._file = read_statistics_file(self._storage)
            self._sequence = self._file.sequence if self._file is not None else 0
        if self._sequence < state.sequence:
            self._sequence = read_written(self._read_entry, state, self._sequence, self._written)
