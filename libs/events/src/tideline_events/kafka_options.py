"""Options that a Kafka client refuses, as errors that name the option and hide its value."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from confluent_kafka import KafkaError, KafkaException

from tideline_table.errors import InvalidOption

_HIDDEN = "**********"
_SHORTEST_SECRET = 4
"""Shorter values are hidden only as whole words, because ordinary words may contain them."""
_FLAGS = frozenset({"", "true", "false"})
_OWN = frozenset({"bootstrap.servers", "client.id"})
"""Options that a user does not give."""
EVENT_LOG_OPTIONS = "event_log_options"
"""The setting with the options of the event log's clients."""

_REPEAT_AFTER_S = 60.0


class _Sparing(logging.Filter):
    """Passes one line of each kind in a minute: without a broker, each client writes several a second.

    The first word of a line of librdkafka is its kind, such as FAIL or ERROR.
    """

    def __init__(self) -> None:
        super().__init__()
        self._passed_s: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether the line is written."""
        kind, now_s = record.getMessage().partition(" ")[0], time.monotonic()
        if now_s - self._passed_s.get(kind, -_REPEAT_AFTER_S) < _REPEAT_AFTER_S:
            return False
        self._passed_s[kind] = now_s
        return True


CLIENT_LOG = logging.getLogger(f"{__name__}.client")
"""The logger of all Kafka clients."""
CLIENT_LOG.addFilter(_Sparing())


@contextmanager
def accepted_options(client: Mapping[str, object], setting: str = EVENT_LOG_OPTIONS) -> Iterator[None]:
    """Translate the refusal of options by the constructor of a Kafka client into `InvalidOption`.

    `client` has the options that a user gave in the setting `setting`, and may have address and id of the client. The error
    names the refused option, or all given ones if the client does not name it. It has no value of an option, because values may
    be secrets.
    """
    options = {name: str(value) for name, value in client.items() if name not in _OWN}
    try:
        yield
    except KafkaException as failure:
        error = failure.args[0]
        if error.code() != KafkaError._INVALID_ARG:  # noqa: SLF001 - librdkafka's name for it
            raise
        reason = error.str()
    except (ValueError, TypeError, AttributeError) as failure:
        reason = str(failure)
    else:
        return
    named = [name for name in options if _word(name).search(reason)] or list(options)
    # Without a cause: its text may contain values.
    raise InvalidOption(
        f"{setting} has {', '.join(map(repr, named)) or 'no option'}; the Kafka client answers: {_without_values(reason, options)}",
        expected="options of librdkafka with valid values",
        remedy=f"correct {setting}; CONFIGURATION.md of librdkafka lists all options",
    ) from None


def _without_values(text: str, options: Mapping[str, str]) -> str:
    """Return a text of the client in one line, with the values of the options hidden."""
    for value in sorted({*options.values()} - _FLAGS, key=len, reverse=True):
        text = text.replace(value, _HIDDEN) if len(value) >= _SHORTEST_SECRET else _word(value).sub(_HIDDEN, text)
    return " ".join(text.split())


def _word(text: str) -> re.Pattern[str]:
    """Return the pattern of a text that is no part of a longer word or dotted name."""
    return re.compile(rf"(?<![\w.]){re.escape(text)}(?![\w]|\.\w)")
