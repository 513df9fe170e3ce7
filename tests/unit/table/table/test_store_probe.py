"""Stores that do not keep the conditions of puts are refused where a table becomes shared, and nothing is left there."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.table.shared import SHARING
from tests.unit.table.tables import contents, listing, new_table, write

from tideline_locks import open_hudi_lock
from tideline_table.clock import ManualClock
from tideline_table.errors import UnsupportedTable
from tideline_table.log.sharing import HudiLockKind, Sharing
from tideline_table.storage import LocalStorage, MemoryStorage
from tideline_table.table import share_table


class Unreliable(MemoryStorage):
    """From the moment on at which `fault` is set."""

    fault = ""

    def put_if_absent(self, path: str, data: bytes) -> None:
        if self.fault == "ignores names":
            self.put(path, data)
        else:
            super().put_if_absent(path, data)

    def put_if_version(self, path: str, data: bytes, version: str) -> bool:
        if self.fault == "ignores versions":
            self.put(path, data)
            return True
        if self.fault == "knows no versions":
            return False
        took = super().put_if_version(path, data, version)
        if self.fault == "loses an answer" and took:
            # Asked again, it finds our own object.
            self.fault = ""
            return False
        return took


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("ignores names", "accepted a second conditional put"),
        ("ignores versions", "accepted a put over an older version"),
        ("knows no versions", "refused a put over the version"),
    ],
)
def test_stores_without_conditions_are_refused(fault: str, words: str) -> None:
    clock = ManualClock()
    storage = Unreliable(clock=clock)
    table, _, _ = new_table(clock, storage)
    write(table, [("a", "p", 1, "x")])
    before = listing(storage)
    storage.fault = fault
    with pytest.raises(UnsupportedTable, match=words) as caught:
        share_table(table, SHARING, open_hudi_lock)
    assert "another store" in caught.value.remedy
    assert listing(storage) == before
    assert table.sharing is None
    storage.fault = ""
    assert share_table(table, SHARING, open_hudi_lock).sharing is not None


def test_an_answer_that_got_lost_condemns_no_store() -> None:
    clock = ManualClock()
    storage = Unreliable(clock=clock)
    table, _, _ = new_table(clock, storage)
    storage.fault = "loses an answer"
    shared = share_table(table, SHARING, open_hudi_lock)
    assert storage.fault == ""
    write(shared, [("a", "p", 1, "x")])
    assert contents(shared) == [("a", "p", 1, "x")]


def test_a_disk_needs_no_versions(tmp_path: Path) -> None:
    table, _, _ = new_table(storage=LocalStorage(tmp_path / "t"))
    assert share_table(table, Sharing(HudiLockKind.FILE_SYSTEM), open_hudi_lock).sharing is not None
