"""Settings of the mirror."""

from __future__ import annotations

from typing import ClassVar

from tideline_runtime.settings import ServiceSettings, setting


class MirrorSettings(ServiceSettings):
    """See `ServiceSettings`."""

    section: ClassVar[str | None] = "mirror"

    batch_entries: int = setting(
        200,
        unit="entries",
        description="Maximum number of log entries of a table that one transaction publishes.",
        per_table=True,
        ge=1,
        le=5000,
    )
    heartbeat_interval_s: float = setting(
        60.0,
        unit="seconds",
        description="Interval of the heartbeats in `tideline.mirrors`: one for each shard, after a visit of all its tables.",
        ge=1,
        le=3600,
    )
    freshness_s: float | None = setting(
        None,
        unit="s",
        description="Longest time until a commit to a quiet table is published of which no hint tells. The mirror looks at a table "
        "at each tick while it is written, then ever more rarely: after a tenth of the time since the last step. Unset: "
        "300 s in object stores, which bill each request, and at each tick on local disks.",
        default_text="300 s; 0 on local disks",
        per_table=True,
        ge=0,
    )
