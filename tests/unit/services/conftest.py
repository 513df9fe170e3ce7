from collections.abc import Iterator
from contextlib import closing

import pytest
from tests.unit.services.fleet import Fleet, date_files_by


@pytest.fixture
def fleet(tmp_path, monkeypatch) -> Iterator[Fleet]:
    with closing(Fleet(tmp_path)) as made:
        date_files_by(made.clock, monkeypatch)
        yield made
