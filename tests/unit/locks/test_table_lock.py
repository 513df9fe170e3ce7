"""What a table gets from a lock URL: its lock and its reservations, and what happens while Redis is not there."""

from __future__ import annotations

import logging
import time
from pathlib import Path

import pytest
from tests.unit.locks.unreachable import nobody_there
from tests.unit.table.shared import SHARING, opened, shared_table
from tests.unit.table.tables import rows_of

from tideline_locks import (
    InProcessLockProvider,
    LockProvider,
    LockTimeout,
    LockUnreachable,
    OnUnreachable,
    StorageLockProvider,
    open_hudi_lock,
)
from tideline_locks.redis_reservations import RedisReservations
from tideline_locks.reservations import InProcessReservations, StorageReservations
from tideline_locks.table_lock import LOCKS_VARIABLE, LockProviders, ProviderLock, attach_lock, lock_name
from tideline_table.action import write_rows
from tideline_table.action.write.transaction import WriteTransaction
from tideline_table.clock import ManualClock, SystemClock
from tideline_table.coordination import NoLock
from tideline_table.coordination.reservations import Reservation
from tideline_table.errors import InvalidOption
from tideline_table.storage import LocalStorage, MemoryStorage
from tideline_table.table import Table, TableRequest, create_table
from tideline_table.writer import Operation

ROWS = rows_of([("a", "p", 1, "x")])
RESERVATIONS = ".hoodie/.tideline/intents"


def table_at(folder: Path, **options: object) -> Table:
    path = str(folder / "t")
    if not (folder / "t").exists():
        create_table(path, TableRequest("t", ROWS.schema, ("id",), ("part",), "ts"))
    return Table.open(path, options={f"tideline.lock.{name}": value for name, value in options.items()})


def put(table: Table) -> None:
    write_rows(table, ROWS, Operation.UPSERT, parallelism=1)


def rows_in(folder: Path) -> int:
    return table_at(folder).read(["id"]).num_rows


def leases(folder: Path) -> list[Path]:
    return list((folder / "t" / ".hoodie/.tideline/locks").rglob("*.json"))


@pytest.mark.parametrize(
    ("url", "kind"),
    [("storage:", StorageReservations), ("memory:attach", InProcessReservations), ("redis://localhost:1/0", RedisReservations)],
)
def test_reservations_lie_where_the_leases_lie(tmp_path: Path, url: str, kind: type) -> None:
    table, other = table_at(tmp_path), table_at(tmp_path)
    for opened_once in (table, other):
        attach_lock(opened_once, url)
        assert isinstance(opened_once.reservations, kind)
    if kind is RedisReservations:
        return
    put(table)
    begun = WriteTransaction.begin(table.timeline, NoLock(), "UPSERT")
    reservation = Reservation(begun.instant, frozenset({"group"}))
    assert table.reservations.claim(reservation) == []
    assert other.reservations.claim(Reservation("9", frozenset({"group"}))) == [reservation]


def test_without_a_url_there_are_reservations_and_no_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(LOCKS_VARIABLE, raising=False)
    for url in ("", None):
        table = table_at(tmp_path)
        attach_lock(table, url)
        assert (type(table.lock), type(table.reservations)) == (NoLock, StorageReservations)


def test_the_variable_names_the_locks_where_the_caller_names_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LOCKS_VARIABLE, "memory:named")
    for url, kind in ((None, ProviderLock), ("", NoLock)):
        table = table_at(tmp_path)
        attach_lock(table, url)
        assert type(table.lock) is kind


def test_wait_goes_on_asking_as_long_as_it_may(tmp_path: Path) -> None:
    with nobody_there() as url:
        table = table_at(tmp_path, wait=0.7)
        attach_lock(table, url)
        began_s = time.monotonic()
        with pytest.raises(LockUnreachable):
            put(table)
    assert time.monotonic() - began_s >= 0.7
    assert (rows_in(tmp_path), leases(tmp_path)) == (0, [])


def test_fail_does_not_wait(tmp_path: Path) -> None:
    with nobody_there() as url:
        table = table_at(tmp_path, unreachable="fail", wait=3600)
        attach_lock(table, url)
        with pytest.raises(LockUnreachable):
            put(table)
    assert (rows_in(tmp_path), leases(tmp_path)) == (0, [])


def test_storage_goes_on_with_leases_and_reservations_beside_the_table(tmp_path: Path) -> None:
    with nobody_there() as url:
        table, other = (table_at(tmp_path, unreachable="storage", wait=0.2) for _ in range(2))
        for opened_once in (table, other):
            attach_lock(opened_once, url)
        put(table)
        assert rows_in(tmp_path) == 1
        assert leases(tmp_path), "the commit was made under a lease beside the table"
        beside = StorageLockProvider(table.storage, clock=SystemClock())
        fence = table.timeline.head_sequence()
        with (
            beside.acquire(lock_name(table.uid), owner="somebody", ttl_s=60, wait_s=0, fence=fence),
            pytest.raises(LockTimeout),
        ):
            put(other)
        begun = WriteTransaction.begin(table.timeline, NoLock(), "UPSERT")
        reservation = Reservation(begun.instant, frozenset({"group"}))
        assert table.reservations.claim(reservation) == []
        assert other.reservations.claim(Reservation("9", frozenset({"group"}))) == [reservation]
        table.reservations.withdraw(begun.instant)
        other.reservations.withdraw("9")
        assert table.storage.list_folder(RESERVATIONS).objects == ()


def test_tables_of_one_process_learn_of_an_outage_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Of a hundred tables only one pays for the timeouts."""
    clock = ManualClock()
    with nobody_there() as url:
        providers = LockProviders(url, clock)
        for name in "abc":
            lease = providers.of(str(tmp_path / name), OnUnreachable.STORAGE).acquire(name, owner="o", ttl_s=9, wait_s=0)
            assert StorageLockProvider(LocalStorage(tmp_path / name), clock=clock).read(name).lease_id == lease.lease_id
            lease.release()
        providers.close()
    assert len([r for r in caplog.records if r.levelno == logging.WARNING]) == 1


class Rush(ManualClock):
    """While anybody sleeps, another process commits under the lock and the next one takes it: each look meets a holder and a
    newer fence."""

    def __init__(self, kind: str, commits: int) -> None:
        super().__init__()
        self.provider = provider_of(kind, self)
        self.head, self.left = 10, commits
        self._taken = self.provider.acquire("t", owner="others", ttl_s=30, wait_s=0, fence=self.head)

    def sleep(self, duration_s: float) -> None:
        super().sleep(duration_s)
        self._taken.release()
        self.left -= 1
        if self.left > 0:
            self.head += 2
            self._taken = self.provider.acquire("t", owner="others", ttl_s=30, wait_s=0, fence=self.head)


def provider_of(kind: str, clock: ManualClock) -> LockProvider:
    return StorageLockProvider(MemoryStorage(clock=clock), clock=clock) if kind == "storage" else InProcessLockProvider(clock=clock)


@pytest.mark.parametrize("kind", ["storage", "memory"])
def test_newer_fences_are_waited_for_as_long_as_a_holder_is(kind: str) -> None:
    rush = Rush(kind, commits=200)
    with ProviderLock(rush.provider, "t", "late", wait_s=60).hold(lambda: rush.head):
        held = rush.provider.read("t")
        assert held is not None
        assert (held.owner, held.token) == ("late", rush.head)
    assert rush.left == 0


@pytest.mark.parametrize("kind", ["storage", "memory"])
def test_newer_fences_are_waited_for_no_longer_than_a_holder_is(kind: str) -> None:
    rush = Rush(kind, commits=10**9)
    lock = ProviderLock(rush.provider, "t", "late", wait_s=60)
    with pytest.raises(LockTimeout, match="a lease within 60 s") as refused, lock.hold(lambda: rush.head):
        pass
    assert refused.value.waited_s == 60
    assert 60 <= rush.monotonic_s() < 60.1


@pytest.mark.parametrize("kind", ["storage", "memory"])
def test_a_log_that_went_back_is_told(kind: str) -> None:
    """A table came out of a backup, its locks did not: nobody holds the lock, and nobody gets it."""
    clock = ManualClock()
    provider = provider_of(kind, clock)
    provider.acquire("t", owner="before", ttl_s=30, wait_s=0, fence=30).release()
    with pytest.raises(LockTimeout, match=r"entry 30 of the table log, which does not exist.*older copy") as refused:
        ProviderLock(provider, "t", "after", wait_s=60).hold(lambda: 10).__enter__()
    assert (refused.value.holder, refused.value.greatest) == (None, 30)


@pytest.mark.parametrize("kind", ["storage", "memory"])
def test_others_who_go_first_are_no_log_that_went_back(kind: str) -> None:
    rush = Rush(kind, commits=10**9)
    with pytest.raises(LockTimeout, match="reserved for waiters") as refused:
        ProviderLock(rush.provider, "t", "late", wait_s=60).hold(lambda: rush.head - 1).__enter__()
    assert refused.value.greatest is None


@pytest.mark.parametrize("unreachable", ["fail", "storage"])
@pytest.mark.parametrize("url", ["", "storage:", "memory:x"])
def test_without_redis_there_is_nothing_to_do_without(tmp_path: Path, url: str, unreachable: str) -> None:
    table = table_at(tmp_path, unreachable=unreachable)
    with pytest.raises(InvalidOption, match="tideline.lock.unreachable.* is " + unreachable) as refused:
        attach_lock(table, url)
    assert "redis:" in refused.value.expected


def test_no_other_word(tmp_path: Path) -> None:
    with pytest.raises(InvalidOption, match="'sometimes'"):
        table_at(tmp_path, unreachable="sometimes")


@pytest.mark.parametrize("unreachable", ["wait", "fail", "storage"])
def test_a_shared_table_has_no_lock_but_the_one_of_hudis_writers(unreachable: str) -> None:
    """Whatever the options say about Redis: nothing else keeps Hudi's writers out."""
    _, storage, clock = shared_table()
    table = opened(storage, clock, **{"tideline.lock.unreachable": unreachable, "tideline.lock.wait": 1})
    lock, timeline = table.lock, table.timeline
    with nobody_there() as url:
        attach_lock(table, url)
        assert (table.lock, table.timeline) == (lock, timeline)
        with open_hudi_lock(storage, SHARING, "hudi", clock, table.options).hold(), pytest.raises(LockTimeout):
            put(table)
        assert table.read(["id"]).num_rows == 0
        put(table)
    assert table.read(["id"]).num_rows == 1
    assert storage.list_folder(".hoodie/.tideline/locks").objects == ()
