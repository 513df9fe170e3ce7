"""A real, tiny service that misbehaves on request; started as a program by the tests."""

import faulthandler
import sys
import threading
import time
import warnings
from typing import Literal

from pydantic import SecretStr

from tideline_runtime.errors import InputRefused, InvalidSetting
from tideline_runtime.http import Reply, Route
from tideline_runtime.lifecycle import run_service
from tideline_runtime.logging import bound, get_logger
from tideline_runtime.settings import ServiceSettings, setting
from tideline_table.errors import StorageError

log = get_logger("tiny")


class TinySettings(ServiceSettings):
    section = "tiny"

    behaviour: Literal[
        "good",
        "retry",
        "broken",
        "broken-once",
        "bad-input",
        "broken-start",
        "late-start",
        "refused-start",
        "hanging-tick",
        "broken-stop",
        "route",
        "library",
    ] = setting("good", unit="-", description="What goes wrong.")
    password: SecretStr | None = setting(None, unit="-", description="A secret.")


class TinyService:
    def __init__(self, settings, context):
        self.settings, self.context = settings, context
        self.starts = self.ticks = 0
        context.health.require("storage", self.probe)
        if settings.behaviour == "route":
            context.add_routes(Route("POST", "/wake", self.wake))

    def probe(self):
        if self.settings.behaviour == "retry":
            raise StorageError("redis://user:hunter22@host did not answer")

    async def wake(self, call):
        self.context.wake()
        return Reply("woken")

    def start(self):
        self.starts += 1
        if self.settings.behaviour == "broken-start":
            raise ValueError("cannot start")
        if self.settings.behaviour == "refused-start":
            raise InvalidSetting("setting 'event_log' is 'x:'\nwith a second line", name="event_log", origin="", expected="a log")
        if self.settings.behaviour == "late-start" and self.starts < 3:
            raise StorageError("the event log did not answer")

    def tick(self):
        self.ticks += 1
        behaviour = self.settings.behaviour
        with bound(table="file:/data/trips", instant="20260101000000000"):
            log.info("ticked", ticks=self.ticks)
        if behaviour == "retry":
            raise StorageError("storage did not answer", remedy="wait")
        if behaviour == "broken":
            raise ValueError(f"a defect near {self.settings.password.get_secret_value() if self.settings.password else ''}")
        if behaviour == "bad-input":
            raise InputRefused("record 5 of t/0 cannot be ingested", remedy="correct it")
        if behaviour == "broken-once":
            if self.ticks == 1:
                raise ValueError("a defect")
            self.context.stopping.wait()
        if behaviour == "hanging-tick":
            time.sleep(3600)
        if behaviour == "library":
            warnings.warn("a library warns", stacklevel=1)
            thread = threading.Thread(target=lambda: 1 / 0, name="stray")
            thread.start()
            thread.join()

    def stop(self):
        if self.settings.behaviour == "broken-stop":
            raise ValueError("cannot stop")
        log.info("stop called", starts=self.starts)


if __name__ == "__main__":
    faulthandler.dump_traceback_later(60, exit=True)
    sys.exit(run_service(TinyService, TinySettings))
