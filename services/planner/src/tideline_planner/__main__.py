"""`tideline-planner`."""

import sys

from tideline_planner.service import PlannerService
from tideline_planner.settings import PlannerSettings
from tideline_service.lifecycle import run_service


def main() -> None:
    """Run the service until it is asked to stop."""
    sys.exit(run_service(PlannerService, PlannerSettings, "planner"))


if __name__ == "__main__":
    main()
