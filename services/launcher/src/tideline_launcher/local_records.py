"""Files that outlive local applications: what each one runs, so that a launcher that follows one that was killed counts the attempts."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path

from tideline_launcher.application import Application, PlanKey
from tideline_table.action import TableService
from tideline_table.storage import writing

LOG, RECORD, OUTCOMES = "log", "json", "outcomes"


def local_file(state_folder: Path, driver: str, kind: str) -> Path:
    """Return the path of the log, the record or the outcomes of a local application."""
    return state_folder / "applications" / f"{driver}.{kind}"


def local_log_file(state_folder: Path, driver: str) -> Path:
    """Return the path of the log of a local application."""
    return local_file(state_folder, driver, LOG)


def log_end(state_folder: Path, driver: str, max_bytes: int) -> bytes:
    """Return the last `max_bytes` bytes of the log of a local application; empty if it has none."""
    try:
        with local_log_file(state_folder, driver).open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - max_bytes))
            return file.read(max_bytes)
    except FileNotFoundError:
        return b""


def write_record(state_folder: Path, applications: Sequence[Application]) -> None:
    """Write which plans an application runs, before it starts."""
    plans = [
        {
            "name": a.name,
            "table": a.key.table_uid,
            "instant": a.key.instant,
            "attempt": a.attempt,
            "service": a.service.value,
            "base_path": a.base_path,
        }
        for a in applications
    ]
    first = applications[0]
    path = local_file(state_folder, first.driver, RECORD)
    record = {"launcher": os.getpid(), "shared": first.shared, "created": first.created.isoformat(), "plans": plans}
    with writing(repr(str(path))):
        path.write_text(json.dumps(record), encoding="utf-8")


def left_behind(state_folder: Path) -> Iterator[tuple[Application, ...]]:
    """Yield the applications of launchers that ended without handling their ends. The applications ended with them.

    Files that cannot be read, and those of another launcher that runs, are passed over.
    """
    for path in sorted((state_folder / "applications").glob(f"*.{RECORD}")):
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
            if _runs(int(record["launcher"])):
                continue
            created, shared = datetime.fromisoformat(record["created"]), str(record["shared"])
            found = tuple(
                Application(
                    str(plan["name"]),
                    PlanKey(str(plan["instant"]), str(plan["table"])),
                    int(plan["attempt"]),
                    TableService(plan["service"]),
                    str(plan["base_path"]),
                    executors=0,
                    memory_step=0,
                    created=created,
                    shared=shared,
                )
                for plan in record["plans"]
            )
        except (OSError, ValueError, KeyError, TypeError):
            continue
        if found and found[0].driver == path.stem:
            yield found


def _runs(launcher: int) -> bool:
    # A container's first process has the same id after a restart.
    if launcher == os.getpid():
        return False
    try:
        os.kill(launcher, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
