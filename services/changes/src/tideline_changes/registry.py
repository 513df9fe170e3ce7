"""The schema registry for row changes in Avro: the one in the URL of the event log."""

from __future__ import annotations

from tideline_changes.settings import ChangesSettings
from tideline_changes.topics import TopicUnusable
from tideline_events import RowSchemas, SchemaRegistryUnavailable, open_row_schemas
from tideline_table.errors import InvalidOption


class Registry:
    """Opened when the first table needs it. Used by the thread that ticks."""

    def __init__(self, settings: ChangesSettings) -> None:
        self._settings = settings
        self._schemas: RowSchemas | None = None

    def schema_id(self, topic: str, part: str, avro: str) -> int:
        """Return the id of the schema of a topic's keys or values (`part`), registered if it is not.

        Raises `InvalidOption` without a registry, `SchemaRefused`, and `TopicUnusable` if it does not answer: tables with topics in
        JSON go on.
        """
        if self._schemas is None:
            options = {name: secret.get_secret_value() for name, secret in self._settings.event_log_options.items()}
            self._schemas = open_row_schemas(self._settings.event_log, client_options=options)
        if self._schemas is None:
            raise InvalidOption(
                f"topic {topic} in Avro without a schema registry",
                expected="an event log URL with the parameter `registry`",
                remedy="add it, or set `format` to json in the settings of the table",
            )
        try:
            return self._schemas.schema_id(topic, part, avro)
        except SchemaRegistryUnavailable as error:
            raise TopicUnusable(
                f"topic {topic}: {error}",
                expected="a schema registry that answers",
                remedy="check the registry; the service tries again",
            ) from error

    def close(self) -> None:
        """Close the connections."""
        if self._schemas is not None:
            self._schemas.close()
