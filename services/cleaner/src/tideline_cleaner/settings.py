"""Settings of the cleaner. `tideline_runtime` declares them, because the planner and the command line read them, too."""

from tideline_runtime.cleaner_settings import CleanerSettings

__all__ = ["CleanerSettings"]
