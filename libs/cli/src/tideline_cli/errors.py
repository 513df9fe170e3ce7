"""Errors of the command, in addition to those of the engine."""

from __future__ import annotations

from tideline_table.errors import TidelineError


class InvalidInput(TidelineError):
    """An input file, or a row of it, cannot be read as the expected content."""
