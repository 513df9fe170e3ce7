"""The service: a thread that serves the pages, and ticks that keep the read model up to date."""

from __future__ import annotations

import contextlib
import gc
import os
import re
import socket
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import uvicorn

from tideline_console.actions import Actions
from tideline_console.follower import Follower
from tideline_console.model import ReadModel
from tideline_console.settings import ConsoleSettings
from tideline_console.sign_in import check_sign_in
from tideline_console.web import console_app
from tideline_events import ActionEvent, EventLog, encode, open_event_log
from tideline_runtime.contract import ServiceContext
from tideline_runtime.errors import InvalidSetting
from tideline_runtime.logging import get_logger
from tideline_runtime.shards import StaticShards
from tideline_runtime.state_folder import PRIVATE_FILE
from tideline_runtime.table_source import open_table_source

_log = get_logger(__name__)
_HOST_NAME = re.compile(r"(\*\.)?[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*|\[[0-9A-Fa-f:.]+\]", re.ASCII)
ADDRESS_FILE = "console.url"
LOOK_S, EVENTS_LOOK_S = 1.0, 0.5
"""Pause between two looks at the tables, and at the event log, which costs less."""


class ConsoleService:
    """One console. It has no shards: it shows all tables that the setting `tables` selects."""

    def __init__(
        self, settings: ConsoleSettings, context: ServiceContext, on_address: Callable[[str], None] = lambda _: None
    ) -> None:
        self._on_address = on_address
        check_sign_in(settings)
        for name in settings.host_names:
            if not _HOST_NAME.fullmatch(name):
                raise InvalidSetting(
                    f"setting 'host_names' has {name!r}",
                    name="host_names",
                    origin=settings.origin("host_names"),
                    expected="names or addresses without scheme and port, such as console.example or *.example",
                    remedy="give the names under which browsers reach the proxy",
                )
        check_actions(settings)
        self._settings, self._context = settings, context
        self._log: EventLog | None = None
        self._model: ReadModel | None = None
        self._follower: Follower | None = None
        self._server: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None
        self._socket: socket.socket | None = None

    @property
    def address(self) -> str:
        """Root URL of the pages; only after `start`."""
        assert self._socket is not None, "not started"
        host, port = self._socket.getsockname()[:2]
        return f"http://{f'[{host}]' if ':' in host else host}:{port}/"

    def start(self) -> None:
        """Open the read model, and serve the pages. Raises `InvalidSetting` for a port that another process has."""
        settings = self._settings
        if self._model is None:
            self._model = ReadModel(settings.state_folder / "console.db")
            reads_events = settings.source == "events"
            self._follower = Follower(
                settings,
                self._model,
                self._context.clock,
                self._event_log if reads_events else None,
                self._context.health.beat,
                self._context.stopping,
                open_table_source(settings, self._context, StaticShards()),
            )
        if self._socket is None:
            self._socket = self._bound()
        assert self._follower is not None, "made with the model"
        actions = Actions(settings, self._follower, self._context.clock, self.record) if settings.actions else None
        app = console_app(settings, self._model, self._follower, self._context.clock, actions)
        # Modules and templates stay: a full collection that looks at them holds pages up for a tenth of a second.
        gc.collect()
        gc.freeze()
        self._server = uvicorn.Server(
            uvicorn.Config(
                app,
                log_config=None,
                access_log=False,
                lifespan="off",
                server_header=False,
                timeout_graceful_shutdown=2,
                forwarded_allow_ips=list(settings.proxies),
            )
        )
        self._thread = threading.Thread(target=self._server.run, args=([self._socket],), name="pages", daemon=True)
        self._thread.start()
        file = settings.state_folder / ADDRESS_FILE
        _write_private(file, f"{self.address}\n")
        _log.info("console", address=self.address)
        self._on_address(self.address)

    def tick(self) -> float | None:
        """Bring the read model up to date."""
        assert self._follower is not None, "started"
        self._follower.turn(0.0)
        topic, reason = "event log", self._follower.events_failure
        if reason:
            self._context.health.obstruct(topic, reason, after_s=60.0)
        else:
            self._context.health.clear(topic)
        looks_itself = self._settings.source != "events" or bool(reason)
        return min(LOOK_S if looks_itself else EVENTS_LOOK_S, self._settings.poll_interval_s)

    def stop(self) -> None:
        """End the pages, and close the read model."""
        if self._server is not None and self._thread is not None:
            self._server.should_exit = True
            self._thread.join()
        if self._socket is not None:
            self._socket.close()
        with contextlib.suppress(FileNotFoundError):
            (self._settings.state_folder / ADDRESS_FILE).unlink()
        if self._follower is not None:
            self._follower.close()
        if self._model is not None:
            self._model.close()
        if self._log is not None:
            self._log.close()

    def record(self, *events: ActionEvent) -> None:
        """Publish events of actions. Raises the errors of the event log; then nothing is recorded, or that is unknown."""
        # A log and a publisher of its own: threads of pages call this, and another console may have taken over the writer id.
        with (
            closing(self._opened_log()) as log,
            closing(log.publisher(self._context.name_in_events(self._settings, "console-actions"))) as publisher,
        ):
            publisher.publish(*(encode(event) for event in events))

    def _event_log(self) -> EventLog:
        if self._log is None:
            self._log = self._opened_log()
        self._log.ensure_topics()
        return self._log

    def _opened_log(self) -> EventLog:
        options = {name: secret.get_secret_value() for name, secret in self._settings.event_log_options.items()}
        return open_event_log(self._settings.event_log, clock=self._context.clock, client_options=options)

    def _bound(self) -> socket.socket:
        settings = self._settings
        family = socket.AF_INET6 if ":" in settings.listen_host else socket.AF_INET
        ports = [settings.listen_port, *([0] if settings.origin("listen_port") == "default" else [])]
        for port in ports:
            bound = socket.socket(family, socket.SOCK_STREAM)
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                bound.bind((settings.listen_host, port))
                bound.listen()  # who gets the address connects, before the thread of the pages answers
            except OSError as error:
                bound.close()
                failure = error
            else:
                return bound
        raise InvalidSetting(
            f"setting 'listen_port' is {settings.listen_port}: {failure.strerror}",
            name="listen_port",
            origin=settings.origin("listen_port"),
            expected="a port that no other process has",
            remedy="set another port, or leave it out",
        )


def check_actions(settings: ConsoleSettings) -> None:
    """Raise `InvalidSetting` where actions could not be recorded, or not be told whose they are."""
    has_strangers = bool(settings.host_names) and not settings.sign_in.is_set
    if settings.actions and (settings.source != "events" or has_strangers):
        raise InvalidSetting(
            "setting 'actions' is on" + (" beside host_names, without sign-in" if has_strangers else " without an event log"),
            name="actions",
            origin=settings.origin("actions"),
            expected='source = "events", and beside host_names sign_in, which tells people apart',
            remedy="leave actions out, or set sign_in",
        )


def _write_private(file: Path, text: str) -> None:
    file.unlink(missing_ok=True)
    with os.fdopen(os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, PRIVATE_FILE), "w") as opened:
        opened.write(text)
