"""A resident worker whose plans can fail as no correct plan does: the option `fault` of a plan says how.

With the variable `HANG_IN_TASKS` the tasks of clusterings never end.
"""

from __future__ import annotations

import ctypes
import os
import sys
import time
from collections.abc import Sequence

from tideline_spark import worker
from tideline_spark.plan_run import run_application

GROW, HANG, CRASH, RAISE, ALLOCATE = "grow", "hang", "crash", "raise", "allocate"
HANG_IN_TASKS = "HANG_IN_TASKS"
GROWS_BY = 8 * 2**20


def _run(arguments: Sequence[str], *more: object) -> object:
    (fault,) = [a.rpartition("=")[2] for a in arguments if a.startswith("--options=fault=")] or [""]
    print(f"fault {fault}", file=sys.stderr)
    if fault == CRASH:
        ctypes.string_at(0)
    if fault == RAISE:
        raise RuntimeError("a mistake in the code")
    if fault == ALLOCATE:
        bytearray(2**50)
    held = []
    while fault in (GROW, HANG):
        if fault == GROW:
            held.append(b"x" * GROWS_BY)
        time.sleep(0.01)
    return run_application(arguments, *more)


def _hang(_: object) -> None:
    while True:
        time.sleep(0.01)


if __name__ == "__main__":
    if HANG_IN_TASKS in os.environ:
        worker.cluster_group = _hang
    worker.run_application = _run
    sys.exit(worker.main())
