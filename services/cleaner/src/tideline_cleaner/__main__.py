"""The entry point of `tideline-cleaner`."""

import tideline_runtime.requirement  # noqa: F401 isort: skip - first: it names the extra

from tideline_cleaner.cleaning import CleanerService
from tideline_cleaner.settings import CleanerSettings
from tideline_runtime.lifecycle import entry_point

main = entry_point(CleanerService, CleanerSettings)

if __name__ == "__main__":
    main()
