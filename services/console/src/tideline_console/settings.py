"""Settings of `tideline-console`."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Literal

from pydantic import BaseModel, ConfigDict, SecretStr

from tideline_runtime.settings import ServiceSettings, setting


class SignInSettings(BaseModel):
    """How people sign in: with a token, with a provider of OpenID Connect, or both."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    operator_token: SecretStr | None = setting(
        None,
        unit="-",
        description="Token with which people sign in, and programs call the API, as operators: they may look and, with `actions`, "
        "act. Take a random one.",
        min_length=24,
    )
    viewer_token: SecretStr | None = setting(
        None, unit="-", description="Token that makes its holder a viewer, who cannot act.", min_length=24
    )
    issuer: str = setting(
        "",
        unit="-",
        description="Issuer of a provider of OpenID Connect, exactly as it names itself; empty: none.",
        max_length=1000,
    )
    client_id: str = setting("", unit="-", description="Id of the console at the provider.")
    client_secret: SecretStr | None = setting(
        None, unit="-", description="Secret of the console at the provider; unset for a public client.", min_length=1
    )
    scopes: tuple[str, ...] = setting(
        ("openid", "profile", "email"), unit="-", description="Scopes that the provider is asked for."
    )
    name_claim: str = setting(
        "preferred_username",
        unit="-",
        description="Claim of the ID token that names the person in the record of actions; without it, `sub` does.",
    )
    role_claim: str = setting(
        "groups",
        unit="-",
        description="Claim of the ID token, a text or a list, that gives the role; dots lead into objects (`realm_access.roles`).",
    )
    operators: tuple[str, ...] = setting((), unit="-", description="Values of the claim that make a person an operator.")
    viewers: tuple[str, ...] = setting(
        (), unit="-", description="Values of the claim that make a person a viewer; `*`: everybody whom the provider signs in."
    )
    session_s: float = setting(
        28_800.0, unit="s", description="Time after which a person signs in again; until then the role stays.", ge=60, le=2_592_000
    )

    @property
    def is_set(self) -> bool:
        """Whether people sign in."""
        return self.operator_token is not None or self.viewer_token is not None or bool(self.issuer)


class PodLogSettings(BaseModel):
    """Logs of applications that run on Kubernetes."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    namespace: str = setting(
        "",
        unit="-",
        description="Namespace of the launcher's driver pods, whose logs operators see while they run; empty: none. The console's "
        "account needs the right to get `pods/log` there (`console.podLogs` of the chart).",
    )
    kubeconfig: Path | None = setting(
        None, unit="-", description="Kubeconfig file of a console outside of the cluster; unset: the pod's service account."
    )
    request_timeout_s: float = setting(5.0, unit="s", description="Deadline of a request to the API server.", gt=0)


class ConsoleSettings(ServiceSettings):
    """See `ServiceSettings`."""

    section: ClassVar[str | None] = "console"

    listen_host: str = setting(
        "127.0.0.1",
        unit="-",
        description="Address on which the pages are served. One that is no loopback address needs `sign_in`.",
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
    proxies: tuple[str, ...] = setting(
        ("127.0.0.1", "::1"),
        unit="-",
        description="Addresses or networks of proxies. Their `X-Forwarded-For` tells who tries to sign in: attempts are counted "
        "by address.",
    )
    sign_in: SignInSettings = setting(
        SignInSettings(),
        unit="-",
        description="How people sign in; without it everybody who reaches the address may look.",
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
    pod_logs: PodLogSettings = setting(
        PodLogSettings(), unit="-", description="Where the logs of applications are that run on Kubernetes."
    )
    actions: bool = setting(
        False,
        unit="-",
        description="Whether operators can pause, resume, plan, cancel, retry and repair. Without `sign_in` who can open a page is "
        'an operator; so it is then refused beside `host_names`. It needs `source = "events"`, because each action is recorded.',
    )
