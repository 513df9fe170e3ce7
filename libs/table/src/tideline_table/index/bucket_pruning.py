"""Which buckets of a table with a bucket index a query can leave unread."""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tideline_table.errors import CorruptMetadata, UnsupportedTable
from tideline_table.file_group.slice import FileSlice
from tideline_table.index.bucket import BucketIndex
from tideline_table.index.hash_ring import HashRing
from tideline_table.keygen import KeyGenerator, KeyGeneratorType
from tideline_table.reader.expression import Values, demands
from tideline_table.schema.arrow import named_field
from tideline_table.schema.meta_fields import MetaField

_LOGGER = logging.getLogger(__name__)
_MOST_KEYS = 10_000
"""With more combinations of values than this, nearly all buckets are read in any case."""
_PLAIN = "x"


@dataclass(frozen=True, slots=True)
class BucketPruning:
    """What a reader needs to find the buckets of a query."""

    index: BucketIndex
    keygen: KeyGenerator
    created_types: Mapping[str, pa.DataType]
    """Types of the key columns when the table was created: texts of keys come from them."""
    cuts_alike: bool = True
    """Whether all writers cut keys alike. Hudi 0.15 has another rule for texts with `:` or `,`: in a table that Apache Hudi writes,
    nothing is left out by them."""
    has_plain_values: bool = False
    """Whether no row has a text in a key column that is cut like the pair of a hash field (see `BucketIndex.check_plain`)."""

    ring_of: Callable[[str], HashRing] | None = None
    """With consistent hashing: returns the ring of a partition at the time of the query."""
    check: Callable[[], None] | None = None
    """Of a shared table: raises `UnsupportedTable` if Apache Hudi gave partitions other numbers of buckets, which file groups need
    not show."""

    def slices_for(
        self, slices: Iterable[FileSlice], schema: pa.Schema, where: pc.Expression | None, keys: pa.Array | None
    ) -> tuple[FileSlice, ...]:
        """Return the slices that can hold rows for which `where` is true and whose record key is one of `keys` (None: any).

        All slices, with a warning, if a file group does not fit the index: then its rows may be in any file group.
        """
        given = tuple(slices)
        wanted = self._wanted(schema, where, keys)
        if wanted is None:
            return given
        partitions: dict[str, list[FileSlice]] = {}
        for file_slice in given:
            partitions.setdefault(file_slice.group.partition_path, []).append(file_slice)
        try:
            if self.check is not None:
                self.check()
            chosen = {s for name, found in partitions.items() for s in self._held(name, found, wanted)}
        except (UnsupportedTable, CorruptMetadata) as error:
            _LOGGER.warning("a query reads all buckets: %s", error)
            return given
        return tuple(s for s in given if s in chosen)

    def _held(self, partition: str, slices: Iterable[FileSlice], wanted: frozenset[int]) -> list[FileSlice]:
        """Return the slices of a partition that can hold rows with these hashes."""
        ring = self.ring_of(partition) if self.ring_of is not None else None
        index = self.index.in_partition(partition, ring)
        by_bucket = index.groups(slices)
        buckets = index.buckets_of(np.array(sorted(wanted), dtype=np.int64))
        return [held for bucket in set(buckets.tolist()) & by_bucket.keys() for held in by_bucket[bucket]]

    def _wanted(self, schema: pa.Schema, where: pc.Expression | None, keys: pa.Array | None) -> frozenset[int] | None:
        by_key = None if keys is None else self._of_texts(keys)
        known = [found for found in (by_key, self.hashes_where(where, schema)) if found is not None]
        return frozenset.intersection(*known) if known else None

    def hashes_where(self, where: pc.Expression | None, schema: pa.Schema) -> frozenset[int] | None:
        """Return the hashes (`BucketIndex.hash_codes`) of all rows for which `where` is true, None if that is not certain."""
        wanted = demands(where, schema)
        named = wanted.get(MetaField.RECORD_KEY)
        by_key = None if named is None else self._of_texts(pa.array(sorted(named), pa.string()))
        by_values = self._of_values(wanted, schema)
        if by_key is None or by_values is None:
            return by_key if by_values is None else by_values
        return by_key & by_values

    def _of_texts(self, keys: pa.Array) -> frozenset[int] | None:
        """Return the hashes of record keys that a caller chose; None if a writer of the table may have read one in another way."""
        if not self.cuts_alike:
            # Values of composite keys show whether they hold a separator once the names are taken away.
            separators = len(self.index.key_fields) if self.keygen.has_prefixed_keys else 0
            counts = pc.add(pc.count_substring(keys, ":"), pc.count_substring(keys, ","))
            if len(keys) and pc.max(counts).as_py() > max(2 * separators - 1, 0):
                return None
        return self._of_keys(keys)

    def _of_keys(self, keys: pa.Array) -> frozenset[int]:
        return frozenset(self.index.hash_codes(keys).tolist()) if len(keys) else frozenset()

    def _of_values(self, wanted: Mapping[str, Values], schema: pa.Schema) -> frozenset[int] | None:
        """Return the hashes of all combinations of values of the hash fields."""
        if self.keygen.problem or self.keygen.type is KeyGeneratorType.OTHER or not set(self.index.fields) <= wanted.keys():
            return None
        is_whole = set(self.index.key_fields) <= wanted.keys()
        named = self.index.key_fields if is_whole else self.index.fields
        if not all(keeps_text(self.created_types.get(name), named_field(schema, name).type) for name in named):
            return None
        if math.prod(len(wanted[name]) for name in named) > _MOST_KEYS:
            return None
        needs_plain = not is_whole or not self.cuts_alike
        if needs_plain and not all(_is_plain(value) for name in named for value in wanted[name]):
            return None
        if not is_whole and not self._others_are_plain(schema):
            return None
        combinations = list(itertools.product(*(wanted[name] for name in named)))
        columns = {n: pa.array([c[at] for c in combinations], named_field(schema, n).type) for at, n in enumerate(named)}
        texts = pa.repeat(pa.scalar(_PLAIN), len(combinations))
        rows = pa.table({name: columns.get(name, texts) for name in self.index.key_fields})
        if not self.keygen.has_prefixed_keys:
            # No row has an empty key; the key generator would raise.
            rows = rows.filter(pc.not_equal(rows.column(0).cast(pa.string()), ""))
        elif is_whole:
            rows = rows.filter(~_all_empty(rows))
        return self._of_keys(self.keygen.record_keys(rows).combine_chunks()) if rows.num_rows else frozenset()

    def _others_are_plain(self, schema: pa.Schema) -> bool:
        """Return whether the text of no other key column can be cut like the pair of a hash field."""
        others = [named_field(schema, name).type for name in self.index.key_fields if name not in self.index.fields]
        return self.has_plain_values or all(pa.types.is_integer(t) or pa.types.is_boolean(t) or pa.types.is_date(t) for t in others)


def keeps_text(created: pa.DataType | None, now: pa.DataType) -> bool:
    """Return whether values that were written in the type of the table's creation have the same text in the type of today."""
    is_widened = created is not None and pa.types.is_integer(created) and (pa.types.is_integer(now) or pa.types.is_string(now))
    return created == now or is_widened


def _is_plain(value: Any) -> bool:
    return not isinstance(value, str) or ("," not in value and ":" not in value)


def _all_empty(rows: pa.Table) -> pc.Expression:
    texts = [pc.field(name).cast(pa.string()) == "" for name in rows.column_names]
    found = texts[0]
    for text in texts[1:]:
        found &= text
    return found
