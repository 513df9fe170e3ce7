"""HFiles of anybody: typed errors only, in bounded memory.

TIDELINE_FUZZ_EXAMPLES sets the number of examples of each test; runs with more than the usual number are not repeatable on purpose.
"""

import os
import tracemalloc

import pyarrow as pa
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.property.profile import quick
from tests.unit.table.hfiles import hfile

from tideline_table.errors import TidelineError
from tideline_table.log_format.hfile import HFile
from tideline_table.log_format.protobuf import read_fields

EXAMPLES = int(os.environ.get("TIDELINE_FUZZ_EXAMPLES", "400"))
fuzz = settings(quick, max_examples=EXAMPLES, derandomize="TIDELINE_FUZZ_EXAMPLES" not in os.environ)

SOUND = [
    hfile([[(b"a%d" % n, b"v" * n) for n in range(part, part + 3)] for part in range(0, 9, 3)], levels=levels, gz=gz, checksum=0, metas={"b": b"x" * 50}, info={"schema": b"{}"})
    for levels in (1, 2, 3)
    for gz in (False, True)
]  # fmt: skip
SIZES = [0, 1, 2, 12, 33, 127, 128, 2**15, 2**31 - 1, 2**31, 2**32 - 1]
GZIP_RATIO = 1032
"""Deflate makes nothing smaller than that."""


@st.composite
def damaged(draw):
    content = bytearray(draw(st.sampled_from(SOUND)))
    body = len(content) - 4096
    for _ in range(draw(st.integers(1, 4))):
        # Half of the changes hit the trailer's few fields, which say where everything else is.
        at = draw(st.integers(0, body - 1)) if draw(st.booleans()) else body + draw(st.integers(0, 40))
        change = draw(st.sampled_from(["byte", "number", "insert", "remove"]))
        if change == "byte":
            content[at] = draw(st.integers(0, 255))
        elif change == "number":
            content[at : at + 4] = draw(st.sampled_from(SIZES)).to_bytes(4, "big")
        elif change == "insert":
            content[at:at] = draw(st.binary(min_size=1, max_size=8))
        else:
            del content[at : at + draw(st.integers(1, 8))]
    return bytes(content)


def read(content):
    """Rows read, or None for a typed error. Neither takes more memory than the bytes can stand for."""
    before = pa.total_allocated_bytes()
    tracemalloc.start()
    rows = None
    try:
        file = HFile(content)
        rows = 0
        for batch in file.entries():
            rows += batch.num_rows
            assert pa.total_allocated_bytes() - before <= 2 * GZIP_RATIO * len(content) + 2**20
    except TidelineError as error:
        assert error.found  # noqa: PT017 - either outcome is fine, an empty explanation is not
        rows = None
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    # Positions of gathered bytes take eight bytes each, entries some hundred.
    assert peak <= 40 * GZIP_RATIO * len(content) // 8 + 2**21
    return rows


def test_the_sound_files_are_sound():
    assert [read(content) for content in SOUND] == [9] * len(SOUND)


@fuzz
@given(damaged())
def test_damaged_files(content):
    read(content)


@fuzz
@given(st.binary(max_size=300), st.binary(max_size=60))
@example(b"", b"")
def test_arbitrary_bytes(body, fields):
    assert read(body) is None
    read(body + (b'TRABLK"$' + fields).ljust(4092, b"\0") + b"\0\0\0\3")


@fuzz
@given(st.binary(max_size=60))
def test_arbitrary_messages(message):
    try:
        found = list(read_fields(memoryview(message)))
    except TidelineError:
        return
    assert sum(v.nbytes if isinstance(v, memoryview) else 1 for _, v in found) <= len(message)
