"""How a table's properties say that versions of a record are merged (format reference 2.3, 16.3)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tideline_table.errors import UnsupportedTable
from tideline_table.merge import MergeMode, OpenCells, PartialUpdate, merge_mode
from tideline_table.reader.read_plan import DeletionMark
from tideline_table.schema.avro_types import parse_record
from tideline_table.timeline import properties as p

FIRST_VERSION_WITH_MERGE_MODE = 8
FIRST_VERSION_WITHOUT_PAYLOADS = 9
_MODELS = "org.apache.hudi.common.model."
_MODES = {mode.value: mode for mode in MergeMode}
_STRATEGIES = {
    "eeb8d96f-b1e4-49fd-bbf8-28ac514178e5": MergeMode.EVENT_TIME,
    "ce9acb64-bde0-424c-9b91-f6ebba25356d": MergeMode.COMMIT_TIME,
}
_CUSTOM = "CUSTOM"
_PAYLOAD_STRATEGY = "00000000-0000-0000-0000-000000000000"
"""Versions are merged by the code of the payload class."""
_UNAVAILABLE = p.MERGE_PROPERTY_PREFIX + "hoodie.write.partial.update.unavailable.value"
_DELETE_FIELD = p.MERGE_PROPERTY_PREFIX + "hoodie.payload.delete.field"
_DELETE_MARKER = p.MERGE_PROPERTY_PREFIX + "hoodie.payload.delete.marker"
_KNOWN_PROPERTIES = frozenset({_UNAVAILABLE, _DELETE_FIELD, _DELETE_MARKER})


@dataclass(frozen=True, slots=True)
class Merging:
    """Which version of a record lies on top, which of its cells are open, and which rows of logs are deletions."""

    mode: MergeMode
    partial: PartialUpdate | None = None
    deletion: DeletionMark | None = None
    deletions_always_win: bool = False
    """Deletions by event time do not compare, as payload classes have it."""


_PAYLOADS = {
    _MODELS + "EventTimeAvroPayload": Merging(MergeMode.EVENT_TIME),
    _MODELS + "PartialUpdateAvroPayload": Merging(
        MergeMode.EVENT_TIME, PartialUpdate(OpenCells.NULLS, by_payload=True), deletions_always_win=True
    ),
    _MODELS + "AWSDmsAvroPayload": Merging(MergeMode.COMMIT_TIME, deletion=DeletionMark("Op", "D")),
    # Hudi 1.x leaves the marker of values that were not available where it is.
    _MODELS + "debezium.PostgresDebeziumAvroPayload": Merging(
        MergeMode.EVENT_TIME, deletion=DeletionMark("_change_operation_type", "d"), deletions_always_win=True
    ),
    _MODELS + "OverwriteNonDefaultsWithLatestAvroPayload": Merging(MergeMode.COMMIT_TIME, PartialUpdate(OpenCells.NULLS)),
}
"""Payload classes whose rule is known, besides those that are a merge mode by themselves."""


def read_merging(properties: Mapping[str, str], name: str, version: int, ordering_field: str, payload_class: str) -> Merging:
    """The rule of the table `name`. `UnsupportedTable` names a rule that is code which cannot run here."""
    found = _declared(properties, name, version, ordering_field, payload_class)
    # Hudi, too, falls back to commit time where there is nothing to compare.
    mode = found.mode if ordering_field else MergeMode.COMMIT_TIME
    return replace(
        found,
        mode=mode,
        partial=_partial_update(properties, name) or found.partial,
        deletion=_deletion_mark(properties, name) or found.deletion,
    )


def check_defaults(merging: Merging, schema_json: str, name: str) -> None:
    """Raise `UnsupportedTable` where other values than nulls leave cells open: Hudi compares them with defaults by identity, not by value."""
    if merging.partial is None or merging.partial.cells is not OpenCells.NULLS or not schema_json:
        return
    for field in parse_record(schema_json)["fields"]:
        if field.get("default") is not None:
            raise UnsupportedTable(
                f"table {name!r} ignores default values when it merges records, and column {field.get('name')!r} has the default "
                f"{field['default']!r}",
                expected="columns without default, or with null",
            )


def _declared(properties: Mapping[str, str], name: str, version: int, ordering_field: str, payload_class: str) -> Merging:
    named = properties.get(p.MERGE_MODE, "")
    strategy = properties.get(p.MERGE_STRATEGY, "")
    if version < FIRST_VERSION_WITH_MERGE_MODE or not (named or strategy):
        return _before_modes(properties, name, ordering_field, payload_class)
    mode = _MODES.get(named) if named else _STRATEGIES.get(strategy)
    if mode is not None:
        return Merging(mode)
    if payload_class in _PAYLOADS and strategy in ("", _PAYLOAD_STRATEGY) and named in ("", _CUSTOM):
        return _PAYLOADS[payload_class]
    raise UnsupportedTable(
        f"table {name!r} merges records as {named or strategy}" + (f" with {payload_class}" if payload_class else ""),
        expected=" or ".join(_MODES),
        remedy="its merge rule is code that cannot run here",
    )


def _before_modes(properties: Mapping[str, str], name: str, ordering_field: str, payload_class: str) -> Merging:
    """Of version 6, where the payload class decides and the strategy only where there is none."""
    strategy = properties.get(p.MERGE_STRATEGY) or properties.get(p.OLD_MERGE_STRATEGY, "")
    if payload_class in _PAYLOADS:
        return _PAYLOADS[payload_class]
    if payload_class or not strategy:
        return Merging(merge_mode(payload_class, ordering_field))
    mode = _STRATEGIES.get(strategy)
    if mode is None:
        raise UnsupportedTable(
            f"table {name!r} merges records by strategy {strategy}",
            expected=" or ".join(_STRATEGIES),
            remedy="its merge rule is code that cannot run here",
        )
    return Merging(mode)


def _partial_update(properties: Mapping[str, str], name: str) -> PartialUpdate | None:
    found = properties.get(p.PARTIAL_UPDATE_MODE, "")
    if found in ("", "NONE"):
        return None
    if found not in {cells.value for cells in OpenCells}:
        raise UnsupportedTable(
            f"table {name!r} merges parts of records ({p.PARTIAL_UPDATE_MODE}={found})",
            expected=" or ".join(cells.value for cells in OpenCells),
        )
    cells = OpenCells(found)
    marker = properties.get(_UNAVAILABLE, "")
    # Without a marker Hudi fills nothing.
    return None if cells is OpenCells.MARKED and not marker else PartialUpdate(cells, marker)


def _deletion_mark(properties: Mapping[str, str], name: str) -> DeletionMark | None:
    more = sorted(key for key in properties if key.startswith(p.MERGE_PROPERTY_PREFIX) and key not in _KNOWN_PROPERTIES)
    if more:
        raise UnsupportedTable(f"table {name!r} has a merge rule of its own ({', '.join(more)})", expected="no such properties")
    field, marker = properties.get(_DELETE_FIELD, ""), properties.get(_DELETE_MARKER, "")
    return DeletionMark(field, marker) if field and marker else None
