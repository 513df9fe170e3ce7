"""A Redis server that is not there, and the writers of one file group that do not wait for each other because of it."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def nobody_there() -> Iterator[str]:
    """The URL of a port that refuses connections, and that nobody else gets meanwhile."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"redis://127.0.0.1:{taken.getsockname()[1]}/0"
