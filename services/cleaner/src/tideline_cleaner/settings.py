"""Settings of the cleaner."""

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
    options: dict[str, str] = setting(
        {}, unit="-", description="Engine options of the cleaner, such as `hoodie.cleaner.commits.retained`."
    )
