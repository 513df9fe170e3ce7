"""Native key expressions equal the engine's, whatever the type, the session's time zone and its ANSI setting."""

from __future__ import annotations

from decimal import Decimal

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from tideline_spark.keys import NativeKeys
from tideline_table.errors import InvalidRecord
from tideline_table.keygen import KeyGenerator

COLUMNS = {
    "text": pa.array(["a", "", "b/ü%:", None, "\U0001f600 ", "0x\x01"]),
    "int": pa.array([1, -5, None, 2**31 - 1, 0, 7], pa.int32()),
    "long": pa.array([1, -5, None, 2**63 - 1, 0, -(2**63)], pa.int64()),
    "flag": pa.array([True, False, None, True, True, False]),
    "day": pa.array([0, -719162, None, 2932896, 2932897, 18262], pa.int32()).cast(pa.date32()),
    "price": pa.array([Decimal(t) if t else None for t in ("1.50", "-0.01", "", "0", "9999999.99", "3")], pa.decimal128(9, 2)),
    "small": pa.array(
        [Decimal(t) if t else None for t in ("0.0000001", "0", "", "-0.0000012", "12.0000001", "-9E-7")], pa.decimal128(20, 7)
    ),
    "tiny": pa.array(
        [Decimal(t) if t else None for t in ("1.5E-37", "0", "", "-9.1E-10", "0.1", "-0.000001")], pa.decimal128(38, 38)
    ),
    "micros": pa.array([0, -1, None, 1_700_000_000_123_456, 1, -62_135_596_800_000_000], pa.timestamp("us", tz="UTC")),
    "millis": pa.array([0, -1, None, 1_700_000_000_123, 1, -62_135_596_800_000], pa.timestamp("ms", tz="UTC")),
    "local_micros": pa.array([0, -1, None, 1_711_850_400_000_001, 1, -62_135_596_800_000_000], pa.timestamp("us")),
    "local_millis": pa.array([0, -1, None, 1_711_850_400_000, 1, -62_135_596_800_000], pa.timestamp("ms")),
}
"""The fourth local time falls into the hour that daylight saving leaves out in Berlin."""
ROWS = pa.table(COLUMNS)


def generators(name: str) -> list[KeyGenerator]:
    return [
        KeyGenerator((name,), (), hive_style=False, url_encode=False),
        KeyGenerator((name, "text"), (name, "int"), hive_style=True, url_encode=True),
        KeyGenerator(("int", name), (name,), hive_style=True, url_encode=False),
    ]


def engine_says(keygen: KeyGenerator, row: pa.Table) -> tuple[str | None, str | None]:
    """Key and path, None where the engine refuses the row."""
    answers: list[str | None] = []
    for derive in (keygen.record_keys, keygen.partition_paths):
        try:
            answers.append(derive(row)[0].as_py())
        except InvalidRecord:
            answers.append(None)
    return answers[0], answers[1]


@pytest.mark.parametrize(("time_zone", "ansi"), [("UTC", "true"), ("Europe/Berlin", "false")])
def test_native_expressions_equal_the_engine(spark: SparkSession, time_zone: str, ansi: str) -> None:
    df = spark.createDataFrame(ROWS)
    chosen = [(name, keygen) for name in COLUMNS for keygen in generators(name)]
    spark.conf.set("spark.sql.session.timeZone", time_zone)
    spark.conf.set("spark.sql.ansi.enabled", ansi)
    try:
        columns = []
        for at, (_, keygen) in enumerate(chosen):
            native = NativeKeys(keygen, df.schema, ROWS.schema)
            columns += [native.record_key().alias(f"key{at}"), native.partition_path().alias(f"path{at}")]
        found = df.select(*columns).toArrow().to_pylist()
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
        spark.conf.set("spark.sql.ansi.enabled", "true")
    compared = 0
    for at, (name, keygen) in enumerate(chosen):
        for number, row in enumerate(found):
            key, path = engine_says(keygen, ROWS.slice(number, 1))
            if key is not None:
                assert row[f"key{at}"] == key, (name, keygen, number)
                compared += 1
            if path is not None:
                assert row[f"path{at}"] == path, (name, keygen, number)
                compared += 1
    assert compared > 300


def test_a_plain_text_key_needs_no_comparison(spark: SparkSession) -> None:
    df = spark.createDataFrame(ROWS)
    assert NativeKeys(KeyGenerator(("text",), ("int",)), df.schema, ROWS.schema).is_plain
    assert not NativeKeys(KeyGenerator(("int",), ()), df.schema, ROWS.schema).is_plain
    assert not NativeKeys(KeyGenerator(("text", "int"), ()), df.schema, ROWS.schema).is_plain
