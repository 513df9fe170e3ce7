"""What the command adds to the error hierarchy of the engine."""

from __future__ import annotations

from tideline_table.errors import TidelineError


class InvalidInput(TidelineError):
    """A file, or a row of it, that cannot be read as what it was given for."""


class InvalidPredicate(TidelineError):
    """A `--where` expression that cannot be understood, or that does not fit the table's columns."""
