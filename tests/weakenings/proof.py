"""Run the tests of one weakening in a process of their own."""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.forked import Forked, parent_of
from tests.weakenings.catalogue import Weakening
from tests.weakenings.plugin import REPOSITORY, VARIABLE

RUN = str(Path(__file__).with_name("run_tests.py"))
LIBRARIES = (
    "pytest",
    "pyarrow.compute",
    "pyarrow.parquet",
    "pyarrow.dataset",
    "numpy",
    "pydantic",
)
"""What all tests import, and none of it is weakened."""
_TESTS_FAILED = 1
"""The exit code of pytest when tests ran and some failed."""


def is_noticed(weakening: Weakening) -> bool:
    """Return whether a test fails under the weakening."""
    changed = {"file": weakening.file, "code": weakening.code, "instead": weakening.instead}
    argv = [RUN, "-q", "-x", "-p", "tests.weakenings.plugin", "-p", "no:cacheprovider", weakening.tests]
    argv += ["-k", weakening.chosen, "-m", "real" if weakening.is_real else "not real"]
    parent = parent_of(LIBRARIES, environment=(("PYTHONPATH", str(REPOSITORY)),))
    tests = Forked(parent, argv, {**os.environ, VARIABLE: json.dumps(changed)})
    try:
        with ThreadPoolExecutor(1) as beside:
            complaints = beside.submit(tests.stderr.read)
            told = tests.stdout.read()
            complaints.result()
        return tests.wait() == _TESTS_FAILED and "FAILED " in told
    finally:
        tests.close()
