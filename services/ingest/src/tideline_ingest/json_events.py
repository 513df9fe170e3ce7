"""JSON records that wrap a row into an envelope, which says what happened to the row."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import pyarrow as pa
import simplejson

from tideline_ingest.batch import Received
from tideline_ingest.changes import Changes, Identity
from tideline_ingest.decoding import JsonDecoder, in_order
from tideline_ingest.errors import Undecodable
from tideline_ingest.forms import Form, first_line

Json = Any


@dataclass(frozen=True, slots=True)
class Event:
    """One effect of a record: the row `image` is written, or (`deletes`) the row that its key and partition columns name goes."""

    image: Mapping[str, Json]
    deletes: bool
    declared: Json = None
    """Kafka Connect's schema of the image, if the record has one."""


Unwrap = Callable[[Received], Sequence[Event]]
"""Returns the effects of a record with a value, in order. Raises `Undecodable`."""


def document_of(content: bytes | None, what: str) -> dict[str, Json]:
    """Return the JSON object in `content`, with decimals for fractions. Raises `Undecodable`."""
    try:
        found = simplejson.loads(content or b"", use_decimal=True)
    except (ValueError, RecursionError) as error:
        raise Undecodable(f"{what} that is not JSON ({error})", expected="a JSON object") from None
    if not isinstance(found, dict):
        raise Undecodable(f"{what} that is no JSON object", expected="a JSON object")
    return found


def value_at(document: Json, path: Sequence[str]) -> Json:
    """Return the value at a path of names, None where there is none."""
    return reduce(lambda found, name: found.get(name) if isinstance(found, dict) else None, path, document)


class JsonEvents:
    """Decodes the images of events by the schema of a table. `forms_of` returns the forms of columns for a declared schema.

    Records without a value do nothing, unless `unwrap` takes them (`tombstones`). Raises `InvalidOption` for columns that have no
    form in JSON.
    """

    def __init__(
        self,
        unwrap: Unwrap,
        schema: pa.Schema,
        identity: Identity,
        forms_of: Callable[[Json], Mapping[str, Form]],
        *,
        ignores_unknown: bool,
        tombstones: bool = False,
    ) -> None:
        self._unwrap = unwrap
        self._tombstones = tombstones
        self._schema = schema
        self._identity = identity
        self._forms_of = forms_of
        self._ignores_unknown = ignores_unknown
        self._decoders: list[tuple[Json, JsonDecoder, JsonDecoder]] = [(None, *self._pair(forms_of(None)))]

    def changes(self, records: Sequence[Received]) -> Changes:
        """See `ChangeDecoder.changes`."""
        taken = [(at, record) for at, record in enumerate(records) if self._tombstones or record.value is not None]
        events = [(at, event) for at, record in taken for event in self._unwrap(record)]
        written = [(at, event) for at, event in events if not event.deletes]
        removed = [(at, event) for at, event in events if event.deletes]
        keys = self._identity.of(self._decoded([e for _, e in removed], deletes=True)) if removed else None
        rows = self._decoded([e for _, e in written], deletes=False)
        return Changes(rows, [at for at, _ in written], keys, [at for at, _ in removed])

    def _decoded(self, events: Sequence[Event], *, deletes: bool) -> pa.Table:
        positions: dict[int, list[int]] = {}
        for position, event in enumerate(events):
            positions.setdefault(self._number(event.declared), []).append(position)
        parts = []
        for number, found in positions.items():
            images = [events[at].image for at in found]
            if deletes:
                images = [{name: image.get(name) for name in self._identity.columns} for image in images]
            parts.append(self._decoders[number][1 + deletes].decode([_encoded(image) for image in images]))
        if not parts:
            return self._schema.empty_table()
        return in_order(parts, {number.to_bytes(4): found for number, found in positions.items()})

    def _number(self, declared: Json) -> int:
        """Return the position of the decoders for images of a declared schema; a topic has few of them."""
        for number, (known, _, _) in enumerate(self._decoders):
            if known == declared:
                return number
        try:
            self._decoders.append((declared, *self._pair(self._forms_of(declared))))
        except ValueError as error:
            raise Undecodable(f"a schema of a row that no column can have ({first_line(error)})", expected="another one") from None
        return len(self._decoders) - 1

    def _pair(self, forms: Mapping[str, Form]) -> tuple[JsonDecoder, JsonDecoder]:
        """Return the decoders of rows and of their keys."""
        # What the table requires is checked when rows are prepared: a deletion has few columns.
        given = pa.schema([field.with_nullable(nullable=True) for field in self._schema])
        keys = pa.schema([given.field(name) for name in self._identity.columns])
        own = {name: found for name, found in forms.items() if name in self._identity.columns}
        return JsonDecoder(given, forms, ignores_unknown=self._ignores_unknown), JsonDecoder(keys, own)


def _encoded(image: Mapping[str, Json]) -> bytes:
    try:
        return simplejson.dumps(image, use_decimal=True).encode()
    except (ValueError, RecursionError) as error:
        raise Undecodable(f"a row that is not JSON ({error})", expected="a JSON object") from None
