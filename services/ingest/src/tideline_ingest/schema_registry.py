"""Writer schemas by their ids in a schema registry (Confluent's API, accessed with Confluent's client)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar

import httpx2
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient, SchemaRegistryError
from confluent_kafka.schema_registry.error import OAuthTokenError

from tideline_ingest.errors import RegistryRefused, RegistryUnavailable, Undecodable
from tideline_ingest.named_types import whole_schema
from tideline_ingest.settings import IngestSettings
from tideline_runtime.errors import InvalidSetting

_NOT_FOUND = frozenset({40401, 40402, 40403})
"""The registry's own codes: no such subject, version, schema. A server that is no registry also returns plain status 404."""
_T = TypeVar("_T")
_TRANSIENT = frozenset({408, 425, 429})
"""Status codes below 500 for which a retry can succeed."""
_MAX_REFERENCED = 1000
"""Maximum number of schemas that a schema may reference, over all levels. Each needs a request."""


class SchemaRegistry:
    """A client of one registry.

    Each schema is requested once, because an id never changes its meaning; an unusable one once per batch.

    `beat` is called before each request, because a batch may name as many ids as it has records.
    """

    def __init__(self, client: SchemaRegistryClient, beat: Callable[[], object]) -> None:
        self._client = client
        self._beat = beat
        self._texts: dict[int, str] = {}
        self._unusable: dict[int, str] = {}
        """The reason why a schema is unusable, by id."""

    @classmethod
    def of(cls, settings: IngestSettings, beat: Callable[[], object] = lambda: None) -> SchemaRegistry:
        """Return the registry of the settings. Raises `InvalidSetting` for options that its client does not accept."""
        given = {name: secret.get_secret_value() for name, secret in settings.schema_registry_options.items()}
        # No retries in the client: the service retries the whole batch, and sends liveness beats in between.
        own = {"url": settings.schema_registry, "timeout": settings.schema_registry_timeout_s, "max.retries": 0}
        try:
            return cls(SchemaRegistryClient({**given, **own}), beat)
        except (ValueError, TypeError, OSError) as error:
            raise InvalidSetting(
                f"setting 'schema_registry_options': {error}",
                name="ingest.schema_registry_options",
                origin="settings",
                expected="options of confluent_kafka's SchemaRegistryClient",
            ) from None

    def avro(self, schema_id: int) -> str:
        """Return the Avro schema with that id, completed with the types that it references.

        Raises `Undecodable` for an id that the registry does not know, and for a schema that is not Avro or cannot be completed;
        `RegistryUnavailable` and `RegistryRefused` if the meaning of the id could not be determined.
        """
        if schema_id not in self._texts:
            if schema_id in self._unusable:
                raise Undecodable(self._unusable[schema_id])
            try:
                self._texts[schema_id] = self._text(schema_id)
            except Undecodable as error:
                self._unusable[schema_id] = str(error)
                raise
        return self._texts[schema_id]

    def begin_batch(self) -> None:
        """Forget which schemas are unusable, so that the next batch requests them again."""
        self._unusable.clear()

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _text(self, schema_id: int) -> str:
        what = f"schema {schema_id} of the registry"
        schema = self._asked(what, partial(self._client.get_schema, schema_id))
        if schema is None:
            raise Undecodable(f"unknown schema id {schema_id}", expected="an id of the registry")
        text = self._avro_text(what, schema)
        if not schema.references:
            return text
        try:
            return whole_schema(text, self._referenced(schema))
        except Undecodable as error:
            raise Undecodable(f"{what} with references ({error})", expected="references that complete the schema") from None

    def _referenced(self, schema: Schema) -> list[str]:
        """Return the direct and indirect references of `schema` in the order in which a parser must read them.

        If several references have the same name, the first one is used, as in Confluent's parser.
        """
        texts: list[str] = []
        seen: set[object] = set()
        opened = [("", iter(schema.references or ()))]
        while opened:
            text, references = opened[-1]
            reference = next(references, None)
            if reference is None:
                opened.pop()
                texts.append(text)
                continue
            name, subject, version = reference.name, reference.subject, reference.version
            if name is None or subject is None or version is None:
                raise Undecodable(
                    f"a reference to {subject!r}, version {version}, as {name!r}", expected="subject, version and name"
                )
            if name in seen or (subject, version) in seen:
                continue
            seen |= {name, (subject, version)}
            if len(seen) > 2 * _MAX_REFERENCED:
                raise Undecodable(f"more than {_MAX_REFERENCED} referenced schemas", expected="fewer")
            what = f"version {version} of {subject!r} in the registry"
            # Deleted versions are included: old records were written with them.
            found = self._asked(what, partial(self._client.get_version, subject, version, deleted=True))
            if found is None:
                raise Undecodable(f"no {what}", expected="the versions that the schema was registered with")
            opened.append((self._avro_text(what, found.schema), iter(found.schema.references or ())))
        return texts[:-1]

    def _avro_text(self, what: str, schema: Schema) -> str:
        kind = schema.schema_type or "AVRO"
        if kind != "AVRO":
            raise Undecodable(f"{what} is of type {kind}", expected="an Avro schema")
        if schema.schema_str is None:
            self._client.clear_caches()  # type: ignore[no-untyped-call] # the client caches this answer as well
            raise _unavailable(what, "an answer without a schema")
        return schema.schema_str

    def _asked(self, what: str, ask: Callable[[], _T]) -> _T | None:
        """Return the answer, or None if the registry says that there is no such schema."""
        self._beat()
        try:
            return ask()
        except SchemaRegistryError as error:
            if error.error_code in _NOT_FOUND:
                return None
            if error.http_status_code >= 500 or error.http_status_code in _TRANSIENT:
                raise _unavailable(what, error) from error
            raise RegistryRefused(
                f"{what}: {error}",
                expected=f"a schema, or one of the error codes {', '.join(map(str, sorted(_NOT_FOUND)))}",
                remedy="check schema_registry (with the path of its API), the credentials and the permissions",
            ) from error
        except (httpx2.HTTPError, OAuthTokenError) as error:
            raise _unavailable(what, error) from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            # The reply is no registry's: a proxy between client and registry may have answered.
            raise _unavailable(f"{what}: an invalid answer", error) from error


def _unavailable(what: str, reason: object) -> RegistryUnavailable:
    return RegistryUnavailable(
        f"{what}: {reason or type(reason).__name__}", expected="an answer", remedy="no record was skipped; the service tries again"
    )
