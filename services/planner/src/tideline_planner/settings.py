"""Settings of the planner."""

from __future__ import annotations

from typing import ClassVar

from tideline_runtime.settings import ServiceSettings, setting


class PlannerSettings(ServiceSettings):
    """See `ServiceSettings`."""

    section: ClassVar[str | None] = "planner"

    clustering_min_files: int = setting(
        8,
        unit="files",
        description="Minimum number of small file slices in one partition for a clustering plan.",
        per_table=True,
        ge=2,
    )
    clustering_min_commits: int = setting(
        4,
        unit="instants",
        description="Minimum number of writes completed since the last clustering plan of a table.",
        per_table=True,
        ge=1,
    )
    clustering_backoff_s: float = setting(
        10.0,
        unit="s",
        description="Pause after a clustering or log compaction that was rolled back, because it failed or lost to a writer; at "
        "least one second. Each further one in a row doubles it.",
        per_table=True,
        ge=0,
    )
    clustering_backoff_max_s: float = setting(
        600.0,
        unit="s",
        description="Longest pause after clusterings or log compactions that were rolled back.",
        per_table=True,
        ge=0,
    )
    plan_interval_s: float = setting(
        600.0,
        unit="s",
        description="Pause from the end of a clustering or compaction to a plan of the file groups that it left over, because a "
        "budget or "
        "a bound made it smaller, if too few writes came since. It is also the pause after a compaction that was cancelled.",
        per_table=True,
        ge=1,
    )
    clustering_sort_columns: dict[str, str] = setting(
        {},
        unit="-",
        description="Sort columns of clustering, separated by commas, by table name. Other tables use the sort columns of "
        "`options`. Those of a policy override both.",
    )
    options: dict[str, str] = setting(
        {}, unit="-", description="Engine options for plans, such as `hoodie.clustering.plan.strategy.small.file.limit`."
    )
