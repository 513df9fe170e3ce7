"""Environment variables of the command, named once."""

from __future__ import annotations

import os

DEBUG = "TIDELINE_DEBUG"
"""`1` prints tracebacks."""
LOCKS = "TIDELINE_LOCKS"
"""The lock provider of commands that write, when `--locks` is not given."""


def is_debugging() -> bool:
    """Whether failures shall come with their traceback."""
    return os.environ.get(DEBUG, "") not in ("", "0")
