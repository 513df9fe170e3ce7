import shutil
import time

import pytest
import structlog
from tests.plans import schedule_clustering
from tests.unit.locks.unreachable import nobody_there
from tests.unit.services.fleet import write
from tests.unit.table.shared import upgrade
from tests.unit.table.tables import set_properties

from tideline_cleaner.settings import CleanerSettings
from tideline_locks import LockUnreachable, StorageLockProvider, open_hudi_lock
from tideline_locks.table_lock import LockProviders, lock_name
from tideline_mirror.settings import MirrorSettings
from tideline_runtime.open_tables import FROZEN_CHECK_S, open_tables
from tideline_table.action import run_clustering
from tideline_table.config import LOCK_TTL_S, LOCK_WAIT_S
from tideline_table.errors import InvalidOption, StorageError, TableFrozen
from tideline_table.hudi import properties as p
from tideline_table.hudi.properties import read_properties
from tideline_table.log.sharing import HudiLockKind, Sharing
from tideline_table.storage import LocalStorage
from tideline_table.table import share_table


def opened(fleet, **more):
    return open_tables(fleet.settings(MirrorSettings, **more), fleet.context("any"), {"tideline.lock.ttl": "7"})


def test_a_table_in_trouble_never_starves_the_others_and_a_retry_is_owed(fleet):
    for name in "abc":
        fleet.create(name)
    tables, context, seen = opened(fleet), fleet.context("any"), []
    errors = {"a": TableFrozen("frozen"), "b": StorageError("slow")}

    def look(table):
        name = table.definition.name
        if name in errors:
            raise errors[name]
        seen.append(name)

    assert tables.visit(context, look) is errors["b"]
    assert seen == ["c"]
    errors.clear()
    assert tables.visit(context, look) is None
    assert seen == ["c", "a", "b", "c"]


def test_tables_that_are_asked_for_come_first_and_alone_if_wanted(fleet):
    uids = {name: fleet.create(name).uid for name in "abc"}
    tables = opened(fleet)
    assert [table.definition.name for table in tables.each([uids["a"]])] == [], "not known before the first visit"
    list(tables.each())
    asked = iter([[], [uids["c"], "another table"]])
    assert [t.definition.name for t in tables.each(first=lambda: next(asked, []))] == ["a", "c", "b", "c"]
    assert [t.definition.name for t in tables.each([uids["c"], "another table", uids["a"]])] == ["c", "a"]


def test_errors_that_concern_all_tables_end_the_visit(fleet):
    for name in "ab":
        fleet.create(name)
    seen = []

    def look(table):
        seen.append(table.definition.name)
        raise StorageError("down")

    try:
        opened(fleet).visit(fleet.context("any"), look, ends_on=(StorageError,))
    except StorageError:
        assert seen == ["a"]
    else:
        raise AssertionError("not raised")


def test_tables_come_and_go(fleet):
    table = fleet.create()
    tables = opened(fleet)
    assert [t.uid for t in tables.each()] == [table.uid]
    assert tables.by_uid(table.uid).base_path == table.storage.root
    shutil.rmtree(fleet.path("trips"))
    later = fleet.create("later")
    fleet.clock.advance(61)
    assert [t.uid for t in tables.each()] == [later.uid]
    assert tables.by_uid(table.uid) is None


def test_a_shared_table_that_was_upgraded_is_shared_in_its_new_version_whether_it_is_open_or_not(fleet):
    table = fleet.create()
    write(table, 0)
    shared = share_table(table, Sharing(HudiLockKind.FILE_SYSTEM), open_hudi_lock)
    known, other = opened(fleet), opened(fleet)
    assert [t.sharing is not None for t in known.each()] == [True]
    upgrade(shared.storage)
    with structlog.testing.capture_logs() as said:
        assert list(known.each()) == []  # it had been opened in the version before
        found = [*known.each(), *other.each()]
    assert [(t.uid, t.definition.version, t.sharing is not None) for t in found] == 2 * [(shared.uid, 9, True)]
    lines = [line["event"] for line in said]
    assert lines.count("table has another version now, and is shared in it") == 1
    write(found[0], 1)


def test_a_shared_table_whose_timeline_stayed_in_place_is_followed_once_a_step_meets_the_new_version(fleet):
    """From 9 to 8 no reading shows the change: a service that kept the table open failed at each step."""
    share_table(fleet.create(version=9), Sharing(HudiLockKind.FILE_SYSTEM), open_hudi_lock)
    tables, context = opened(fleet), fleet.context("any")
    assert [t.definition.version for t in tables.each()] == [9]
    storage = LocalStorage(fleet.path("trips"))
    set_properties(storage, {**read_properties(storage), p.VERSION: "8"})
    seen = []

    def step(table):
        write(table, 0)
        seen.append(table.definition.version)

    for _ in range(2):
        assert tables.visit(context, step) is None
    assert seen == [8]


def test_tables_of_others_are_not_listed_at_every_look(fleet, monkeypatch):
    write(fleet.create(), 0)
    (fleet.folder / "tables" / "trips" / ".hoodie/.tideline/table.json").unlink()
    tables = opened(fleet)
    list(tables.each())
    asked = []
    monkeypatch.setattr(LocalStorage, "list_folder", lambda _, path: asked.append(path))
    assert list(tables.each()) == []
    assert asked == []


def test_commits_of_services_hold_the_lock_beside_the_table_with_the_options_of_locks(fleet):
    fleet.create()
    tables = opened(fleet, locks="storage:")
    (table,) = tables.each()
    with table.lock.hold(table.timeline.head_sequence) as kept:
        lease = StorageLockProvider(table.storage, clock=fleet.clock).read(lock_name(table.uid))
        assert (lease.owner, lease.lease_id) == ("any-0", kept.lease.lease_id)
        assert kept.lease.ttl_s == table.options[LOCK_TTL_S] == 7
    assert table.options[LOCK_WAIT_S] > 0
    assert StorageLockProvider(table.storage, clock=fleet.clock).read(lock_name(table.uid)) is None


@pytest.mark.parametrize(
    ("unreachable", "wait_s", "goes_on"), [("wait", 0.4, False), ("fail", 3600, False), ("storage", 0.4, True)]
)
def test_a_redis_that_is_not_there(fleet, unreachable, wait_s, goes_on):
    written = fleet.create()
    for fare in range(3):
        write(written, fare)
    schedule_clustering(written)
    options = {"tideline.lock.unreachable": unreachable, "tideline.lock.wait": str(wait_s)}
    with nobody_there() as url:
        tables = open_tables(fleet.settings(CleanerSettings, locks=url), fleet.context("any"), options)
        (table,) = tables.each()
        began_s = time.monotonic()
        if goes_on:
            assert run_clustering(table) is not None
        else:
            with pytest.raises(LockUnreachable):
                run_clustering(table)
        waited_s = time.monotonic() - began_s
        tables.close()
    assert waited_s >= wait_s if unreachable == "wait" else waited_s < 60
    assert len(list(written.refresh().completed_writes())) == (4 if goes_on else 3)
    assert bool(table.storage.list_folder(".hoodie/.tideline/locks").folders) is goes_on


def test_without_redis_nothing_can_stand_in_for_it(fleet):
    for unreachable in ("fail", "storage"):
        with pytest.raises(InvalidOption, match=r"tideline\.lock\.unreachable"):
            open_tables(fleet.settings(MirrorSettings), fleet.context("any"), {"tideline.lock.unreachable": unreachable})


def test_one_provider_for_all_tables_or_one_beside_each(fleet):
    for url, is_per_table in (("memory:one", False), ("storage:", True), (f"storage:{fleet.folder}/locks", False)):
        providers = LockProviders(url, fleet.clock)
        one, two = providers.of(fleet.path("a")), providers.of(fleet.path("b"))
        assert providers.is_per_table is is_per_table
        assert (one is two) is not is_per_table
        assert providers.of(fleet.path("a")) is one
        providers.close()


def test_a_frozen_table_is_shown_as_such_and_read_on(fleet):
    table = fleet.create()
    write(table, 0)
    tables = opened(fleet)
    shown = {}

    class Shown:
        revision = 0

        def named(self):
            return {}

        def show_tables(self, found):
            shown.update(found)

    tables.source = Shown()
    (there,) = tables.each()
    tables.registry.named = lambda: [there.base_path]
    tables.show()
    assert shown[there.base_path].sequence == table.state.sequence
    table.storage.put(".hoodie/20990101000000000.commit.requested", b"")
    fleet.clock.advance(FROZEN_CHECK_S)
    assert len(list(tables.each())) == 1
    tables.show()
    assert shown[there.base_path].reason == "Frozen"
    assert "that no Tideline writer made" in shown[there.base_path].text
    table.storage.delete(".hoodie/20990101000000000.commit.requested")
    fleet.clock.advance(FROZEN_CHECK_S)
    list(tables.each())
    tables.show()
    assert shown[there.base_path].sequence == table.state.sequence
