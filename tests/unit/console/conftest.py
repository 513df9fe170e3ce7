from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from starlette.testclient import TestClient
from tests.unit.services.fleet import Fleet

from tideline_console.follower import Follower
from tideline_console.model import ReadModel
from tideline_console.settings import ConsoleSettings
from tideline_console.web import console_app
from tideline_mirror.mirroring import MirrorService
from tideline_mirror.settings import MirrorSettings

ADDRESS = "http://127.0.0.1"
EVERY_TURN = {"tables_rescan_s": 0.000_001, "examine_interval_s": 0.000_001}


class Consoles(Fleet):
    """Tables, a mirror, and consoles over them, which a test moves turn by turn."""

    def __init__(self, folder: Path, held: ExitStack) -> None:
        super().__init__(folder)
        self._held = held
        self._made = 0
        self._mirror: MirrorService | None = None

    def follower(self, *, events: bool = False, **explicit) -> tuple[Follower, ReadModel, ConsoleSettings]:
        self._made += 1
        settings = self.settings(ConsoleSettings, **{**EVERY_TURN, **explicit})
        model = self._held.enter_context(closing(ReadModel(self.folder / f"console-{self._made}.db")))
        follower = Follower(settings, model, self.clock, (lambda: self.event_log) if events else None)
        self._held.enter_context(closing(follower))
        return follower, model, settings

    def client(self, *, turns: int = 1, **explicit) -> TestClient:
        """A client of a console that looked at all tables."""
        follower, model, settings = self.follower(**explicit)
        for _ in range(turns):
            follower.turn()
        return TestClient(console_app(settings, model, follower, self.clock), base_url=ADDRESS)

    def publish(self) -> None:
        if self._mirror is None:
            self._mirror, _ = self.service(MirrorService, MirrorSettings, "mirror", tables_rescan_s=0.001)
        while self._mirror.tick() == 0.0:
            pass


@pytest.fixture
def consoles(tmp_path: Path) -> Iterator[Consoles]:
    with ExitStack() as held:
        yield held.enter_context(closing(Consoles(tmp_path, held)))
