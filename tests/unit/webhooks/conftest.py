from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from tests.unit.services.fleet import Fleet
from tests.unit.webhooks.receiver import Answer, Received, Receiver

from tideline_mirror.mirroring import MirrorService
from tideline_mirror.settings import MirrorSettings
from tideline_webhooks.service import WebhooksService
from tideline_webhooks.settings import WebhooksSettings


class Hooks(Fleet):
    """Tables, a mirror, receivers, and the service with the subscriptions of a file."""

    def __init__(self, folder: Path, held: ExitStack) -> None:
        super().__init__(folder)
        self._held = held
        self.file = folder / "subscriptions.json"
        self.event_log_url = ""
        """Of another event log than the one in SQLite."""
        self.mirror: MirrorService | None = None

    def settings(self, kind, **explicit):
        return super().settings(kind, **({"event_log": self.event_log_url} if self.event_log_url else {}), **explicit)

    def receiver(self, answer: Callable[[Received], Answer] = lambda _: Answer()) -> Receiver:
        return self._held.enter_context(closing(Receiver(answer)))

    def subscribe(self, *subscriptions: dict[str, Any]) -> Path:
        given = [{"paths": [f"{self.folder}/tables/*"], "start": "oldest", **one} for one in subscriptions]
        self.file.write_text(json.dumps({"version": 1, "subscriptions": given}))
        return self.file

    def publish(self) -> None:
        if self.mirror is None:
            self.mirror, _ = self.service(MirrorService, MirrorSettings, "mirror", tables_rescan_s=0.001)
        while self.mirror.tick() == 0.0:
            pass

    def run(self, **settings: Any):
        settings = {"retry_max_s": 0.05, **settings}
        return self.service(WebhooksService, WebhooksSettings, "webhooks", subscriptions=self.file, **settings)


@pytest.fixture
def hooks(tmp_path: Path) -> Iterator[Hooks]:
    with ExitStack() as held:
        yield held.enter_context(closing(Hooks(tmp_path, held)))
