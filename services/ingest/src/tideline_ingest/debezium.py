"""Debezium's change events, in JSON (with Kafka Connect's schema or without) and in Avro with a schema registry."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tideline_ingest.batch import Received
from tideline_ingest.changes import DELETES, MOVED_FROM, Identity
from tideline_ingest.debezium_types import SCALED_DECIMAL, declared_form, natural_type
from tideline_ingest.decoding import AvroDecoder
from tideline_ingest.errors import Undecodable
from tideline_ingest.forms import Form, first_line, form, from_text, over_items, over_members
from tideline_ingest.json_events import Event, Json, document_of, value_at
from tideline_table.errors import SchemaMismatch
from tideline_table.hudi import UNAVAILABLE_VALUE
from tideline_table.merge import OpenCells, PartialUpdate

_WRITES = frozenset("cru")
_DELETE = "d"
_ABOUT = "__"
"""Begins the names of fields that `ExtractNewRecordState` adds to a row."""
_IMAGES = ("before", "after")
_OPERATIONS = "one of c, r, u and d"
_TOLD = PartialUpdate(OpenCells.MARKED, UNAVAILABLE_VALUE)
_EPOCHS = {"ts_ms": "epoch_ms", "ts_us": "epoch_us", "ts_ns": "epoch_ns"}


def check_told(rows: pa.Table) -> None:
    """Raise `Undecodable` for a value that the database did not tell: a large one that an update left as it was (PostgreSQL)."""
    for name in rows.column_names:
        if _TOLD.is_filled(rows.column(name)) is not None:
            raise Undecodable(
                f"field {name!r} has the value {UNAVAILABLE_VALUE!r}, which stands for one that the update left as it was",
                expected="the value, or a table that keeps the value that it has",
                remedy="in PostgreSQL: ALTER TABLE ... REPLICA IDENTITY FULL; or create the table with merge='postgres_debezium'",
            )


def envelope_form(path: str, kind: pa.DataType) -> Form | None:
    """Return the form of the values at `path` of an envelope, such as `source.ts_ms`, for a column of type `kind`."""
    return form(next((name for end, name in _EPOCHS.items() if path.endswith(end)), "text"), kind)


class JsonUnwrap:
    """Unwraps events in JSON. `columns` are columns that are taken from the envelope: name → path, such as `source.lsn`."""

    def __init__(self, identity: Identity, columns: Mapping[str, str]) -> None:
        self._identity = identity
        self._columns = {name: path.split(".") for name, path in columns.items()}

    def __call__(self, record: Received) -> Sequence[Event]:
        """See `Unwrap`."""
        declared, payload = _payload(document_of(record.value, "a value"))
        operation = payload.get("op")
        before, after = (payload.get(name) for name in _IMAGES)
        shape = _value_schema(declared)
        if operation == _DELETE:
            image = before if isinstance(before, dict) else {}
            if not image.keys() >= set(self._identity.columns) and record.key is not None:
                image = {**_payload(document_of(record.key, "a key"))[1], **image}
            if (lacking := self._unplaced(image)) is not None:
                raise _unplaced(lacking)
            return [Event(image, deletes=True, declared=shape)]
        if not isinstance(operation, str) or operation not in _WRITES:
            raise Undecodable(f"field 'op' has the value {operation!r:.60}", expected=_OPERATIONS)
        if not isinstance(after, dict):
            raise Undecodable(f"no object in the field 'after' of an event with op {operation!r}", expected="the row")
        taken = {name: value_at(payload, path) for name, path in self._columns.items()}
        written = Event({**after, **taken}, deletes=False, declared=shape)
        if operation == "u" and isinstance(before, dict) and self._has_moved(before, after):
            return [Event(before, deletes=True, declared=shape), written]
        return [written]

    def _unplaced(self, image: Mapping[str, Json]) -> str | None:
        """Return the partition field that an image of a row lacks, None if the image is the whole row.

        A database may tell only the key of a row. If another field has a value, a null is the row's own.
        """
        if any(value is not None and name not in self._identity.columns for name, value in image.items()):
            return None
        return next((name for name in self._identity.partition_fields if value_at(image, name.split(".")) is None), None)

    def _has_moved(self, before: Mapping[str, Json], after: Mapping[str, Json]) -> bool:
        """Return whether an update gave the row another partition. A database that tells only keys does not tell this."""
        paths = [name.split(".") for name in self._identity.partition_fields]
        return any(value_at(before, path) != value_at(after, path) for path in paths) and self._unplaced(before) is None


class JsonFlat(JsonUnwrap):
    """Unwraps rows as `ExtractNewRecordState` leaves them: fields with `__` are about the event, the others are the row.

    A record without a value deletes the row that its key names. `known` are the columns of the table.
    """

    def __init__(self, identity: Identity, columns: Mapping[str, str], known: Collection[str]) -> None:
        super().__init__(identity, columns)
        self._known = known

    def __call__(self, record: Received) -> Sequence[Event]:
        """See `Unwrap`."""
        is_tombstone = record.value is None
        given = (record.key, "a key") if is_tombstone else (record.value, "a value")
        declared, payload = _payload(document_of(*given))
        image = {name: value for name, value in payload.items() if not name.startswith(_ABOUT) or name in self._known}
        operation = payload.get(_ABOUT + "op")
        if operation is not None and operation not in (*_WRITES, _DELETE):
            raise Undecodable(f"field '__op' has the value {operation!r:.60}", expected=_OPERATIONS)
        shape = None if declared is None else _fields_of(declared)
        if is_tombstone or operation == _DELETE or str(payload.get(_ABOUT + "deleted")).lower() == "true":
            if (lacking := self._unplaced(image)) is not None:
                raise _unplaced(lacking)
            return [Event(image, deletes=True, declared=shape)]
        taken = {name: value_at(payload, path) for name, path in self._columns.items()}
        return [Event({**image, **taken}, deletes=False, declared=shape)]


def _unplaced(name: str) -> Undecodable:
    return Undecodable(
        f"a deletion without the field {name!r}, which names the partition of the row",
        expected="the row as it was before",
        remedy="in PostgreSQL: ALTER TABLE ... REPLICA IDENTITY FULL",
    )


def _payload(document: dict[str, Json]) -> tuple[Json, dict[str, Json]]:
    """Return the declared schema of a document, None if it has none, and what it holds."""
    if document.keys() == {"schema", "payload"}:
        if not isinstance(document["payload"], dict):
            raise Undecodable("field 'payload' is no object", expected="the content")
        return document["schema"], document["payload"]
    return None, document


def _fields_of(declared: Json) -> Json:
    if not isinstance(declared, dict) or not isinstance(declared.get("fields"), list):
        raise Undecodable("a schema without fields", expected="Kafka Connect's schema of a row")
    return declared["fields"]


def _value_schema(declared: Json) -> Json:
    if declared is None:
        return None
    try:
        return next(field["fields"] for field in declared["fields"] if field["field"] in _IMAGES)
    except (StopIteration, KeyError, TypeError) as error:
        raise Undecodable(f"a schema without the fields of 'after' ({error!r})", expected="Kafka Connect's schema") from None


def declared_forms(declared: Json, schema: pa.Schema) -> dict[str, Form]:
    """Return the forms of columns by Kafka Connect's schema of a row. Raises `Undecodable` for one that cannot be read."""
    try:
        found = {f["field"]: declared_form(f, schema.field(f["field"]).type) for f in declared if f["field"] in schema.names}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise Undecodable(f"a schema of a row that cannot be read ({error!r})", expected="Kafka Connect's schema") from None
    return {name: known for name, known in found.items() if known is not None}


class _AvroRows:
    """Rows in records of the Avro schema `text`, in the types of `table` where it holds times or decimals."""

    def __init__(self, text: str, table: pa.Schema, identity: Identity, columns: Mapping[str, str], declared: Json) -> None:
        self._datums = AvroDecoder(text)
        self._table = table
        self._identity = identity
        self._columns = columns
        self._declared = {field["field"]: field for field in declared.get("fields", ())}

    def _unplaced(self, images: pa.Table) -> dict[str, np.ndarray]:
        """Return, by partition field, which images lack it because they are not whole rows (see `JsonUnwrap`)."""
        alone = np.ones(images.num_rows, np.bool_)
        for name in images.column_names:
            if name not in self._identity.columns and name not in self._columns:
                alone &= np.asarray(images.column(name).is_null())
        keys = self._identity.of(images)
        return {name: alone & np.asarray(keys.column(name).is_null()) for name in self._identity.partition_fields}

    def _rows(self, records: pa.Table, images: pa.Array | pa.ChunkedArray) -> pa.Table:
        if isinstance(images, pa.ChunkedArray):
            images = images.combine_chunks()
        columns = {}
        for field, values in zip(images.type, images.flatten(), strict=True):
            declared = self._declared.get(field.name, {})
            known = field.name in self._table.names
            kind = self._table.field(field.name).type if known else natural_type(declared, field.type)
            columns[field.name] = _restored(field.name, values, declared, kind)
        for name, path in self._columns.items():
            values = _member(records, path.split("."))
            kind = self._table.field(name).type
            columns[name] = _leaf(name, values, envelope_form(path, kind), kind)
        return pa.table(columns)


class AvroFlat(_AvroRows):
    """Decodes rows as `JsonFlat` does, of the Avro schema `text`."""

    def __init__(self, text: str, table: pa.Schema, identity: Identity, columns: Mapping[str, str]) -> None:
        super().__init__(text, table, identity, columns, _declared(json.loads(text)))
        self.schema = self._of(self._datums.schema.empty_table()).schema

    def decode(self, values: Sequence[bytes]) -> pa.Table:
        """Return an image for each value, marked by `DELETES`."""
        records = self._datums.decode(values)
        operations = _member(records, [_ABOUT + "op"]).cast(pa.string())
        unknown = pc.invert(pc.is_in(operations, value_set=pa.array([None, _DELETE, *sorted(_WRITES)], pa.string())))
        if len(wrong := operations.filter(unknown)):
            raise Undecodable(f"field '__op' has the value {wrong[0].as_py()!r:.60}", expected=_OPERATIONS)
        told = pc.utf8_lower(_member(records, [_ABOUT + "deleted"]).cast(pa.string()))
        marked, deleted = pc.is_in(told, value_set=pa.array(["true"])), pc.is_in(operations, value_set=pa.array([_DELETE]))
        rows, deletes = self._of(records), np.asarray(pc.or_(marked, deleted))
        for name, lacking in self._unplaced(rows).items():
            if (lacking & deletes).any():
                raise _unplaced(name)
        return rows.append_column(DELETES, pa.array(deletes))

    def _of(self, records: pa.Table) -> pa.Table:
        names = [name for name in records.column_names if not name.startswith(_ABOUT) or name in self._table.names]
        return self._rows(records, records.select(names).to_struct_array())


class AvroEnvelope(_AvroRows):
    """Decodes envelopes of the Avro schema `text` to images of rows, in the types of `table` where it holds times or decimals.

    Raises `SchemaMismatch` and `CorruptMetadata` for a schema that is no envelope.
    """

    def __init__(self, text: str, table: pa.Schema, identity: Identity, columns: Mapping[str, str]) -> None:
        super().__init__(text, table, identity, columns, _declared_by_avro(json.loads(text)))
        kinds = {field.name: field.type for field in self._datums.schema}
        images = (kinds.get(name, pa.null()) for name in _IMAGES)
        if not pa.types.is_string(kinds.get("op", pa.null())) or not all(map(pa.types.is_struct, images)):
            raise SchemaMismatch("a schema that is no envelope of Debezium", expected="the fields op, before and after")
        self.schema = self._rows(self._datums.schema.empty_table(), self._datums.schema.empty_table()["after"]).schema

    def decode(self, values: Sequence[bytes]) -> pa.Table:
        """Return an image for each value, marked by `DELETES`, and `MOVED_FROM` if the table has partitions."""
        envelopes = self._datums.decode(values)
        operations = envelopes.column("op").combine_chunks()
        deletes = np.asarray(pc.fill_null(pc.equal(operations, _DELETE), fill_value=False))
        writes = np.asarray(pc.is_in(operations, value_set=pa.array(sorted(_WRITES))))
        wrong = np.flatnonzero(~(deletes | writes))
        if len(wrong):
            raise Undecodable(f"field 'op' has the value {operations[wrong[0]].as_py()!r:.60}", expected=_OPERATIONS)
        before, after = (envelopes.column(name).combine_chunks() for name in _IMAGES)
        for name, image, needed in (("before", before, deletes), ("after", after, writes)):
            if (needed & ~np.asarray(image.is_valid())).any():
                raise Undecodable(f"no record in the field {name!r} of an event", expected="the row")
        number = np.arange(len(values))
        images = pa.concat_arrays([after, before]).take(pa.array(np.where(deletes, number + len(values), number)))
        rows = self._rows(envelopes, images)
        if not self._identity.partition_fields:
            return rows.append_column(DELETES, pa.array(deletes))
        was, now = self._rows(envelopes, before), self._rows(envelopes, after)
        unplaced = self._unplaced(was)
        for name, lacking in unplaced.items():
            if (lacking & deletes).any():
                raise _unplaced(name)
        keys, targets = self._identity.of(was), self._identity.of(now)
        stays = np.any(list(unplaced.values()), axis=0) | ~np.asarray(pc.equal(operations, "u")) | ~np.asarray(before.is_valid())
        stays |= np.all([_are_same(keys.column(name), targets.column(name)) for name in self._identity.partition_fields], axis=0)
        columns = [column.combine_chunks() for column in keys.columns]
        place = pa.StructArray.from_arrays(columns, fields=list(keys.schema), mask=pa.array(stays))
        return rows.append_column(DELETES, pa.array(deletes)).append_column(MOVED_FROM, place)


def _are_same(one: pa.ChunkedArray, other: pa.ChunkedArray) -> np.ndarray:
    same = pc.fill_null(pc.equal(one, other), fill_value=False)
    return np.asarray(pc.or_(same, pc.and_(one.is_null(), other.is_null())))


def _restored(name: str, values: pa.Array, declared: Mapping[str, Json], kind: pa.DataType) -> pa.Array:
    """Return `values` of a field, and what is inside of them, as `_leaf` does, by what is declared."""
    if "items" in declared and pa.types.is_list(values.type) and pa.types.is_list(kind):
        return over_items(values, lambda items: _restored(name, items, declared["items"], kind.value_type))
    if "fields" in declared and pa.types.is_struct(values.type) and pa.types.is_struct(kind):
        shapes, kinds = {f["field"]: f for f in declared["fields"]}, {f.name: f.type for f in kind}
        return over_members(
            values,
            lambda own, member: _restored(f"{name}.{own}", member, shapes[own], kinds[own]) if own in kinds else member,
        )
    return _leaf(name, values, declared_form(declared, kind), kind)


def _leaf(name: str, values: pa.Array, known: Form | None, kind: pa.DataType) -> pa.Array:
    """Return `values` of a field in the type of its column, if a form or a text has to be read; otherwise as they are."""
    is_temporal = pa.types.is_timestamp(kind) or pa.types.is_date(kind) or pa.types.is_time(kind)
    try:
        if known is not None and (pa.types.is_integer(values.type) or pa.types.is_struct(values.type)):
            return known.restore(values.cast(known.wire) if pa.types.is_integer(values.type) else values)
        if pa.types.is_string(values.type) and (is_temporal or pa.types.is_decimal(kind)):
            return from_text(values, kind)
        if pa.types.is_timestamp(kind) and pa.types.is_timestamp(values.type):
            return values.cast(kind)
    except (ValueError, pa.ArrowException) as error:
        raise Undecodable(f"field {name!r} is no {kind} ({first_line(error)})", expected="a value of the column") from None
    return values


def _member(envelopes: pa.Table, path: Sequence[str]) -> pa.Array:
    values = envelopes.column(path[0]).combine_chunks() if path[0] in envelopes.column_names else pa.nulls(envelopes.num_rows)
    for name in path[1:]:
        if not pa.types.is_struct(values.type) or values.type.get_field_index(name) < 0:
            return pa.nulls(envelopes.num_rows)
        values = pc.struct_field(values, name)
    return values


def _declared_by_avro(envelope: Json) -> Json:
    """Return what Kafka Connect's names say about a row."""
    images = (_declared(image["type"]) for image in envelope["fields"] if image["name"] in _IMAGES)
    return next((image for image in images if "fields" in image), {})


def _declared(avro: Json) -> Json:
    """Return the schema of Kafka Connect that an Avro schema stands for, as far as it has a name, items or fields."""
    for branch in avro if isinstance(avro, list) else [avro]:
        if isinstance(branch, dict):
            found = {"name": branch.get("connect.name"), "parameters": branch.get("connect.parameters")}
            if branch["type"] == "record" and found["name"] != SCALED_DECIMAL:
                found["fields"] = [{**_declared(field["type"]), "field": field["name"]} for field in branch["fields"]]
            elif branch["type"] == "array":
                found["items"] = _declared(branch["items"])
            return found
    return {}
