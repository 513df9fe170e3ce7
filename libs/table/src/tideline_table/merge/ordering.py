"""Ordering values: which of two rows with the same key is the newer one."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tideline_table.schema.arrow import field_values, one_chunk
from tideline_table.schema.evolution import IS_DELETED, PURGED


def ordering_names(ordering_field: str) -> tuple[str, ...]:
    """Return the ordering fields of a text that separates them by commas."""
    return tuple(ordering_field.replace(" ", "").split(",")) if ordering_field else ()


def ordering_values(rows: pa.Table, ordering_field: str) -> pa.ChunkedArray:
    """Return the values of the ordering field; structs of the values if there are several."""
    names = ordering_names(ordering_field)
    if len(names) == 1:
        return field_values(rows, names[0])
    values = pa.table([field_values(rows, name) for name in names], names=list(names))
    kind = pa.struct([field.with_nullable(nullable=True) for field in values.schema])
    structs = [pa.StructArray.from_arrays(batch.columns, fields=list(kind)) for batch in values.to_batches()]
    return pa.chunked_array(structs, kind)


def combine_input(rows: pa.Table, keys: pa.ChunkedArray, ordering_field: str) -> np.ndarray | None:
    """Return the row numbers to keep so that each key occurs once: the largest ordering value, the last row on ties.

    None if every key already occurs once. Null ordering values lose to all others, NaN wins over all others (as in Java's
    `Double.compare`). Row order is kept.
    """
    if len(pc.unique(keys)) == rows.num_rows:  # twice as fast as `count_distinct`
        return None
    position = pa.array(np.arange(rows.num_rows, dtype=np.int64))
    columns: dict[str, pa.Array | pa.ChunkedArray] = {"key": keys, "position": position}
    order = []
    for number, name in enumerate(ordering_names(ordering_field)):
        ordering = field_values(rows, name)
        if pa.types.is_floating(ordering.type):
            # Arrow sorts NaN after all numbers in both directions.
            columns[f"nan{number}"] = pc.fill_null(pc.is_nan(ordering), fill_value=False)
            order.append((f"nan{number}", "descending"))
        columns[f"ordering{number}"] = ordering
        order.append((f"ordering{number}", "descending"))
    order.append(("position", "descending"))
    # Sorted with the winner first, the first row of each key is kept; sort_indices puts nulls last.
    ranked = pa.table(columns).take(pc.sort_indices(pa.table(columns), sort_keys=order))
    codes = one_chunk(pc.dictionary_encode(ranked.column("key")))
    _, first = np.unique(codes.indices.to_numpy(zero_copy_only=False), return_index=True)
    return np.sort(ranked.column("position").to_numpy()[first])


def deleted_mask(rows: pa.Table) -> np.ndarray:
    """Return True for each row of an input that is marked as a deletion."""
    return _marks(rows, IS_DELETED)


def purged_mask(rows: pa.Table) -> np.ndarray:
    """Return True for each row that is a deletion that wins regardless of ordering values."""
    return _marks(rows, PURGED)


def _marks(rows: pa.Table, name: str) -> np.ndarray:
    if name not in rows.column_names:
        return np.zeros(rows.num_rows, dtype=bool)
    return np.asarray(pc.fill_null(rows.column(name).cast(pa.bool_()), fill_value=False))


def incoming_wins(base_ordering: pa.ChunkedArray, incoming_ordering: pa.ChunkedArray) -> np.ndarray:
    """Return True pairwise, for event time, where the incoming ordering value is at least the base one.

    A null base value loses; NaN is larger than every number, as in `combine_input`. Values of several ordering fields are structs:
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
