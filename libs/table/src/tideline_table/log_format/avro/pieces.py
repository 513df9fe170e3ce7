"""Assemble records from columns of encoded bytes.

Records are built from left to right. Adjacent small values are put into a byte matrix, of which each row uses some bytes; long
texts stay in their buffers. At the end, Arrow joins both into records.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tideline_table.log_format.avro.cursor import Ints, Mask

Octets2D = npt.NDArray[np.uint8]
Used2D = npt.NDArray[np.bool_]


class Pieces:
    """The parts of `rows` records that were added so far."""

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._slots: list[tuple[Octets2D, Used2D | None]] = []
        self._parts: list[pa.Array] = []
        self.sizes: Ints = np.zeros(rows, np.int64)
        """Size of each record so far, in bytes."""

    def add_slots(self, octets: Octets2D, used: Used2D | None, mask: Mask = None) -> None:
        """Add the bytes of each row of `octets` that `used` marks (None: all) to the records in `mask`."""
        if mask is not None:
            used = np.repeat(mask[:, None], octets.shape[1], axis=1) if used is None else used & mask[:, None]
        self._slots.append((octets, used))
        self.sizes += octets.shape[1] if used is None else np.count_nonzero(used, axis=1)

    def add_varints(self, values: Ints, mask: Mask = None) -> None:
        """Add an int or long to the records in `mask`."""
        words = ((values << 1) ^ (values >> 63)).view(np.uint64)
        if mask is not None:
            words = words * mask
        most = int(words.max(initial=0))
        width = max(1, -(-most.bit_length() // 7))
        if width == 1:
            self.add_slots(words.astype(np.uint8)[:, None], None, mask)
            return
        octets = np.empty((self._rows, width), np.uint8)
        used = np.empty((self._rows, width), np.bool_)
        used[:, 0] = True
        for index in range(width):
            rest = words >> np.uint64(7)
            goes_on = rest != 0
            octets[:, index] = (words & np.uint64(127)).astype(np.uint8) | (goes_on.view(np.uint8) << 7)
            if index + 1 < width:
                used[:, index + 1] = goes_on
            words = rest
        self.add_slots(octets, used, mask)

    def add_texts(self, offsets: npt.NDArray[np.int32], octets: pa.Buffer | None, mask: Mask = None) -> None:
        """Add the bytes from `offsets[i]` to `offsets[i + 1]` of a buffer, without a length before them."""
        self._close_slots()
        bitmap = None if mask is None else pa.py_buffer(np.packbits(mask, bitorder="little"))
        buffers = [bitmap, pa.py_buffer(offsets), octets or pa.py_buffer(b"")]
        self._parts.append(pa.Array.from_buffers(pa.binary(), self._rows, buffers))
        sizes = np.diff(offsets)
        self.sizes += sizes if mask is None else sizes * mask

    def join(self, *, lengths: bool = False) -> pa.Array:
        """Return the records as binary values. With `lengths`, each record follows its length, a big-endian int32."""
        self._close_slots()
        if lengths:
            prefix = self.sizes.astype(">i4").view(np.uint8)
            self._parts.insert(0, _dense(self._rows, prefix, np.full(self._rows, 4)))
        if not self._parts:
            return _dense(self._rows, np.empty(0, np.uint8), np.zeros(self._rows, np.int64))
        if len(self._parts) == 1 and not self._parts[0].null_count:
            return self._parts[0]
        return pc.binary_join_element_wise(*self._parts, b"", null_handling="replace", null_replacement=b"")

    def _close_slots(self) -> None:
        if not self._slots:
            return
        octets = np.concatenate([slot for slot, _ in self._slots], axis=1)
        if all(used is None for _, used in self._slots):
            self._parts.append(_dense(self._rows, octets.reshape(-1), np.full(self._rows, octets.shape[1])))
        else:
            marks = [np.ones(slot.shape, np.bool_) if used is None else used for slot, used in self._slots]
            used = np.concatenate(marks, axis=1)
            self._parts.append(_dense(self._rows, octets[used], np.count_nonzero(used, axis=1)))
        self._slots = []


def _dense(rows: int, octets: npt.NDArray[np.uint8], sizes: npt.NDArray[np.integer]) -> pa.Array:
    offsets = np.zeros(rows + 1, np.int32)
    np.cumsum(sizes, out=offsets[1:])
    return pa.Array.from_buffers(pa.binary(), rows, [None, pa.py_buffer(offsets), pa.py_buffer(octets)])
