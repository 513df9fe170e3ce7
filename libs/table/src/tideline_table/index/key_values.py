"""The values of hash fields, cut out of the texts of record keys, and their hashes (format reference 12.1 and 12.2)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import reduce
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tideline_table.index.java_hash import string_hashes
from tideline_table.index.xx_hash import text_hashes
from tideline_table.keygen import EMPTY_KEY, NULL_KEY

Texts: TypeAlias = pa.ChunkedArray | pa.Array


def list_hashes(keys: Texts, fields: Sequence[str], key_fields: Sequence[str]) -> np.ndarray:
    """Return `List.hashCode` of the hash values of each key: 31 + the value's hash for one value, and so on for more."""
    column = keys.combine_chunks() if isinstance(keys, pa.ChunkedArray) else keys
    column = pa.concat_arrays(column.chunks) if isinstance(column, pa.ChunkedArray) else column
    hashes = string_hashes(column) + np.uint32(31)
    composite = np.flatnonzero(np.asarray(pc.and_(pc.match_substring(column, ","), pc.match_substring(column, ":"))).astype(bool))
    if len(composite):
        hashes[composite] = _composite_hashes(column.take(pa.array(composite)), fields, key_fields)
    return _positive(hashes)


def joined_hashes(keys: Texts, fields: Sequence[str]) -> np.ndarray:
    """Return xxHash of the hash values of each key as one text, without separator. A null value reads `null`, as in Java."""
    composite = pc.and_(pc.match_substring(keys, ","), pc.match_substring(keys, ":"))
    if pc.any(composite).as_py():
        texts = keys.to_pylist()
        for row in np.flatnonzero(np.asarray(composite)).tolist():
            texts[row] = "".join("null" if v is None else v for v in hash_values(texts[row], fields))
        keys = pa.array(texts, pa.string())
    return _positive(text_hashes(keys))


def _composite_hashes(keys: pa.Array, fields: Sequence[str], key_fields: Sequence[str]) -> np.ndarray:
    hashes = np.ones(len(keys), dtype=np.uint32)
    # The usual keys, whose values hold no separator, need no walk.
    plain = "^" + ",".join(f"{re.escape(name)}:(?P<v{at}>[^:,]*)" for at, name in enumerate(key_fields)) + "$"
    parts = pc.extract_regex(keys, pattern=plain)
    for at, name in enumerate(key_fields):
        if name in fields:
            value = parts.field(f"v{at}")
            # `hashCode` of an empty string and of null is 0.
            none = pc.is_in(value, value_set=pa.array([NULL_KEY, EMPTY_KEY]))
            hashes = hashes * np.uint32(31) + np.where(np.asarray(none), np.uint32(0), string_hashes(value))
    for row in np.flatnonzero(~np.asarray(pc.is_valid(parts))).tolist():
        hashes[row] = _list_hash(hash_values(keys[row].as_py(), fields))
    return hashes


def hash_values(key: str, fields: Sequence[str]) -> list[str | None]:
    """Return the values of the hash `fields` in the text of a record key, as Apache Hudi 1.2 cuts them out.

    A key without ',' or without ':' is one value. Otherwise it is read as `name:value` pairs: a value may hold ':' and ',', and
    ends at the last ',' before the ':' of the next name. The text decides, not the key generator: a value that looks like a
    pair is one.
    """
    if "," not in key or ":" not in key:
        return [key]
    values: list[str | None] = []
    start = 0
    while start < len(key):
        colon = key.index(":", start)
        name, end = key[start:colon], _value_end(key, colon)
        if name in fields:
            value = key[colon + 1 : end]
            values.append(None if value == NULL_KEY else "" if value == EMPTY_KEY else value)
        start = end + 1
    return values or [key]


def _value_end(key: str, colon: int) -> int:
    """Return the end of the value after `colon`: the ',' before the next name, or the end of the key."""
    following = key.find(":", colon + 1)
    while following >= 0:
        comma = key.rfind(",", colon, following)
        if comma >= 0:
            return comma
        following = key.find(":", following + 1)
    return len(key)


def _list_hash(values: Sequence[str | None]) -> np.uint32:
    hashes = (int(own) for own in string_hashes(pa.array(values, pa.string())))
    return np.uint32(reduce(_java_step, hashes, 1))


def _java_step(total: int, own: int) -> int:
    return (31 * total + own) % 2**32


def _positive(hashes: np.ndarray) -> np.ndarray:
    return (hashes & np.uint32(0x7FFFFFFF)).astype(np.int64)
