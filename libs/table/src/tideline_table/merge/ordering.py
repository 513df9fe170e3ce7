"""Ordering values: which of two rows with the same key is the newer one."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tideline_table.schema.fit import IS_DELETED, PURGED


def combine_input(rows: pa.Table, keys: pa.ChunkedArray, ordering_field: str) -> np.ndarray | None:
    """Row numbers to keep so that each key occurs once: the largest ordering value, the last row on ties.

    None when every key occurs once already. Null ordering values lose against all others, NaN wins against all others (as Java's
    `Double.compare` has it). Row order is kept.
    """
    if pc.count_distinct(keys).as_py() == rows.num_rows:
        return None
    position = pa.array(np.arange(rows.num_rows, dtype=np.int64))
    columns: dict[str, pa.Array | pa.ChunkedArray] = {"key": keys, "position": position}
    order = [("position", "descending")]
    if ordering_field:
        ordering = columns["ordering"] = rows.column(ordering_field)
        order = [("ordering", "descending"), *order]
        if pa.types.is_floating(ordering.type):
            # Arrow sorts NaN behind all numbers in either direction.
            columns["nan"] = pc.fill_null(pc.is_nan(ordering), fill_value=False)
            order = [("nan", "descending"), *order]
    # Sorted with the winner first, the first row of each key is the one to keep; sort_indices puts nulls last.
    ranked = pa.table(columns).take(pc.sort_indices(pa.table(columns), sort_keys=order))
    codes = pc.dictionary_encode(ranked.column("key")).combine_chunks()
    if isinstance(codes, pa.ChunkedArray):
        codes = codes.chunk(0)
    _, first = np.unique(codes.indices.to_numpy(zero_copy_only=False), return_index=True)
    return np.sort(ranked.column("position").to_numpy()[first])


def deleted_mask(rows: pa.Table) -> pa.ChunkedArray | None:
    """True where a row says that it is a deletion, None when the input has no such column."""
    if IS_DELETED not in rows.column_names:
        return None
    return pc.fill_null(rows.column(IS_DELETED).cast(pa.bool_()), fill_value=False)


def purged_mask(rows: pa.Table) -> pa.ChunkedArray | None:
    """True where a row is a deletion that wins whatever ordering values say, None when there are none such."""
    return rows.column(PURGED) if PURGED in rows.column_names else None


def incoming_wins(base_ordering: pa.ChunkedArray, incoming_ordering: pa.ChunkedArray) -> np.ndarray:
    """Pairwise for event time: True where the incoming ordering value is at least the base one.

    A null base value loses; NaN counts as larger than every number, as in `combine_input`. Values of several ordering fields are structs:
    the first member that differs decides.
    """
    if pa.types.is_struct(incoming_ordering.type):
        return _members_win(base_ordering, incoming_ordering)
    later = pc.greater_equal(incoming_ordering, base_ordering)
    if pa.types.is_floating(incoming_ordering.type):
        later = pc.or_kleene(later, pc.is_nan(incoming_ordering))
    return np.asarray(pc.fill_null(pc.or_kleene(later, pc.is_null(base_ordering)), fill_value=False))


def _members_win(base: pa.ChunkedArray, incoming: pa.ChunkedArray) -> np.ndarray:
    wins = np.zeros(len(incoming), dtype=bool)
    tied = np.ones(len(incoming), dtype=bool)
    for old, new in zip(base.flatten(), incoming.flatten(), strict=True):
        at_least, at_most = incoming_wins(old, new), incoming_wins(new, old)
        wins |= tied & at_least & ~at_most
        tied &= at_least & at_most
    return wins | tied
