import os
from collections.abc import Iterator
from contextlib import closing

import pytest
from tests.unit.services.fleet import Fleet

from tideline_table.storage import LocalStorage


@pytest.fixture
def fleet(tmp_path, monkeypatch) -> Iterator[Fleet]:
    with closing(Fleet(tmp_path)) as made:
        put = LocalStorage.put

        def dated(storage, path, data):
            put(storage, path, data)
            now_s = made.clock.now().timestamp()
            os.utime(storage.local_path(path), (now_s, now_s))

        # Heartbeats and the store's time go by the clock that tests move.
        monkeypatch.setattr(LocalStorage, "put", dated)
        yield made
