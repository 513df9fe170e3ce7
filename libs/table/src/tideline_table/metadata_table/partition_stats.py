"""Records of `partition_stats`: bounds of the columns in all files of a partition of the table (format reference of 8 and 9: 8.3).

Apache Hudi's readers leave out a partition by them, so they must cover every file. Apache Hudi writes the tight bounds of the whole
partition. Tideline writes those of the files of one step, marked as not tight: readers and compactions widen the older record by
such a one, so it need not be read, and what it covers never shrinks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tideline_table.errors import CorruptMetadata
from tideline_table.file_group.slice import join_path
from tideline_table.log.body import Published
from tideline_table.log.entry import Entry
from tideline_table.log.metadata import PARTITION_STATS
from tideline_table.metadata_table.column_records import PARTITION_TYPE, has_records_of, statistics_datum
from tideline_table.metadata_table.column_stats import written_files
from tideline_table.metadata_table.file_keys import hash_text
from tideline_table.metadata_table.partition import Records, Source, mapping_of
from tideline_table.metadata_table.records import files_key, record_schema_json
from tideline_table.metadata_table.widened_bounds import Datum, widened
from tideline_table.statistics import FileStatistics


def partition_records(source: Source, entry: Entry) -> Records:
    """Return the records of a step of a table that Apache Hudi also writes. Only what publishes files with rows has some.

    Raises `CorruptMetadata` for a file without statistics of an indexed column: no bounds would cover it.
    """
    if not isinstance(entry.body, Published):
        return Records()
    return Records.of(_records(source, entry.body))


def _records(source: Source, body: Published) -> Iterator[tuple[bytes, bytes]]:
    assert source.indexed is not None
    columns, typed = source.indexed.required, source.form.has_typed_statistics
    known, found = written_files(source, body, source.indexed), dict[str, FileStatistics]()
    for stat in body.metadata.stats:
        if not stat.path:
            continue
        path = join_path(stat.partition_path, stat.path.rpartition("/")[2])
        file = known.get(path)
        if file is not None and not file.rows:
            continue
        lacking = [name for name in columns if file is None or not has_records_of(file, name)]
        if file is None or lacking:
            raise CorruptMetadata(f"{path} without statistics of {', '.join(lacking)}", expected=f"some, for {PARTITION_STATS}")
        held = found.get(stat.partition_path)
        found[stat.partition_path] = file if held is None else held.union(file)
    for partition, together in found.items():
        for name in columns:
            key = hash_text(name) + hash_text(files_key(partition))
            yield key.encode(), statistics_datum(partition, name, together, typed=typed, record_type=PARTITION_TYPE)


def check_same_types(records: Records, held: Mapping[bytes, Datum]) -> None:
    """Raise `CorruptMetadata` for bounds of another type than those of the older record: Apache Hudi's readers fail on both.

    Apache Hudi writes bounds in the type that a column has by now. Those of a partition that it did not write since stay.
    """
    schema_json = record_schema_json(with_meta_fields=True)
    for key, datum in mapping_of(records.updates).items():
        if key in held:
            widened(held[key], (datum, schema_json))
