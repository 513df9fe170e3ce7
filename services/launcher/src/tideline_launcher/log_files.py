"""Logs of applications: of local ones in the state folder, of failed attempts in the folders of tables. Knows no Spark."""

from __future__ import annotations

import os
from pathlib import Path

from tideline_table.errors import ObjectNotFound
from tideline_table.storage import Storage

LOG, RECORD, OUTCOMES = "log", "json", "outcomes"
TAIL_BYTES = 64 * 1024
"""Bytes of the end of a log that are searched for the recovery of the last error."""
FOLDER, SUFFIX = ".hoodie/.tideline/jobs", ".log"


def local_file(state_folder: Path, driver: str, kind: str) -> Path:
    """Return the path of the log, the record or the outcomes of a local application."""
    return state_folder / "applications" / f"{driver}.{kind}"


def log_end(state_folder: Path, driver: str, max_bytes: int) -> bytes:
    """Return the last `max_bytes` bytes of the log of a local application; empty if it has none."""
    try:
        with local_file(state_folder, driver, LOG).open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - max_bytes))
            return file.read(max_bytes)
    except FileNotFoundError:
        return b""


def job_log_path(name: str) -> str:
    """Return the path of the log of an attempt below the base path of its table."""
    return f"{FOLDER}/{name}{SUFFIX}"


def read_job_log(storage: Storage, name: str) -> bytes | None:
    """Return the stored log of an attempt, None if there is none."""
    try:
        return storage.read(job_log_path(name))
    except ObjectNotFound:
        return None
