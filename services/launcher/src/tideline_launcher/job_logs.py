"""Logs of failed applications, kept in each table's folder. `tideline job logs` reads them."""

from __future__ import annotations

from tideline_table.errors import ObjectNotFound
from tideline_table.storage import Storage

FOLDER = ".hoodie/.tideline/jobs"
_SUFFIX = ".log"


def job_log_path(name: str) -> str:
    """Return the path of the log of an application below the base path of its table."""
    return f"{FOLDER}/{name}{_SUFFIX}"


def keep_job_log(storage: Storage, name: str, content: bytes, kept: int) -> None:
    """Store the log of an application, and delete the oldest logs of the table beyond `kept`."""
    storage.put(job_log_path(name), content)
    logs = [o for o in storage.list_folder(FOLDER).objects if o.path.endswith(_SUFFIX)]
    newest_first = sorted(logs, key=lambda o: (o.modified, o.path), reverse=True)
    for old in newest_first[kept:]:
        storage.delete(old.path)


def read_job_log(storage: Storage, name: str) -> bytes | None:
    """Return the stored log of an application, None if there is none."""
    try:
        return storage.read(job_log_path(name))
    except ObjectNotFound:
        return None
