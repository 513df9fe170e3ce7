"""Settings of `tideline-ingest`."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Literal

from pydantic import SecretStr

from tideline_service.settings import ServiceSettings, setting


class IngestSettings(ServiceSettings):
    """See `ServiceSettings`."""

    section: ClassVar[str | None] = "ingest"

    application_id: str = setting(
        unit="-",
        description="Under this name the table keeps the offsets. Applications with names of their own can feed one table.",
        pattern=r"^[A-Za-z0-9_.:-]{1,180}$",
    )
    table: str = setting(unit="-", description="Base path of the table that is fed.", min_length=1)
    brokers: str = setting(unit="-", description="Kafka's bootstrap servers: `host:port,host:port`.", min_length=1)
    kafka_options: dict[str, SecretStr] = setting(
        {},
        unit="-",
        description="Options of librdkafka for the consumer and the dead letters: `security.protocol`, `sasl.password`, ...",
    )
    topics: tuple[str, ...] = setting(unit="-", description="Topics that are read.", min_length=1)
    partitions: tuple[int, ...] = setting(
        (), unit="-", description="Only these partitions of the topics, so that several applications share them; empty: all."
    )
    format: Literal["json", "avro", "avro_single_object", "avro_registry"] = setting(
        "json",
        unit="-",
        description="What values are: a JSON object, a plain Avro datum, Avro with the fingerprint of its schema before it, or with the id that "
        "its schema has in `schema_registry`.",
    )
    schema_files: tuple[Path, ...] = setting(
        (),
        unit="-",
        description="Avro record schemas of the values: one, for `avro_single_object` all that occur. `json` takes the table's columns without.",
    )
    schema_registry: str = setting(
        "",
        unit="-",
        description="Base URL of the schema registry of `avro_registry` (Confluent's API); of several, with commas between, the next one is asked "
        "where one does not answer.",
        pattern=r"^(https?://[^\s]+)?$",
    )
    schema_registry_options: dict[str, SecretStr] = setting(
        {},
        unit="-",
        description="Options of the registry's client: `basic.auth.user.info`, `bearer.auth.token`, `ssl.ca.location`, ...",
    )
    schema_registry_timeout_s: float = setting(
        10.0, unit="s", description="How long one request to the schema registry may take.", gt=0
    )
    unknown_fields: Literal["refuse", "ignore"] = setting(
        "refuse", unit="-", description="What a JSON field that the schema lacks makes of its record: a poison one, or nothing."
    )
    operation: Literal["upsert", "insert", "bulk_insert"] = setting("upsert", unit="-", description="How rows are written.")
    tombstones: Literal["refuse", "delete"] = setting(
        "refuse",
        unit="-",
        description="What a record without a value is: a poison one, or the deletion of the row that its key names (with `upsert`).",
    )
    key_format: Literal["text", "json", "avro_registry"] = setting(
        "text",
        unit="-",
        description="Keys of tombstones: the record key as text (tables of one key column, unpartitioned), a JSON object of the key and "
        "partition columns, or Avro with the id of its schema: a record of those columns, or the record key alone.",
    )
    poison: Literal["fail", "dead_letter"] = setting(
        "fail",
        unit="-",
        description="What a record that cannot be taken in does: stop the application, or go to `dead_letter_topic`.",
    )
    dead_letter_topic: str = setting("", unit="-", description="An existing topic, written at least once per poison record.")
    start_at: Literal["earliest", "latest"] = setting(
        "earliest", unit="-", description="Where an application that never committed begins."
    )
    on_lost_offsets: Literal["fail", "continue"] = setting(
        "fail",
        unit="-",
        description="What happens when records are gone from the topic before they were taken in: stop, or go on without.",
    )
    batch_rows: int = setting(50_000, unit="records", description="Most records in one commit.", ge=1, le=10_000_000)
    batch_bytes: int = setting(
        64 * 1024 * 1024, unit="bytes", description="A commit is made at the latest when its values have so many bytes.", ge=1
    )
    batch_wait_s: float = setting(
        10.0, unit="s", description="A commit is made at the latest so long after its first record was read.", gt=0
    )
    topic_rescan_s: float = setting(60.0, unit="s", description="How often new partitions are looked for.", gt=0)
    kafka_timeout_s: float = setting(30.0, unit="s", description="How long one request to Kafka may take.", gt=0)
    options: dict[str, str] = setting(
        {}, unit="-", description="Engine options, such as `tideline.write.schema.evolution` or `tideline.write.conflict.retries`."
    )
