"""The merge rule that a table's properties declare (format reference 2.3, 16.3)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tideline_table.errors import UnsupportedTable
from tideline_table.hudi import properties as p
from tideline_table.hudi.format import TableFormat
from tideline_table.hudi.merge_rules import CUSTOM, POSTGRES, STRATEGIES, UNAVAILABLE_VALUE
from tideline_table.merge import DeletionMark, MergeMode, Merging, OpenCells, PartialUpdate, merge_mode

_MODELS = "org.apache.hudi.common.model."
_MODES = {mode.value: mode for mode in MergeMode}
_STRATEGIES = {STRATEGIES[mode.value]: mode for mode in MergeMode}
_DEBEZIUM_DELETION = DeletionMark("_change_operation_type", "d", any_case=True)
_KNOWN_PROPERTIES = frozenset({p.UNAVAILABLE_VALUE, p.DELETE_FIELD, p.DELETE_MARKER})


_PAYLOADS = {
    _MODELS + "EventTimeAvroPayload": Merging(MergeMode.EVENT_TIME),
    _MODELS + "PartialUpdateAvroPayload": Merging(
        MergeMode.EVENT_TIME, PartialUpdate(OpenCells.NULLS, by_payload=True), deletions_always_win=True
    ),
    _MODELS + "AWSDmsAvroPayload": Merging(MergeMode.COMMIT_TIME, deletion=DeletionMark("Op", "D", any_case=True)),
    # Hudi 1.x keeps the marker of an unavailable value in the merged record.
    POSTGRES.payload_class: Merging(MergeMode.EVENT_TIME, deletion=_DEBEZIUM_DELETION, deletions_always_win=True),
    _MODELS + "OverwriteNonDefaultsWithLatestAvroPayload": Merging(MergeMode.COMMIT_TIME, PartialUpdate(OpenCells.NULLS)),
}
"""Merge rules of known payload classes, besides those that `merge_mode` handles."""
POSTGRES_ON_BASE_FILES = Merging(
    MergeMode.EVENT_TIME,
    PartialUpdate(OpenCells.MARKED, UNAVAILABLE_VALUE, fills_below=False),
    deletion=_DEBEZIUM_DELETION,
)
"""The rule of the payload class itself, which Hudi 1.2 applies to base files, but not to logs (docs/peer-differences.md, 25)."""


def read_merging(properties: Mapping[str, str], name: str, form: TableFormat, ordering_field: str, payload_class: str) -> Merging:
    """Return the merge rule of the table `name`. Raises `UnsupportedTable` for a rule that is code which cannot run here."""
    found = _declared(properties, name, form, ordering_field, payload_class)
    # As Hudi does, fall back to commit time if there is no ordering field to compare.
    mode = found.mode if ordering_field else MergeMode.COMMIT_TIME
    return replace(
        found,
        mode=mode,
        ordering_field=ordering_field,
        combines_by_mode=form.combines_by_mode,
        partial=_partial_update(properties, name) or found.partial,
        deletion=_deletion_mark(properties, name) or found.deletion,
    )


def _declared(properties: Mapping[str, str], name: str, form: TableFormat, ordering_field: str, payload_class: str) -> Merging:
    named = properties.get(p.MERGE_MODE, "")
    strategy = properties.get(p.MERGE_STRATEGY, "")
    if not form.has_merge_modes or not (named or strategy):
        return _before_modes(properties, name, ordering_field, payload_class)
    mode = _MODES.get(named) if named else _STRATEGIES.get(strategy)
    if mode is not None:
        return Merging(mode)
    if named in ("", CUSTOM):
        from tideline_table.merge.merger import NamedMerger, merger_for  # noqa: PLC0415 - few tables have one

        if merger := properties.get(p.MERGER) or merger_for(strategy):
            return Merging(merger=NamedMerger(merger))
    if payload_class in _PAYLOADS and strategy in ("", STRATEGIES[CUSTOM]) and named in ("", CUSTOM):
        return _PAYLOADS[payload_class]
    raise UnsupportedTable(
        f"table {name!r} merges records as {named or strategy}" + (f" with {payload_class}" if payload_class else ""),
        expected=" or ".join(_MODES),
        remedy="its merge rule is code that cannot run here, unless a package registers a merger with this strategy_id",
    )


def _before_modes(properties: Mapping[str, str], name: str, ordering_field: str, payload_class: str) -> Merging:
    """Return the rule of a table without a merge mode: by payload class, or by merge strategy if there is no class."""
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
    marker = properties.get(p.UNAVAILABLE_VALUE, "")
    # Without a marker, Hudi fills no cell.
    return None if cells is OpenCells.MARKED and not marker else PartialUpdate(cells, marker)


def _deletion_mark(properties: Mapping[str, str], name: str) -> DeletionMark | None:
    more = sorted(key for key in properties if key.startswith(p.MERGE_PROPERTY_PREFIX) and key not in _KNOWN_PROPERTIES)
    if more:
        raise UnsupportedTable(f"table {name!r} has a merge rule of its own ({', '.join(more)})", expected="no such properties")
    field, marker = properties.get(p.DELETE_FIELD, ""), properties.get(p.DELETE_MARKER, "")
    return DeletionMark(field, marker) if field and marker else None
