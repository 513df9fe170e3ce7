"""Text in a column's type: exactly, or not at all."""

from datetime import UTC, datetime, time

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


@pytest.mark.parametrize("kind", [pa.timestamp("ms"), pa.timestamp("us"), pa.timestamp("ms", "UTC"), pa.timestamp("us", "UTC")])
def test_zeros_behind_the_last_digit_of_a_time_change_nothing(kind):
    """pandas and DuckDB print microseconds of every timestamp."""
    zone = UTC if kind.tz else None
    expected = datetime(2024, 2, 29, 10, 0, 0, 120_000, zone)
    texts = ["2024-02-29 10:00:00.120000", "2024-02-29T10:00:00.120000000", "2024-02-29 10:00:00.12"]
    if kind.tz:
        texts += ["2024-02-29 10:00:00.120000000Z", "2024-02-29T11:00:00.120000+01:00"]
    assert cast_text(pa.array(texts), kind).to_pylist() == [expected] * len(texts)


def test_zeros_behind_the_last_digit_of_a_time_of_day():
    assert cast_text(pa.array(["10:00:00.500000", "10:00:00.000000"]), MILLIS).to_pylist() == [time(10, 0, 0, 500_000), time(10)]


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("2024-01-01 10:00:00.1230001", pa.timestamp("us")),
        ("2024-01-01 10:00:00.123001", pa.timestamp("ms")),
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
