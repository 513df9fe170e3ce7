"""Settings of `tideline-webhooks`."""

from __future__ import annotations

from typing import ClassVar

from tideline_runtime.policy import PolicyRefused
from tideline_runtime.settings import ServiceSettings, StatePath, setting
from tideline_webhooks.subscriptions import read_subscriptions


class WebhooksSettings(ServiceSettings):
    """See `ServiceSettings`."""

    section: ClassVar[str | None] = "webhooks"

    subscriptions: StatePath = setting(
        unit="-", description="File of the subscriptions (YAML or JSON), see docs/webhooks.md. It is read at the start."
    )
    workers: int = setting(
        8,
        unit="requests",
        description="Requests that one subscription may have under way, one of each table at most.",
        ge=1,
        le=256,
    )
    queue_events: int = setting(
        1000,
        unit="events",
        description="Events of one subscription that wait in memory. What comes beyond is read from the table logs later.",
        ge=10,
        le=1_000_000,
    )
    retry_max_s: float = setting(
        300.0, unit="s", description="Longest pause between two attempts at a delivery; `Retry-After` may ask for an hour.", gt=0
    )

    def secret_values(self) -> tuple[str, ...]:
        """See `ServiceSettings.secret_values`; also those of the subscriptions."""
        try:
            own = tuple(secret for one in read_subscriptions(self.subscriptions) for secret in one.hidden)
        except PolicyRefused:
            own = ()  # The service reports it.
        return super().secret_values() + own
