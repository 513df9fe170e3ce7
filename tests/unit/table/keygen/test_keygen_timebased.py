"""Time-based partition paths; expected values are those that Apache Hudi 1.2.0 wrote for the same rows, unless said otherwise."""

import datetime as dt

import pyarrow as pa
import pytest

from tideline_table.errors import InvalidOption, InvalidRecord, SchemaMismatch
from tideline_table.keygen import TimeBased
from tideline_table.keygen.pattern import DatePattern

SECONDS = pa.array([1714558272, -1, 0, None], pa.int64())
MILLIS = pa.array([1714558272345, -1, 0, None], pa.int64())
MICROS = pa.array([1714558272345678, -1, 0, None], pa.int64())
TEXTS = pa.array(["2024-05-01 10:11:12", "1969-12-31 23:59:59", "2024-02-29 00:00:00", None])
ZONED = pa.array(["2024-05-01T10:11:12.345Z", "2024-05-01T10:11:12Z", "2024-02-29T00:00:00+02:00", None])
TEXT_PATTERN = "yyyy-MM-dd HH:mm:ss"


def made(kind, output, **more):
    settings = {"timestamp.type": kind, "output.dateformat": output, **{k.replace("_", "."): v for k, v in more.items()}}
    return TimeBased.from_settings({f"hoodie.keygen.timebased.{k}": v for k, v in settings.items()})


def texts(time_based, values):
    return time_based.texts(pa.chunked_array([values]), "t").to_pylist()


OBSERVED = [
    (SECONDS, made("UNIX_TIMESTAMP", "yyyy-MM-dd HH"), ["2024-05-01 10", "1969-12-31 23", "1970-01-01 00", "1970-01-01 00"]),
    (
        SECONDS,
        made("UNIX_TIMESTAMP", "yyyyMMdd HH mm ss SSS", timezone="GMT+8:00"),
        ["20240501 18 11 12 000", "19700101 07 59 59 000", "19700101 08 00 00 000", "19700101 08 00 01 000"],
    ),
    (
        SECONDS,
        made("UNIX_TIMESTAMP", "yyyyMMddHH", output_timezone="America/New_York"),
        ["2024050106", "1969123118", "1969123119", "1969123119"],
    ),
    (
        MICROS,
        made("EPOCHMICROSECONDS", "yyyy-MM-dd HH.mm.ss.SSS"),
        ["2024-05-01 10.11.12.345", *["1970-01-01 00.00.00.000"] * 3],
    ),
    (MILLIS, made("EPOCHMILLISECONDS", "yyyy'T'SSS"), ["2024T345", "1969T999", "1970T000", "1970T001"]),
    (
        pa.array([19844, -1, 0, None], pa.int64()),
        made("SCALAR", "yyyy/MM/dd", timestamp_scalar_time_unit="days"),
        ["2024/05/01", "1969/12/31", "1970/01/01", "1970/01/02"],
    ),
    (
        TEXTS,
        made("DATE_STRING", "yyyy-MM-dd", input_dateformat=TEXT_PATTERN),
        ["2024-05-01", "1969-12-31", "2024-02-29", "1970-01-01"],
    ),
    (
        TEXTS,
        made("MIXED", "yyyyMMddHH", input_dateformat=TEXT_PATTERN, input_timezone="America/New_York", output_timezone="GMT+2"),
        ["2024050116", "1970010106", "2024022907", "1970010102"],
    ),
    (
        ZONED,
        made("DATE_STRING", "yyyyMMddHHmmss", input_dateformat="yyyy-MM-dd'T'HH:mm:ss.SSSZ,yyyy-MM-dd'T'HH:mm:ssZ"),
        ["20240501101112", "20240501101112", "20240228220000", "19700101000000"],
    ),
    (
        pa.array(["2024-05-01", None]),
        made("DATE_STRING", "yyyyMMddHH", input_dateformat="yyyy-MM-dd", input_timezone="America/New_York"),
        ["2024050104", "1969123105"],
    ),
    (
        pa.array(["2024-05-01", None]),
        made("DATE_STRING", "yyyyMMddHH", input_dateformat="yyyy-MM-dd", input_timezone="Asia/Tokyo"),
        ["2024043015", "1969123115"],
    ),
    (pa.array(["2024-05", None]), made("DATE_STRING", "yyyyMMddHH", input_dateformat="yyyy-MM"), ["2024050100", "1970010100"]),
    (pa.array(["2024-5-1"]), made("DATE_STRING", "yyyyMMdd", input_dateformat="yyyy-MM-dd"), ["20240501"]),
    (
        pa.array(["20240501101112345"]),
        made("DATE_STRING", "yyyyMMddHHmmssSSS", input_dateformat="yyyyMMddHHmmssSSS"),
        ["20240501101112345"],
    ),
    (pa.array([1714558272], pa.int64()), made("UNIX_TIMESTAMP", "yyyy'y''q'MM-'dd'"), ["2024y'q05-dd"]),
    (
        pa.array(["2024-05-01 10"]),
        made(
            "DATE_STRING",
            "yyyyMMddHH",
            input_dateformat="yyyy-MM-dd HH",
            timezone="GMT+3",
            input_timezone="America/New_York",
            output_timezone="Asia/Tokyo",
        ),
        ["2024050110"],
    ),
    (
        pa.array(["2024-11-03 01"]),
        made("DATE_STRING", "yyyyMMddHH", input_dateformat="yyyy-MM-dd HH", input_timezone="America/New_York"),
        ["2024110305"],
    ),
    (
        pa.array([dt.datetime(2024, 5, 1, 10, 11, 12, 345678), None], pa.timestamp("us", "UTC")),
        made("EPOCHMICROSECONDS", "yyyy-MM-dd HH"),
        ["2024-05-01 10", "1970-01-01 00"],
    ),
]


@pytest.mark.parametrize(
    ("values", "time_based", "expected"), OBSERVED, ids=lambda v: v.output.text if isinstance(v, TimeBased) else ""
)
def test_as_apache_hudi_writes_them(values, time_based, expected):
    assert texts(time_based, values) == expected
    assert texts(time_based, values.slice(0, 0)) == []
    assert texts(time_based, values.dictionary_encode()) == expected


def test_old_names_of_the_settings():
    old = "hoodie.deltastreamer.keygen.timebased."
    found = TimeBased.from_settings({f"{old}timestamp.type": "UNIX_TIMESTAMP", f"{old}output.dateformat": "yyyy"})
    assert found == made("UNIX_TIMESTAMP", "yyyy")


def test_dates_are_days():
    """Not observed: Hudi, too, reads a date as its number of days."""
    days = pa.array([dt.date(2024, 5, 1), None])
    assert texts(made("SCALAR", "yyyyMM", timestamp_scalar_time_unit="DAYS"), days) == ["202405", "197001"]


@pytest.mark.parametrize(
    ("value", "kind", "expected"),
    [(1.9, pa.float64(), "1970-01-01 00.00.01"), (-0.5, pa.float32(), "1970-01-01 00.00.00")],
)
def test_parts_of_numbers_are_cut(value, kind, expected):
    assert texts(made("UNIX_TIMESTAMP", "yyyy-MM-dd HH.mm.ss"), pa.array([value], kind)) == [expected]


@pytest.mark.parametrize(
    "value",
    ["", "rubbish", "2024-05-01", "2024-05-01 10:11:12 tail", "2024-13-01 00:00:00", "2023-02-29 00:00:00", "2024-05-01 24:00:00"],
)
def test_texts_that_do_not_fit_are_told(value):
    with pytest.raises(InvalidRecord, match="column 't' with"):
        texts(made("DATE_STRING", "yyyy", input_dateformat=TEXT_PATTERN), pa.array([TEXTS[0].as_py(), value]))


def test_a_time_that_a_zone_leaves_out():
    gap = made("DATE_STRING", "yyyy", input_dateformat="yyyy-MM-dd HH", input_timezone="America/New_York")
    with pytest.raises(InvalidRecord, match="does not have"):
        texts(gap, pa.array(["2024-03-10 02"]))


@pytest.mark.parametrize("seconds", [253402300800, -62135596801, 2**63 - 1, -(2**63)])
def test_times_far_away_are_refused(seconds):
    with pytest.raises(InvalidRecord, match="column 't'"):
        texts(made("UNIX_TIMESTAMP", "yyyy"), pa.array([seconds], pa.int64()))


@pytest.mark.parametrize(
    ("kind", "time_based"),
    [
        (pa.string(), made("UNIX_TIMESTAMP", "yyyy")),
        (pa.int64(), made("DATE_STRING", "yyyy", input_dateformat="yyyy")),
        (pa.timestamp("us"), made("UNIX_TIMESTAMP", "yyyy")),
        (pa.timestamp("us"), made("EPOCHMILLISECONDS", "yyyy")),
        (pa.date32(), made("EPOCHMILLISECONDS", "yyyy")),
        (pa.bool_(), made("UNIX_TIMESTAMP", "yyyy")),
        (pa.list_(pa.int64()), made("UNIX_TIMESTAMP", "yyyy")),
    ],
    ids=str,
)
def test_columns_of_other_types_are_refused(kind, time_based):
    with pytest.raises(SchemaMismatch, match="'t'"):
        texts(time_based, pa.nulls(1, kind))


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({}, "timestamp.type=''"),
        ({"timestamp.type": "HOURLY"}, "HOURLY"),
        ({"timestamp.type": "UNIX_TIMESTAMP"}, "output.dateformat"),
        ({"timestamp.type": "DATE_STRING", "output.dateformat": "yyyy"}, "input.dateformat"),
        ({"timestamp.type": "SCALAR", "output.dateformat": "yyyy", "timestamp.scalar.time.unit": "weeks"}, "WEEKS"),
        ({"timestamp.type": "UNIX_TIMESTAMP", "output.dateformat": "yyyy", "output.timezone": "Nowhere/There"}, "Nowhere/There"),
        ({"timestamp.type": "UNIX_TIMESTAMP", "output.dateformat": "yyyy", "timezone": "GMT+24"}, r"GMT\+24"),
        ({"timestamp.type": "UNIX_TIMESTAMP", "output.dateformat": "yyyyZ"}, "zone"),
        (
            {
                "timestamp.type": "UNIX_TIMESTAMP",
                "output.dateformat": "yyyy",
                "input.dateformat": "yyyy",
                "input.dateformat.list.delimiter.regex": "(",
            },
            "regular expression",
        ),
    ],
)
def test_settings_that_are_refused(settings, told):
    with pytest.raises(InvalidOption, match=told):
        TimeBased.from_settings({f"hoodie.keygen.timebased.{k}": v for k, v in settings.items()})


def test_a_parser_of_ones_own_is_refused():
    mine = {"hoodie.keygen.datetime.parser.class": "my.Parser", "hoodie.keygen.timebased.timestamp.type": "UNIX_TIMESTAMP"}
    with pytest.raises(InvalidOption, match=r"my\.Parser"):
        TimeBased.from_settings(mine)


@pytest.mark.parametrize(
    "text", ["yy-MM", "yyyy-M", "yyyy EEE", "YYYY", "yyyy hh", "MM-dd", "yyyy'open", "yyyyyyyy", "yyyy-MM-MM", ""]
)
def test_patterns_that_are_refused(text):
    with pytest.raises(InvalidOption, match="date pattern"):
        DatePattern.parse(text)
