"""The log files that a write will add to the metadata table, made in memory while the write commits.

They follow from what its writer kept of the base files (`WriteStat.keys`, `WriteStat.statistics`) and from the definition of
the metadata table. Nothing is written here: the delta commit takes them at the entry of the write, if they are of just the
files that it publishes.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

from tideline_table.hudi.format import TableFormat
from tideline_table.hudi.instant import Action, State
from tideline_table.hudi.write_stats import CommitMetadata, WriteStat
from tideline_table.log.body import Published
from tideline_table.log.entry import Entry
from tideline_table.log.metadata import RECORD_INDEX, MetadataPartition, MetadataTable
from tideline_table.log.state import TableState
from tideline_table.metadata_table.instant_files import UNREADABLE
from tideline_table.metadata_table.log_file import LogFile, changes_of, log_file_of
from tideline_table.metadata_table.partition import Source
from tideline_table.metadata_table.record_index import adds_kept_keys
from tideline_table.storage import Storage

_AT_ONCE = 2
"""Threads. Encoders of records hold the lock of the interpreter; only sorting, hashing and compression run beside them."""
_Definition = tuple[str, int, tuple[str, ...]]


class PreparedDelta:
    """The log files of one write in the making. Safe to share between threads."""

    def __init__(self, storage: Storage, form: TableFormat, known: MetadataTable, entry: Entry, pool: ThreadPoolExecutor) -> None:
        """`entry`: the completion of the write as far as records depend on it; each of its files is `is_kept`."""
        self._stats = _stats_of(entry)
        self._entry = entry
        # The state has nothing else of the table, so that records cannot depend on it.
        self._source = Source(storage, form, TableState(metadata=known))
        self._pool = pool
        # The record index has most of the work.
        parts = sorted(known.partitions, key=lambda part: part.name != RECORD_INDEX)
        self._made = {_definition(part): pool.submit(self._make, part) for part in parts}

    def log_files(self, entry: Entry, parts: Sequence[MetadataPartition]) -> Iterator[Iterable[LogFile] | Exception] | None:
        """Yield the log files that `entry` adds to each of the partitions, or why they cannot be known. Waits for them.

        None if they were not prepared.
        """
        found = _stats_of(entry)
        is_same = len(found) == len(self._stats) and all(map(operator.is_, found, self._stats))
        if not is_same or not all(_definition(part) in self._made for part in parts):
            return None
        return map(self._log_files_of, parts)

    def _log_files_of(self, part: MetadataPartition) -> Iterable[LogFile] | Exception:
        try:
            return [each.result() for each in self._made[_definition(part)].result()]
        except UNREADABLE as error:
            return error

    def _make(self, part: MetadataPartition) -> list[Future[LogFile]]:
        instant, changes = self._entry.instant, changes_of(self._source, self._entry, part)
        return [self._pool.submit(log_file_of, part.name, instant, group, records) for group, records in changes]


@contextmanager
def prepared_delta(
    storage: Storage, form: TableFormat, known: MetadataTable, action: Action, instant: str, stats: Sequence[WriteStat]
) -> Iterator[PreparedDelta | None]:
    """Prepare the delta commit of a write with these files in threads, until the end of the context.

    The write replaces no file group.

    None if records may depend on more than what the writer of the files kept.
    """
    if not stats or not all(map(is_kept, stats)):
        yield None
        return
    entry = Entry(
        sequence=0,
        append_id="",
        recorded="",
        writer_id="",
        instant=instant,
        action=action,
        before=State.INFLIGHT,
        after=State.COMPLETED,
        operation="",
        body=Published(CommitMetadata("", tuple(stats))),
    )
    pool = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="metadata-records")
    try:
        yield PreparedDelta(storage, form, known, entry, pool)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def is_kept(stat: WriteStat) -> bool:
    """Return whether the records of a written file follow from what its writer kept."""
    return bool(stat.path) and not stat.is_log and adds_kept_keys(stat)


def _stats_of(entry: Entry) -> tuple[WriteStat, ...]:
    """Return the files that an entry publishes without replacing others; none for other entries."""
    body = entry.body
    return body.metadata.stats if isinstance(body, Published) and body.metadata.replaced is None else ()


def _definition(part: MetadataPartition) -> _Definition:
    return part.name, part.file_groups, part.columns
