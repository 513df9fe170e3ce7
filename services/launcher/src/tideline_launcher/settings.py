"""Settings of the launcher."""

from __future__ import annotations

from typing import ClassVar

from tideline_service.settings import ServiceSettings, setting


class LauncherSettings(ServiceSettings):
    """See `ServiceSettings`."""

    section: ClassVar[str | None] = "launcher"

    max_applications: int = setting(1, unit="applications", description="Most Spark applications that run at once.", ge=1)
    max_attempts: int = setting(
        3,
        unit="attempts",
        description="Attempts at one plan before it is given up and rolled back, so that a new one can be made.",
        ge=1,
    )
    local_cores: int = setting(1, unit="cores", description="Cores of a local Spark application.", ge=1)
    application_timeout_s: float = setting(3600.0, unit="s", description="A Spark application that runs longer is stopped.", gt=0)
    options: dict[str, str] = setting(
        {}, unit="-", description="Engine options handed to applications, such as the codec of base files."
    )
