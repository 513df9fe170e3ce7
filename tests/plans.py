"""Plans that a test publishes: their instant, None if none is due. Beneath them lies what the product calls, which says why."""

from __future__ import annotations

from collections.abc import Mapping

from tideline_table.action import (
    NotDue,
    request_archival,
    request_clean,
    request_clustering,
    request_compaction,
    request_log_compaction,
)
from tideline_table.table import Table

Options = Mapping[str, object] | None


def _instant(answer: str | NotDue) -> str | None:
    return None if isinstance(answer, NotDue) else answer


def schedule_clustering(table: Table, options: Options = None) -> str | None:
    return _instant(request_clustering(table, options))


def schedule_compaction(table: Table, options: Options = None) -> str | None:
    return _instant(request_compaction(table, options))


def schedule_log_compaction(table: Table, options: Options = None) -> str | None:
    return _instant(request_log_compaction(table, options))


def schedule_clean(table: Table, options: Options = None) -> str | None:
    return _instant(request_clean(table, options))


def schedule_archival(table: Table, options: Options = None, cleaned_up: frozenset[str] = frozenset()) -> str | None:
    return _instant(request_archival(table, options, cleaned_up))
