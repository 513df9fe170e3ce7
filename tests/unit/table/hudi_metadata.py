"""A metadata table as Apache Hudi's writers make it, and the death of a Tideline process in its delta commit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest
from tests.unit.table.tables import set_properties

from tideline_table.action.write.transaction import WriteTransaction
from tideline_table.coordination.shared import timeline as shared_timeline
from tideline_table.hudi.formats import WRITTEN
from tideline_table.hudi.instant import Action
from tideline_table.hudi.properties import METADATA_PARTITIONS, format_properties, read_properties
from tideline_table.hudi.write_stats import CommitMetadata
from tideline_table.log.metadata import BLOOM_FILTERS, COLUMN_STATS, RECORD_INDEX, Delta
from tideline_table.log_format.block import BlockType, HeaderKey
from tideline_table.log_format.framing import frame_block
from tideline_table.log_format.hfile_writer import batch_of, hfile_bytes
from tideline_table.metadata_table import layout, stored
from tideline_table.metadata_table.bloom_filters import BLOOM_FILTERS_GROUPS, BloomFiltersPartition
from tideline_table.metadata_table.column_records import statistics_datum
from tideline_table.metadata_table.column_stats import COLUMN_STATS_GROUPS, record_key
from tideline_table.metadata_table.files import files_of
from tideline_table.metadata_table.index_definitions import index_definitions
from tideline_table.metadata_table.instant_files import begin_instant, complete_instant, file_info
from tideline_table.metadata_table.layout import (
    INDEX_DEFINITIONS_PATH,
    PROPERTIES_PATH,
    base_name,
    file_id_of,
    file_path,
    first_log_name,
    metadata_properties,
    timeline_folder,
)
from tideline_table.metadata_table.log_file import EMPTY_DELETES
from tideline_table.metadata_table.partition import Records, Source, by_group
from tideline_table.metadata_table.record_index import RecordIndexPartition
from tideline_table.metadata_table.records import encode_records
from tideline_table.reader.base_file import read_statistics
from tideline_table.storage import Storage
from tideline_table.table import Table

KEY_GROUPS = 10
"""File groups of the record index."""
TIMELINE_FOLDER = timeline_folder(WRITTEN)


def log_name(base: str, version: int, file_id: str = layout.FILES_ID) -> str:
    """Return the name of a log file of the slice `base`, whose delta commit does not count in the written format."""
    return layout.log_name(WRITTEN, base, Delta("", version), file_id)


def make_metadata(table: Table, columns: Sequence[str] = (), *, with_keys: bool = False) -> str:
    """Make it, with Bloom filters and with statistics of these columns of the files, if there are any; return its first instant.

    `with_keys` also makes a record index.
    """
    storage, state = table.storage, table.refresh()
    source, base = Source(storage, WRITTEN, state), f"{state.last_instant}010"
    properties = read_properties(storage)
    records = batch_of(encode_records(files_of(state)))
    begin_instant(storage, WRITTEN, base, Action.DELTA_COMMIT)
    storage.put(PROPERTIES_PATH, format_properties(metadata_properties(WRITTEN, properties), "made by a test"))
    storage.put(file_path(base_name(base)), hfile_bytes(records, file_info(records)))
    complete_instant(storage, WRITTEN, base, Action.DELTA_COMMIT, CommitMetadata("BULK_INSERT_PREPPED", ()))
    if columns:
        storage.put(INDEX_DEFINITIONS_PATH, index_definitions(WRITTEN, columns))
        _make_partition(table, COLUMN_STATS, "011", COLUMN_STATS_GROUPS, _statistics(table, columns))
        _make_partition(table, BLOOM_FILTERS, "012", BLOOM_FILTERS_GROUPS, BloomFiltersPartition().whole(source))
    if with_keys:
        _make_partition(table, RECORD_INDEX, "013", KEY_GROUPS, RecordIndexPartition().whole(source))
    names = ["files", *(("bloom_filters", "column_stats") if columns else ()), *(("record_index",) if with_keys else ())]
    set_properties(storage, {**properties, METADATA_PARTITIONS: ",".join(sorted(names))})
    return base


def _statistics(table: Table, columns: Sequence[str]) -> Records:
    storage, records = table.storage, []
    for path in (found.path for found in table.state.every_slice()):
        known = read_statistics(storage, path, columns)
        assert known is not None
        records += [(record_key(c, path).encode(), statistics_datum(path.rpartition("/")[2], c, known)) for c in columns]
    return Records.of(records)


def _make_partition(table: Table, name: str, suffix: str, groups: int, records: Records) -> None:
    """Make a partition: a log file without records for each file group, and a base file for each group with records."""
    storage, base = table.storage, table.state.last_instant + suffix
    begin_instant(storage, WRITTEN, base, Action.DELTA_COMMIT)
    for number, held in enumerate(by_group(records, groups)):
        file_id = file_id_of(name, number)
        first = frame_block(BlockType.DELETE, {HeaderKey.INSTANT_TIME: base}, EMPTY_DELETES)
        storage.put(file_path(first_log_name(WRITTEN, base, file_id), name), first)
        if held:
            storage.put(file_path(base_name(base, file_id), name), hfile_bytes(held.updates, file_info(held.updates)))
    complete_instant(storage, WRITTEN, base, Action.DELTA_COMMIT, CommitMetadata("BULK_INSERT_PREPPED", ()))


class Died(KeyboardInterrupt):
    """The process ended here."""


@contextmanager
def dying(at: int) -> Iterator[None]:
    """The process dies before the file `at` of the delta commit; with 4, before the completed file of the table."""
    create, create_file, made = stored._create, shared_timeline.create_file, [0]

    def next_file(storage: Storage, path: str, content: bytes) -> None:
        if made[0] == at:
            raise Died
        made[0] += 1
        create(storage, path, content)

    def completed(*arguments: object) -> None:
        if made[0] == at:
            raise Died
        create_file(*arguments)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(stored, "_create", next_file)
        if at == 4:
            patched.setattr(shared_timeline, "create_file", completed)
        patched.setattr(WriteTransaction, "roll_back", lambda self: self.abandon())
        with pytest.raises(Died):
            yield
