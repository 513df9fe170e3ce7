"""Settings of `tideline-console`."""

from __future__ import annotations

from typing import ClassVar, Literal

from tideline_runtime.settings import ServiceSettings, setting


class ConsoleSettings(ServiceSettings):
    """See `ServiceSettings`."""

    section: ClassVar[str | None] = "console"

    listen_host: str = setting(
        "127.0.0.1",
        unit="-",
        description="Loopback address on which the pages are served. They have no sign-in yet, so no other address is allowed: "
        "a proxy on this machine that signs people in may stand before it.",
        min_length=1,
    )
    listen_port: int = setting(
        8380,
        unit="-",
        description="Port of the pages; 0: a free one. If the setting is not given and another process has this port, a free one. "
        "The service writes the address to `<state_folder>/console.url`.",
        ge=0,
        le=65535,
    )
    host_names: tuple[str, ...] = setting(
        (),
        unit="-",
        description="Names under which a proxy serves the pages, besides the loopback addresses: requests with another `Host` are "
        "refused.",
    )
    path_prefix: str = setting(
        "",
        unit="-",
        description="Path under which a proxy serves the pages, such as `/tideline`.",
        pattern=r"^(/[A-Za-z0-9._~-]+)*$",
    )
    source: Literal["events", "tables"] = setting(
        "events",
        unit="-",
        description="`events`: a step of a table shows when the mirror publishes it, and jobs, decisions and locks are shown. "
        "`tables`: no event log is read; the console looks at each table every `poll_interval_s`.",
    )
    examine_interval_s: float = setting(
        60.0,
        unit="s",
        description="Time after which a table that did not change is examined again, because ages grow and damage may be mended.",
        gt=0,
    )
    history_steps: int = setting(
        20_000,
        unit="steps",
        description="Steps of the past that the console reads from the log of a table when it meets the table.",
        ge=0,
    )
    service_addresses: tuple[str, ...] = setting(
        (),
        unit="-",
        description="Root URLs of the HTTP servers of services on other machines, such as `http://planner.example:8000`, which the "
        "page Health asks with `http_token`. Services with the same `state_folder` are found without it.",
    )
    actions: bool = setting(
        False,
        unit="-",
        description="Whether pages can pause, resume, plan, cancel and retry. Who can open a page can act, as the user of "
        'the console; so it is refused beside `host_names`, and needs `source = "events"`, because each action is recorded.',
    )
