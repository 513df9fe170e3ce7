"""The entry point of `tideline-changes`."""

import sys

import tideline_runtime.requirement  # noqa: F401 isort: skip - first: it names the extra

from tideline_changes.settings import ChangesSettings
from tideline_changes.streaming import ChangesService
from tideline_runtime.lifecycle import run_service


def main() -> None:
    """Run the service until it is asked to stop."""
    sys.exit(run_service(ChangesService, ChangesSettings))


if __name__ == "__main__":
    main()
