"""The entry point of `tideline-launcher`."""

import tideline_runtime.requirement  # noqa: F401 isort: skip - first: it names the extra

from tideline_launcher.plan_execution import LauncherService
from tideline_launcher.settings import LauncherSettings
from tideline_runtime.lifecycle import entry_point

main = entry_point(LauncherService, LauncherSettings)

if __name__ == "__main__":
    main()
