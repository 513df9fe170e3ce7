"""The installed top-level packages of Tideline (members), and their declarations by convention.

Every member declares its settings in its module `settings` and its metrics in its module `metrics`.
"""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil

PREFIX = "tideline_"

PLATFORM = ("mirror", "planner", "launcher", "cleaner", "lock_service")
"""The services of `tideline up`, in order of start; they stop in reverse order."""

OF_TABLES = (*PLATFORM, "changes")
"""The services that work on the tables of a fleet, which a HudiTable resource can name."""

SERVICES = (*PLATFORM, "ingest", "webhooks", "changes", "catalog", "console")
"""Sections of the settings file that belong to a service, installed here or not: an image installs one service, but all services
may share one settings file and one environment."""


def installed_members() -> tuple[str, ...]:
    """Return the names of the installed top-level packages of Tideline, sorted."""
    return tuple(sorted({m.name for m in pkgutil.iter_modules() if m.ispkg and m.name.startswith(PREFIX)}))


def import_declarations(member: str, module: str) -> bool:
    """Import the declarations in `<member>.<module>`; return False if the member or the module does not exist.

    A module that exists but fails to import raises, because a broken package must not look like an absent one.
    """
    if importlib.util.find_spec(member) is None:
        return False
    if importlib.util.find_spec(f"{member}.{module}") is None:
        return False
    importlib.import_module(f"{member}.{module}")
    return True


def import_all_declarations() -> tuple[str, ...]:
    """Import the settings and metrics of every installed member; return the members that have any."""
    return tuple(m for m in installed_members() if any([import_declarations(m, "settings"), import_declarations(m, "metrics")]))
