"""What records do to a table: rows that are written, and keys that are deleted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tideline_ingest.batch import Received
from tideline_ingest.decoding import Decoder
from tideline_ingest.errors import Undecodable
from tideline_table.keygen import KeyGenerator
from tideline_table.schema import top_columns
from tideline_table.writer import key_rows

DELETES = "_tideline_deletes"
"""A boolean column of images: the row is what the record deletes, and only its key and partition columns count."""
MOVED_FROM = "_tideline_moved_from"
"""A column of images: the key and partition columns that the row had before, as a struct, if they name another place."""
Keys = Callable[[Sequence[bytes | None]], pa.Table]


@dataclass(frozen=True, slots=True)
class Changes:
    """The rows and deletions of some records. `rows_at` and `removed_at` are the positions of their records.

    A record has a row, a deletion, both (the deletion comes first), or none. `removed` has the key and partition columns.
    """

    rows: pa.Table
    rows_at: Sequence[int]
    removed: pa.Table | None
    """None if no record deletes."""
    removed_at: Sequence[int]


class Identity:
    """What names a row of a table with the columns `schema`."""

    def __init__(self, schema: pa.Schema, keygen: KeyGenerator) -> None:
        self._schema = schema
        self._keygen = keygen
        self.partition_fields = keygen.partition_fields
        """Dotted paths."""
        self.columns = top_columns(schema, (*keygen.key_fields, *keygen.partition_fields))
        """The columns that hold the key and partition fields."""

    def of(self, rows: pa.Table) -> pa.Table:
        """Return the key and partition fields of `rows`. Raises `SchemaMismatch`."""
        return key_rows(rows, self._schema, self._keygen)


class ChangeDecoder(Protocol):
    """A decoder of records."""

    def changes(self, records: Sequence[Received]) -> Changes:
        """Return the changes of `records`.

        Raises `Undecodable` if any record does not fit; the error does not say which one.
        """
        ...


class PlainChanges:
    """Each value is a row. A record without a value deletes the row of its key, or is refused if there is no `keys`."""

    def __init__(self, values: Decoder, keys: Keys | None) -> None:
        self._values = values
        self._keys = keys

    def changes(self, records: Sequence[Received]) -> Changes:
        """See `ChangeDecoder.changes`."""
        rows_at = [i for i, r in enumerate(records) if r.value is not None]
        removed_at = [i for i, r in enumerate(records) if r.value is None]
        if removed_at and self._keys is None:
            raise Undecodable("the record has no value, and tombstones = 'refuse'")
        rows = self._values.decode([r.value for r in records if r.value is not None])
        removed = self._keys([records[i].key for i in removed_at]) if removed_at and self._keys is not None else None
        return Changes(rows, rows_at, removed, removed_at)


class ImageChanges:
    """Each value is decoded to an image of a row, marked by `DELETES`; perhaps it says where the row was, by `MOVED_FROM`.

    A record without a value deletes the row of its key, or does nothing if there is no `keys`.
    """

    def __init__(self, images: Decoder, identity: Identity, keys: Keys | None = None) -> None:
        self._images = images
        self._keys = keys
        self._identity = identity

    def changes(self, records: Sequence[Received]) -> Changes:
        """See `ChangeDecoder.changes`."""
        at = np.array([i for i, r in enumerate(records) if r.value is not None], np.int64)
        images = self._images.decode([r.value for r in records if r.value is not None])
        gone = [i for i, r in enumerate(records) if r.value is None] if self._keys is not None else []
        if DELETES not in images.column_names:
            if not gone:
                return Changes(images, at.tolist(), None, ())
            images = images.append_column(DELETES, pa.nulls(0, pa.bool_()))
        deletes = np.asarray(images.column(DELETES).combine_chunks())
        named = [n for n in images.column_names if n not in (DELETES, MOVED_FROM)]
        parts, places = [self._identity.of(images.select(named).filter(pa.array(deletes)))], [at[deletes]]
        if MOVED_FROM in images.column_names:
            before = images.column(MOVED_FROM).combine_chunks()
            moved = np.asarray(before.is_valid())
            there = before.filter(pa.array(moved))
            parts.append(pa.Table.from_arrays(there.flatten(), names=[f.name for f in there.type]))
            places.append(at[moved])
        if gone and self._keys is not None:
            parts.append(self._keys([records[i].key for i in gone]))
            places.append(np.array(gone, np.int64))
        removed_at = np.concatenate(places)
        order = np.argsort(removed_at, kind="stable")
        removed = pa.concat_tables(parts).take(pa.array(order)) if len(order) else None
        rows = images.select(named).filter(pc.invert(pa.array(deletes)))
        return Changes(rows, at[~deletes].tolist(), removed, removed_at[order].tolist())
