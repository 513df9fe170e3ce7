"""Errors of the service layer, below the single root in `tideline_table.errors`."""

from __future__ import annotations

from tideline_table.errors import InvalidOption, Recovery, TidelineError


class InvalidSetting(InvalidOption):
    """A setting that stops the start: unknown, missing, or with a value that does not fit its declaration.

    `name` is the setting as the settings file names it (`http_port`, `mirror.batch_size`), `origin` the source of the value.
    """

    def __init__(self, found: str, *, name: str, origin: str, expected: str = "", remedy: str = "") -> None:
        super().__init__(found, expected=expected, remedy=remedy)
        self.name = name
        self.origin = origin


class InvalidDeclaration(TidelineError):
    """A setting or metric that its package declares wrongly: a defect of the program, found at import."""


class DependencyDown(TidelineError):
    """A dependency of the service (event log, lock store, storage, API server) did not answer; it may answer later."""

    recovery = Recovery.RETRY


class InputRefused(TidelineError):
    """An input of the service, which the error names, is wrong. Reading the input again does not help, so the service ends at once.

    The log shows the error without a traceback, because the program is not at fault.
    """


class TooManyFailures(TidelineError):
    """A service or child process failed more often in a row than allowed."""
