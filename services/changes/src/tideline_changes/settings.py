"""Settings of `tideline-changes`."""

from __future__ import annotations

from typing import ClassVar

from tideline_runtime.settings import ServiceSettings, setting


class ChangesSettings(ServiceSettings):
    """See `ServiceSettings`."""

    section: ClassVar[str | None] = "changes"

    enabled: bool = setting(
        False,
        unit="-",
        description="Whether the row changes of a table are published. Set to false later, it pauses them: the position stays.",
        per_table=True,
    )
    topic: str = setting(
        "",
        unit="-",
        description="Last part of the topic's name, `tideline.changes.<topic>`; empty: the name of the table.",
        per_table=True,
        pattern=r"^[A-Za-z0-9._-]{0,150}$",
    )
    snapshot: int = setting(
        0,
        unit="-",
        description="Raise this number for a new snapshot of a table: its topic gets a truncation and all rows.",
        per_table=True,
        ge=0,
    )
    truncations: bool = setting(
        True,
        unit="-",
        description="Whether a snapshot begins with a truncation, which has no key. Debezium's JDBC sink refuses records without "
        "one. Without it, rows whose deletions were not published stay in the target.",
        per_table=True,
    )
    tombstones: bool = setting(
        True,
        unit="-",
        description="Whether a record without a value follows each deletion, with the same key.",
        per_table=True,
    )
    format: str = setting(
        "json",
        unit="-",
        description="Format of keys and values: `json` or `avro`, which is in Confluent's wire format, with schemas "
        "in the registry of the event log (`registry` in its URL). Changed later, it makes a new snapshot.",
        per_table=True,
        pattern=r"^(json|avro)$",
    )
    schemas: bool = setting(
        False,
        unit="-",
        description="Of JSON: whether keys and values are wrapped in `schema` and `payload`, as Kafka Connect's JSON converter "
        "with `schemas.enable` reads them.",
        per_table=True,
    )
    heartbeat_s: float = setting(
        0.0,
        unit="s",
        description="Time after which the position of a quiet table is published again, so that silence can be told from death; "
        "0: never.",
        per_table=True,
        ge=0,
    )
    batch_rows: int = setting(
        2000,
        unit="rows",
        description="Most rows that one transaction publishes. A larger commit is published in several.",
        per_table=True,
        ge=1,
        le=20_000,
    )
