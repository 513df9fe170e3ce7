"""Changes from AWS DMS in JSON: `data` and `metadata` as it writes to Kafka, or a row with a column `Op` as it writes to S3."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tideline_ingest.batch import Received
from tideline_ingest.changes import Identity
from tideline_ingest.errors import Undecodable
from tideline_ingest.json_events import Event, Json, document_of, value_at

OPERATION = "Op"
_MEMBERS = {"data", "metadata"}
_DELETES_BY_OPERATION = {"load": False, "insert": False, "update": False, "delete": True}
_DELETES_BY_LETTER = {"I": False, "U": False, "D": True}


class DmsUnwrap:
    """Unwraps changes. `columns` are columns that are taken from the envelope: name → path, such as `metadata.timestamp`.

    An update whose image before names another key or partition removes the row that was there. The column `Op` stays in rows of a
    table that has it (`keeps_operation`).
    """

    def __init__(self, identity: Identity, columns: Mapping[str, str], *, keeps_operation: bool) -> None:
        self._identity = identity
        self._columns = {name: path.split(".") for name, path in columns.items()}
        self._keeps_operation = keeps_operation

    def __call__(self, record: Received) -> Sequence[Event]:
        """See `Unwrap`. Control records, such as a table's creation, have no effect."""
        document = document_of(record.value, "a value")
        metadata = document.get("metadata")
        if isinstance(metadata, dict) and document.keys() <= {*_MEMBERS, "before-image"}:
            if metadata.get("record-type") == "control":
                return []
            image, deletes = document.get("data"), _known(metadata, "operation", _DELETES_BY_OPERATION, "metadata.operation")
            if not isinstance(image, dict):
                raise Undecodable("no object in the field 'data'", expected="the row")
        else:
            deletes = _known({"Op": "I", **document}, OPERATION, _DELETES_BY_LETTER, OPERATION)
            image = {n: v for n, v in document.items() if n != OPERATION or self._keeps_operation}
        taken = {name: value_at(document, path) for name, path in self._columns.items()}
        before = document.get("before-image") if metadata is not None and not deletes else None
        # It holds the values that the update changed, or all.
        was = {**image, **before} if isinstance(before, dict) else image
        moved = [Event(was, deletes=True)] if any(was.get(n) != image.get(n) for n in self._identity.columns) else []
        return [*moved, Event({**image, **taken}, deletes)]


def _known(given: Mapping[str, Json], name: str, known: Mapping[str, bool], path: str) -> bool:
    found = given.get(name)
    if not isinstance(found, str) or found not in known:
        raise Undecodable(f"field {path!r} has the value {found!r:.60}", expected=f"one of {', '.join(known)}")
    return known[found]
