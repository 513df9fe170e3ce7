"""`make demo` interrupted with Ctrl-C leaves readable tables and no process."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from examples.demo.fleet import TABLES
from hudi import HudiTable
from tests.platform.processes import processes_that_name

from tideline_table.table import Table

pytestmark = pytest.mark.spark
DEADLINE_S = 120.0


@pytest.mark.timeout(240)
def test_ctrl_c_stops_everything_and_leaves_tables_readable(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    command = [sys.executable, "-m", "examples.demo", str(folder)]
    flights = folder / "tables" / "flights"
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            deadline = time.monotonic() + DEADLINE_S
            while commits(flights) < 15:
                assert process.poll() is None, process.stdout and process.stdout.read()
                assert time.monotonic() < deadline
                time.sleep(0.2)
            process.send_signal(signal.SIGINT)
            output, _ = process.communicate(timeout=300)
        finally:
            # Whatever failed: a demo that goes on slows every test after this one, and fails the one in which it is collected.
            process.kill()

    assert process.returncode == 130, output
    assert "interrupted" in output
    assert "Traceback" not in output
    assert processes_that_name(str(folder)) == []
    for name in TABLES:
        ours = Table.open(str(folder / "tables" / name)).read()
        assert sum(batch.num_rows for batch in HudiTable(str(folder / "tables" / name)).read()) == ours.num_rows
    assert Table.open(str(flights)).read().num_rows > 0


def commits(table: Path) -> int:
    return len(list((table / ".hoodie").glob("*.commit")))
