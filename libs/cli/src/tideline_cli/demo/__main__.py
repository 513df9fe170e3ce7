"""What `tideline demo` becomes."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from tideline_cli.demo.run import run_demo
from tideline_cli.failure import EXIT_FAILED, report_failure
from tideline_table.errors import TidelineError


def main(argv: Sequence[str] | None = None) -> int:
    """Run the demo; 0 when every check passed."""
    parser = argparse.ArgumentParser(prog="tideline demo")
    parser.add_argument("--folder", type=Path, default=Path("demo-tables"))
    arguments = parser.parse_args(argv)
    console = Console(width=None if sys.stdout.isatty() else 140)
    try:
        return 0 if run_demo(arguments.folder, console) else EXIT_FAILED
    except KeyboardInterrupt:
        console.print("\ninterrupted: every process is stopped, the tables stay readable", style="bold")
        return report_failure(KeyboardInterrupt())
    except TidelineError as error:
        return report_failure(error)


if __name__ == "__main__":
    sys.exit(main())
