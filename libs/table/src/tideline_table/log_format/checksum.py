"""CRC-32C of HFile blocks (format reference 15.4)."""

from __future__ import annotations

import functools

import numpy as np

_POLYNOMIAL = np.uint32(0x82F63B78)
_INVERTED = 0xFFFFFFFF


def crc32c(content: bytes | memoryview) -> int:
    """Return the CRC-32C (Castagnoli), which Python lacks. Each round joins the remainders of adjacent pieces in pairs."""
    count = len(content)
    if not count:
        return 0
    # Leading zero bytes do not change a remainder that starts from zero, so pad the number of pieces to a power of two.
    rounds = (count - 1).bit_length()
    padded = np.zeros(1 << rounds, dtype=np.uint8)
    padded[len(padded) - count :] = np.frombuffer(content, dtype=np.uint8)
    remainders = _byte_table()[padded]
    for level in range(rounds):
        remainders = _shifted(remainders[0::2], _zeros_table(level)) ^ remainders[1::2]
    start = np.array([_INVERTED], dtype=np.uint32)
    for level in range(rounds + 1):
        if count >> level & 1:
            start = _shifted(start, _zeros_table(level))
    return int(remainders[0] ^ start[0]) ^ _INVERTED


@functools.cache
def _byte_table() -> np.ndarray:
    """Return the remainder of each single byte."""
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = (table >> np.uint32(1)) ^ np.where(table & np.uint32(1), _POLYNOMIAL, np.uint32(0))
    return table


@functools.cache
def _zeros_table(level: int) -> np.ndarray:
    """Return how 2^`level` zero bytes change a remainder: one table for each of its four bytes."""
    values = np.arange(256, dtype=np.uint32) << (np.arange(4, dtype=np.uint32) * np.uint32(8))[:, None]
    if level == 0:
        shifted: np.ndarray = _byte_table()[values & np.uint32(255)] ^ (values >> np.uint32(8))
        return shifted
    half = _zeros_table(level - 1)
    return _shifted(_shifted(values, half), half)


def _shifted(remainders: np.ndarray, table: np.ndarray) -> np.ndarray:
    low = np.uint32(255)
    shifted: np.ndarray = (
        table[0][remainders & low]
        ^ table[1][remainders >> np.uint32(8) & low]
        ^ table[2][remainders >> np.uint32(16) & low]
        ^ table[3][remainders >> np.uint32(24)]
    )
    return shifted
