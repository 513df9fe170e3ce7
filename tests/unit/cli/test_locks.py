"""`tideline lock` against a lock service that runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.contract.locks.conftest import lock_service

from tideline_cli.main import run
from tideline_locks import HttpLockProvider
from tideline_table.clock import SystemClock


def test_lists_leases_and_ends_one_by_force(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with lock_service(f"memory:{tmp_path}", SystemClock(), tmp_path) as url:
        assert run(["lock", "list", "--locks", url]) == 0
        assert "no lease is held" in capfd.readouterr().out
        lease = HttpLockProvider(url, clock=SystemClock()).acquire("table:1", owner="ann", ttl_s=60, wait_s=0, fence=3)
        assert run(["lock", "list", "--locks", url]) == 0
        shown = capfd.readouterr().out
        assert all(word in shown for word in ("table:1", "ann", "held"))
        assert run(["lock", "break", "table:1", "--locks", url]) == 0
        assert "nothing ended" in capfd.readouterr().out
        assert run(["lock", "break", "table:1", "--reason", "gone", "--locks", url, "--json"]) == 0
        assert json.loads(capfd.readouterr().out)["ended"]["owner"] == "ann"
        assert lease.release() is False


def test_only_a_service_ends_leases_by_force(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["lock", "break", "table:1", "--reason", "gone", "--locks", f"storage:{tmp_path}"]) == 2
    assert "http:" in capfd.readouterr().err
    assert run(["lock", "list"]) == 2
    assert "--locks" in capfd.readouterr().err
