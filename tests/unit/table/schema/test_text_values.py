"""Text in a column's type: exactly, or not at all."""

from datetime import time

import pyarrow as pa
import pytest

from tideline_table.schema.text_values import REFUSALS, cast_text

MICROS, MILLIS = pa.time64("us"), pa.time32("ms")


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("23:59:59.999999", MICROS, time(23, 59, 59, 999999)),
        ("23:59:59.5", MILLIS, time(23, 59, 59, 500000)),
        ("10:00", MICROS, time(10)),
    ],
)
def test_times(text, kind, value):
    assert cast_text(pa.array([None, text]), kind).to_pylist() == [None, value]


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("10:00:00.1234567", MICROS),
        ("10:00:00.9999", MILLIS),
        ("10:00:00+02:00", MICROS),
        ("10:00:00Z", MICROS),
        ("24:00:00", MICROS),
        ("", MICROS),
        ("2024-01-01T10:00:00", MICROS),
        ("2024-01-01T10:00:00.1234567Z", pa.timestamp("us", "UTC")),
        ("2024-01-01T10:00:00Z", pa.timestamp("us")),
        ("1.005", pa.decimal128(12, 2)),
        ("1.5", pa.int64()),
        ("AP8", pa.binary()),
    ],
)
def test_what_would_lose_something_is_refused(text, kind):
    with pytest.raises(REFUSALS):
        cast_text(pa.array([text]), kind)
