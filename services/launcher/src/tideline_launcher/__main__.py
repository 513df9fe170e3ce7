"""The entry point of `tideline-launcher`."""

import sys

import tideline_runtime.requirement  # noqa: F401 isort: skip - first: it names the extra

from tideline_launcher.plan_execution import LauncherService
from tideline_launcher.settings import LauncherSettings
from tideline_runtime.lifecycle import run_service


def main() -> None:
    """Run the service until it is asked to stop."""
    sys.exit(run_service(LauncherService, LauncherSettings))


if __name__ == "__main__":
    main()
