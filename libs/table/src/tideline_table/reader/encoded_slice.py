"""Rows of slices in memory with columns of repeated texts as dictionaries, for rewriting.

Smaller, and faster to sort and to encode.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tideline_table.merge import Merging
from tideline_table.reader.base_file import DICTIONARY, BaseFileFooter, with_dictionaries
from tideline_table.reader.read_plan import LogRule
from tideline_table.schema.arrow import one_chunk
from tideline_table.schema.meta_fields import MetaField

_MOST_BYTES = 256 * 1024
_UNIQUE = frozenset([MetaField.COMMIT_SEQNO.value, MetaField.RECORD_KEY.value])


def encoded(rule: LogRule, schema: pa.Schema, footers: Sequence[BaseFileFooter], plain: Collection[str] = ()) -> LogRule:
    """Return `rule` with the columns to scan as dictionaries: all files (`footers` with `dictionaries`) have small ones for them.

    `schema` includes the meta fields. `plain` columns, record keys and ordering fields stay texts, and all columns where values
    are derived or merged by other columns.
    """
    if not footers or rule.keygen is not None or rule.path_columns is not None or rule.versions is not None:
        return rule
    common = frozenset.intersection(*(footer.dictionaries for footer in footers))
    return replace(rule, dictionaries=common & repeated_texts(schema, rule.merging) - {*plain})


def repeated_texts(schema: pa.Schema, merging: Merging) -> frozenset[str]:
    """Return the columns of texts that a rewrite may hold as dictionaries: all but record keys, row numbers and ordering fields.

    None if cells of rows are merged.
    """
    if merging.needs_older_rows:
        return frozenset()
    return frozenset({f.name for f in schema if f.type == pa.string()} - _UNIQUE - {*merging.ordering_fields})


def encoded_table(batches: Iterable[pa.RecordBatch], schema: pa.Schema, rule: LogRule) -> pa.Table:
    """Return rows that were read by `rule`, which have the columns of `schema`, with one dictionary per column; see `unified`."""
    target = with_dictionaries(schema, rule.dictionaries)
    return unified(pa.Table.from_batches([_as_encoded(batch, target) for batch in batches], schema=target))


def unified(rows: pa.Table) -> pa.Table:
    """Return rows with one dictionary per column.

    Where it would be large, the column has texts: an encoder is no faster with it.
    """
    rows = rows.unify_dictionaries()
    for at, field in enumerate(rows.schema):
        chunks = rows.column(at).chunks
        if field.type == DICTIONARY and chunks and chunks[0].dictionary.nbytes > _MOST_BYTES:
            rows = rows.set_column(at, field.with_type(pa.string()), rows.column(at).cast(pa.string()))
    return rows


def trimmed(rows: pa.Table) -> pa.Table:
    """Return rows, which have one dictionary per column, whose dictionaries hold the texts of these rows only.

    A file must not keep texts of deleted rows, and Arrow's encoder writes a dictionary as a whole.
    """
    for at, field in enumerate(rows.schema):
        if field.type == DICTIONARY and rows.num_rows:
            rows = rows.set_column(at, field, _trimmed(one_chunk(rows.column(at))))
    return rows


def _trimmed(column: pa.DictionaryArray) -> pa.DictionaryArray:
    texts = column.dictionary
    used = np.zeros(len(texts), dtype=bool)
    used[np.asarray(column.indices.drop_null())] = True
    if used.all():
        return column
    numbers = pa.array(np.cumsum(used, dtype=np.int32) - np.int32(1))
    return pa.DictionaryArray.from_arrays(numbers.take(column.indices), texts.filter(pa.array(used)))


def encoded_as(rows: pa.Table, target: pa.Schema) -> pa.Table:
    """Return rows in the schema `target`, which differs in columns of texts only: there, they are dictionaries."""
    return pa.Table.from_batches([_as_encoded(batch, target) for batch in rows.to_batches()], schema=target)


def _as_encoded(batch: pa.RecordBatch, target: pa.Schema) -> pa.RecordBatch:
    columns = [
        pc.dictionary_encode(column) if field.type == DICTIONARY and column.type != DICTIONARY else column
        for field, column in zip(target, batch.columns, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=target)


def repeated(text: str, count: int) -> pa.DictionaryArray:
    """Return a column of `count` times this text."""
    return pa.DictionaryArray.from_arrays(pa.repeat(pa.scalar(0, pa.int32()), count), pa.array([text], pa.string()))
