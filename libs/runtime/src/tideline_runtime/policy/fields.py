"""The body of a rule as flat fields: for each value its dotted name and its place in the file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from tideline_runtime.policy.document import Place
from tideline_runtime.policy.model import Body
from tideline_table.config import (
    CLEANER_COMMITS_RETAINED,
    CLUSTERING_SORT_COLUMNS,
    KEEP_MIN_COMMITS,
    LOG_COMPACTION_ENABLE,
    LOG_COMPACTION_FILES,
    LOG_COMPACTION_MAX_BYTES,
    LOG_RETENTION_S,
)

OPTION = "options."
SETTING = "settings."
FRESHNESS = f"{SETTING}mirror.freshness_s"
_GROUPS = ("services", "budget", "objectives")
_WHOLE = ("mode", "windows", "priority", "pause")
_SHORTHANDS = {
    "retention": {
        "commits": CLEANER_COMMITS_RETAINED.key,
        "timeline_commits": KEEP_MIN_COMMITS.key,
        "log": LOG_RETENTION_S.key,
    },
    "logcompaction": {"files": LOG_COMPACTION_FILES.key, "max_bytes": LOG_COMPACTION_MAX_BYTES.key},
}
FLEET_OPTIONS = ("tideline.lock.",)
"""Options that all processes of a fleet must agree on, so that no rule and no resource may set them."""


@dataclass(frozen=True, slots=True)
class Field:
    """One value that a rule gives: its dotted name, and its place below the rule."""

    name: str
    value: Any
    place: Place


def fields_of(body: Body) -> Iterator[Field]:
    """Yield the fields that a body gives. Two fields may have the same name: a shorthand, and the option that it stands for."""
    for group in _GROUPS:
        yield from _of_group(group, getattr(body, group))
    for name in _WHOLE:
        if name in body.model_fields_set:
            yield Field(name, getattr(body, name), (name,))
    for key, value in (body.options or {}).items():
        yield Field(f"{OPTION}{key}", option_text(value), ("options", key))
    if body.sort_columns is not None:
        yield Field(f"{OPTION}{CLUSTERING_SORT_COLUMNS.key}", ",".join(body.sort_columns), ("sort_columns",))
    if body.freshness is not None:
        yield Field(FRESHNESS, body.freshness, ("freshness",))
    for group, keys in _SHORTHANDS.items():
        for given in _of_group(group, getattr(body, group)):
            if given.value is not None:
                yield Field(f"{OPTION}{keys[str(given.place[-1])]}", option_text(given.value), given.place)
    if _switches_log_compaction_on(body):
        yield Field(f"{OPTION}{LOG_COMPACTION_ENABLE.key}", "true", ("services", "logcompaction"))
    for service, own in (body.settings or {}).items():
        yield from _of_settings(service, own, ())


def _switches_log_compaction_on(body: Body) -> bool:
    """Return whether the rule gives `services.logcompaction: true`, and does not itself set the option `LOG_COMPACTION_ENABLE`."""
    given = body.services is not None and "logcompaction" in body.services.model_fields_set and body.services.logcompaction
    return given and LOG_COMPACTION_ENABLE.key not in (body.options or {})


def option_text(value: Any) -> str:
    """Return the value of an option as the engine reads it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def nested(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of dotted names as nested mappings: `{"a.b": 1}` as `{"a": {"b": 1}}`."""
    found: dict[str, Any] = {}
    for name, value in fields.items():
        *outer, last = name.split(".")
        inner = found
        for part in outer:
            inner = inner.setdefault(part, {})
        inner[last] = value
    return found


def _of_group(group: str, model: BaseModel | None) -> Iterator[Field]:
    if model is not None:
        for name in type(model).model_fields:
            if name in model.model_fields_set:
                yield Field(f"{group}.{name}", getattr(model, name), (group, name))


def _of_settings(service: str, own: Mapping[str, Any], outer: Place) -> Iterator[Field]:
    for name, value in own.items():
        place = (*outer, name)
        if isinstance(value, Mapping):
            yield from _of_settings(service, value, place)
        else:
            dotted = ".".join(map(str, place))
            yield Field(f"{SETTING}{service}.{dotted}", value, ("settings", service, *place))
