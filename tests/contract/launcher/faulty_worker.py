"""A resident worker whose plans can fail as no correct plan does: the option `fault` of a plan says how."""

from __future__ import annotations

import ctypes
import sys
import time
from collections.abc import Sequence

from tideline_spark import worker
from tideline_spark.plan_run import run_application

GROW, HANG, CRASH, RAISE, ALLOCATE = "grow", "hang", "crash", "raise", "allocate"
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


if __name__ == "__main__":
    worker.run_application = _run
    sys.exit(worker.main())
