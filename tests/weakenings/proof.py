"""Run the tests of one weakening in a process of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from tests.weakenings.catalogue import Weakening
from tests.weakenings.plugin import REPOSITORY, VARIABLE

_TESTS_FAILED = 1
"""The exit code of pytest when tests ran and some failed."""


def is_noticed(weakening: Weakening) -> bool:
    """Return whether a test fails under the weakening."""
    changed = {"file": weakening.file, "code": weakening.code, "instead": weakening.instead}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-x",
        "-p",
        "tests.weakenings.plugin",
        "-p",
        "no:cacheprovider",
        weakening.tests,
    ]
    command += ["-k", weakening.chosen, "-m", "real" if weakening.is_real else "not real"]
    environment = {**os.environ, VARIABLE: json.dumps(changed)}
    done = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False)
    return done.returncode == _TESTS_FAILED and "FAILED " in done.stdout
