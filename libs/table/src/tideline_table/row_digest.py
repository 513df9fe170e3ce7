"""Order-free digests of rows: two sets of rows with equal digests hold the same rows, whatever their order.

The digest of a set is its number of rows and two sums, modulo 2^64, of 64-bit hashes of each row. Equal sets have equal digests. If
hashes behave like independent uniform numbers, two fixed sets that differ in d rows have equal digests with a probability of at
most d * 2^-64 (a changed row has the hash of the row that it replaces) plus 2^-(128 - 2v), where 2^v is the largest power of
two that divides every difference in how often a row occurs (v = 0 unless rows are doubled or dropped an even number of times,
which changes the number of rows, too). The hashes are keyed by a seed, so that rows written before the seed was known cannot be
chosen to collide. This finds mistakes; it is no proof against an author who knows the seed.

Rows are hashed column by column over Arrow's buffers, eight bytes of all values at a time.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from tideline_table.text_words import text_rows

_CHUNK = 16_384
"""Rows per step, so that intermediate arrays stay in the processor's cache."""
_BULK_BYTES = 256
"""Texts up to this length are hashed in bulk, longer ones by XXH3, one at a time."""
_MOST_PADDING = 4
_MOST_LAID_OUT_BYTES = 64 * 1024 * 1024
"""Texts are laid out in rows as long as the longest one, if that takes at most so many times their bytes and so many bytes."""
_WORD = 8
_A, _B, _C = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_NULL = np.uint64(0xD6E8FEB86659FD93)
_ALL = np.uint64(0xFFFFFFFFFFFFFFFF)


@dataclass(frozen=True, slots=True)
class RowDigest:
    """The digest of a set of rows. Digests with the same seed and columns can be added and compared."""

    rows: int = 0
    first: int = 0
    second: int = 0

    def __add__(self, other: RowDigest) -> RowDigest:
        """Return the digest of both sets together."""
        return RowDigest(self.rows + other.rows, (self.first + other.first) % 2**64, (self.second + other.second) % 2**64)

    @property
    def text(self) -> str:
        """The two sums as 32 hexadecimal digits."""
        return f"{self.first:016x}{self.second:016x}"


def seed_of(text: str) -> int:
    """Return the seed that `text` stands for, for example an instant.

    Known when the rows are checked, but not when they were written.
    """
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")


def digest_rows(rows: pa.Table | pa.RecordBatch, columns: Sequence[str], seed: int) -> RowDigest:
    """Return the digest of `rows` by these columns, in this order. Values are compared by their bytes: 0.0 and -0.0 differ."""
    first = second = 0
    for hashes in _hashed_chunks(rows, columns, seed):
        first += int(hashes.sum(dtype=np.uint64))
        second += int(_mixed(hashes ^ _C).sum(dtype=np.uint64))
    return RowDigest(rows.num_rows, first % 2**64, second % 2**64)


def row_hashes(rows: pa.Table | pa.RecordBatch, columns: Sequence[str], seed: int) -> np.ndarray:
    """Return the hash of each row by these columns, to find the rows in which two sets differ."""
    return np.concatenate([np.empty(0, dtype=np.uint64), *_hashed_chunks(rows, columns, seed)])


def _hashed_chunks(rows: pa.Table | pa.RecordBatch, columns: Sequence[str], seed: int) -> Iterator[np.ndarray]:
    table = pa.Table.from_batches([rows]) if isinstance(rows, pa.RecordBatch) else rows
    for start in range(0, table.num_rows, _CHUNK):
        part = table.slice(start, _CHUNK)
        hashes = np.full(part.num_rows, np.uint64(seed), dtype=np.uint64)
        for name in columns:
            column = part.column(name)
            values = column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)
            hashes = _mixed(hashes * _A ^ _hashes(values))
        yield hashes


def _mixed(hashes: np.ndarray) -> np.ndarray:
    """Return the finaliser of SplitMix64 of each value, a bijection; changes `hashes`."""
    hashes ^= hashes >> np.uint64(30)
    hashes *= _B
    hashes ^= hashes >> np.uint64(27)
    hashes *= _C
    hashes ^= hashes >> np.uint64(31)
    return hashes


def _hashes(values: pa.Array) -> np.ndarray:
    """Return a hash of each value, the same for all nulls."""
    kind = values.type
    if isinstance(values, pa.ExtensionArray):
        return _hashes(values.storage)
    if pa.types.is_null(kind):
        return np.full(len(values), _NULL, dtype=np.uint64)
    if pa.types.is_dictionary(kind):
        return _hashes(values.dictionary_decode())
    if pa.types.is_boolean(kind):
        hashes = _of_fixed(values.cast(pa.uint8()))
    elif pa.types.is_struct(kind):
        hashes = np.full(len(values), _A, dtype=np.uint64)
        for number in range(kind.num_fields):
            hashes = _mixed(hashes * _A ^ _hashes(values.field(number)))
    elif pa.types.is_map(kind) or pa.types.is_list(kind) or pa.types.is_large_list(kind):
        hashes = _of_lists(values)
    elif pa.types.is_fixed_size_list(kind):
        return _hashes(values.cast(pa.large_list(kind.value_field)))
    elif _has_offsets(kind):
        hashes = _of_bytes(
            values.cast(pa.large_binary()) if pa.types.is_string_view(kind) or pa.types.is_binary_view(kind) else values
        )
    else:
        hashes = _of_fixed(values)
    if values.null_count:
        hashes[np.asarray(pc.is_null(values))] = _NULL
    return hashes


def _has_offsets(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_string_view(kind)
        or pa.types.is_binary_view(kind)
    )


def _of_fixed(values: pa.Array) -> np.ndarray:
    """Return the hashes of values of a fixed width, in words of eight bytes."""
    width = values.type.bit_width // 8
    data = np.frombuffer(values.buffers()[1] or b"", dtype=np.uint8)[values.offset * width : (values.offset + len(values)) * width]
    words = -(-width // _WORD)
    if words * _WORD == width:
        table = data.view(np.uint64) if data.ctypes.data % _WORD == 0 else np.frombuffer(data.tobytes(), dtype=np.uint64)
        columns = table.reshape(len(values), words)
    else:
        padded = np.zeros((len(values), words * _WORD), dtype=np.uint8)
        padded[:, :width] = data.reshape(len(values), width)
        columns = padded.view(np.uint64)
    hashes = np.full(len(values), np.uint64(width), dtype=np.uint64)
    for number in range(words):
        hashes = _mixed(hashes * _A ^ columns[:, number])
    return hashes


def _of_bytes(values: pa.Array) -> np.ndarray:
    """Return the hashes of texts of any length; their lengths count, so that zero bytes at the end do."""
    count = len(values)
    _, offsets_buffer, data = values.buffers()
    if not count or offsets_buffer is None:
        return np.zeros(count, dtype=np.uint64)
    width = 8 if pa.types.is_large_string(values.type) or pa.types.is_large_binary(values.type) else 4
    # Converted here, because a cast by Arrow would also convert the offsets before a slice.
    stored = np.frombuffer(offsets_buffer, dtype=f"<i{width}", count=count + 1, offset=values.offset * width)
    offsets = stored.astype(np.int64)
    lengths = np.diff(offsets)
    hashes = _mixed(lengths.astype(np.uint64) + _B)
    size, longest = int(offsets[-1] - offsets[0]), int(lengths.max())
    if not size or data is None:
        return hashes
    row_bytes = -(-longest // _WORD) * _WORD
    if longest <= _BULK_BYTES and row_bytes * count <= min(_MOST_PADDING * size, _MOST_LAID_OUT_BYTES):
        return _with_words(hashes, text_rows(values, row_bytes).view("<u8"), lengths)
    return _with_gathered_words(hashes, offsets, data)


def _with_words(hashes: np.ndarray, words: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return `hashes` continued by the words of texts, a row for each text; changes `hashes`."""
    shortest = int(lengths.min())
    for number in range(words.shape[1]):
        if shortest > number * _WORD:
            hashes *= _A
            hashes ^= words[:, number]
            _mixed(hashes)
        else:
            rows = np.flatnonzero(lengths > number * _WORD)
            hashes[rows] = _mixed(hashes[rows] * _A ^ words[rows, number])
    return hashes


def _with_gathered_words(hashes: np.ndarray, offsets: np.ndarray, data: pa.Buffer) -> np.ndarray:
    """Return what `_with_words` returns, for texts of which a few are much longer than the others."""
    starts, lengths, size = offsets[:-1] - offsets[0], np.diff(offsets), int(offsets[-1] - offsets[0])
    # A word is read beyond the end of its text, and of the last text beyond the data.
    padded = np.zeros(size + _WORD, dtype=np.uint8)
    padded[:size] = np.frombuffer(data, dtype=np.uint8, count=size, offset=int(offsets[0]))
    words = np.ndarray((size + 1,), dtype="<u8", buffer=padded, strides=(1,))
    longest = int(lengths.max())
    for at in range(0, min(longest, _BULK_BYTES), _WORD):
        rows = np.flatnonzero((lengths > at) & (lengths <= _BULK_BYTES))
        left = np.minimum(lengths[rows] - at, _WORD).astype(np.uint64)
        word = words[starts[rows] + at] & (_ALL >> (np.uint64(64) - left * np.uint64(8)))
        hashes[rows] = _mixed(hashes[rows] * _A ^ word)
    if longest > _BULK_BYTES:
        for row in np.flatnonzero(lengths > _BULK_BYTES):
            start = int(starts[row])
            hashes[row] ^= np.uint64(xxhash.xxh3_64_intdigest(padded[start : start + int(lengths[row])].tobytes()))
    return hashes


def _of_lists(values: pa.Array) -> np.ndarray:
    """Return the hashes of lists and maps: of their elements in order, and of their lengths."""
    offsets = np.asarray(values.offsets).astype(np.int64)
    lengths = np.diff(offsets)
    begin, end = int(offsets[0]), int(offsets[-1])
    child = pa.StructArray.from_arrays([values.keys, values.items], ["k", "v"]) if pa.types.is_map(values.type) else values.values
    elements = _hashes(child.slice(begin, end - begin))
    owner = np.repeat(np.arange(len(values)), lengths)
    place = np.arange(end - begin, dtype=np.int64) - (offsets[:-1] - begin)[owner]
    placed = _mixed(elements ^ (place.astype(np.uint64) * _A))
    hashes = _mixed(lengths.astype(np.uint64) + _C)
    np.add.at(hashes, owner, placed)
    return _mixed(hashes)
