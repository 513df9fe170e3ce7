"""Open the event log that a URL names."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from tideline_events.envelope import KINDS
from tideline_events.log import EventLog
from tideline_events.sqlite import SqliteEventLog
from tideline_events.topics import HOUR_S, PREFIX, TopicSettings
from tideline_events.wire import RowSchemas, Wire
from tideline_table.clock import Clock, SystemClock
from tideline_table.errors import InvalidOption
from tideline_table.extras import extra

_PREFIX = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,89}")
"""Kafka takes names of 249 characters. The longest behind the prefix is `changes.` and the 150 that a topic of rows may have."""
_REGISTRY_OPTIONS = "schema.registry."


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of the URL of an event log. `read` returns its value, or raises ValueError that says what is expected."""

    name: str
    default: str
    meaning: str
    read: Callable[[str], Any]
    only_kafka: bool = False


def _prefix(text: str) -> str:
    if not _PREFIX.fullmatch(text):
        raise ValueError("at most 90 letters, digits, dots, dashes and underscores, such as acme.")
    return text


def _number(lowest: int, highest: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        if not text.isascii() or not text.isdigit() or not lowest <= int(text) <= highest:
            raise ValueError(f"a number from {lowest} to {highest}")
        return int(text)

    return read


def _format(text: str) -> str:
    if text not in ("avro", "json"):
        raise ValueError("avro or json")
    return text


def _registry(text: str) -> str:
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc or parts.query or parts.fragment:
        raise ValueError("the URL of a schema registry without credentials; they are options of the client")
    return text.rstrip("/")


PARAMETERS = (
    Parameter(
        "prefix",
        PREFIX,
        "Beginning of the names of topics. With another than the default also of the names of groups and transactional ids: "
        "deployments with different prefixes do not see each other.",
        _prefix,
        only_kafka=True,
    ),
    Parameter("partitions", "12", "Partitions of a topic that is created.", _number(1, 10_000), only_kafka=True),
    Parameter(
        "replication", "", "Replicas of a topic that is created; without it the broker's default.", _number(1, 100), only_kafka=True
    ),
    Parameter(
        "retention_hours",
        "168",
        "How long topics keep events that otherwise keep them for 168 h. In Kafka: of a topic that is created.",
        _number(1, 1_000_000),
    ),
    Parameter("format", "avro", "Format of the values that are published: `avro` or `json`. Readers take both.", _format),
    Parameter(
        "registry",
        "",
        "Base URL of a schema registry with Confluent's API. Schemas are registered, values are in Confluent's wire format.",
        _registry,
    ),
)
"""All parameters; docs/events.md lists them."""


def open_event_log(url: str, *, clock: Clock | None = None, client_options: Mapping[str, str] | None = None) -> EventLog:
    """Open the event log at `url`: `sqlite:///folder/events.db` (an absolute path) or `kafka://host:port,host:port`.

    Parameters follow as in `kafka://host:port?prefix=acme.&format=json` (`PARAMETERS`). `client_options` are for Kafka:
    librdkafka gets them unchanged, for TLS and SASL; those that begin with `schema.registry.` are for the client of the
    registry. Raises `InvalidOption` for any other URL, and for client options that a client refuses.
    """
    given = _values(url)
    clock = clock or SystemClock()
    parts = urlsplit(url)
    options = dict(client_options or {})
    of_registry = {name: options.pop(name) for name in list(options) if name.startswith(_REGISTRY_OPTIONS)}
    topics = TopicSettings(given["prefix"], given["retention_hours"] * HOUR_S)
    wire = (
        Wire(as_json=given["format"] == "json")
        if given["registry"] is None
        else _registered(given["registry"], topics, of_registry)
    )
    if parts.scheme == "sqlite":
        return SqliteEventLog(_path_in(parts.path), clock, topics, wire)
    with extra("kafka"):
        from tideline_events.kafka import KafkaEventLog, KafkaSettings

    replication = -1 if given["replication"] is None else given["replication"]
    settings = KafkaSettings(parts.netloc, given["partitions"], replication, client_options=options, topics=topics, wire=wire)
    return KafkaEventLog(settings, clock)


def sqlite_path(url: str) -> Path | None:
    """Return the file of an event log in SQLite; None for one in Kafka."""
    parts = urlsplit(url)
    return _path_in(parts.path) if parts.scheme == "sqlite" else None


def _path_in(text: str) -> Path:
    return Path("/" + unquote(text).lstrip("/"))


def open_row_schemas(url: str, *, client_options: Mapping[str, str] | None = None) -> RowSchemas | None:
    """Open the registry in an event log URL for schemas of row changes; None if there is none. Raises as `open_event_log`."""
    given = _values(url)
    if given["registry"] is None:
        return None
    with extra("kafka"):
        from tideline_events.kafka_registry import SchemaRegistry, TopicSchemas

    topics = TopicSettings(given["prefix"], given["retention_hours"] * HOUR_S)
    return TopicSchemas(SchemaRegistry(given["registry"], _of_registry(client_options or {})), topics.name)


def check_event_log_url(url: str) -> None:
    """Raise `InvalidOption` for a URL that `open_event_log` cannot open. The check connects to nothing."""
    _values(url)


def _values(url: str) -> dict[str, Any]:
    """Return the values of the parameters of a URL by name. Raises as `check_event_log_url`."""
    parts = urlsplit(url)
    is_sqlite = parts.scheme == "sqlite" and not parts.netloc and parts.path.strip("/")
    is_kafka = parts.scheme == "kafka" and parts.netloc and "@" not in parts.netloc and not parts.path.strip("/")
    if not is_sqlite and not is_kafka:
        # The URL may contain a password, so the message omits it.
        raise InvalidOption(
            f"an event log URL of scheme {parts.scheme!r}", expected="sqlite:///folder/events.db or kafka://host:port,host:port"
        )
    known = {parameter.name: parameter for parameter in PARAMETERS if is_kafka or not parameter.only_kafka}
    values = {parameter.name: parameter.read(parameter.default) if parameter.default else None for parameter in PARAMETERS}
    pairs = parse_qsl(parts.query, keep_blank_values=True)
    for name, text in pairs:
        if name not in known or len({name for name, _ in pairs}) < len(pairs):
            raise InvalidOption(
                f"parameter {name!r} of an event log URL of scheme {parts.scheme!r}",
                expected=f"each of these at most once: {', '.join(known)}",
            )
        try:
            values[name] = known[name].read(text)
        except ValueError as error:
            raise InvalidOption(f"parameter {name!r} of the event log URL", expected=str(error)) from None
    if values["registry"] is not None and values["format"] == "json":
        raise InvalidOption(
            "parameters 'registry' and 'format=json' of the event log URL", expected="one of them: the registry is for Avro"
        )
    return values


def _registered(url: str, topics: TopicSettings, options: Mapping[str, str]) -> Wire:
    with extra("kafka"):
        from tideline_events.kafka_registry import EventSchemas, SchemaRegistry

    registry = SchemaRegistry(url, _of_registry(options))
    topic_of = {kind.event_type: topics.name(kind.topic) for kind in KINDS}
    return Wire(registry=EventSchemas(registry, topic_of.__getitem__))


def _of_registry(options: Mapping[str, str]) -> dict[str, str]:
    return {name.removeprefix(_REGISTRY_OPTIONS): value for name, value in options.items() if name.startswith(_REGISTRY_OPTIONS)}
