"""Which version of a record wins, on Arrow (format reference 2.3, 10.3)."""

from tideline_table.merge.fold import EventKind, LogEvents, LogOutcome, comparable_ordering, first_matches, fold_events
from tideline_table.merge.mode import DEFAULT_PAYLOAD, OVERWRITE_PAYLOAD, MergeMode, merge_mode
from tideline_table.merge.ordering import combine_input, deleted_mask, incoming_wins, purged_mask
from tideline_table.merge.parts import OpenCells, PartialUpdate, PartsOutcome, fold_parts

__all__ = [
    "DEFAULT_PAYLOAD",
    "OVERWRITE_PAYLOAD",
    "EventKind",
    "LogEvents",
    "LogOutcome",
    "MergeMode",
    "OpenCells",
    "PartialUpdate",
    "PartsOutcome",
    "combine_input",
    "comparable_ordering",
    "deleted_mask",
    "first_matches",
    "fold_events",
    "fold_parts",
    "incoming_wins",
    "merge_mode",
    "purged_mask",
]
