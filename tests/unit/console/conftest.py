from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path

import jinja2
import pytest
from starlette.testclient import TestClient
from tests.unit.services.fleet import Fleet

from tideline_console import web
from tideline_console.follower import Follower
from tideline_console.model import ReadModel
from tideline_console.settings import ConsoleSettings
from tideline_console.web import console_app
from tideline_mirror.mirroring import MirrorService
from tideline_mirror.settings import MirrorSettings

ADDRESS = "http://127.0.0.1"
EVERY_TURN = {"tables_rescan_s": 0.000_001, "examine_interval_s": 0.000_001}


class CompiledTemplates(jinja2.BytecodeCache):
    """The templates as compiled for the first console of a test process: it takes longer than most tests."""

    def __init__(self) -> None:
        self._compiled: dict[str, bytes] = {}

    def load_bytecode(self, bucket: jinja2.bccache.Bucket) -> None:
        if bucket.key in self._compiled:
            bucket.bytecode_from_string(self._compiled[bucket.key])

    def dump_bytecode(self, bucket: jinja2.bccache.Bucket) -> None:
        self._compiled[bucket.key] = bucket.bytecode_to_string()


@pytest.fixture(scope="session", autouse=True)
def compiled_templates() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(web, "Environment", partial(jinja2.Environment, bytecode_cache=CompiledTemplates()))
        yield


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

    def publish_again(self) -> None:
        """All steps are published again, as if their topic had been deleted."""
        assert self._mirror is not None
        self._mirror._positions.start_again(keeps_records=True)
        self.publish()


@pytest.fixture
def consoles(tmp_path: Path) -> Iterator[Consoles]:
    with ExitStack() as held:
        yield held.enter_context(closing(Consoles(tmp_path, held)))
