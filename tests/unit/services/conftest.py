from collections.abc import Iterator
from contextlib import closing

import pytest
from tests.unit.services.fleet import Fleet


@pytest.fixture
def fleet(tmp_path) -> Iterator[Fleet]:
    with closing(Fleet(tmp_path)) as made:
        yield made
