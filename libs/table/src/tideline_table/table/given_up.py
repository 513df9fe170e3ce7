"""Plans that the launcher gave up: a record in the table's folder for each, until a user lets the launcher try again."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from tideline_table.errors import MALFORMED, ObjectNotFound
from tideline_table.json_text import parse_json
from tideline_table.storage import Storage

JOBS = ".hoodie/.tideline/jobs"
"""The folder of what the launcher keeps with a table: these records, and logs of attempts that failed."""
_SUFFIX = ".given_up"


@dataclass(frozen=True, slots=True)
class GivenUp:
    """Why and when (ISO 8601, UTC) the launcher stopped running a plan, after so many attempts."""

    instant: str
    service: str
    attempts: int
    reason: str
    time: str


def keep_given_up(storage: Storage, record: GivenUp) -> None:
    """Store the record of a plan."""
    storage.put(_path(record.instant), json.dumps(asdict(record)).encode())


def given_up_plans(storage: Storage) -> Mapping[str, GivenUp]:
    """Return the records by the instant of the plan, in one listing and one request for each.

    A record that cannot be read is left out.
    """
    found = {}
    for path in (o.path for o in storage.list_folder(JOBS).objects):
        if path.endswith(_SUFFIX):
            with contextlib.suppress(ObjectNotFound, *MALFORMED):
                document = parse_json(storage.read(path))
                named = {name: str(document[name]) for name in ("instant", "service", "reason", "time")}
                record = GivenUp(**named, attempts=int(document["attempts"]))
                found[record.instant] = record
    return found


def is_given_up_plan(storage: Storage, instant: str) -> bool:
    """Return whether there is a record of the plan. One request."""
    with contextlib.suppress(ObjectNotFound):
        storage.stat(_path(instant))
        return True
    return False


def forget_given_up(storage: Storage, instant: str) -> bool:
    """Delete the record of a plan, so that a launcher runs it again. Return whether there was one."""
    was_there = is_given_up_plan(storage, instant)
    if was_there:
        storage.delete(_path(instant))
    return was_there


def _path(instant: str) -> str:
    return f"{JOBS}/{instant}{_SUFFIX}"
