"""Decodes CSV: each value is one line, without a header."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tideline_ingest.changes import DELETES
from tideline_ingest.errors import Undecodable
from tideline_ingest.forms import Form, first_line, from_text
from tideline_ingest.settings import CsvSettings
from tideline_table.errors import InvalidOption

_SHOWN = 60


class CsvDecoder:
    """One line per value. Columns of `schema` that the lines lack are null, and columns that it lacks are dropped.

    With `operation`, a column of that name says what happened (AWS DMS: I, U or D), rows are marked by `DELETES`, and a line that
    has one field less is an insert. Raises `InvalidOption` for columns that a line cannot hold.
    """

    def __init__(self, schema: pa.Schema, settings: CsvSettings, forms: Mapping[str, Form], operation: str | None = None) -> None:
        self._names = settings.columns or tuple(schema.names)
        if operation is not None and operation not in self._names:
            self._names = (operation, *self._names)
        self._operation = operation
        self._settings = settings
        self._forms = forms
        self._fields = [schema.field(name) for name in self._names if name in schema.names]
        nested = [f.name for f in self._fields if pa.types.is_nested(f.type)]
        if nested:
            raise InvalidOption(f"column {nested[0]!r} of a nested type in CSV", expected="`csv.columns` without it")
        self.schema = pa.schema([f.with_nullable(nullable=True) for f in self._fields])

    def decode(self, values: Sequence[bytes]) -> pa.Table:
        """See `Decoder.decode`."""
        lines = [self._line(value) for value in values]
        texts = dict(zip(self._names, zip(*lines, strict=True), strict=True)) if lines else dict.fromkeys(self._names, ())
        rows = pa.table([self._column(field, texts[field.name]) for field in self._fields], schema=self.schema)
        if self._operation is None:
            return rows
        operations = [text or "I" for text in texts[self._operation]]
        wrong = next((text for text in operations if text not in ("I", "U", "D")), None)
        if wrong is not None:
            raise Undecodable(f"field {self._operation!r} has the value {wrong[:_SHOWN]!r}", expected="I, U or D")
        return rows.append_column(DELETES, pa.array(np.array([text == "D" for text in operations], np.bool_)))

    def _line(self, value: bytes) -> Sequence[str | None]:
        try:
            parsed = list(csv.reader([value.decode()], delimiter=self._settings.delimiter, strict=True))
        except (UnicodeDecodeError, csv.Error) as error:
            raise Undecodable(f"a value that is no line of CSV ({error})", expected="one line") from None
        fields = parsed[0] if len(parsed) == 1 else []
        if self._operation is not None and len(fields) == len(self._names) - 1:
            at = self._names.index(self._operation)
            fields = [*fields[:at], "I", *fields[at:]]
        if len(fields) != len(self._names):
            raise Undecodable(f"a line of {len(fields)} fields", expected=f"{len(self._names)}: {', '.join(self._names)}")
        return [None if text == self._settings.null else text for text in fields]

    def _column(self, field: pa.Field, texts: Sequence[str | None]) -> pa.Array:
        known = self._forms.get(field.name)
        given = pa.array(texts, pa.string())
        try:
            return known.restore(pc.cast(given, known.wire)) if known is not None else from_text(given, field.type)
        except (ValueError, pa.ArrowException) as error:
            shown = f"the value {texts[0]!r:.{_SHOWN}}" if len(texts) == 1 else "values"
            kind = f"{field.type}{'' if known is None else f' as {known.name}'}"
            raise Undecodable(f"field {field.name!r} has {shown}, which is no {kind} ({first_line(error)})") from None
