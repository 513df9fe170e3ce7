"""What a table's data says about its layout: skew over buckets, sizes, and which index, buckets and sort columns fit.

Figures come from the state and from a sample of record keys; `advise` reads, and the functions below it decide from values.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tideline_table.config import MAX_FILE_SIZE
from tideline_table.errors import ObjectNotFound, UnsupportedTable
from tideline_table.file_group.slice import FileSlice
from tideline_table.hudi.file_names import MAX_BUCKETS
from tideline_table.hudi.instant import WRITE_ACTIONS, State
from tideline_table.hudi.write_stats import CommitMetadata
from tideline_table.index.bucket import BucketIndex
from tideline_table.index.key_values import hash_values
from tideline_table.reader.base_file import FooterRange, open_checked
from tideline_table.schema.meta_fields import META_FIELDS, MetaField
from tideline_table.storage import Storage
from tideline_table.table.facade import Table

SAMPLED_SLICES = 32
SAMPLED_KEYS = 500_000
SAMPLED_COMMITS = 20
_FILL = 0.8
"""Share of the largest file size that a bucket of the largest partition should have, so that it can grow."""
_SKEWED = 1.5
"""A bucket with more rows than this times the mean is worth a warning."""
_FEW_UPDATES = 0.05
_ORDERED = 0.2
"""Below this share of files, the key range of a base file excludes most other files."""
_MOST_SUBSETS = 4


@dataclass(frozen=True, slots=True)
class HashFields:
    """How evenly the sampled keys spread over the proposed buckets if these columns decide."""

    fields: tuple[str, ...]
    distinct: int
    largest_share: float
    """Share of the sampled rows that have the most frequent value."""
    skew: float
    """Rows of the largest bucket, in multiples of the mean."""


@dataclass(frozen=True, slots=True)
class SortColumn:
    """A column and the share of the sampled files that an equality filter on it reads now, by the ranges in their footers."""

    name: str
    type: str
    files_read_share: float


@dataclass(frozen=True, slots=True)
class WritePattern:
    """The sampled commits: rows, and the share of the file groups in the partitions they wrote that each touched on average."""

    commits: int
    inserted: int
    updated: int
    touched_share: float

    @property
    def update_share(self) -> float:
        """Updates in all written rows."""
        total = self.inserted + self.updated
        return self.updated / total if total else 0.0


@dataclass(frozen=True, slots=True)
class Advice:
    """The figures and what follows from them. Shares are from 0 to 1."""

    index: str
    """The index that the table has, empty for the writer's choice."""
    partitions: int
    file_groups: int
    size_bytes: int
    median_partition_bytes: int
    largest_partition_bytes: int
    keys_sampled: int
    rows_per_bucket_skew: float | None
    """Rows of the largest bucket of a partition in multiples of its mean, over all partitions; None without a bucket index of the
    simple engine."""
    key_range_overlap: float
    """Share of the files of a partition whose key range holds the smallest key of another file; 0 for ordered keys."""
    writes: WritePattern
    proposed_index: str
    proposed_buckets: int
    hash_fields: tuple[HashFields, ...]
    """The best first."""
    sort_columns: tuple[SortColumn, ...]
    """Columns for which sorting would save most, first."""
    reasons: tuple[str, ...]


def advise(table: Table) -> Advice:
    """Return the advice for an open, refreshed table.

    Reads a sample of keys, of footers and of the newest commits; writes nothing.
    """
    slices = table.slices()
    by_partition: dict[str, list[FileSlice]] = {}
    for file_slice in slices:
        by_partition.setdefault(file_slice.group.partition_path, []).append(file_slice)
    sizes = [sum(s.total_bytes for s in members) for members in by_partition.values()] or [0]
    sample = slices[:: max(1, math.ceil(len(slices) / SAMPLED_SLICES))]
    keys = _sampled_keys(table, sample)
    index = _index_of(table)
    number = proposed_number(max(sizes), table.options[MAX_FILE_SIZE])
    spread = spread_of(keys, table.definition.keygen.key_fields, number)
    writes = _writes_of(table, by_partition)
    footers = [found for s in sample if s.base_file and (found := _footer(table.storage, s.path)) is not None]
    overlap = _overlap([_range_of(metadata, MetaField.RECORD_KEY, pa.string()) for metadata in footers])
    kind, reasons = choose(writes, overlap, number, max(sizes), spread)
    held = None if index is None else index.skew(by_partition.values())
    if held is not None and held > _SKEWED:
        reasons = (*reasons, f"the largest bucket of a partition holds {held:.1f} times the mean of its rows")
    return Advice(
        index=index.text if index is not None else "",
        partitions=len(by_partition),
        file_groups=len(slices),
        size_bytes=sum(sizes),
        median_partition_bytes=int(median(sizes)),
        largest_partition_bytes=max(sizes),
        keys_sampled=len(keys),
        rows_per_bucket_skew=held,
        key_range_overlap=overlap,
        writes=writes,
        proposed_index=kind,
        proposed_buckets=number,
        hash_fields=spread,
        sort_columns=_sort_columns(table, footers),
        reasons=reasons,
    )


def proposed_number(largest_partition_bytes: int, max_file_bytes: int) -> int:
    """Return the number of buckets with which the largest partition fills its files to `_FILL`: a power of two."""
    needed = max(1, math.ceil(largest_partition_bytes / (_FILL * max_file_bytes)))
    return min(1 << math.ceil(math.log2(needed)), MAX_BUCKETS)


def spread_of(keys: pa.Array, key_fields: Sequence[str], number: int) -> tuple[HashFields, ...]:
    """Return how the keys spread over `number` buckets by each choice of hash fields, the most even first."""
    if not len(keys) or not key_fields:
        return ()
    count = len(key_fields)
    sizes = range(count, 0, -1) if count <= _MOST_SUBSETS else (count, 1)
    found = []
    for fields in itertools.chain.from_iterable(itertools.combinations(key_fields, size) for size in sizes):
        index = BucketIndex(number, fields, tuple(key_fields))
        values = keys if count == 1 else pa.array(["\x1f".join(v or "" for v in hash_values(k, fields)) for k in keys.to_pylist()])
        counts = pc.value_counts(values).field("counts")
        rows = np.bincount(index.buckets(keys), minlength=number)
        found.append(
            HashFields(fields, len(counts), pc.max(counts).as_py() / len(keys), float(rows.max() / max(rows.mean(), 1e-9)))
        )
    return tuple(sorted(found, key=lambda f: (round(f.skew, 1), round(f.largest_share, 3), -len(f.fields))))


def choose(
    writes: WritePattern, overlap: float, number: int, largest_bytes: int, spread: Sequence[HashFields]
) -> tuple[str, tuple[str, ...]]:
    """Return the index that fits (`hoodie.index.type`), and the reasons with their figures."""
    reasons = [
        f"{number} bucket(s) fill the largest partition of {largest_bytes} bytes to files of the largest size at {_FILL:.0%}"
    ]
    if spread and spread[0].skew > _SKEWED:
        reasons.append(
            f"the best hash fields ({', '.join(spread[0].fields)}) leave a bucket with {spread[0].skew:.1f} times the mean: a "
            f"value holds {spread[0].largest_share:.1%} of the rows, or {spread[0].distinct} values are few for {number} buckets; "
            "add a column with many values to the key (salting)"
        )
    if writes.commits and writes.update_share < _FEW_UPDATES:
        return "SIMPLE", (*reasons, f"{writes.update_share:.1%} of the written rows update others, so that look-ups are rare")
    if overlap < _ORDERED:
        return "BLOOM", (*reasons, f"key ranges of base files exclude all but {overlap:.0%} of the files: footers find a key")
    if number == 1:
        return "SIMPLE", (*reasons, "a partition is one file: any look-up reads it")
    if spread and spread[0].skew > 2 * _SKEWED:
        return "SIMPLE", (*reasons, "buckets would be too uneven")
    touched = f", and a commit touches {writes.touched_share:.0%} of the file groups of its partitions" if writes.commits else ""
    return "BUCKET", (
        *reasons,
        f"a key can be in {overlap:.0%} of the files by their ranges{touched}: a bucket is found without reading",
    )


def _index_of(table: Table) -> BucketIndex | None:
    try:
        return table.definition.buckets
    except UnsupportedTable:
        return None


def _sampled_keys(table: Table, sample: Sequence[FileSlice]) -> pa.Array:
    if not table.definition.has_meta_fields:
        return pa.array([], pa.string())
    each = max(1, SAMPLED_KEYS // max(1, len(sample)))
    found, pieces = table.snapshot(), []
    for file_slice in sample:
        left = each
        for batch in replace(found, slices=(file_slice,), buckets=None).scan([MetaField.RECORD_KEY]):
            pieces.append(batch.column(0).slice(0, left))
            left -= len(pieces[-1])
            if left <= 0:
                break
    return pa.concat_arrays(pieces) if pieces else pa.array([], pa.string())


def _writes_of(table: Table, by_partition: Mapping[str, Sequence[FileSlice]]) -> WritePattern:
    newest = [a for a in table.state.completed_writes() if a.action in WRITE_ACTIONS and not a.is_clustering][-SAMPLED_COMMITS:]
    inserted = updated = 0
    shares = []
    for record in newest:
        path = table.timeline.format.timeline_path(record.at(State.COMPLETED), record.completion)
        try:
            metadata: CommitMetadata = CommitMetadata.from_bytes(table.storage.read(path), path)
        except ObjectNotFound:
            continue  # archived meanwhile
        inserted += sum(s.num_inserts for s in metadata.stats)
        updated += sum(s.num_updates for s in metadata.stats)
        held = sum(len(by_partition.get(p, ())) for p in {s.partition_path for s in metadata.stats})
        if held:
            shares.append(min(1.0, len({s.file_id for s in metadata.stats}) / held))
    return WritePattern(len(newest), inserted, updated, sum(shares) / len(shares) if shares else 0.0)


def _footer(storage: Storage, path: str) -> pq.FileMetaData | None:
    try:
        with open_checked(storage, path) as source:
            return pq.read_metadata(source)
    except ObjectNotFound:
        return None


def _range_of(metadata: pq.FileMetaData, name: str, kind: pa.DataType) -> tuple[object, object] | None:
    """Return minimum and maximum of a column of type `kind` of a file, None if row groups lack them or they do not compare."""
    names = [metadata.schema.column(at).path for at in range(metadata.num_columns)]
    if name not in names:
        return None
    found: list[tuple[Any, Any]] = []
    for group in range(metadata.num_row_groups):
        statistics = metadata.row_group(group).column(names.index(name)).statistics
        if statistics is None or not statistics.has_min_max:
            return None
        try:
            found.append((statistics.min, statistics.max))
        except OverflowError:  # a time that Python cannot hold, from the year 10000 on
            return None
    if not found:
        return None
    stored = metadata.schema.to_arrow_schema().field(name).type
    whole = FooterRange(stored, min(low for low, _ in found), max(high for _, high in found), -1).comparable(kind)
    return (whole.minimum, whole.maximum) if whole is not None else None


def _overlap(ranges: Sequence[tuple[object, object] | None]) -> float:
    """Return the mean share of other files whose range holds the minimum of a file; 1 where ranges are unknown."""
    known = [r for r in ranges if r is not None]
    if len(known) < 2:
        return 1.0 if len(ranges) > 1 else 0.0
    pairs = itertools.product(enumerate(known), repeat=2)
    hits = [n for (at, (low, _)), (n, (first, last)) in pairs if n != at and first <= low <= last]  # type: ignore[operator]
    # Of two files whose ranges meet, one holds the minimum of the other.
    return min(1.0, 2 * len(hits) / (len(known) * (len(known) - 1)))


def _sort_columns(table: Table, footers: Sequence[pq.FileMetaData]) -> tuple[SortColumn, ...]:
    found = []
    for field in table.schema if table.schema_json else ():
        # Java's writers give wrong ranges for floating-point columns with NaN.
        is_usable = (
            not pa.types.is_nested(field.type) and not pa.types.is_floating(field.type) and not pa.types.is_boolean(field.type)
        )
        is_fixed = field.name in META_FIELDS or field.name in table.definition.keygen.partition_fields
        ranges = [_range_of(metadata, field.name, field.type) for metadata in footers]
        # One range says nothing: of a number that became a text, those of older files do not compare with those of newer ones.
        known = [r for r in ranges if r is not None]
        if is_usable and not is_fixed and len(known) > 1 and any(low != high for low, high in known):
            found.append(SortColumn(field.name, str(field.type), _overlap(ranges)))
    return tuple(sorted(found, key=lambda c: (-round(c.files_read_share, 2), not _is_time(c.type), c.name)))


def _is_time(kind: str) -> bool:
    return kind.startswith(("timestamp", "date"))
