"""Settings of the mirror."""

from __future__ import annotations

from typing import ClassVar

from pydantic import SecretStr

from tideline_runtime.settings import ServiceSettings, UrlOrNone, setting


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
    notifications: UrlOrNone = setting(
        "",
        unit="-",
        description="Where the object store sends notifications of new and deleted objects: "
        "`sqs://<host>/<account>/<queue>?region=<region>` or `pubsub://pubsub.googleapis.com/<project>/<subscription>`, which only "
        "this mirror reads (`tls=off`: by HTTP, and from Pub/Sub without credentials), or `kafka://<brokers>/<topic>`. The "
        "mirror looks at once at the tables that they name, and rarely at the others. Empty: it polls.",
    )
    notification_options: dict[str, SecretStr] = setting(
        {}, unit="-", description="Options of librdkafka for notifications from Kafka: `security.protocol`, `sasl.password`, ..."
    )
    notified_freshness_s: float = setting(
        21_600.0,
        unit="s",
        description="Time between two looks at a quiet table while notifications tell of its steps. It bounds how late a step is "
        "published whose notification was lost.",
        per_table=True,
        gt=0,
    )
