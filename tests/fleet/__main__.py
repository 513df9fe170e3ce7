"""`python -m tests.fleet --tables 200`: the fleet proof of any size. The exit code is 1 if anything is wrong."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from tests.fleet import taking_over
from tests.fleet.story import Size, performed
from tests.fleet.verification import problems

SHOWN = 40
LEAST = 10
"""Of fewer tables, the only one whose window closes has a bucket index and no log files: nothing is planned for it."""
LARGE = 40
"""From so many tables on, a group has a window that opens and closes by the clock during the run."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fleet", description=__doc__)
    parser.add_argument("--tables", type=int, default=200)
    parser.add_argument("--hudi-tables", type=int, default=20, help="tables that jobs of Apache Hudi write; 0: none")
    parser.add_argument("--rounds", type=int, default=6, help="rounds of each writer; in each it writes half of the tables")
    parser.add_argument(
        "--polling",
        choices=("on", "off"),
        default="on",
        help="off: the mirror looks at no table that nobody told of; writers hint at tables on disk, MinIO notifies of the others",
    )
    parser.add_argument("--folder", type=Path, help="where the tables on disk, the logs and the ledgers are kept")
    given = parser.parse_args()
    if given.tables < LEAST:
        parser.error(f"--tables {given.tables}: at least {LEAST}, so that each group has a table that is rewritten")
    if given.hudi_tables and given.polling == "off":
        parser.error(f"--hudi-tables {given.hudi_tables} with --polling off: jobs of Apache Hudi give no hints; pass 0")
    began_s = time.monotonic()
    is_large = given.tables >= LARGE
    age_s, window_s = (300.0, 60.0) if is_large else (150.0, 0.0)
    size = Size(given.tables, given.rounds, 300.0, 900.0, age_s, given.hudi_tables, window_s, polls=given.polling == "on")
    with tempfile.TemporaryDirectory(prefix="tideline-fleet-") as made:
        folder = given.folder or Path(made)
        with performed(size, folder.resolve(), lambda line: print(line, flush=True), print) as run:
            wrong, figures = problems(run)
            served = taking_over.figures(run.hudi) if given.hudi_tables else "no table of Apache Hudi"
    print(f"{served}\n{given.tables} tables, {figures.text()}; {time.monotonic() - began_s:.0f} s")
    for line in wrong[:SHOWN]:
        print(f"wrong: {line}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
