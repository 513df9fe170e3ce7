"""`tideline lock` against a lock service that runs."""

from tests.contract.locks.conftest import lock_service

from tideline_locks.http import HttpLockProvider
from tideline_table.clock import SystemClock


def test_lists_leases_and_ends_one_by_force(tmp_path, done):
    with lock_service(f"memory:{tmp_path}", SystemClock(), tmp_path) as url:
        assert "no lease is held" in done("lock", "list", "--locks", url).text
        lease = HttpLockProvider(url, clock=SystemClock()).acquire("table:1", owner="ann", ttl_s=600, wait_s=0, fence=3)
        shown = done("lock", "list", "--locks", url).text
        assert all(word in shown for word in ("table:1", "ann", "held"))
        assert "nothing ended" in done("lock", "break", "table:1", "--locks", url).text
        assert done("lock", "list", "--locks", url, "--json").document["leases"][0]["token"] == 3
        # The service runs in this process, and its log entry about the forced release is on the same output.
        assert "lease of ann on table:1 ended" in done("lock", "break", "table:1", "--reason", "gone", "--locks", url).text
        assert lease.release() is False


def test_only_a_service_ends_leases_by_force(tmp_path, refused):
    assert "http:" in refused("lock", "break", "table:1", "--reason", "gone", "--locks", f"storage:{tmp_path}")
    assert "--locks" in refused("lock", "list")
