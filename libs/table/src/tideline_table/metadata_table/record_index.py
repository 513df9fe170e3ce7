"""The partition `record_index`: in which file group of the table each record key is (format reference 15.3, 15.5).

Its records follow from the data files that an entry names and from those before them, so that any process can derive them again.
"""

from __future__ import annotations

import functools
import io
import re
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import NamedTuple

import fastavro
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tideline_table.errors import CorruptMetadata
from tideline_table.file_group.slice import FileGroupId, FileSlice, visible_slice
from tideline_table.hudi.file_names import parse_base_file_name
from tideline_table.hudi.instant import CLUSTER, Action, time_from_instant
from tideline_table.hudi.write_stats import NO_PREVIOUS_COMMIT, CommitMetadata, WriteStat
from tideline_table.log.body import Published
from tideline_table.log.entry import Entry
from tideline_table.log.metadata import RECORD_INDEX, MetadataPartition
from tideline_table.metadata_table.finding import Finding, FindingKind
from tideline_table.metadata_table.partition import Records, Source, joined_octets, mapping_of, newest_records
from tideline_table.metadata_table.reading import carried_over
from tideline_table.metadata_table.records import parsed_schema, record_schema_json
from tideline_table.reader.base_file import read_base_file
from tideline_table.reader.file_slice import read_slice
from tideline_table.reader.log_keys import log_keys
from tideline_table.schema import arrow_from_avro
from tideline_table.schema.arrow import one_chunk
from tideline_table.schema.meta_fields import MetaField, with_meta_fields

RECORD_TYPE = 5
_FILES_AT_ONCE = 8
"""Files that a commit wrote whose keys are read at the same time."""
_BY_UUID, _BY_TEXT = 0, 1
_UUID_ID = re.compile(r"([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})-(0|[1-9][0-9]{0,8})\Z", re.ASCII)


class RecordLocation(NamedTuple):
    """Where a key is: its file group, and the instant (epoch, ms) of the write that put it there."""

    partition_path: str
    file_id: str
    instant_ms: int

    @property
    def group(self) -> FileGroupId:
        """The file group."""
        return FileGroupId(self.partition_path, self.file_id)


def location_of(group: FileGroupId, instant: str) -> RecordLocation:
    """Return the location of keys that the write `instant` put into a file group."""
    return RecordLocation(group.partition_path, group.file_id, round(time_from_instant(instant).timestamp() * 1000))


@functools.lru_cache(maxsize=65_536)
def encode_location(location: RecordLocation) -> bytes:
    """Return the Avro datum of all records with this location: the key is in the file, not in the datum."""
    named = _UUID_ID.match(location.file_id)
    info: dict[str, object] = {"partitionName": location.partition_path, "instantTime": location.instant_ms}
    if named is not None:
        bits = uuid.UUID(named.group(1)).int
        high, low = _signed(bits >> 64), _signed(bits & (2**64 - 1))
        info |= {"fileIdHighBits": high, "fileIdLowBits": low, "fileIndex": int(named.group(2)), "fileIdEncoding": _BY_UUID}
        info["fileId"] = ""
    else:
        info |= {"fileIdHighBits": -1, "fileIdLowBits": -1, "fileIndex": -1, "fileIdEncoding": _BY_TEXT}
        info["fileId"] = location.file_id
    sink = io.BytesIO()
    record = {"key": "", "type": RECORD_TYPE, "recordIndexMetadata": info}
    fastavro.schemaless_writer(sink, parsed_schema(record_schema_json(with_meta_fields=True)), record)
    return sink.getvalue()


@functools.lru_cache(maxsize=65_536)
def decode_location(datum: bytes, schema_json: str = "") -> RecordLocation:
    """Return the location in the Avro datum of a record, by default in Tideline's schema.

    Raises `CorruptMetadata` for anything else.
    """
    try:
        schema = parsed_schema(schema_json or record_schema_json(with_meta_fields=True))
        record = fastavro.schemaless_reader(io.BytesIO(datum), schema, None)
        assert isinstance(record, dict)
        info = record["recordIndexMetadata"]
        if record["type"] != RECORD_TYPE:
            raise ValueError(f"type {record['type']}")  # noqa: TRY301 - one place makes the error
        file_id = str(info["fileId"])
        if info["fileIdEncoding"] == _BY_UUID:
            bits = (info["fileIdHighBits"] % 2**64) << 64 | info["fileIdLowBits"] % 2**64
            index = info["fileIndex"]
            file_id = f"{uuid.UUID(int=bits)}-{index}" if index >= 0 else str(uuid.UUID(int=bits))
        return RecordLocation(str(info["partitionName"]), file_id, int(info["instantTime"]))
    except Exception as error:  # noqa: BLE001 - fastavro raises many kinds on arbitrary bytes
        found = f"a record of the record index that cannot be read ({type(error).__name__}: {error})"
        raise CorruptMetadata(found, expected="the location of a key") from None


def _signed(bits: int) -> int:
    return bits - 2**64 if bits >= 2**63 else bits


class RecordIndexPartition:
    """The partition `record_index`. A key of the table has one record, in one file group of the partition."""

    name = RECORD_INDEX
    writes_every_delta = False

    def changed_by(self, source: Source, entry: Entry) -> Records:
        """See `PartitionKind`. Compactions, cleans and rollbacks change nothing; a restore begins a slice with the whole table."""
        body = entry.body
        if not isinstance(body, Published) or entry.action is Action.COMPACTION or body.metadata.compacted:
            return Records()
        found = _Changes(source, entry.instant, moves_only=body.metadata.operation.upper() == CLUSTER)
        found.take_files([stat for stat in body.metadata.stats if stat.path])
        found.take_replaced(body.metadata)
        return found.records()

    def whole(self, source: Source) -> Records:
        """See `PartitionKind`. Reads the key columns of all files. If a key is in several groups, the newest counts."""
        found: list[tuple[str, FileSlice]] = []
        for file_slice in source.state.latest_slices():
            named = parse_base_file_name(file_slice.base_file)
            found.append((named.instant if named is not None else file_slice.base_instant, file_slice))
        pieces = []
        for instant, file_slice in sorted(found, key=lambda one: one[0]):
            keys = live_keys(source, file_slice)
            pieces.append((keys, _data(location_of(file_slice.group, instant), keys)))
        return Records(newest_records(pieces))

    def compacted(self, source: Source, part: MetadataPartition, group: int) -> pa.RecordBatch | None:
        """See `PartitionKind`: the records of the slice before, or, where it is damaged or was taken back, the whole table's."""
        return carried_over(source, part, group)

    def differences(self, source: Source, held: Mapping[bytes, bytes]) -> Iterable[Finding]:
        """See `PartitionKind`. The instants of records are not compared: they depend on when the index was made."""
        wanted = mapping_of(self.whole(source).updates)
        missing = sorted(wanted.keys() - held.keys())
        extra = sorted(held.keys() - wanted.keys())
        moved = sorted(k for k in wanted.keys() & held.keys() if _group_in(wanted[k]) != _group_in(held[k]))
        for kind, keys, what in (
            (FindingKind.NOT_LISTED, missing, "key(s) of the table that it lacks"),
            (FindingKind.LISTED_IN_VAIN, extra, "key(s) that no row of the table has"),
            (FindingKind.WRONG_RECORD, moved, "key(s) in another file group than it says"),
        ):
            if keys:
                yield Finding(kind, RECORD_INDEX, f"{len(keys)} {what}, the first {keys[0].decode(errors='replace')!r}")


def _group_in(datum: bytes) -> FileGroupId | str:
    try:
        return decode_location(datum).group
    except CorruptMetadata as error:
        return error.found


class _Changes:
    """Collects what one write changes."""

    def __init__(self, source: Source, instant: str, *, moves_only: bool) -> None:
        self._source = source
        self._instant = instant
        self._moves_only = moves_only
        """A clustering: rows come to new groups, and those of the old groups are among them."""
        self.updates: list[tuple[pa.Array, pa.Array]] = []
        self.deletes: list[pa.Array] = []

    def records(self) -> Records:
        """Return the records. A key that is deleted at one place and written at another is written (a move)."""
        updates = newest_records(self.updates)
        if not any(map(len, self.deletes)):
            return Records(updates)
        gone = _without(pc.unique(joined_octets(self.deletes)), updates.column("key"))
        gone = gone.take(pc.sort_indices(gone))
        return Records(updates, gone.cast(pa.large_string() if pa.types.is_large_binary(gone.type) else pa.string()))

    def take_files(self, stats: Sequence[WriteStat]) -> None:
        """Add the keys that written files add to their file groups or take from them."""

        def changed_by(stat: WriteStat) -> _Changes:
            one = _Changes(self._source, self._instant, moves_only=self._moves_only)
            one.take_file(stat)
            return one

        if all(stat.keys is not None for stat in stats):
            made = list(map(changed_by, stats))
        else:
            with ThreadPoolExecutor(_FILES_AT_ONCE, thread_name_prefix="record-index") as pool:
                made = list(pool.map(changed_by, stats))
        for found in made:
            self.updates += found.updates
            self.deletes += found.deletes

    def take_file(self, stat: WriteStat) -> None:
        """Add the keys that a written file adds to its file group or takes from it."""
        group = FileGroupId(stat.partition_path, stat.file_id)
        if self._moves_only:
            self._take_moved(group, stat)
            return
        if stat.is_log:
            self._take_log(group, stat)
            return
        if stat.keys is not None and adds_kept_keys(stat):
            self._add(group, one_chunk(stat.keys.inserted).cast(pa.binary()))
            return
        before = self._before(group)
        if before is None:
            self._add(group, _base_keys(self._source, stat.path))
        elif stat.num_deletes:
            self._compare(group, live_keys(self._source, before), _base_keys(self._source, stat.path))
        elif stat.num_inserts:
            # Rows that the write did not change keep the instant of their own write.
            written = _base_keys(self._source, stat.path, self._instant)
            self._add(group, _without(written, live_keys(self._source, before)) if stat.num_updates else written)

    def _take_moved(self, group: FileGroupId, stat: WriteStat) -> None:
        """Add the keys of an output of a clustering: of its base file, as log files carried into the group leave them."""
        made = self._source.state.slices.get(group, {}).get(self._instant)
        if made is None or not made.log_files:
            self._add(group, _base_keys(self._source, stat.path))
        elif not stat.is_log:
            self._add(group, live_keys(self._source, made))

    def _take_log(self, group: FileGroupId, stat: WriteStat) -> None:
        after = self._source.state.latest_slice(group)
        if after is None:
            return
        name = stat.path.rpartition("/")[2]
        earlier = tuple(log for log in after.log_files if log.name != name)
        # A change revives a key only if an earlier log file deleted it.
        if not (stat.num_inserts or stat.num_deletes or any(log.deletes_keys for log in earlier)) and after.base_file:
            return
        named = log_keys(self._source.storage, [stat.path])
        before = replace(after, log_files=earlier)
        held = live_keys(self._source, before, named) if before.base_file or earlier else pa.array([], pa.binary())
        self._compare(group, held, live_keys(self._source, after, named))

    def take_replaced(self, metadata: CommitMetadata) -> None:
        """Add the keys of replaced file groups as deleted, unless the write only moves rows."""
        if self._moves_only:
            return
        for partition, file_ids in (metadata.replaced or {}).items():
            for file_id in file_ids:
                last = visible_slice(self._source.state.slices.get(FileGroupId(partition, file_id), {}))
                if last is not None:
                    self.deletes.append(live_keys(self._source, last))

    def _compare(self, group: FileGroupId, held: pa.Array, now: pa.Array) -> None:
        self._add(group, _without(now, held))
        self.deletes.append(_without(held, now))

    def _add(self, group: FileGroupId, keys: pa.Array) -> None:
        self.updates.append((keys, _data(location_of(group, self._instant), keys)))

    def _before(self, group: FileGroupId) -> FileSlice | None:
        known = self._source.state.slices.get(group, {})
        return visible_slice({at: found for at, found in known.items() if at < self._instant})


def adds_kept_keys(stat: WriteStat) -> bool:
    """Return whether a written base file adds just the keys that its writer kept, whatever else the table holds."""
    keys, is_new = stat.keys, stat.prev_commit == NO_PREVIOUS_COMMIT
    return keys is not None and not stat.num_deletes and (not is_new or len(keys.inserted) == stat.num_writes)


def live_keys(source: Source, file_slice: FileSlice, wanted: pa.Array | None = None) -> pa.Array:
    """Return the keys of the rows that a query of the slice shows, as octets, only those among `wanted` if it is given."""
    if wanted is None and not file_slice.log_files:
        return _base_keys(source, file_slice.path)
    schema = with_meta_fields(arrow_from_avro(source.state.schema_json))
    rows = read_slice(source.storage, file_slice, schema, source.rule, [MetaField.RECORD_KEY], keys=wanted)
    keys = one_chunk(rows.column(0)).cast(pa.binary())
    return keys if wanted is None else keys.filter(pc.is_in(keys, value_set=one_chunk(wanted).cast(pa.binary())))


class KeysOnce:
    """Whether each key is in one file group. Of a later state only the file slices that changed are read, and compared.

    `check` sees all keys.
    """

    def __init__(self, check: Callable[[pa.Array], None]) -> None:
        self._check = check
        self._held: dict[tuple[str, ...], pa.Array] = {}
        self._compared: set[tuple[str, ...]] = set()

    def repeated(self, source: Source, slices: Iterable[FileSlice]) -> str | None:
        """Return a key that two of these slices of the table show, None if there is none."""
        shown = {one.paths: one for one in slices}
        self._held = {paths: keys for paths, keys in self._held.items() if paths in shown}
        for paths, one in shown.items():
            if paths not in self._held:
                # Together they may have more than the 2 GiB of texts that one array of the smaller type holds.
                self._held[paths] = pc.unique(live_keys(source, one)).cast(pa.large_binary())
        fresh = [keys for paths, keys in self._held.items() if paths not in self._compared]
        keys = pa.concat_arrays(fresh) if fresh else pa.array([], pa.large_binary())
        self._check(keys)
        ordered = keys.take(pc.sort_indices(keys))
        found = [ordered[1:].filter(pc.equal(ordered[1:], ordered[:-1]))]
        found += [known.filter(pc.is_in(known, value_set=keys)) for p, known in self._held.items() if p in self._compared]
        if (twice := next((some for some in found if len(some)), None)) is not None:
            return str(twice[0].as_py().decode())
        self._compared = set(self._held)
        return None


def _base_keys(source: Source, path: str, instant: str = "") -> pa.Array:
    """Return the keys in a base file, or only those of rows that the write `instant` changed or added."""
    columns = [MetaField.RECORD_KEY, *([MetaField.COMMIT_TIME] if instant else [])]
    rows = read_base_file(source.storage, path, columns)
    if instant:
        rows = rows.filter(pc.equal(rows.column(1), instant))
    return one_chunk(rows.column(0)).cast(pa.binary())


def _without(keys: pa.Array, others: pa.Array) -> pa.Array:
    if keys.type != others.type:
        keys, others = keys.cast(pa.large_binary()), others.cast(pa.large_binary())
    return keys.filter(pc.invert(pc.is_in(keys, value_set=others)))


def _data(location: RecordLocation, keys: pa.Array) -> pa.Array:
    codes = pa.array(np.zeros(len(keys), dtype=np.int32))
    return pa.DictionaryArray.from_arrays(codes, pa.array([encode_location(location)], pa.binary()))
