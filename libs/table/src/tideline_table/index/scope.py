"""The scope in which a record key is unique, by the index type of a writer.

And whether its options name the index that the table has; and hashes of keys, by which a commit detects that two writers inserted
the same one in this scope.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from tideline_table.config import (
    BLOOM_INDEX_UPDATE_PARTITION_PATH,
    BUCKET_ENGINE,
    BUCKET_HASH_FIELD,
    BUCKET_NUMBER,
    BUCKET_PARTITION_RULES,
    INDEX_TYPE,
    RECORD_INDEX_UPDATE_PARTITION_PATH,
    SIMPLE_INDEX_UPDATE_PARTITION_PATH,
    Options,
    column_list,
)
from tideline_table.errors import InvalidOption
from tideline_table.index.bucket import BUCKET, BucketIndex
from tideline_table.index.partition_rules import PartitionRules

RECORD_INDEX = "RECORD_INDEX"
"""The index type that looks keys up in the partition `record_index` of the metadata table."""
KEPT_TYPES = ("BLOOM", "GLOBAL_BLOOM", RECORD_INDEX)
"""Index types by look-up that a table can be created with. (A bucket index is kept, too: `BucketIndex`.)"""


class KeyScope(enum.Enum):
    """The scope in which a record key names one row."""

    PARTITION = "partition"
    TABLE = "table"

    @classmethod
    def of(cls, options: Options) -> KeyScope:
        """Return the scope that `hoodie.index.type` names."""
        found = options[INDEX_TYPE]
        return cls.TABLE if found.startswith("GLOBAL_") or found == RECORD_INDEX else cls.PARTITION


def moves_rows(options: Options) -> bool:
    """Return whether a row moves to its own partition if another one holds its key; otherwise it is written where the key is."""
    if asks_record_index(options):
        return options[RECORD_INDEX_UPDATE_PARTITION_PATH]
    return options[BLOOM_INDEX_UPDATE_PARTITION_PATH if asks_filters(options) else SIMPLE_INDEX_UPDATE_PARTITION_PATH]


def asks_filters(options: Options) -> bool:
    """Return whether the look-up of keys reads only files whose Bloom filters may hold one (BLOOM and GLOBAL_BLOOM)."""
    return options[INDEX_TYPE].endswith("BLOOM")


def asks_record_index(options: Options) -> bool:
    """Return whether keys are looked up in the record index."""
    return options[INDEX_TYPE] == RECORD_INDEX


def kept_type(properties: Mapping[str, str]) -> str:
    """Return which of `KEPT_TYPES` a table's properties keep, empty for none of them."""
    found = properties.get(INDEX_TYPE.key, "").upper()
    return found if found in KEPT_TYPES else ""


def with_kept_type(kept: str, options: Options) -> Options:
    """Return `options` with the index type that the table keeps, unless they name one."""
    return options.merged({INDEX_TYPE.key: kept}) if kept and INDEX_TYPE.key not in options.given() else options


def check_scope(kept: str, options: Options, *, only_deletes: bool = False) -> None:
    """Raise `InvalidOption` if `options` name another scope of keys than the index type that the table keeps.

    A writer that only deletes may look for keys in the whole table.
    """
    wanted = KeyScope.of(options.merged({INDEX_TYPE.key: kept})) if kept else KeyScope.of(options)
    if KeyScope.of(options) is wanted or (only_deletes and wanted is KeyScope.PARTITION):
        return
    raise InvalidOption(
        f"{INDEX_TYPE.key}={options[INDEX_TYPE]} for a table with the index {kept}",
        expected=f"an index in which keys are unique in each {wanted.value}, as the table was created",
        remedy="leave this option out: the table keeps it",
    )


def check_index(index: BucketIndex | None, options: Options) -> None:
    """Raise `InvalidOption` if a writer's options name another index, number of buckets or hash fields than the table has."""
    given = options.given()
    if index is None:
        if given.get(INDEX_TYPE.key) == BUCKET:
            raise InvalidOption(
                f"{INDEX_TYPE.key}={BUCKET} for a table without a bucket index",
                expected="the index that the table was created with",
                remedy="create a table with it: tideline create PATH --index bucket --buckets N",
            )
        return
    wrong = []
    if given.get(INDEX_TYPE.key, BUCKET) != BUCKET:
        wrong.append(f"{INDEX_TYPE.key}={given[INDEX_TYPE.key]}")
    if given.get(BUCKET_ENGINE.key, index.engine.value) != index.engine.value:
        wrong.append(f"{BUCKET_ENGINE.key}={given[BUCKET_ENGINE.key]}")
    if given.get(BUCKET_NUMBER.key, str(index.number)) != str(index.number):
        wrong.append(f"{BUCKET_NUMBER.key}={given[BUCKET_NUMBER.key]}")
    rules = PartitionRules.parse(given.get(BUCKET_PARTITION_RULES.key, ""))
    if rules and rules.closed(index.number) != index.rules.closed(index.number):
        wrong.append(f"{BUCKET_PARTITION_RULES.key}={given[BUCKET_PARTITION_RULES.key]}")
    if BUCKET_HASH_FIELD.key in given and set(column_list(given[BUCKET_HASH_FIELD.key])) != set(index.fields):
        wrong.append(f"{BUCKET_HASH_FIELD.key}={given[BUCKET_HASH_FIELD.key]}")
    if wrong:
        raise InvalidOption(
            f"{', '.join(wrong)} for a table with a bucket index",
            expected=f"{index.text}, as the table was created",
            remedy="leave these options out: the table keeps them",
        )


MAX_CARRIED_HASHES = 65_536
"""A log entry carries no hashes if a write inserted more keys than this; a later upsert then reads the files instead."""
_CHUNK = 16_384
"""Rows per step, so that their Python objects stay in the processor's cache."""


def key_hashes(partition_path: str | None, keys: pa.ChunkedArray | pa.Array) -> np.ndarray:
    """Return XXH3-64 of `<partition>NUL<key>` for each key, or of the key alone without a partition (keys unique in the table)."""
    hashes = np.empty(len(keys), dtype=np.uint64)
    for start in range(0, len(keys), _CHUNK):
        # Joined and encoded by Arrow, so that nothing but the hash itself runs once per key.
        texts = keys.slice(start, _CHUNK).cast(pa.binary())
        if partition_path is not None:
            texts = pc.binary_join_element_wise(pa.scalar(f"{partition_path}\x00".encode()), texts, pa.scalar(b""))
        hashes[start : start + len(texts)] = np.fromiter(
            map(xxhash.xxh3_64_intdigest, texts.to_pylist()), dtype=np.uint64, count=len(texts)
        )
    return hashes
