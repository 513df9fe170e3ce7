"""Apache Hudi's Bloom filters (format reference 8.3), byte-compatible, computed on columns of keys."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tideline_table.errors import CorruptMetadata

_HEAD = struct.Struct(">iibi")
_ROWS = struct.Struct(">iii")
_VERSION = -1
_MURMUR = 1
_MOST_HASHES = 64
_MOST_ROWS = 4096
_MULTIPLIER = np.uint32(0x5BD1E995)
_WORK_BYTES = 4 * 1024 * 1024
"""Keys are hashed in batches of about this many bytes of working memory."""

_KEPT_KEYS = 262_144
"""Hashes of at most this many keys are cached, because one look-up checks many filters."""


class KeyBytes:
    """The UTF-8 bytes of many keys, prepared for hashing: sorted by length, as little-endian words that are already mixed."""

    def __init__(self, keys: pa.ChunkedArray | pa.Array) -> None:
        texts = pa.chunked_array([keys]) if isinstance(keys, pa.Array) else keys
        self.count = len(texts)
        self._batches: list[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]] = []
        self._known: dict[int, np.ndarray] = {}
        first = 0
        for chunk in texts.chunks:
            self._add(chunk.cast(pa.binary()), first)
            first += len(chunk)

    def _add(self, texts: pa.BinaryArray, first: int) -> None:
        if not len(texts):
            return
        lengths = np.asarray(pc.binary_length(texts)).astype(np.int64)
        order = np.argsort(lengths, kind="stable")[::-1]
        _, offsets, content = texts.buffers()
        begins = np.frombuffer(offsets, dtype=np.int32)[texts.offset : texts.offset + len(texts)].astype(np.int64)
        octets = np.frombuffer(content, dtype=np.uint8) if content is not None and content.size else np.zeros(0, dtype=np.uint8)
        at = 0
        while at < len(order):
            rows = max(1, _WORK_BYTES // (int(lengths[order[at]]) + 8))
            chosen = order[at : at + rows]
            at += rows
            words, tail = _mixed_words(octets, begins[chosen], lengths[chosen])
            self._batches.append((chosen + first, lengths[chosen], words, tail))

    def positions(self, hashes: int, bits: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield, per batch, the key numbers and their bit positions (one row per hash function) in a filter of `bits` bits."""
        for number, (chosen, *_) in enumerate(self._batches):
            yield chosen, self._hashes_of(number, hashes) % np.int64(bits)

    def _hashes_of(self, batch: int, hashes: int) -> np.ndarray:
        known = self._known.get(batch)
        if known is not None and len(known) >= hashes:
            return known[:hashes]
        chosen, lengths, words, tail = self._batches[batch]
        found = np.empty((hashes, len(chosen)), dtype=np.int64)
        seed = np.zeros(len(chosen), dtype=np.uint32)
        for number in range(hashes):
            seed = _murmur(lengths, words, tail, seed)
            found[number] = np.abs(seed.view(np.int32).astype(np.int64))
        if self.count <= _KEPT_KEYS:
            self._known[batch] = found
        return found


def _mixed_words(octets: np.ndarray, begins: np.ndarray, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return words mixed without a seed (one row per position) and the hash input of the last 0 to 3 bytes. Longest keys first."""
    whole = lengths // 4
    words = np.zeros((int(whole[0]), len(begins)), dtype=np.uint32)
    for place in range(len(words)):
        there = int(np.searchsorted(-whole, -place, side="left"))
        start = begins[:there] + 4 * place
        word = octets[start].astype(np.uint32)
        for byte in (1, 2, 3):
            word |= octets[start + byte].astype(np.uint32) << np.uint32(8 * byte)
        word *= _MULTIPLIER
        word ^= word >> np.uint32(24)
        word *= _MULTIPLIER
        words[place, :there] = word
    tail = np.zeros(len(begins), dtype=np.uint32)
    ends, left = begins + lengths, lengths % 4
    for back in (1, 2, 3):
        # Java's bytes are signed: each byte is sign-extended before it is shifted.
        has = np.flatnonzero(left >= back)
        signed = octets[ends[has] - back].view(np.int8).astype(np.int32).view(np.uint32)
        tail[has] ^= signed << np.uint32(8 * (back - 1))
    return words, tail


def _murmur(lengths: np.ndarray, words: np.ndarray, tail: np.ndarray, seed: np.ndarray) -> np.ndarray:
    h: np.ndarray = seed ^ lengths.astype(np.uint32)
    whole = lengths // 4
    for place in range(len(words)):
        there = int(np.searchsorted(-whole, -place, side="left"))
        h[:there] *= _MULTIPLIER
        h[:there] ^= words[place, :there]
    has = lengths % 4 > 0
    h = np.where(has, (h ^ tail) * _MULTIPLIER, h)
    h ^= h >> np.uint32(13)
    h *= _MULTIPLIER
    h ^= h >> np.uint32(15)
    return h


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

    def with_keys(self, keys: KeyBytes) -> BloomFilter:
        """Return this filter with `keys` added to its last row."""
        mask = np.zeros(len(self.rows[-1]) * 8, dtype=bool)
        for _, positions in keys.positions(self.hashes, self.bits):
            mask[positions.ravel()] = True
        octets = np.packbits(mask, bitorder="little") | np.frombuffer(self.rows[-1], dtype=np.uint8)
        return BloomFilter(self.hashes, self.bits, (*self.rows[:-1], octets.tobytes()))

    def may_hold(self, keys: KeyBytes) -> np.ndarray:
        """Return True for each key that may be in the filter. It is never False for a key that was added."""
        found = np.zeros(keys.count, dtype=bool)
        for chosen, positions in keys.positions(self.hashes, self.bits):
            byte, bit = positions >> 3, (positions & 7).astype(np.uint8)
            for row in self.rows:
                found[chosen] |= (np.frombuffer(row, dtype=np.uint8)[byte] >> bit & np.uint8(1)).all(axis=0)
        return found

    def to_bytes(self) -> bytes:
        """Serialize a filter of one row in Hudi's SIMPLE form."""
        (row,) = self.rows
        return _HEAD.pack(_VERSION, self.hashes, _MURMUR, self.bits) + row

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
