"""What the footer of a base file says about its record keys: key range and Bloom filter (format reference 8.2).

Any writer of Hudi tables may have written it. A writer that trusts a wrong one misses keys and inserts them again, so range and
filter are compared with the column statistics of the record key and with each other; one that does not fit is left out, and the
file may then hold any key.
"""

from __future__ import annotations

import base64
import logging
from collections.abc import Mapping, Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from tideline_table.bloom import BloomFilter, BloomType, KeyBytes
from tideline_table.errors import CorruptMetadata
from tideline_table.schema.meta_fields import MetaField

MIN_KEY = b"hoodie_min_record_key"
MAX_KEY = b"hoodie_max_record_key"
BLOOM_FILTER = b"org.apache.hudi.bloomfilter"
BLOOM_TYPE = b"hoodie_bloom_filter_type_code"

_LOGGER = logging.getLogger(__name__)


def is_ordered_alike(low: str, high: str) -> bool:
    """Return whether the same keys lie between `low` and `high` in Java's order of text as in Python's and Arrow's.

    Java compares UTF-16 units, the others code points: the orders differ from U+D800 on.
    """
    return max(low + high, default="") < "\ud800"


def key_ends(metadata: pq.FileMetaData) -> tuple[str, str] | None:
    """Return the least and the greatest record key by the column statistics, None if there are none for a row group."""
    paths = (metadata.schema.column(i).path for i in range(metadata.num_columns))
    column = next((i for i, path in enumerate(paths) if path == MetaField.RECORD_KEY), None)
    found: list[tuple[str, str]] = []
    for group in range(metadata.num_row_groups) if column is not None else ():
        statistics = metadata.row_group(group).column(column).statistics
        if statistics is None or not statistics.has_min_max or not isinstance(statistics.min, str):
            return None
        found.append((statistics.min, statistics.max))
    return (min(low for low, _ in found), max(high for _, high in found)) if found else None


def key_range(pairs: Mapping[bytes, bytes], ends: tuple[str, str] | None, path: str) -> tuple[str, str]:
    """Return the key range, both empty without a usable one.

    `ends`: as of `key_ends`. Raises `ValueError` for bytes that are no text.
    """
    low, high = pairs.get(MIN_KEY, b"").decode(), pairs.get(MAX_KEY, b"").decode()
    if not high or not is_ordered_alike(low, high):
        return low, high
    if low > high or (ends is not None and (ends[0] < low or high < ends[1])):
        shown = f"{ends[0]!r} to {ends[1]!r} by its statistics" if ends is not None else "no order"
        _LOGGER.warning("key range of %s ignored: %r to %r, and the keys are %s", path, low, high, shown)
        return "", ""
    return low, high


def filter_text(pairs: Mapping[bytes, bytes], members: Sequence[str], path: str) -> tuple[str, bytes] | None:
    """Return the form of the Bloom filter and its text in Base64, None without a usable one. Arguments as `key_filter`."""
    if key_filter(pairs, members, path) is None:
        return None
    return footer_filter(pairs)


def footer_filter(pairs: Mapping[bytes, bytes]) -> tuple[str, bytes] | None:
    """Return the form of the Bloom filter in a footer and its text in Base64, unchecked; None without one."""
    return (pairs.get(BLOOM_TYPE, b"SIMPLE").decode(), pairs[BLOOM_FILTER]) if BLOOM_FILTER in pairs else None


def parsed_filter(pairs: Mapping[bytes, bytes]) -> tuple[BloomType, BloomFilter]:
    """Return the Bloom filter in a footer that has one. Raises `CorruptMetadata` or `ValueError` for one that cannot be read."""
    kind = BloomType(pairs.get(BLOOM_TYPE, b"SIMPLE").decode(errors="replace"))
    content = base64.b64decode(pairs[BLOOM_FILTER], validate=True)
    return kind, BloomFilter.from_bytes(content, is_dynamic=kind is BloomType.DYNAMIC_V0)


def key_filter(pairs: Mapping[bytes, bytes], members: Sequence[str], path: str) -> BloomFilter | None:
    """Return the Bloom filter, None without a usable one. `members`: keys that the file holds, as far as they are known."""
    if BLOOM_FILTER not in pairs:
        return None
    try:
        _, found = parsed_filter(pairs)
        wrong = "" if found.may_hold(KeyBytes(pa.array(members, pa.string()))).all() else "it lacks keys that the file holds"
    except (CorruptMetadata, ValueError) as error:
        found, wrong = None, str(error)
    if wrong:
        _LOGGER.warning("Bloom filter of %s ignored: %s", path, wrong)
    return None if wrong else found
