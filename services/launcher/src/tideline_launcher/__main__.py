"""`tideline-launcher`."""

import sys

from tideline_launcher.service import LauncherService
from tideline_launcher.settings import LauncherSettings
from tideline_service.lifecycle import run_service


def main() -> None:
    """Run the service until it is asked to stop."""
    sys.exit(run_service(LauncherService, LauncherSettings, "launcher"))


if __name__ == "__main__":
    main()
