"""Merging of record versions on Arrow columns (format reference 2.3, 10.3)."""

from tideline_table.merge.fold import EventKind, LogEvents, LogOutcome, comparable_ordering, first_matches
from tideline_table.merge.mode import MergeMode, merge_mode
from tideline_table.merge.ordering import combine_input, deleted_mask, incoming_wins, ordering_names, ordering_values, purged_mask
from tideline_table.merge.parts import OpenCells, PartialUpdate, PartsOutcome, chosen_cells, fold_parts, from_newer
from tideline_table.merge.rule import DeletionMark, Merging, combined_input, filled_rows, lies_on_top, with_deletion_marks
