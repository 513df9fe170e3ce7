"""`tideline-cleaner`."""

import sys

from tideline_cleaner.service import CleanerService
from tideline_cleaner.settings import CleanerSettings
from tideline_service.lifecycle import run_service


def main() -> None:
    """Run the service until it is asked to stop."""
    sys.exit(run_service(CleanerService, CleanerSettings, "cleaner"))


if __name__ == "__main__":
    main()
