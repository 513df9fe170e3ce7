"""Settings of the cleaner, where members declare theirs. The planner and the command line read them, too."""

from tideline_runtime.cleaner_settings import CleanerSettings

__all__ = ["CleanerSettings"]
