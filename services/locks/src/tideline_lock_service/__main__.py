"""`tideline-lock-service`."""

import sys

from tideline_lock_service.service import LockService
from tideline_lock_service.settings import LockServiceSettings
from tideline_service.lifecycle import run_service


def main() -> None:
    """Run the service until it is asked to stop."""
    sys.exit(run_service(LockService, LockServiceSettings, "lock_service"))


if __name__ == "__main__":
    main()
