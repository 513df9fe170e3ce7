"""Settings of the planner."""

from __future__ import annotations

from typing import ClassVar

from tideline_service.settings import ServiceSettings, setting


class PlannerSettings(ServiceSettings):
    """See `ServiceSettings`."""

    section: ClassVar[str | None] = "planner"

    clustering_min_files: int = setting(
        8, unit="files", description="A table is clustered when some partition has at least this many small base files.", ge=2
    )
    clustering_min_commits: int = setting(
        4, unit="instants", description="And when so many writes completed since its last clustering was planned.", ge=1
    )
    clustering_sort_columns: dict[str, str] = setting(
        {}, unit="-", description="Table name to comma list of the columns that its clustering sorts by; absent keeps the order."
    )
    options: dict[str, str] = setting(
        {}, unit="-", description="Engine options for plans, such as `hoodie.clustering.plan.strategy.small.file.limit`."
    )
