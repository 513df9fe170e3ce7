"""Interprets the exit code and the last log lines of an application."""

from __future__ import annotations

import json
import signal
from typing import Any

from tideline_launcher.application import EndKind
from tideline_runtime.redaction import redacted_text
from tideline_spark.invocation import ExitCode
from tideline_table.errors import Recovery

_MOST_CAUSE = 500
"""Most characters of a cause, which findings and events show: the log has the rest."""
_KINDS: dict[int, EndKind] = {
    ExitCode.SUCCEEDED: EndKind.SUCCEEDED,
    ExitCode.YIELDED: EndKind.YIELDED,
    ExitCode.SUPERSEDED: EndKind.SUPERSEDED,
    ExitCode.TERMINATED: EndKind.LOST,
    # A process that SIGTERM ended before it could handle the signal.
    -signal.SIGTERM: EndKind.LOST,
}


def kind_of_exit(exit_code: int) -> EndKind:
    """Return the kind of end that an exit code means; negative codes are signals, as in `subprocess`."""
    return _KINDS.get(exit_code, EndKind.FAILED)


def exit_text(exit_code: int) -> str:
    """Return the exit code in words, empty for success."""
    number = -exit_code if exit_code < 0 else exit_code - 128
    if exit_code in (ExitCode.SUCCEEDED, ExitCode.TERMINATED) or number not in set(signal.Signals):
        return f"exit code {exit_code}" if exit_code else ""
    return f"exit code {exit_code} ({signal.Signals(number).name})"


def recovery_in(log_tail: str) -> Recovery | None:
    """Return the recovery of the application's error, None if its log tells none."""
    return Recovery(error["recovery"]) if (error := _error_in(log_tail)) is not None else None


def cause_in(log_tail: str) -> str:
    """Return the application's error and what it found, in one line, without passwords of URLs; empty if unknown."""
    error = _error_in(log_tail) or {}
    found = " ".join(redacted_text(": ".join(str(error[name]) for name in ("error", "found") if error.get(name))).split())
    return found if len(found) <= _MOST_CAUSE else f"{found[:_MOST_CAUSE]}…"


def _error_in(log_tail: str) -> dict[str, Any] | None:
    """Return the last JSON line with an exit code and a recovery. Other lines may follow: Spark and the JVM log later."""
    for line in reversed(log_tail.splitlines()):
        if '"recovery"' not in line:
            continue
        try:
            found = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(found, dict) and "exit_code" in found and found.get("recovery") in [r.value for r in Recovery]:
            return found
    return None
