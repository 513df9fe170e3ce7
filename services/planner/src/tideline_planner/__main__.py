"""The entry point of `tideline-planner`."""

import tideline_runtime.requirement  # noqa: F401 isort: skip - first: it names the extra

from tideline_planner.planning import PlannerService
from tideline_planner.settings import PlannerSettings
from tideline_runtime.lifecycle import entry_point

main = entry_point(PlannerService, PlannerSettings)

if __name__ == "__main__":
    main()
