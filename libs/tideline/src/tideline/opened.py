"""The engine's table behind one `tideline.Table` and its doors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tideline_table import table as engine

Options = Mapping[str, object] | None


@dataclass(slots=True)
class Opened:
    """An open table and the URL of the lock at which its writers queue. Sharing the table opens it anew."""

    table: engine.Table
    locks: str | None
