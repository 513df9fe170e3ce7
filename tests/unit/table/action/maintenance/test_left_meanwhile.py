"""Processes that have a shared table open while it is returned to the writers of Apache Hudi: none of them revives its log."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.unit.table.shared import SHARING, opened, peer_of, put, shared_table
from tests.unit.table.tables import contents

from tideline_locks import open_hudi_lock
from tideline_table.action import leave
from tideline_table.errors import StorageError, TableFrozen
from tideline_table.log.checkpoint import POINTER
from tideline_table.log.entry import IDENTITY_PATH, entry_path
from tideline_table.storage import Storage, StorageWrapper
from tideline_table.table import share_table

ROWS = [("a", "p", 1, "1"), ("b", "p", 1, "1")]
LATER = [("c", "p", 1, "1")]


class _Meanwhile(StorageWrapper):
    """Something happens before the first put below a folder: the process that adopts a step was suspended there."""

    def __init__(self, inner: Storage, act: Callable[[], None], folder: str = "/.tideline/log/") -> None:
        super().__init__(inner)
        self.act: Callable[[], None] | None = act
        self.folder = folder

    def on_request(self, kind: str, path: str) -> None:
        if kind.startswith("put") and self.folder in path and self.act is not None:
            act, self.act = self.act, None
            act()


def _log(storage: Storage) -> list[str]:
    return [
        found.path for found in storage.list_objects(".hoodie/.tideline") if "/log/" in found.path or "/checkpoint/" in found.path
    ]


def test_what_hudi_writes_after_it_is_adopted_by_nobody() -> None:
    table, storage, clock = shared_table()
    put(table, ROWS)
    mirror, theirs = opened(storage, clock, "mirror"), peer_of(storage, clock)
    leave(table, open_hudi_lock)
    storage.put(".hoodie/20990101000000000.commit.requested", b"")
    storage.put(".hoodie/20990101000000000.inflight", b"")
    with pytest.raises(TableFrozen, match="tideline leave"):
        mirror.timeline.heal(0.0)
    with pytest.raises(TableFrozen, match="tideline leave"):
        theirs.timeline.catch_up()
    assert _log(storage) == []
    assert sorted(contents(opened(storage, clock, "after"))) == ROWS


def test_an_entry_that_comes_after_the_log_was_removed_is_removed() -> None:
    table, storage, clock = shared_table()
    put(table, ROWS)

    def leaves() -> None:
        clock.advance(3600)  # the lock of the mirror has ended
        leave(opened(storage, clock), open_hudi_lock)

    mirror = opened(_Meanwhile(storage, leaves), clock, "mirror")
    storage.put(".hoodie/20250101000000000.commit.requested", b"")
    with pytest.raises(TableFrozen, match="tideline leave"):
        mirror.timeline.heal(0.0)
    assert _log(storage) == []


def test_who_has_it_open_when_it_is_shared_again_writes_nothing_into_the_new_log() -> None:
    table, storage, clock = shared_table()
    for _ in range(4):
        put(table, ROWS)
    old, theirs = opened(storage, clock, "old"), peer_of(storage, clock)
    leave(table, open_hudi_lock)
    again = share_table(opened(storage, clock, "after"), SHARING, open_hudi_lock)
    log = {path: storage.read(path) for path in _log(storage)}
    with pytest.raises(TableFrozen, match=again.uid):
        put(old, LATER)
    with pytest.raises(TableFrozen, match=again.uid):
        theirs.timeline.catch_up()
    with pytest.raises(TableFrozen, match=again.uid):
        leave(old, open_hudi_lock)
    assert {path: storage.read(path) for path in _log(storage)} == log
    for number in range(6):
        put(again, [(f"k{number}", "p", 1, "1")])
    assert len(contents(opened(storage, clock, "reader"))) == len(ROWS) + 6


def test_an_entry_that_comes_after_it_was_shared_again_is_removed() -> None:
    table, storage, clock = shared_table()
    for _ in range(4):
        put(table, ROWS)

    def leaves_and_shares_again() -> None:
        clock.advance(3600)
        leave(opened(storage, clock), open_hudi_lock)
        share_table(opened(storage, clock), SHARING, open_hudi_lock)

    mirror = opened(_Meanwhile(storage, leaves_and_shares_again), clock, "mirror")
    storage.put(".hoodie/20250101000000000.commit.requested", b"")
    with pytest.raises(TableFrozen, match="shared again"):
        mirror.timeline.heal(0.0)
    assert [path for path in _log(storage) if "/log/" in path] == [entry_path(1), entry_path(2)]
    assert sorted(contents(opened(storage, clock, "reader"))) == ROWS


@pytest.mark.parametrize("interval", [2, 1000])
@pytest.mark.parametrize("is_shared_again", [False, True])
def test_checkpoints_that_come_after_the_log_was_removed_are_removed(interval: int, is_shared_again: bool) -> None:
    table, storage, clock = shared_table()
    put(table, ROWS)
    if table.state.sequence % 2 == 0:
        storage.put(".hoodie/20240101000000000.commit.requested", b"")
        table.timeline.heal(0.0)
    expected: dict[str, bytes] = {}

    def leaves() -> None:
        clock.advance(3600)
        leave(opened(storage, clock), open_hudi_lock)
        if is_shared_again:
            share_table(opened(storage, clock), SHARING, open_hudi_lock)
        expected.update({path: storage.read(path) for path in _log(storage) if not path.endswith("/latest")})

    options = {"tideline.log.checkpoint.interval": interval}
    mirror = opened(_Meanwhile(storage, leaves, "/.tideline/checkpoint/"), clock, "mirror", **options)
    storage.put(".hoodie/20250101000000000.commit.requested", b"")
    with pytest.raises(TableFrozen, match="tideline leave"):
        mirror.timeline.heal(0.0)
    assert {path: storage.read(path) for path in _log(storage)} == expected
    after = opened(storage, clock, "after")
    assert after.capabilities.keeps_log == is_shared_again
    assert sorted(contents(after)) == ROWS


def test_of_a_log_that_has_grown_again_meanwhile_no_entry_is_deleted() -> None:
    table, storage, clock = shared_table()
    put(table, ROWS)
    expected: dict[str, bytes] = {}

    def leaves_and_others_write() -> None:
        clock.advance(3600)
        leave(opened(storage, clock), open_hudi_lock)
        again = share_table(opened(storage, clock), SHARING, open_hudi_lock)
        for _ in range(4):
            put(again, LATER)
        expected.update({path: storage.read(path) for path in _log(storage) if "/log/" in path})

    mirror = opened(_Meanwhile(storage, leaves_and_others_write, "/.tideline/checkpoint/"), clock, "mirror")
    storage.put(".hoodie/20250101000000000.commit.requested", b"")
    with pytest.raises(TableFrozen, match="shared again"):
        mirror.timeline.heal(0.0)
    assert {path: storage.read(path) for path in _log(storage) if "/log/" in path} == expected
    assert entry_path(mirror.state.sequence) in expected
    assert sorted(contents(opened(storage, clock, "reader"))) == [*ROWS, *LATER]


def test_an_error_of_the_second_check_does_not_hide_an_entry_that_counts() -> None:
    table, storage, clock = shared_table()
    put(table, ROWS)
    kept: list[str] = []

    class Failing(StorageWrapper):
        def on_request(self, kind: str, path: str) -> None:
            if kind == "put" and path == POINTER:
                kept.append(path)
            elif path == IDENTITY_PATH and kept:
                kept.clear()
                raise StorageError("503", remedy="retry")

    writer = opened(Failing(storage), clock, "writer")
    done = put(writer, LATER)
    assert not kept
    assert done.sequence == writer.state.sequence == opened(storage, clock, "reader").state.sequence


def test_late_checkpoints_that_others_wrote_over_stay() -> None:
    table, storage, clock = shared_table()
    put(table, ROWS)
    storage.put(".hoodie/20250101000000000.commit.requested", b"")
    newer = b'{"checkpoint": 2, "size_bytes": 9, "marks": [], "end": 2, "tail": []}'

    class Overwritten(StorageWrapper):
        def on_request(self, kind: str, path: str) -> None:
            if kind == "put" and path == POINTER:
                self.is_written = True
            elif path == IDENTITY_PATH and getattr(self, "is_written", False):
                storage.delete(IDENTITY_PATH)
                storage.put(POINTER, newer)

    with pytest.raises(TableFrozen, match="tideline leave"):
        opened(Overwritten(storage), clock, "mirror").timeline.heal(0.0)
    assert storage.read(POINTER) == newer


def test_a_late_entry_whose_process_died_does_not_hinder() -> None:
    table, storage, clock = shared_table()
    put(table, ROWS)
    late = entry_path(table.state.sequence)
    content, pointer = storage.read(late), storage.read(POINTER)
    leave(table, open_hudi_lock)
    storage.put(late, content)
    storage.put(POINTER, pointer)
    after = opened(storage, clock, "after")
    assert not after.capabilities.keeps_log
    assert sorted(contents(after)) == ROWS
    again = share_table(after, SHARING, open_hudi_lock)
    for _ in range(3):
        put(again, LATER)
    assert sorted(contents(opened(storage, clock, "again"))) == [*ROWS, *LATER]
