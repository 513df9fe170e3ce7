"""The entry point of `tideline-cleaner`."""

import sys

import tideline_runtime.requirement  # noqa: F401 isort: skip - first: it names the extra

from tideline_cleaner.cleaning import CleanerService
from tideline_cleaner.settings import CleanerSettings
from tideline_runtime.lifecycle import run_service


def main() -> None:
    """Run the service until it is asked to stop."""
    sys.exit(run_service(CleanerService, CleanerSettings))


if __name__ == "__main__":
    main()
