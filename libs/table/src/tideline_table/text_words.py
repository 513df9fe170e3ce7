"""Texts of a column as rows of bytes, so that a hash function takes the same word of all texts in one step."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc


def text_rows(texts: pa.Array, width: int) -> np.ndarray:
    """Return texts or bytes as a matrix, a row of `width` bytes for each, filled up with zeros.

    None may be longer. Nulls have any row.

    `texts` is of a type with offsets, at least one, and `width` is positive.
    """
    # Arrow copies each text as a whole. NumPy would gather its words one by one from addresses without alignment.
    is_large = pa.types.is_large_binary(texts.type) or pa.types.is_large_string(texts.type)
    _, offsets, content = texts.buffers()
    buffers = [None, offsets, content if content is not None else pa.py_buffer(b"")]
    plain = pa.Array.from_buffers(pa.large_string() if is_large else pa.string(), len(texts), buffers, offset=texts.offset)
    padded = pc.ascii_rpad(plain, width, padding="\0")
    return np.frombuffer(padded.buffers()[2], dtype=np.uint8, count=len(texts) * width).reshape(len(texts), width)
