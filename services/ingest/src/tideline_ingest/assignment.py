"""Which topics one process copies into which tables, and with which settings."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from tideline_ingest.settings import IngestSettings
from tideline_runtime.errors import InvalidSetting
from tideline_runtime.settings import ServiceSettings

_PATTERN = "^"
_INTERNAL = "__"
_NOT_PER_TOPIC = frozenset(
    {"application_id", "brokers", "kafka_options", "topics", "per_topic", "topic_rescan_s", "schema_registry_options"}
)
_PER_TOPIC = frozenset(IngestSettings.model_fields) - frozenset(ServiceSettings.model_fields) - _NOT_PER_TOPIC


def has_several_tables(settings: IngestSettings) -> bool:
    """Return whether topics and tables must be assigned: by a pattern, a name in `table`, or settings of single topics."""
    return bool(settings.per_topic) or "{" in settings.table or has_patterns(settings)


def has_patterns(settings: IngestSettings) -> bool:
    """Return whether the topics that exist decide which are read."""
    return any(topic.startswith(_PATTERN) for topic in settings.topics)


def check_assignment(settings: IngestSettings) -> None:
    """Raise `InvalidSetting` for patterns and settings of topics that are wrong whatever topics there are."""
    for pattern in (*settings.topics, *settings.per_topic):
        _compiled(pattern)
    for given in settings.per_topic.values():
        _derived(settings, "topic", {}, {"table": "table", **given})


def assigned(settings: IngestSettings, existing: Collection[str]) -> dict[str, IngestSettings]:
    """Return the settings of the application of each table, by base path. Patterns select among the `existing` topics.

    Raises `InvalidSetting`, also if topics of one table have different settings.
    """
    named = dict(_selected(settings, existing))
    derived = {topic: _derived(settings, topic, groups, _given(settings, topic)) for topic, groups in named.items()}
    # A pattern that selects dead letters would feed them to the table that they do not fit.
    letters = {found.dead_letter_topic for found in derived.values()} - set(settings.topics)
    tables: dict[str, IngestSettings] = {}
    for topic, found in sorted(derived.items()):
        if topic in letters:
            continue
        before = tables.get(found.table)
        if before is not None and before.model_copy(update={"topics": ()}) != found.model_copy(update={"topics": ()}):
            both = f"{before.topics[0]!r} and {topic!r}"
            raise _wrong("per_topic", f"other settings for topics {both} of one table, {found.table}", "the same for both")
        topics = (*(before.topics if before else ()), topic)
        tables[found.table] = found.model_copy(update={"topics": topics})
    return tables


def _selected(settings: IngestSettings, existing: Collection[str]) -> Iterator[tuple[str, Mapping[str, str]]]:
    for pattern in settings.topics:
        if not pattern.startswith(_PATTERN):
            yield pattern, {}
            continue
        for topic in existing:
            found = _compiled(pattern).match(topic)
            if found and not topic.startswith(_INTERNAL):
                yield topic, {name: text or "" for name, text in found.groupdict().items()}


def _given(settings: IngestSettings, topic: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for pattern, given in settings.per_topic.items():
        if pattern == topic or (pattern.startswith(_PATTERN) and _compiled(pattern).match(topic)):
            found |= given
    return found


def _derived(settings: IngestSettings, topic: str, groups: Mapping[str, str], given: Mapping[str, Any]) -> IngestSettings:
    unknown = sorted(set(given) - _PER_TOPIC)
    if unknown:
        raise _wrong("per_topic", f"setting 'per_topic' has {unknown[0]!r}", f"one of {', '.join(sorted(_PER_TOPIC))}")
    values = {name: getattr(settings, name) for name in IngestSettings.model_fields} | dict(given)
    names = {**groups, "topic": topic}
    values |= {name: _filled(name, str(values[name]), names) for name in ("table", "dead_letter_topic")}
    return IngestSettings.load(environment={}, **{**values, "topics": (topic,), "per_topic": {}})


def _filled(setting: str, text: str, names: Mapping[str, str]) -> str:
    def value(found: re.Match[str]) -> str:
        name = found.group(1)
        if name not in names:
            raise _wrong(
                setting, f"setting {setting!r} has {{{name}}}", f"one of {', '.join(sorted(names))}: {{topic}}, or a group"
            )
        if not names[name] or set(names[name]) <= {"."}:
            raise _wrong(setting, f"{{{name}}} is {names[name]!r} for topic {names['topic']!r}", "a name of a folder")
        return names[name]

    return re.sub(r"\{(\w+)\}", value, text)


def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as error:
        raise _wrong("topics", f"pattern {pattern!r} ({error})", "a regular expression") from None


def _wrong(name: str, found: str, expected: str) -> InvalidSetting:
    return InvalidSetting(found, name=f"ingest.{name}", origin="settings", expected=expected)
