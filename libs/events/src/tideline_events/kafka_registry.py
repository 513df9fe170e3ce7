"""Schemas of events in a schema registry with Confluent's API. Only publishers ask it: Tideline's readers have the schemas."""

# ruff: noqa: D102 - the port documents these methods

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TypeVar

import httpx2
from confluent_kafka.schema_registry import (
    ConfigCompatibilityLevel,
    Schema,
    SchemaRegistryClient,
    SchemaRegistryError,
    ServerConfig,
)
from confluent_kafka.schema_registry.error import OAuthTokenError

from tideline_events.errors import SchemaRefused, SchemaRegistryUnavailable
from tideline_events.schema import PayloadSchema, every_schema
from tideline_table.errors import InvalidOption

COMPATIBILITY = "FULL_TRANSITIVE"
"""The rule by which the schemas evolve (schemas/README.md)."""
_TRANSIENT = frozenset({401, 403, 404, 408, 425, 429})
"""Below 500: answers of a registry or proxy that does not work yet, or whose credentials were changed."""
_T = TypeVar("_T")
_log = logging.getLogger(__name__)


class SchemaRegistry:
    """A registry that gives ids to Avro schemas. An id once known needs no registry any more. Thread-safe."""

    def __init__(self, url: str, options: Mapping[str, str], timeout_s: float = 10.0) -> None:
        """`options`: those of Confluent's client, such as `basic.auth.user.info`. Raises `InvalidOption` for others."""
        self._url = url.rstrip("/")
        self._ids: dict[tuple[str, str], int] = {}
        try:
            self._client = SchemaRegistryClient({**options, "url": self._url, "timeout": timeout_s, "max.retries": 0})
        except (ValueError, TypeError, OSError):
            # The text of the cause may contain values, which may be secrets.
            raise InvalidOption(
                f"options of the schema registry: {', '.join(sorted(options)) or 'none'}",
                expected="options of confluent_kafka's SchemaRegistryClient with valid values",
            ) from None

    def schema_id(self, subject: str, avro: str) -> int:
        """Return the id of an Avro schema, registered under `subject` if it is not. New subjects evolve by `COMPATIBILITY`.

        Raises `SchemaRegistryUnavailable`, and `SchemaRefused` for a schema that the subject does not allow.
        """
        key = (subject, avro)
        if key not in self._ids:
            self._ids[key] = self._asked(subject, lambda: self._client.register_schema(subject, Schema(avro, "AVRO")))
        return self._ids[key]

    def demand_compatibility(self, subject: str) -> None:
        """Set the rule of a subject. A registry that does not let publishers set it keeps its own."""
        try:
            self._client.set_config(subject, ServerConfig(compatibility=ConfigCompatibilityLevel(COMPATIBILITY)))
        except (SchemaRegistryError, httpx2.HTTPError) as error:
            _log.warning("compatibility of subject %s is not set to %s: %s", subject, COMPATIBILITY, error)

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def location(self, schema_id: int) -> str:
        """Return the URL at which the registry gives a schema."""
        return f"{self._url}/schemas/ids/{schema_id}"

    def _asked(self, subject: str, ask: Callable[[], _T]) -> _T:
        try:
            return ask()
        except SchemaRegistryError as error:
            if error.http_status_code < 500 and error.http_status_code not in _TRANSIENT:
                raise SchemaRefused(
                    f"subject {subject!r}: {error}",
                    expected="a subject that only Tideline changes",
                    remedy="check the subject and its compatibility in the registry",
                ) from error
            reason: Exception = error
        except (httpx2.HTTPError, OAuthTokenError, ValueError, KeyError, TypeError, AttributeError) as error:
            reason = error
        raise SchemaRegistryUnavailable(
            f"schema registry, subject {subject!r}: {reason or type(reason).__name__}",
            remedy="check the registry, its URL with the path of its API, and the credentials; then retry",
        ) from reason


class TopicSchemas:
    """The schemas of row changes in a registry (`wire.RowSchemas`).

    A subject is the topic with `-key` or `-value` (TopicNameStrategy). It evolves with its table by the registry's own rule.
    """

    def __init__(self, registry: SchemaRegistry, name_of: Callable[[str], str]) -> None:
        """`name_of` returns the name that a topic of the contract has in the event log."""
        self._registry = registry
        self._name_of = name_of

    def schema_id(self, topic: str, part: str, avro: str) -> int:
        """See `RowSchemas.schema_id`."""
        return self._registry.schema_id(f"{self._name_of(topic)}-{part}", avro)

    def close(self) -> None:
        """See `RowSchemas.close`."""
        self._registry.close()


class EventSchemas:
    """The schemas of all events in a registry (`wire.SchemaIds`).

    A subject is the topic and the full name of the record, `<topic>-<record>` (TopicRecordNameStrategy).
    """

    def __init__(self, registry: SchemaRegistry, topic_of: Callable[[str], str]) -> None:
        """`topic_of` returns the name of the topic to which an event type is published."""
        self._registry = registry
        self._topic_of = topic_of
        self._ids: dict[str, int] = {}

    def register_all(self) -> None:
        for schemas in every_schema().values():
            if any(schema.uri not in self._ids for schema in schemas):
                self._register(schemas)

    def registered(self, dataschema: str) -> tuple[int, str]:
        if dataschema not in self._ids:
            self.register_all()
        found = self._ids[dataschema]
        return found, self._registry.location(found)

    def close(self) -> None:
        self._registry.close()

    def _register(self, schemas: tuple[PayloadSchema, ...]) -> None:
        """Register the revisions of a type in order, so that the last one is the subject's latest version."""
        subject = f"{self._topic_of(schemas[0].event_type)}-{schemas[0].record_name}"
        ids = {schema.uri: self._registry.schema_id(subject, schema.source) for schema in schemas}
        self._registry.demand_compatibility(subject)
        self._ids |= ids
