"""The policy file of a running service. It is read again when it changes; the last valid content stays in force."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from tideline_runtime.logging import get_logger
from tideline_runtime.metrics import POLICY_RELOADS, POLICY_VALID, Metrics
from tideline_runtime.policy.errors import PolicyRefused
from tideline_runtime.policy.reading import read_policies
from tideline_runtime.policy.resolution import Policies
from tideline_table.clock import Clock

_log = get_logger(__name__)
SETTLE_S = 1.0
"""Time without further changes after which a changed file is read, because an editor may still be writing the file."""
_Stamp = tuple[int, int, int, int]


def _stamp(path: Path) -> _Stamp | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


@dataclass(slots=True)
class LivePolicies:
    """The policies of the file at `path`; without a path, none. Used by one thread.

    The constructor reads the file and raises `PolicyRefused` if it is missing or invalid: a service does not start without valid
    policies. Later, the refusal of a missing or invalid file is logged, counted and kept in `refusal`, and the policies read
    before stay in force.
    """

    path: Path | None
    clock: Clock
    metrics: Metrics | None = None
    refusal: str = field(default="", init=False)
    """Why the present content of the file is not in force; empty if it is in force."""
    revision: int = field(default=0, init=False)
    """A number that grows with every change of the policies in force."""
    _policies: Policies = field(default_factory=Policies, init=False)
    _read: _Stamp | None = field(default=None, init=False)
    _seen: tuple[_Stamp | None, float] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        if self.path is not None:
            self._read = _stamp(self.path)
            self._policies = read_policies(self.path)
            self._show()

    def current(self) -> Policies:
        """Return the policies in force.

        Makes one `stat` call, and reads the file if it changed and then stayed the same for `SETTLE_S`.
        """
        if self.path is None:
            return self._policies
        stamp, now_s = _stamp(self.path), self.clock.monotonic_s()
        if stamp == self._read:
            self._seen = None
        elif self._seen is None or self._seen[0] != stamp:
            self._seen = stamp, now_s
        elif now_s - self._seen[1] >= SETTLE_S:
            self._reload(self.path, stamp)
        return self._policies

    def _reload(self, path: Path, stamp: _Stamp | None) -> None:
        self._read, self._seen = stamp, None
        try:
            found = read_policies(path)
        except PolicyRefused as error:
            self.refusal = str(error)
            _log.error(
                "policy file refused; the policies read before stay in force", reason=str(error), problems=len(error.problems)
            )
        else:
            self.refusal = ""
            self.revision += found != self._policies
            self._policies = found
            _log.info("policies read", file=str(path), rules=len(found.rules))
        self._show()

    def _show(self) -> None:
        if self.metrics is not None:
            self.metrics.increment(POLICY_RELOADS, outcome="refused" if self.refusal else "read")
            self.metrics.set(POLICY_VALID, int(not self.refusal))
