"""Ports for servers that tests start, and start again on the same port.

They lie below the range from which the kernel takes the local ports of clients: any connection of this machine could have such
a port when a server wants it back, even that of a client which tries to reach the stopped server.
"""

from __future__ import annotations

import contextlib
import random
import socket
from pathlib import Path

_FIRST = 10_240
_CLIENT_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_USUAL_CLIENT_RANGE = "32768 60999"
_ATTEMPTS = 1000


def free_ports(count: int, host: str = "127.0.0.1") -> list[int]:
    """Ports of `host` (an address of this machine) that nobody listens on now. Raises `RuntimeError` if too few are found."""
    known = _CLIENT_RANGE.read_text() if _CLIENT_RANGE.exists() else _USUAL_CLIENT_RANGE
    end = int(known.split()[0])
    below = range(_FIRST, end) if end - _FIRST >= _ATTEMPTS else range(int(known.split()[1]) + 1, 65_536)
    # Not a seeded choice: sessions side by side must choose apart.
    choose = random.SystemRandom()
    found: list[int] = []
    with contextlib.ExitStack() as held:
        for _ in range(_ATTEMPTS):
            if len(found) == count:
                return found
            probe = held.enter_context(socket.socket())
            with contextlib.suppress(OSError):
                probe.bind((host, choose.choice(below)))
                found.append(int(probe.getsockname()[1]))
    raise RuntimeError(f"found {len(found)} free ports among {below} in {_ATTEMPTS} attempts; expected {count}")
