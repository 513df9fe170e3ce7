"""Merge modes: how two versions of a record compare, and which mode a payload class means."""

from __future__ import annotations

import enum

from tideline_table.errors import UnsupportedTable
from tideline_table.hudi.properties import DEFAULT_PAYLOAD, OVERWRITE_PAYLOAD


class MergeMode(enum.Enum):
    """How two versions of a record compare."""

    COMMIT_TIME = "COMMIT_TIME_ORDERING"
    """The later write wins."""
    EVENT_TIME = "EVENT_TIME_ORDERING"
    """The larger ordering value wins, the later write on ties."""


def merge_mode(payload_class: str, ordering_field: str) -> MergeMode:
    """Return the mode that Hudi derives for a version 6 table. Raises `UnsupportedTable` for another payload class."""
    if payload_class == OVERWRITE_PAYLOAD:
        return MergeMode.COMMIT_TIME
    if payload_class in (DEFAULT_PAYLOAD, ""):
        return MergeMode.EVENT_TIME if ordering_field else MergeMode.COMMIT_TIME
    raise UnsupportedTable(
        f"payload class {payload_class!r}",
        expected=f"{DEFAULT_PAYLOAD} or {OVERWRITE_PAYLOAD}",
        remedy="its merge rule is code that cannot run here",
    )
