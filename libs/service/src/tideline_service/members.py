"""Which Tideline packages are installed here, and their declarations by convention.

Every member declares its settings in `tideline_<member>.settings` and its metrics in `tideline_<member>.metrics`.
"""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil

PREFIX = "tideline_"

SERVICES = ("mirror", "planner", "launcher", "cleaner", "lock_service", "ingest", "console")
"""Sections of the settings file that belong to a service, installed here or not: an image installs one service but all of them
may share one settings file and one environment."""


def installed_members() -> tuple[str, ...]:
    """Names of the installed top-level packages of Tideline, sorted."""
    return tuple(sorted({m.name for m in pkgutil.iter_modules() if m.ispkg and m.name.startswith(PREFIX)}))


def import_declarations(member: str, module: str) -> bool:
    """Import `<member>.<module>` so that it declares; False if the member or the module does not exist.

    A module that exists and fails to import raises: a broken package must not look like an absent one.
    """
    if importlib.util.find_spec(member) is None:
        return False
    if importlib.util.find_spec(f"{member}.{module}") is None:
        return False
    importlib.import_module(f"{member}.{module}")
    return True


def import_all_declarations() -> tuple[str, ...]:
    """Import the settings and metrics of every installed member; returns the members that have any."""
    return tuple(m for m in installed_members() if any([import_declarations(m, "settings"), import_declarations(m, "metrics")]))
