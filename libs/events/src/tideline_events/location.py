"""Open the event log that a URL names."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from urllib.parse import unquote, urlsplit

from tideline_events.log import EventLog
from tideline_events.sqlite import SqliteEventLog
from tideline_table.clock import Clock, SystemClock
from tideline_table.errors import InvalidOption
from tideline_table.extras import extra


def open_event_log(
    url: str,
    *,
    clock: Clock | None = None,
    partition_count: int = 12,
    replication_factor: int = -1,
    client_options: Mapping[str, str] | None = None,
) -> EventLog:
    """Open the event log at `url`: `sqlite:///folder/events.db` (an absolute path) or `kafka://host:port,host:port`.

    The last three arguments are for Kafka: partitions and replicas (-1: the broker's default) of topics that must be created, and
    `client_options`, which librdkafka gets unchanged, for TLS and SASL. Raises `InvalidOption` for any other URL, and for
    client options that librdkafka refuses.
    """
    check_event_log_url(url)
    clock = clock or SystemClock()
    parts = urlsplit(url)
    if parts.scheme == "sqlite":
        return SqliteEventLog(Path("/" + unquote(parts.path).lstrip("/")), clock)
    options = dict(client_options or {})
    with extra("kafka"):
        from tideline_events.kafka import KafkaEventLog, KafkaSettings

    return KafkaEventLog(KafkaSettings(parts.netloc, partition_count, replication_factor, client_options=options), clock)


def check_event_log_url(url: str) -> None:
    """Raise `InvalidOption` for a URL that `open_event_log` cannot open. The check connects to nothing."""
    parts = urlsplit(url)
    if parts.scheme == "sqlite" and not parts.netloc and parts.path.strip("/"):
        return
    if parts.scheme == "kafka" and parts.netloc and "@" not in parts.netloc and not parts.path.strip("/"):
        return
    # The URL may contain a password, so the message omits it.
    raise InvalidOption(
        f"an event log URL of scheme {parts.scheme!r}", expected="sqlite:///folder/events.db or kafka://host:port,host:port"
    )
