"""The engine knows no option of Spark; `tideline_spark` adds its own."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tideline_spark.options import SPARK_COLLECT_BYTES, SPARK_OPTIONS
from tideline_table.config import ALL_OPTIONS, Options
from tideline_table.errors import InvalidOption

SCRIPT = """
from tideline_table.config import Options
from tideline_table.errors import InvalidOption
key = "tideline.spark.collect.bytes"
try:
    Options({key: 1})
except InvalidOption as error:
    print(error.found)
import tideline_spark
print(Options({key: 1}).given())
"""


def test_only_the_import_of_the_package_declares_its_options():
    printed = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True).stdout
    assert printed.splitlines() == [
        "unknown option 'tideline.spark.collect.bytes'",
        "{'tideline.spark.collect.bytes': '1'}",
    ]
    assert not [option.key for option in ALL_OPTIONS if option.key.startswith("tideline.spark.")]


@pytest.mark.parametrize("option", SPARK_OPTIONS, ids=lambda o: o.key)
def test_every_default_is_legal_and_documented(option):
    assert option.parse(str(option.default)) == option.default
    assert option.doc.endswith(".")


def test_values_are_checked_like_those_of_the_engine():
    assert Options({})[SPARK_COLLECT_BYTES] == SPARK_COLLECT_BYTES.default
    with pytest.raises(InvalidOption, match=r"at least 0 \(bytes\)"):
        Options({SPARK_COLLECT_BYTES.key: -1})
