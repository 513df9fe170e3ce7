"""Whether the locks answer, asked for findings."""

from __future__ import annotations

import pytest
from tests.real.ports import free_ports
from tests.real.redis import running_redis

from tideline_locks import LockProbe
from tideline_locks.probe import PROBE_EVERY_S
from tideline_table.clock import SystemClock


class SteppedClock(SystemClock):
    """The machine's clock with a monotonic time that the test moves."""

    def __init__(self) -> None:
        self.ahead_s = 0.0

    def monotonic_s(self) -> float:
        return super().monotonic_s() + self.ahead_s


@pytest.mark.parametrize("url", ["", "storage:", "memory:space"])
def test_locks_without_a_server_need_no_probe(url):
    assert LockProbe(url, SystemClock()).failure() == ""


@pytest.mark.parametrize("scheme", ["redis", "http"])
def test_a_server_that_is_not_there(scheme):
    (port,) = free_ports(1)
    probe = LockProbe(f"{scheme}://127.0.0.1:{port}", SystemClock())
    assert f"127.0.0.1:{port}" in probe.failure()
    probe.close()
    probe.close()


def test_the_place_has_no_password():
    probe = LockProbe("rediss://user:secret@[::1]:6380/2?ssl_ca_certs=x", SystemClock())
    assert probe.place == "rediss://[::1]:6380/2"


@pytest.mark.real
def test_an_answer_is_kept_for_a_while_and_then_asked_for_again():
    clock = SteppedClock()
    with running_redis() as server:
        probe = LockProbe(server.url, clock)
        assert probe.failure() == ""
        server.stop()
        assert probe.failure() == ""
        clock.ahead_s += PROBE_EVERY_S
        failure = probe.failure()
        assert str(server.port) in failure
        server.start()
        assert probe.failure() == failure
        clock.ahead_s += PROBE_EVERY_S
        assert probe.failure() == ""
        probe.close()
