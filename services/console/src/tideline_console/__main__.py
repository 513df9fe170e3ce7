"""The entry point of `tideline-console`."""

import sys

import tideline_console.requirement  # noqa: F401 isort: skip - first: it names the extra

from tideline_console.service import ConsoleService
from tideline_console.settings import ConsoleSettings
from tideline_runtime.lifecycle import run_service


def main() -> None:
    """Run the service until it is asked to stop."""
    sys.exit(run_service(ConsoleService, ConsoleSettings))


if __name__ == "__main__":
    main()
