"""Settings of `tideline-ingest`."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, SecretStr

from tideline_ingest.forms import FormName
from tideline_runtime.settings import ServiceSettings, setting


class CsvSettings(BaseModel):
    """Lines of CSV."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    columns: tuple[str, ...] = setting(
        (), unit="-", description="Columns of a line in `csv`, in order. Empty: those of the table (with `dms`, after `Op`)."
    )
    delimiter: str = setting(",", unit="-", description="Character between two fields.", min_length=1, max_length=1)
    null: str = setting("", unit="-", description="Text of a field that is null.")


class IngestSettings(ServiceSettings):
    """See `ServiceSettings`."""

    section: ClassVar[str | None] = "ingest"

    application_id: str = setting(
        unit="-",
        description="Name under which the table keeps the offsets. Applications with different names can write to one table.",
        pattern=r"^[A-Za-z0-9_.:-]{1,180}$",
    )
    table: str = setting(
        unit="-",
        description="Base path of the table that is written. With `{topic}`, or `{name}` for a group `(?P<name>...)` of a pattern "
        "in `topics`, each topic has a table of its own.",
        min_length=1,
    )
    brokers: str = setting(unit="-", description="Kafka's bootstrap servers: `host:port,host:port`.", min_length=1)
    kafka_options: dict[str, SecretStr] = setting(
        {},
        unit="-",
        description="Options of librdkafka for the consumer and the dead-letter producer: `security.protocol`, `sasl.password`, "
        "...",
    )
    topics: tuple[str, ...] = setting(
        unit="-",
        description="Topics that are read. One that begins with `^` is a regular expression for the beginnings of their names.",
        min_length=1,
    )
    per_topic: dict[str, dict[str, Any]] = setting(
        {},
        unit="-",
        description="Other settings of single topics, by name or by a regular expression that begins with `^`; all of this "
        "section but those of the process, the brokers and the credentials.",
    )
    partitions: tuple[int, ...] = setting(
        (), unit="-", description="Partitions of the topics that are read, if several applications share the topics. Empty: all."
    )
    format: Literal["json", "csv", "avro", "avro_single_object", "avro_registry", "protobuf_registry"] = setting(
        "json",
        unit="-",
        description="Format of the values: a JSON object, a line of CSV, a plain Avro datum, Avro after the fingerprint of its "
        "schema, or Avro or Protobuf after the id of its schema in `schema_registry`.",
    )
    csv: CsvSettings = setting(CsvSettings(), unit="-", description="Lines of CSV.")
    envelope: Literal["none", "debezium", "debezium_flat", "dms"] = setting(
        "none",
        unit="-",
        description="What a value holds: a row, a change event of Debezium (`json` or `avro_registry`), the row that Kafka "
        "Connect's `ExtractNewRecordState` makes of one (likewise), or a change of AWS DMS (`json` or `csv`).",
    )
    envelope_columns: dict[str, str] = setting(
        {},
        unit="-",
        description="Columns of the table that are taken from the envelope, by name: the path in the envelope, such as "
        "`source.lsn`, `source.ts_ms` or `ts_ms`, of DMS `metadata.timestamp`. One of them may be the ordering column.",
    )
    forms: dict[str, FormName] = setting(
        {},
        unit="-",
        description="How JSON and CSV hold the values of a column, by name: `text` (ISO 8601), a number of days, seconds, "
        "milliseconds, microseconds or nanoseconds since 1970, of a time of day since midnight (`epoch_days`, `epoch_s`, "
        "`epoch_ms`, `epoch_us`, `epoch_ns`), or `base64` (binary, and decimals as Kafka Connect writes them). `*` stands for all "
        "timestamps.",
    )
    schema_files: tuple[Path, ...] = setting(
        (),
        unit="-",
        description="Avro record schemas of the values: one, or for `avro_single_object` all schemas in the topics. Without a "
        "file, `json` uses the columns of the table. For `protobuf_registry` one descriptor set "
        "(`protoc --include_imports --descriptor_set_out`).",
    )
    protobuf_message: str = setting(
        "", unit="-", description="Full name of the message that the values of `protobuf_registry` are."
    )
    schema_registry: str = setting(
        "",
        unit="-",
        description="Base URL of the schema registry for `avro_registry` (Confluent's API). Of several URLs, separated by commas, "
        "the next one is used if one does not answer.",
        pattern=r"^(https?://[^\s]+)?$",
    )
    schema_registry_options: dict[str, SecretStr] = setting(
        {},
        unit="-",
        description="Options of the registry's client: `basic.auth.user.info`, `bearer.auth.token`, `ssl.ca.location`, ...",
    )
    schema_registry_timeout_s: float = setting(10.0, unit="s", description="Timeout of one request to the schema registry.", gt=0)
    unknown_fields: Literal["refuse", "ignore", "evolve"] = setting(
        "refuse",
        unit="-",
        description="Effect of a JSON field that the schema lacks: the record is poison, the field is ignored, or the table gets "
        "a nullable column for it.",
    )
    transform: str = setting(
        "",
        unit="-",
        description="An SQL query of DuckDB that makes the rows of the table from the fields of records, each record alone: "
        "`select id, cast(born as date) as day from records where kind = 1`. Empty: the fields are the columns.",
    )
    transform_fields: dict[str, str] = setting(
        {},
        unit="-",
        description="Fields that `transform` reads and the table lacks, or has in another type, with their types in DuckDB.",
    )
    operation: Literal["upsert", "insert", "bulk_insert"] = setting("upsert", unit="-", description="How rows are written.")
    tombstones: Literal["refuse", "delete"] = setting(
        "refuse",
        unit="-",
        description="Meaning of a record without a value: the record is poison, or it deletes the row of its key (with `upsert`). "
        "With an `envelope`, such records do nothing; with `debezium_flat` they delete if this says so.",
    )
    key_format: Literal["text", "json", "avro_registry"] = setting(
        "text",
        unit="-",
        description="Format of the keys of tombstones: the record key as text (tables of one key column, unpartitioned), a JSON "
        "object of the key and "
        "partition columns, or Avro after the id of its schema: a record of those columns, or the record key alone.",
    )
    poison: Literal["fail", "dead_letter"] = setting(
        "fail",
        unit="-",
        description="Effect of a record that cannot be ingested: it stops the application, or is written to `dead_letter_topic`.",
    )
    dead_letter_topic: str = setting(
        "", unit="-", description="An existing topic for poison records; each is written at least once. It may contain `{topic}`."
    )
    start_at: Literal["earliest", "latest"] = setting(
        "earliest", unit="-", description="Where an application without a commit begins."
    )
    on_lost_offsets: Literal["fail", "continue"] = setting(
        "fail",
        unit="-",
        description="Effect of records that left the topic before they were ingested: the application stops, or continues "
        "without them.",
    )
    batch_rows: int = setting(50_000, unit="records", description="Maximum number of records in one commit.", ge=1, le=10_000_000)
    batch_bytes: int = setting(
        64 * 1024 * 1024, unit="bytes", description="Size of the values from which on a batch is committed.", ge=1
    )
    batch_wait_s: float = setting(10.0, unit="s", description="Longest time from the first record of a batch to its commit.", gt=0)
    topic_rescan_s: float = setting(60.0, unit="s", description="Interval of the search for new partitions and topics.", gt=0)
    kafka_timeout_s: float = setting(30.0, unit="s", description="Timeout of one request to Kafka.", gt=0)
    options: dict[str, str] = setting(
        {},
        unit="-",
        description="Engine options, such as `tideline.write.schema.evolution` or `tideline.write.conflict.retries`. "
        "`hoodie.write.set.null.for.missing.columns` is true unless it is given.",
    )
