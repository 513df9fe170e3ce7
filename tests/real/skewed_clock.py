"""Processes whose clock differs from the machine's, by libfaketime.

Files keep the times of the kernel: its clock is the store's.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tests.real.debian import found_or_installed

SKEWED = "FAKETIME_TIMESTAMP_FILE"
"""In the environment of a process whose clock is skewed."""


class SkewedClock:
    """A clock for any number of processes, `ahead_s` ahead. `jump` moves it while they run; they notice within a second."""

    def __init__(self, file: Path, ahead_s: int = 0) -> None:
        self._file = file
        self.jump(ahead_s)

    def jump(self, ahead_s: int) -> None:
        staged = self._file.with_suffix(".new")
        staged.write_text(f"{ahead_s:+d}\n")
        staged.replace(self._file)

    @property
    def environment(self) -> Mapping[str, str]:
        """What a process needs in its environment."""
        return {
            "LD_PRELOAD": found_or_installed(_library, "libfaketime"),
            SKEWED: str(self._file),
            "FAKETIME_CACHE_DURATION": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "NO_FAKE_STAT": "1",
        }


def _library() -> str | None:
    return next((str(path) for path in Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1")), None)
