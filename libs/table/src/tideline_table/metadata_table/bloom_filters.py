"""The partition `bloom_filters`: the Bloom filter of the record keys of each base file (format reference 15.2, 15.3, 15.5).

Apache Hudi's writers with the Bloom index and `hoodie.bloom.index.use.metadata` take the filters from here instead of opening
the footer of each file; Tideline reads footers. A filter is copied from the footer of its file, so that any process can derive
the records again.
"""

from __future__ import annotations

import io
from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import fastavro
import pyarrow as pa

from tideline_table.errors import CorruptMetadata
from tideline_table.hudi.file_names import parse_base_file_name
from tideline_table.log.body import Published
from tideline_table.log.entry import Entry
from tideline_table.log.metadata import BLOOM_FILTERS, MetadataPartition
from tideline_table.metadata_table.file_keys import file_key, files_gone
from tideline_table.metadata_table.finding import Finding, FindingKind
from tideline_table.metadata_table.layout import folder_of
from tideline_table.metadata_table.partition import Records, Source, mapping_of, unless_gone
from tideline_table.metadata_table.reading import carried_over
from tideline_table.metadata_table.records import parsed_schema, record_schema_json
from tideline_table.reader.base_file import read_filter_text

BLOOM_FILTERS_GROUPS = 4
"""File groups of the partition, as in Apache Hudi."""
_TYPE = 4
_FOOTERS_AT_ONCE = 16


class FilterRecord(NamedTuple):
    """A record of the partition: the form of a filter, the instant of the write that made its file, and the filter in Base64."""

    form: str
    instant: str
    text: bytes


class BloomFiltersPartition:
    """The partition `bloom_filters`. A base file without a usable filter has no record; log files have none."""

    name = BLOOM_FILTERS
    writes_every_delta = False

    def changed_by(self, source: Source, entry: Entry) -> Records:
        """See `PartitionKind`. Reads the footers of those base files that the entry names and this process did not write."""
        if isinstance(entry.body, Published):
            made = [stat for stat in entry.body.metadata.stats if stat.path and not stat.is_log]
            known = {stat.path: stat.keys.bloom for stat in made if stat.keys is not None}
            held = [(path, bloom) for path, bloom in known.items() if bloom is not None]
            read = _records(source, (stat.path for stat in made if stat.path not in known))
            return Records.of([*((file_key(path).encode(), _datum(path, *bloom)) for path, bloom in held), *read])
        gone = (path for path in files_gone(entry, source.state) if parse_base_file_name(path.rpartition("/")[2]) is not None)
        return Records.of(deletes=map(file_key, gone))

    def whole(self, source: Source) -> Records:
        """See `PartitionKind`. Reads the footers of all base files that were not cleaned."""
        paths = (s.path for s in source.state.every_slice() if s.base_file)
        return Records.of(_records(source, paths, source.state.under_clean()))

    def compacted(self, source: Source, part: MetadataPartition, group: int) -> pa.RecordBatch | None:
        """See `PartitionKind`: the records of the slice before, or, where it is damaged or was taken back, the whole table's."""
        return carried_over(source, part, group)

    def differences(self, source: Source, held: Mapping[bytes, bytes]) -> Iterable[Finding]:
        """See `PartitionKind`. Reads the footers of all base files."""
        paths = {file_key(s.path).encode(): s.path for s in source.state.every_slice() if s.base_file}
        wanted = mapping_of(self.whole(source).updates)
        leaving = {file_key(path).encode() for path in source.state.under_clean()}
        for key in sorted((wanted.keys() | held.keys()) - leaving):
            if wanted.get(key) == held.get(key):
                continue
            path = paths.get(key, f"{folder_of(BLOOM_FILTERS)}/{key.decode(errors='replace')}")
            if key not in held:
                yield Finding(FindingKind.NOT_LISTED, path, "its Bloom filter has no record")
            elif key not in wanted:
                yield Finding(FindingKind.LISTED_IN_VAIN, path, "a Bloom filter that no base file of the table has")
            else:
                yield Finding(FindingKind.WRONG_RECORD, path, "another Bloom filter than in the footer of the file")


def decode_filter(datum: bytes, schema_json: str = "") -> FilterRecord:
    """Return what a record says, by default in the schema of Tideline's records. Raises `CorruptMetadata` for anything else."""
    try:
        schema = parsed_schema(schema_json or record_schema_json(with_meta_fields=True))
        record = fastavro.schemaless_reader(io.BytesIO(datum), schema, None)
        assert isinstance(record, dict)
        held = record["BloomFilterMetadata"]
        return FilterRecord(str(held["type"]), str(held["timestamp"]), bytes(held["bloomFilter"]))
    except Exception as error:  # noqa: BLE001 - fastavro raises many kinds on arbitrary bytes
        raise CorruptMetadata(
            f"a record that cannot be read ({type(error).__name__}: {error})", expected="a Bloom filter"
        ) from None


def _records(source: Source, paths: Iterable[str], leaving: Collection[str] = ()) -> list[tuple[bytes, bytes]]:
    """Return the records of these base files. Those among `leaving`, which a pending clean deletes, may be gone."""
    wanted = sorted(set(paths))
    if not wanted:
        return []
    with ThreadPoolExecutor(_FOOTERS_AT_ONCE) as pool:
        found = pool.map(lambda path: unless_gone(path, leaving, lambda: read_filter_text(source.storage, path)), wanted)
        return [
            (file_key(path).encode(), _datum(path, *held)) for path, held in zip(wanted, found, strict=True) if held is not None
        ]


def _datum(path: str, form: str, text: bytes) -> bytes:
    named = parse_base_file_name(path.rpartition("/")[2])
    instant = named.instant if named is not None else ""
    held = {"type": form, "timestamp": instant, "bloomFilter": text, "isDeleted": False}
    sink = io.BytesIO()
    record = {"key": "", "type": _TYPE, "BloomFilterMetadata": held}
    fastavro.schemaless_writer(sink, parsed_schema(record_schema_json(with_meta_fields=True)), record)
    return sink.getvalue()
