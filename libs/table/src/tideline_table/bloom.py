"""Apache Hudi's Bloom filters (format reference 8.3), byte-compatible, computed on columns of keys."""

from __future__ import annotations

import enum
import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tideline_table.errors import CorruptMetadata
from tideline_table.text_words import text_rows

_HEAD = struct.Struct(">iibi")
_ROWS = struct.Struct(">iii")
_VERSION = -1
_MURMUR = 1
_MOST_HASHES = 64
_MOST_ROWS = 4096
_MULTIPLIER = np.uint32(0x5BD1E995)
_WORK_KEYS = 32_768
_WORK_BYTES = 1024 * 1024
"""Keys are hashed in batches of at most `_WORK_KEYS` keys and about `_WORK_BYTES` of key text, which stay in the processor's
cache."""

_KEPT_HASHES = 8
"""As many hashes of each key are kept, because one look-up asks many filters: these reject nearly all keys that a filter lacks."""


_SHARE_OF_HASHES = 0.53
"""Hashes of a filter of base files, compared with those of the smallest filter with its false positives."""


class BloomType(enum.StrEnum):
    """Apache Hudi's names of the two serialized forms."""

    SIMPLE = "SIMPLE"
    DYNAMIC_V0 = "DYNAMIC_V0"


@dataclass(frozen=True, slots=True)
class _Batch:
    """Some keys, longest first: their numbers, lengths in bytes, mixed words (a row per position) and last 0 to 3 bytes."""

    chosen: np.ndarray
    lengths: np.ndarray
    words: list[np.ndarray]
    tail: np.ndarray

    def each_hash(self, count: int) -> Iterator[np.ndarray]:
        """Yield `count` absolute hashes of each key, one array per hash function, which the next step overwrites."""
        lengths = self.lengths.astype(np.uint32)
        tailed = np.flatnonzero(self.lengths % 4)
        every = len(tailed) == len(self.chosen)
        h, shifted, found = np.zeros_like(lengths), np.empty_like(lengths), np.empty_like(lengths)
        for _ in range(count):
            # Each function begins with the hash before.
            np.bitwise_xor(h, lengths, out=h)
            for word in self.words:
                part = h[: len(word)]
                np.multiply(part, _MULTIPLIER, out=part)
                np.bitwise_xor(part, word, out=part)
            if every:
                np.bitwise_xor(h, self.tail, out=h)
                np.multiply(h, _MULTIPLIER, out=h)
            elif len(tailed):
                h[tailed] = (h[tailed] ^ self.tail[tailed]) * _MULTIPLIER
            np.right_shift(h, np.uint32(13), out=shifted)
            np.bitwise_xor(h, shifted, out=h)
            np.multiply(h, _MULTIPLIER, out=h)
            np.right_shift(h, np.uint32(15), out=shifted)
            np.bitwise_xor(h, shifted, out=h)
            np.abs(h.view(np.int32), out=found.view(np.int32))
            yield found

    def hashes(self, count: int) -> np.ndarray:
        """Return `count` absolute hashes of each key, one row per hash function."""
        found = np.empty((count, len(self.chosen)), dtype=np.uint32)
        for number, hashes in enumerate(self.each_hash(count)):
            found[number] = hashes
        return found


class KeyBytes:
    """The UTF-8 bytes of many keys, prepared for hashing: sorted by length, as little-endian words that are already mixed."""

    def __init__(self, keys: pa.ChunkedArray | pa.Array) -> None:
        whole = pa.concat_arrays([pa.array([], keys.type), *keys.chunks]) if isinstance(keys, pa.ChunkedArray) else keys
        self._keys: pa.Array = whole
        self.count = len(keys)

    @cached_property
    def _batches(self) -> list[_Batch]:
        return list(self._prepared())

    def _prepared(self) -> Iterator[_Batch]:
        texts = self._keys.cast(pa.large_binary())
        lengths = np.asarray(pc.binary_length(texts)).astype(np.int64)
        order = _longest_first(lengths)
        at = 0
        while at < len(order):
            rows = min(_WORK_KEYS, max(1, _WORK_BYTES // (int(lengths[order[at]]) + 8)))
            chosen = order[at : at + rows]
            at += rows
            words, tail = _mixed_words(texts.take(pa.array(chosen)), lengths[chosen])
            yield _Batch(chosen, lengths[chosen], words, tail)

    def positions(self, hashes: int, bits: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield, per batch, the key numbers and their bit positions (one row per hash function) in a filter of `bits` bits."""
        for batch in self._batches:
            yield batch.chosen, _modulo(batch.hashes(hashes), bits)

    def mark(self, mask: np.ndarray, hashes: int, bits: int) -> None:
        """Set the elements of `mask` at the positions of the keys in a filter of `bits` bits."""
        # Most keys are added to one filter only, so what was prepared for it is not kept.
        for batch in self._prepared():
            # One function at a time, in arrays that stay in the processor's cache.
            wholes = np.empty(len(batch.chosen), dtype=np.uint32)
            places = np.empty(len(batch.chosen), dtype=np.intp)
            for found in batch.each_hash(hashes):
                np.floor_divide(found, np.uint32(bits), out=wholes)
                np.multiply(wholes, np.uint32(bits), out=wholes)
                np.subtract(found, wholes, out=places)
                mask[places] = True

    @cached_property
    def first_hashes(self) -> np.ndarray:
        """The first `_KEPT_HASHES` absolute hashes of each key, one row per hash function."""
        found = np.empty((_KEPT_HASHES, self.count), dtype=np.uint32)
        for batch in self._batches:
            found[:, batch.chosen] = batch.hashes(_KEPT_HASHES)
        return found

    def later_hashes(self, chosen: np.ndarray, hashes: int) -> np.ndarray:
        """Return the hashes of these keys after the first ones, up to `hashes` of them, one row per hash function."""
        found = np.empty((hashes - _KEPT_HASHES, len(chosen)), dtype=np.uint32)
        for batch in KeyBytes(self._keys.take(pa.array(chosen)))._batches:  # noqa: SLF001 - of the same class
            found[:, batch.chosen] = batch.hashes(hashes)[_KEPT_HASHES:]
        return found


def _modulo(hashes: np.ndarray, bits: int) -> np.ndarray:
    """Return `hashes` modulo `bits` as indexes. By division: numpy vectorises that, and not the remainder."""
    wholes = hashes // np.uint32(bits)
    np.multiply(wholes, np.uint32(bits), out=wholes)
    found: np.ndarray = (hashes - wholes).astype(np.intp)
    return found


def _mixed_words(texts: pa.Array, lengths: np.ndarray) -> tuple[list[np.ndarray], np.ndarray]:
    """Return words mixed without a seed (a row per position) and the hash input of the last 0 to 3 bytes. Longest keys first."""
    _, offsets, content = texts.buffers()
    ends = np.frombuffer(offsets, dtype=np.int64, count=len(texts) + 1, offset=8 * texts.offset)[1:]
    content = content if content is not None else pa.py_buffer(b"")
    whole, left = lengths // 4, lengths % 4
    words: list[np.ndarray] = []
    if whole[0]:
        by_text = text_rows(texts, 4 * (int(whole[0]) + 1)).view("<u4")
        for place in range(int(whole[0])):
            there = int(np.searchsorted(-whole, -place, side="left"))
            word = by_text[:there, place] * _MULTIPLIER
            word ^= word >> np.uint32(24)
            word *= _MULTIPLIER
            words.append(word)
    octets = np.frombuffer(content, dtype=np.uint8) if content.size else np.zeros(0, dtype=np.uint8)
    tail = np.zeros(len(texts), dtype=np.uint32)
    for back in (1, 2, 3):
        # Java's bytes are signed: each byte is sign-extended before it is shifted.
        has = np.flatnonzero(left >= back)
        signed = octets[ends[has] - back].view(np.int8).astype(np.int32).view(np.uint32)
        tail[has] ^= signed << np.uint32(8 * (back - 1))
    return words, tail


def _longest_first(lengths: np.ndarray) -> np.ndarray:
    """Return the numbers of the keys by descending length; keys of the same length stay in their order."""
    longest = int(lengths.max(initial=0))
    shorter_by = longest - lengths
    # NumPy sorts numbers of 16 bits by counting.
    return np.argsort(shorter_by.astype(np.uint16) if longest < 1 << 16 else shorter_by, kind="stable")


@dataclass(frozen=True, slots=True)
class BloomFilter:
    """A filter of one row (Hudi's SIMPLE) or several equal-sized rows (DYNAMIC_V0). A key may be in it if any row matches."""

    hashes: int
    bits: int
    rows: tuple[bytes, ...]

    @classmethod
    def sized(cls, capacity: int, false_positives: float) -> BloomFilter:
        """Return an empty filter for `capacity` keys with the false positive rate `false_positives`."""
        bits = math.ceil(max(capacity, 1) * -math.log(false_positives) / math.log(2) ** 2)
        return cls(math.ceil(math.log(2) * bits / max(capacity, 1)), bits, (bytes((bits + 7) // 8),))

    @classmethod
    def bounded(cls, keys: int, most_keys: int, false_positives: float) -> BloomFilter:
        """Return an empty filter for `keys` keys with the rate `false_positives`, by about half of the hashes of `sized`.

        It is a sixth larger than that for it, and takes half the time to fill. It is never made for more than `most_keys`: with
        more keys, its hashes are as many as are best for its size.
        """
        capacity = max(1, min(keys, most_keys))
        hashes = max(1, math.ceil(math.log2(1 / false_positives) * _SHARE_OF_HASHES))
        bits = math.ceil(-hashes * capacity / math.log1p(-(false_positives ** (1 / hashes))))
        if keys > most_keys:
            hashes = max(1, min(hashes, round(math.log(2) * bits / keys)))
        return cls(hashes, bits, (bytes((bits + 7) // 8),))

    def has_size_of(self, other: BloomFilter) -> bool:
        """Return whether both filters have as many hashes, bits and rows, so that filters of the same keys are equal."""
        return (self.hashes, self.bits, len(self.rows)) == (other.hashes, other.bits, len(other.rows))

    def with_keys(self, keys: KeyBytes) -> BloomFilter:
        """Return this filter with `keys` added to its last row."""
        mask = np.zeros(len(self.rows[-1]) * 8, dtype=bool)
        keys.mark(mask, self.hashes, self.bits)
        octets = np.packbits(mask, bitorder="little") | np.frombuffer(self.rows[-1], dtype=np.uint8)
        return BloomFilter(self.hashes, self.bits, (*self.rows[:-1], octets.tobytes()))

    def may_hold(self, keys: KeyBytes) -> np.ndarray:
        """Return True for each key that may be in the filter. It is never False for a key that was added."""
        found = np.zeros(keys.count, dtype=bool)
        found[self.held(keys, np.arange(keys.count))] = True
        return found

    def held(self, keys: KeyBytes, among: np.ndarray) -> np.ndarray:
        """Return which of the keys with the numbers `among` may be in the filter, in this order."""
        found = [self._held_by(np.frombuffer(row, dtype=np.uint8), keys, among) for row in self.rows]
        return found[0] if len(found) == 1 else among[np.isin(among, np.concatenate(found))]

    def _held_by(self, row: np.ndarray, keys: KeyBytes, among: np.ndarray) -> np.ndarray:
        left = among
        for hashes in keys.first_hashes[: self.hashes]:
            # Half of the keys that are not in a full filter fail at each function.
            left = left[_set(row, _modulo(hashes[left], self.bits))]
        if self.hashes <= _KEPT_HASHES or not len(left):
            return left
        later = _modulo(keys.later_hashes(left, self.hashes), self.bits)
        return left[_set(row, later).all(axis=0)]

    def to_bytes(self) -> bytes:
        """Serialize a filter of one row in Hudi's SIMPLE form."""
        (row,) = self.rows
        return self._header + row

    def to_dynamic_bytes(self, capacity: int, keys: int) -> bytes:
        """Serialize in Hudi's DYNAMIC_V0 form: rows for `capacity` keys each, with `keys` keys in the last one."""
        rows = b"".join(self._header + row for row in self.rows)
        return self._header + _ROWS.pack(capacity, keys, len(self.rows)) + rows

    @property
    def _header(self) -> bytes:
        return _HEAD.pack(_VERSION, self.hashes, _MURMUR, self.bits)

    @classmethod
    def from_bytes(cls, content: bytes, *, is_dynamic: bool = False) -> BloomFilter:
        """Parse a SIMPLE filter, or with `is_dynamic` a DYNAMIC_V0 one. Raises `CorruptMetadata` for invalid or truncated bytes."""
        count, end = 1, 0
        if is_dynamic:
            end = _HEAD.size + _ROWS.size
            if len(content) < end:
                raise _broken(f"{len(content)} bytes")
            count = _ROWS.unpack_from(content, _HEAD.size)[2]
            if not 1 <= count <= _MOST_ROWS:
                raise _broken(f"{count} rows")
        rows: list[BloomFilter] = []
        for _ in range(count):
            row, end = _simple(content, end)
            rows.append(row)
        if end != len(content) or len({(r.hashes, r.bits) for r in rows}) != 1:
            raise _broken(f"{len(content)} bytes, and its header says {end}")
        return cls(rows[0].hashes, rows[0].bits, tuple(r.rows[0] for r in rows))


def _set(row: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """Return whether the bits at `positions` are set."""
    found: np.ndarray = (row[positions >> 3] >> (positions & 7).astype(np.uint8) & np.uint8(1)).astype(bool)
    return found


def _simple(content: bytes, start: int) -> tuple[BloomFilter, int]:
    if len(content) < start + _HEAD.size:
        raise _broken(f"{len(content)} bytes")
    version, hashes, kind, bits = _HEAD.unpack_from(content, start)
    end = start + _HEAD.size + (bits + 7) // 8
    if version != _VERSION or kind != _MURMUR or not 1 <= hashes <= _MOST_HASHES or bits < 1 or end > len(content):
        raise _broken(f"version {version} with {hashes} hashes of kind {kind} over {bits} bits")
    return BloomFilter(hashes, bits, (content[start + _HEAD.size : end],)), end


def _broken(found: str) -> CorruptMetadata:
    return CorruptMetadata(f"a Bloom filter of {found}", expected="a complete Bloom filter of Apache Hudi with Murmur hashes")
