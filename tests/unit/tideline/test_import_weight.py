"""What a process imports before it does anything, counted in modules: seconds would depend on the machine."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

CLIENTS = {"confluent_kafka", "duckdb", "kubernetes", "lark", "pandas", "pyspark", "redis"}
PROBE = "; import sys, json; print(json.dumps(sorted(sys.modules)))"


@pytest.mark.parametrize(
    ("code", "without", "own"),
    [
        ("import tideline", {"numpy", "pyarrow", "tideline_table.table"}, 2),
        # 390 modules were loaded before packages imported their names when they are used.
        ("import tideline; tideline.open", {"tideline_runtime", "urllib3"}, 309),
        ("import tideline_cli.main as m; m.run(['--version'])", {"numpy", "pyarrow"}, 22),
        ("import tideline_cli.main; import tideline_cli.read", {"tideline_runtime", "urllib3"}, 331),
    ],
)
def test_a_process_imports_what_it_uses(code: str, without: set[str], own: int) -> None:
    printed = subprocess.run([sys.executable, "-c", code + PROBE], capture_output=True, text=True, check=True, timeout=100).stdout
    found = json.loads(printed.splitlines()[-1])
    assert {name for name in found if name in without | CLIENTS} == set()
    assert len([name for name in found if name.startswith("tideline")]) <= own


def test_an_application_on_spark_does_not_import_pandas() -> None:
    """Spark imports it where rows pass through it; table services and workers start for each plan."""
    code = "import tideline_spark.application, tideline_spark.python_daemon, tideline_spark.write"
    printed = subprocess.run([sys.executable, "-c", code + PROBE], capture_output=True, text=True, check=True, timeout=100).stdout
    found = set(json.loads(printed.splitlines()[-1]))
    assert "pyspark" in found
    assert "pandas" not in found
