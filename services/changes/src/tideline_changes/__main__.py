"""The entry point of `tideline-changes`."""

import tideline_runtime.requirement  # noqa: F401 isort: skip - first: it names the extra

from tideline_changes.settings import ChangesSettings
from tideline_changes.streaming import ChangesService
from tideline_runtime.lifecycle import entry_point

main = entry_point(ChangesService, ChangesSettings)

if __name__ == "__main__":
    main()
