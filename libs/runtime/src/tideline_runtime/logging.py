"""Logs: one JSON object per line on stderr, for Tideline's lines and those of libraries, without secrets.

Every line has `timestamp` (ISO 8601, UTC), `level`, `event` and `service`. `bound(table=..., instant=...)` adds `table` and
`instant` to lines about them. An error of Tideline adds `error`, `recovery`, `found`, `expected`, `remedy`.
"""

from __future__ import annotations

import json
import logging
import logging.config
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Literal, TextIO

import structlog
from structlog.typing import EventDict, Processor

from tideline_runtime.errors import InputRefused
from tideline_runtime.redaction import redacted_text, redactor
from tideline_table.errors import TidelineError

LogFormat = Literal["json", "console"]

_NOISY = ("tornado", "asyncio", "urllib3", "httpx", "httpcore")
"""Libraries whose `info` lines do not help operators: they log from `warning` on, unless the level is `debug`."""


def get_logger(name: str) -> structlog.stdlib.BoundLogger:
    """Return the logger of a module; pass `__name__`."""
    logger: structlog.stdlib.BoundLogger = structlog.stdlib.get_logger(name)
    return logger


def bound(**fields: str) -> AbstractContextManager[None]:
    """Add `fields` to every line of this thread (or task) within the context."""
    return structlog.contextvars.bound_contextvars(**fields)


def configure_logging(
    service: str,
    *,
    level: str = "info",
    log_format: LogFormat = "json",
    secrets: Iterable[str] = (),
    stream: TextIO | None = None,
) -> None:
    """Send all logs of this process through one pipeline to `stream` (default: the `sys.stderr` of the time of each line).

    `secrets` never appear in a line, neither in messages nor in tracebacks. Python warnings and uncaught errors of threads are
    logged too.
    """
    handler = logging.StreamHandler(stream) if stream is not None else _StandardError()
    shared, redacted = _shared_processors(service), redactor(tuple(secrets))
    renderer = _json_line if log_format == "json" else _console(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.ExtraAdder(), *shared],
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                _error_fields,
                structlog.processors.format_exc_info,
                lambda _logger, _method, line: redacted(line),
                renderer,
            ],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for name in _NOISY:
        logging.getLogger(name).setLevel(logging.DEBUG if level == "debug" else max(logging.WARNING, root.level))
    logging.captureWarnings(True)
    threading.excepthook = _log_thread_error
    structlog.configure(
        processors=[structlog.stdlib.filter_by_level, *shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )


@contextmanager
def logs(service: str, *, level: str, log_format: LogFormat, secrets: Iterable[str]) -> Iterator[None]:
    """Apply `configure_logging` within the context, then restore the previous configuration."""
    root = logging.getLogger()
    handlers, root_level, hook, earlier = root.handlers[:], root.level, threading.excepthook, structlog.get_config()
    configure_logging(service, level=level, log_format=log_format, secrets=secrets)
    try:
        yield
    finally:
        root.handlers[:] = handlers
        root.setLevel(root_level)
        logging.captureWarnings(False)
        threading.excepthook = hook
        structlog.configure(**earlier)


class _StandardError(logging.StreamHandler[TextIO]):
    """Writes to the current `sys.stderr`, so that a redirected or replaced stderr gets its lines."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> TextIO:  # type: ignore[override]  # the base has an attribute
        return sys.stderr


def _shared_processors(service: str) -> list[Processor]:
    def add_service(_logger: Any, _method: str, line: EventDict) -> EventDict:
        line["service"] = service
        return line

    return [
        structlog.contextvars.merge_contextvars,
        add_service,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.PositionalArgumentsFormatter(),
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="timestamp"),
    ]


def _error_fields(_logger: Any, _method: str, line: EventDict) -> EventDict:
    error = line.get("exc_info")
    if isinstance(error, tuple):
        error = error[1]
    elif error is True:
        error = sys.exc_info()[1]
    if isinstance(error, BaseException):
        line["error"] = type(error).__name__
    if isinstance(error, TidelineError):
        line.update(recovery=error.recovery.value, found=error.found, expected=error.expected, remedy=error.remedy)
    if isinstance(error, InputRefused):
        del line["exc_info"]
    return line


def _json_line(_logger: Any, _method: str, line: EventDict) -> str:
    first = {key: line.pop(key) for key in ("timestamp", "level", "event", "service") if key in line}
    return json.dumps({**first, **line}, ensure_ascii=False, allow_nan=True, default=lambda value: redacted_text(str(value)))


def _console(stream: TextIO | None) -> Processor:
    colors = (stream or sys.stderr).isatty()
    return structlog.dev.ConsoleRenderer(colors=colors, exception_formatter=structlog.dev.plain_traceback)


def _log_thread_error(caught: threading.ExceptHookArgs) -> None:
    if caught.exc_value is None or issubclass(caught.exc_type, SystemExit):
        return
    error = (caught.exc_type, caught.exc_value, caught.exc_traceback)
    get_logger(__name__).error("thread ended by an error", thread=caught.thread.name if caught.thread else "", exc_info=error)
