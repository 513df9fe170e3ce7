"""Settings of the cleaner.

They are declared here because the planner and the command line also decide by them what is to be cleaned.
"""

from __future__ import annotations

from typing import ClassVar

from tideline_runtime.settings import ServiceSettings, setting


class CleanerSettings(ServiceSettings):
    """See `ServiceSettings`."""

    section: ClassVar[str | None] = "cleaner"

    clean_min_commits: int = setting(
        5,
        unit="instants",
        description="Number of completed writes after which the cleaner checks a table again.",
        per_table=True,
        ge=1,
    )
    clean_interval_s: float = setting(
        600.0,
        unit="s",
        description="Time after the last check of a table after which the cleaner checks it again although fewer than "
        "`clean_min_commits` writes completed. It does so if the table's log has new entries, if retention is by hours, or if at "
        "the last check a reader held a lease. When a policy changes the table's engine options, or switches cleaning or archival "
        "on or off, the cleaner checks the table at its next visit.",
        per_table=True,
        gt=0,
    )
    options: dict[str, str] = setting(
        {},
        unit="-",
        description="Engine options of the cleaner, such as `hoodie.cleaner.commits.retained`. The planner, `tideline status`, "
        "`why` and `maintain` judge cleans and archivals by them, too, from the `[cleaner]` table of their own settings file.",
    )
