"""Interprets the exit code and the last log lines of an application."""

from __future__ import annotations

import json
import signal

from tideline_launcher.application import EndKind
from tideline_spark.invocation import ExitCode
from tideline_table.errors import Recovery

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
    """Return the recovery of the application's error, from the last JSON line of its log with an exit code and a recovery.

    Else None.

    Other lines may follow that line, because Spark and the JVM log later.
    """
    for line in reversed(log_tail.splitlines()):
        if '"recovery"' not in line:
            continue
        try:
            found = json.loads(line)
        except (ValueError, RecursionError):
            continue
        recovery = found.get("recovery") if isinstance(found, dict) and "exit_code" in found else None
        if isinstance(recovery, str) and recovery in {r.value for r in Recovery}:
            return Recovery(recovery)
    return None
