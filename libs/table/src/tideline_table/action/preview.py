"""Previews: which file groups, files and bytes a plan takes, for people who look before a table service runs.

Nothing is written.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tideline_table.action.clean.plan import file_sizes, groups_of
from tideline_table.action.decision import Due, NotDue, TableService
from tideline_table.action.maintenance.verdict import Rules, decide
from tideline_table.action.service import Service
from tideline_table.action.services import SERVICES
from tideline_table.config import CLEAN_MAX_SHARE
from tideline_table.hudi.file_names import parse_base_file_name, parse_log_file_name
from tideline_table.log.plan import Plan
from tideline_table.table.facade import Table


@dataclass(frozen=True, slots=True)
class GroupPreview:
    """What a plan takes together: the file groups, files and bytes that it reads, or that a clean deletes."""

    partition: str
    file_ids: tuple[str, ...]
    files: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Preview:
    """A plan in numbers, and why it is due."""

    reason: str
    groups: tuple[GroupPreview, ...]


PREVIEWED = tuple(name for name in TableService if type(SERVICES[name]).preview is not Service.preview)
"""The services whose plans name files of the table."""
_UNBOUNDED = Rules(trigger=None, options={CLEAN_MAX_SHARE.key: 0})
"""The bound on deletions is for the process that deletes. A preview shows the plan that the bound refuses."""


def preview_due(table: Table, service: TableService) -> Preview | NotDue:
    """Decide about one of `PREVIEWED` as `decide` does without a trigger, and describe the plan. Errors as `decide`."""
    found = decide(table, service, _UNBOUNDED)
    return preview_plan_of(table, service, found.body, found.reason) if isinstance(found, Due) else found


def preview_plan_of(table: Table, service: TableService, plan: Plan, why: str) -> Preview:
    """Return a plan of one of `PREVIEWED` in numbers."""
    groups = SERVICES[service].preview(plan)
    if groups is None:
        raise TypeError(f"a preview of {service}")
    sizes = file_sizes(table.state, groups_of(table.state, {path for _, paths in groups for path in paths}))
    return Preview(why, tuple(_group(partition, paths, sizes) for partition, paths in groups))


def _group(partition: str, paths: list[str], sizes: Mapping[str, int]) -> GroupPreview:
    named = [parse_base_file_name(p.rsplit("/", 1)[-1]) or parse_log_file_name(p.rsplit("/", 1)[-1]) for p in paths]
    ids = tuple(sorted({name.file_id for name in named if name is not None}))
    return GroupPreview(partition, ids, len(paths), sum(sizes.get(path, 0) for path in paths))
