"""Turns an exception into one line on stderr and an exit code."""

from __future__ import annotations

import os
import sys
import traceback

from typer.exceptions import TyperException

from tideline_cli.report import printable
from tideline_table.errors import InvalidInput, MetadataDamaged, TidelineError

DEBUG = "TIDELINE_DEBUG"
"""Environment variable: `1` prints tracebacks."""
EXIT_FAILED = 1
EXIT_BAD_INPUT = 2
EXIT_INTERRUPTED = 130


def report_failure(error: BaseException) -> int:
    """Print `tideline: error: <found>; expected <…>; <remedy>` and return the exit code.

    The exit code is 2 for bad input or usage (the same call fails again), 130 after an interruption (Ctrl-C), else 1. The
    traceback is printed only with `TIDELINE_DEBUG=1`.
    """
    if os.environ.get(DEBUG, "") not in ("", "0"):
        traceback.print_exception(error, file=sys.stderr)
    if isinstance(error, KeyboardInterrupt):
        _print_line("interrupted; uncommitted rows stay invisible")
        return EXIT_INTERRUPTED
    if isinstance(error, TyperException):
        _print_line(_usage_line(error))
        return EXIT_BAD_INPUT
    if isinstance(error, OSError):
        from tideline_table.storage import refused_write  # noqa: PLC0415 - brings Arrow, which `--version` and `--help` do without

        error = refused_write(error, repr(error.filename) if error.filename else "standard output") or error
    if isinstance(error, TidelineError):
        _print_line(str(error))
        return EXIT_BAD_INPUT if isinstance(error, InvalidInput | MetadataDamaged) else EXIT_FAILED
    _print_line(f"unexpected {type(error).__name__}: {error}; run the command again with {DEBUG}=1 for the traceback")
    return EXIT_FAILED


def _print_line(text: str) -> None:
    print(f"tideline: error: {printable(' '.join(text.split()))}", file=sys.stderr)  # noqa: T201 - a command's output


def _usage_line(error: TyperException) -> str:
    possible = getattr(error, "possibilities", None)
    message = error.message if possible else error.format_message()
    found, _, suggestion = message.partition(" Did you mean ")
    expected = " or ".join(possible) if possible else suggestion
    parts = [found.rstrip(" ."), *([f"expected {expected.rstrip('?')}"] if expected else [])]
    context = getattr(error, "ctx", None)
    parts.append(f"see {context.command_path if context else 'tideline'} --help")
    return "; ".join(parts)
