"""Logs of attempts that failed, kept in each table's folder. `log_files` reads them."""

from __future__ import annotations

import json
from collections.abc import Sequence

from tideline_launcher.log_files import FOLDER, SUFFIX, job_log_path
from tideline_spark.outcomes import PLAN_BEGINS, PLAN_ENDED, PLANS_BEGIN
from tideline_table.storage import Storage

_MARKS = (PLANS_BEGIN, PLAN_BEGINS, PLAN_ENDED)
Plan = tuple[str, str]
"""Base path and instant of a plan, as in the marks that an application writes into its log."""


def keep_job_log(storage: Storage, name: str, content: bytes, kept: int) -> None:
    """Store the log of an attempt, and delete the oldest logs of the table beyond `kept`. Raises `StorageError`."""
    storage.put(job_log_path(name), content)
    logs = [o for o in storage.list_folder(FOLDER).objects if o.path.endswith(SUFFIX)]
    newest_first = sorted(logs, key=lambda o: (o.modified, o.path), reverse=True)
    for old in newest_first[kept:]:
        storage.delete(old.path)


def plan_logs(log: bytes, plans: Sequence[Plan]) -> list[bytes]:
    """Return for each of `plans` its part of an application's log.

    A part has the lines between the marks of the plan, and the lines outside of all plans: the start and the end of the
    application. A part never has lines of another plan, which may be of another table. `log` may lack its beginning; lines that
    cannot be assigned to a plan are left out.
    """
    lines = [(line, *_mark(line)) for line in log.splitlines(keepends=True)]
    first, plan = next(((mark, plan) for _, mark, plan in lines if mark), ("", None))
    if not first:
        return [b"" for _ in plans]
    # If the first mark is the end of a plan, the lines before it belong to that plan.
    current = plan if first == PLAN_ENDED else None
    parts: list[tuple[Plan | None, bytes]] = []
    for line, mark, marked in lines:
        if mark == PLAN_BEGINS:
            current = marked
        parts.append((current, line))
        if mark == PLAN_ENDED:
            current = None
    return [b"".join(line for owner, line in parts if owner in (None, wanted)) for wanted in plans]


def _mark(line: bytes) -> tuple[str, Plan | None]:
    """Return the mark in a line and the plan of the mark; an empty mark for a line without one."""
    if not any(mark.encode() in line for mark in _MARKS):
        return "", None
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return "", None
    if not isinstance(found, dict) or found.get("event") not in _MARKS:
        return "", None
    return str(found["event"]), (str(found.get("table")), str(found.get("instant")))
