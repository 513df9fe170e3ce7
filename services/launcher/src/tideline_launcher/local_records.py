"""Files of local applications that outlive a killed launcher.

Which plans each one runs, so that the next launcher counts the attempts.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

from tideline_launcher.application import Application, End, PlanKey
from tideline_launcher.log_files import OUTCOMES, RECORD, local_file
from tideline_launcher.plan_ends import plan_ends
from tideline_spark.outcomes import read_outcomes
from tideline_table.action import TableService
from tideline_table.storage import writing

_FORGOTTEN_AFTER = timedelta(days=1)


def with_ends(state_folder: Path, applications: Sequence[Application], end: End) -> tuple[Application, ...]:
    """Return the attempts of one local application with their ends. `end` is that of the application; see `plan_ends`."""
    try:
        reported = local_file(state_folder, applications[0].driver, OUTCOMES).read_text(encoding="utf-8", errors="replace")
    except OSError:
        reported = ""
    ends = plan_ends(len(applications), end, read_outcomes(reported))
    return tuple(replace(a, end=e) for a, e in zip(applications, ends, strict=True))


def unhandled(applications: Iterable[Application], now: datetime) -> set[str]:
    """Return the drivers that ended more than `_FORGOTTEN_AFTER` ago.

    No launcher handles their ends, because their tables are gone.
    """
    return {a.driver for a in applications if a.end is not None and now - a.end.ended > _FORGOTTEN_AFTER}


def write_record(state_folder: Path, applications: Sequence[Application]) -> None:
    """Write the record of an application, before it starts: which plans it runs. Raises `StorageError`."""
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
    """Yield the applications of launchers that died before they handled the ends. The applications ended with their launchers.

    Skips records that cannot be read, and those of another launcher that runs.
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
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            continue
        if found and found[0].driver == path.stem:
            yield found


def _runs(launcher: int) -> bool:
    # After a restart of the container, this launcher can have the process id of the killed one.
    if launcher == os.getpid():
        return False
    try:
        os.kill(launcher, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
