"""Settings of the cleaner."""

from __future__ import annotations

from typing import ClassVar

from tideline_service.settings import ServiceSettings, setting


class CleanerSettings(ServiceSettings):
    """See `ServiceSettings`."""

    section: ClassVar[str | None] = "cleaner"

    clean_min_commits: int = setting(
        5, unit="instants", description="A table is cleaned when so many writes completed since the last look.", ge=1
    )
    options: dict[str, str] = setting({}, unit="-", description="Engine options, such as `hoodie.cleaner.commits.retained`.")
