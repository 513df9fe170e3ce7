"""Settings of the lock service."""

from __future__ import annotations

from typing import ClassVar

from tideline_runtime.settings import ServiceSettings, setting


class LockServiceSettings(ServiceSettings):
    """See `ServiceSettings`."""

    section: ClassVar[str | None] = "lock_service"

    max_wait_s: float = setting(20.0, unit="s", description="Maximum time that one request may wait for a lock.", ge=0, le=300)
    max_ttl_s: float = setting(3600.0, unit="s", description="Maximum duration of a lease.", ge=1)
    max_waiting: int = setting(
        32,
        unit="requests",
        description="Maximum number of requests that wait for locks at once; those that wait for one lock take at most half. "
        "Further requests are rejected with status 503.",
        ge=1,
        le=50,
    )
    options: dict[str, str] = setting(
        {},
        unit="-",
        description="Engine options, such as the heartbeat interval, by which the service distinguishes dead writers from live "
        "ones.",
    )
