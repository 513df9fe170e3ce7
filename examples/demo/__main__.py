"""`python -m examples.demo [FOLDER]`; the folder is `demo-tables` by default. `make demo` runs it."""

from __future__ import annotations

import sys
from pathlib import Path

from examples.demo.run import run_demo
from rich.console import Console

from tideline_cli.failure import EXIT_FAILED, report_failure
from tideline_table.errors import TidelineError


def main(folder: Path) -> int:
    """Run the demo. Return 0 if every check passed."""
    console = Console(width=None if sys.stdout.isatty() else 140)
    try:
        return 0 if run_demo(folder, console) else EXIT_FAILED
    except KeyboardInterrupt:
        console.print("\ninterrupted: every process is stopped, the tables stay readable", style="bold")
        return report_failure(KeyboardInterrupt())
    except TidelineError as error:
        return report_failure(error)


if __name__ == "__main__":
    sys.exit(main(Path(*sys.argv[1:] or ["demo-tables"])))
