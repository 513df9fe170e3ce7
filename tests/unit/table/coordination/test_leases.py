"""Reader leases: cleaning and archival stay behind the oldest live one, and leases expire by the store's time."""

import pytest
from tests.plans import schedule_clean
from tests.unit.table.tables import DEATH_S, compact, contents, new_table, open_table, write

from tideline_table.action import WriteTransaction, request_archival, request_clean, run_archival, run_clean
from tideline_table.action.archival import run as archival_run
from tideline_table.action.decision import NotDue
from tideline_table.coordination.capabilities import SHARED
from tideline_table.coordination.leases import LEASE_FOLDER, forget_expired, live_leases
from tideline_table.errors import (
    CorruptMetadata,
    HistoryUnavailable,
    InstantNotFound,
    InvalidOption,
    UnsupportedTable,
    WriteConflict,
)
from tideline_table.hudi.instant import Action, State
from tideline_table.table import HeldLease, TableType, known_lease, leases_of, release_lease, renew_lease, take_lease

KEEP_ONE = {"hoodie.cleaner.commits.retained": 1}
VERSIONS = {"hoodie.clean.policy": "KEEP_LATEST_FILE_VERSIONS", "hoodie.clean.fileversions.retained": 1}


def written(commits, **more):
    table, storage, clock = new_table(**more)
    done = [write(table, [("a", "p", n, f"v{n}")]) for n in range(commits)]
    return table, storage, clock, done


@pytest.mark.parametrize(
    "policy", [KEEP_ONE, VERSIONS, {"hoodie.clean.policy": "KEEP_LATEST_BY_HOURS", "hoodie.clean.hours.retained": 1}]
)
def test_a_clean_stays_behind_a_lease_and_goes_on_when_it_ends(policy):
    table, _, clock, _ = written(2)
    reader = open_table(table.storage, clock, "reader")
    begun = reader.snapshot()
    with HeldLease(reader, holder="report", ttl_s=10 * DEATH_S) as held:
        expected = begun.read().num_rows
        for n in range(2, 6):
            write(table, [("a", "p", n, f"v{n}")])
        clock.advance(2 * 3600)
        last = write(table, [("a", "p", 6, "v6")])
        if schedule_clean(table, policy):
            run_clean(table)
        # The snapshot of the reader, and the table as of its instant and of all later ones.
        assert begun.read(["v"]).to_pylist() == [{"v": "v1"}]
        assert begun.read().num_rows == expected
        assert contents(table, held.lease.instant) == [("a", "p", 1, "v1")]
        answer = request_clean(table, policy)
        assert isinstance(answer, NotDue)
        assert held.lease.lease_id in answer.reason
        assert "of report keeps instant" in answer.reason
        assert held.lease.since in answer.reason
    assert leases_of(table) == []
    assert schedule_clean(table, policy)
    assert run_clean(table)
    with pytest.raises(HistoryUnavailable):
        begun.read()
    assert contents(table, last.instant) == [("a", "p", 6, "v6")]


def test_a_reader_beside_a_pending_write_keeps_what_the_write_replaces():
    """A write that began before the newest one completes later, with an older instant than the lease would have."""
    table, _, clock, done = written(2)
    other = open_table(table.storage, clock, "other")
    seen, entered = [], []

    def late(self, *arguments, **named):
        if not entered:
            entered.append(self)
            seen.append(write(other, [("b", "q", 1, "x")]))
            seen.append(take_lease(other, ttl_s=1e6))
        return real(self, *arguments, **named)

    real = WriteTransaction.commit
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(WriteTransaction, "commit", late)
        outer = write(table, [("a", "p", 9, "late")])
    newest, lease = seen
    assert outer.instant < newest.instant
    assert lease.instant < outer.instant
    snapshot = other.snapshot()
    assert lease.instant == done[-1].instant
    for n in range(3):
        write(table, [("b", "q", 5 + n, "y")])
    table.refresh()
    if schedule_clean(table, KEEP_ONE):
        run_clean(table)
    assert snapshot.read().num_rows == 2


def test_a_lease_expires_by_the_time_of_the_store_unless_it_is_renewed():
    table, storage, clock, _ = written(2)
    first, second = take_lease(table, ttl_s=100, holder="dead"), take_lease(table, ttl_s=100, holder="alive")
    clock.advance(90)
    renew_lease(table, second)
    clock.advance(90)
    assert [one.holder for one in live_leases(storage)] == ["alive"]
    assert {one.holder for one in leases_of(table, expired=True)} == {"dead", "alive"}
    assert [one.lease_id for one in forget_expired(storage)] == [first.lease_id]
    assert len(list(storage.list_objects(LEASE_FOLDER))) == 1
    clock.advance(200)
    for n in range(2, 5):
        write(table, [("a", "p", n, f"v{n}")])
    assert schedule_clean(table, KEEP_ONE)
    assert run_clean(table) == 3


def test_a_held_lease_is_renewed_by_its_thread():
    """With a real clock and a short life: the file is written again."""
    table, storage, _, _ = written(1)
    with HeldLease(table, ttl_s=1) as held:
        path = held.lease.path
        storage.delete(path)
        for _ in range(100):
            held._stopped.wait(0.05)
            if any(o.path == path for o in storage.list_objects(LEASE_FOLDER)):
                break
        assert known_lease(table, held.lease.lease_id).instant == held.lease.instant
    with pytest.raises(InstantNotFound, match="expected a lease"):
        known_lease(table, held.lease.lease_id)


def test_a_lease_that_comes_between_plan_and_deletion_keeps_its_files():
    """The planner did not see the lease, and the reader did not see the plan: the look before each batch does."""
    table, storage, clock, done = written(5)
    at = schedule_clean(table, KEEP_ONE)
    assert at
    with pytest.raises(WriteConflict, match="about to remove"):
        take_lease(open_table(storage, clock), done[1].instant)
    assert live_leases(storage) == []
    reader = open_table(storage, clock)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("tideline_table.table.lease.check_lease", lambda *_: None)
        lease = take_lease(reader, done[1].instant, ttl_s=1e6)
    seen = {c.instant: contents(table, c.instant) for c in done[1:]}
    assert run_clean(table) == 0
    assert table.state.last_clean_retained == lease.instant
    assert {c.instant: contents(table, c.instant) for c in done[1:]} == seen
    release_lease(table, lease.lease_id)
    assert schedule_clean(table, KEEP_ONE)
    assert run_clean(table) == 3


def test_archival_stays_behind_a_lease():
    options = {
        "hoodie.cleaner.commits.retained": 1,
        "hoodie.keep.min.commits": 2,
        "hoodie.keep.max.commits": 3,
        "tideline.archive.min.age": 0,
    }
    table, _, clock, done = written(8)
    lease = take_lease(table, done[4].instant, holder="consumer", ttl_s=1e6)
    schedule_clean(table, options)
    run_clean(table)
    clock.advance(10)
    assert isinstance(request_archival(table, options), str)
    assert run_archival(table, options=options) is not None
    assert table.state.archived_before == done[4].instant
    answer = request_archival(table, options)
    assert isinstance(answer, NotDue)
    assert "of consumer keeps instant" in answer.reason
    # A lease that the planner did not see: the plan waits, and removes nothing.
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(archival_run, "live_leases", lambda _: [])
        planned = request_archival(table, options)
    with pytest.raises(WriteConflict, match="waits: reader lease"):
        run_archival(table, options=options)
    assert table.state.actions[planned].state is State.REQUESTED
    release_lease(table, lease.lease_id)
    assert run_archival(table, options=options) is not None
    assert table.state.archived_before > done[4].instant
    assert not [a for a in table.state.pending() if a.action is Action.ARCHIVAL]


def test_a_lease_of_an_instant_that_a_pending_archival_removes_is_refused():
    """Nothing is cleaned, so only the archival stands in its way."""
    options = {
        "hoodie.cleaner.commits.retained": 1,
        "hoodie.keep.min.commits": 2,
        "hoodie.keep.max.commits": 3,
        "tideline.archive.min.age": 0,
    }
    table, storage, clock = new_table()
    done = [write(table, [(f"k{n}", f"p{n}", n, "x")]) for n in range(8)]
    clock.advance(10)
    assert isinstance(request_archival(table, options), str)
    before = table.state.plans[max(table.state.plans)].archived.before
    reader = open_table(storage, clock, "reader")
    with pytest.raises(WriteConflict, match=r"archival .* is about to remove"):
        take_lease(reader, done[1].instant)
    assert live_leases(storage) == []
    lease = take_lease(reader, before)
    assert run_archival(table, options=options) is not None
    assert table.state.archived_before == lease.instant


def test_a_consumer_keeps_what_was_written_after_its_point():
    table, _, clock, done = written(6, type=TableType.MOR)
    point = done[2].sequence
    lease = take_lease(table, after=str(point), ttl_s=1e6)
    assert lease.instant == done[3].instant
    for n in range(6, 9):
        write(table, [("a", "p", n, f"v{n}")])
        clock.advance(1)
        compact(table)
    if schedule_clean(table, KEEP_ONE):
        run_clean(table)
    changes = [row for batch in table.changes(str(point)).scan() for row in batch.to_pylist()]
    assert [(c["before"]["v"], c["after"]["v"]) for c in changes] == [("v2", "v8")]


def test_refusals():
    table, storage, clock = new_table()
    with pytest.raises(InstantNotFound, match="without a completed write"):
        take_lease(table)
    done = [write(table, [("a", "p", n, "x")]) for n in range(4)]
    with pytest.raises(InvalidOption, match="at least 1 s"):
        take_lease(table, ttl_s=0)
    schedule_clean(table, KEEP_ONE)
    run_clean(table)
    with pytest.raises(InstantNotFound, match="cleaned"):
        take_lease(table, done[0].instant)
    lease = take_lease(table)
    with pytest.raises(InstantNotFound, match=lease.lease_id):
        release_lease(table, "0" * 32)
    storage.put(lease.path, b"{}")
    with pytest.raises(CorruptMetadata, match="reader lease"):
        schedule_clean(open_table(storage, clock), KEEP_ONE)


@pytest.mark.parametrize(
    ("lease", "message"),
    [
        ({"ttl_s": 1e8}, "at most 31622400 s"),
        ({"ttl_s": 10**400}, "at most 31622400 s"),
        ({"ttl_s": float("inf")}, "at most 31622400 s"),
        ({"ttl_s": float("nan")}, "at least 1 s"),
        ({"holder": "caf\udce9"}, "UTF-8"),
        ({"reads": "\ud800"}, "UTF-8"),
    ],
)
def test_a_lease_that_nobody_could_read_is_not_stored(lease, message):
    """It would hold up cleaning until somebody repairs its file."""
    table, storage, _, _ = written(4)
    with pytest.raises(InvalidOption, match=message):
        take_lease(table, **lease)
    assert not storage.list_folder(LEASE_FOLDER).objects
    assert schedule_clean(table, KEEP_ONE)


def test_the_option_of_leases_has_the_same_limit():
    table, storage, clock, _ = written(1)
    with pytest.raises(InvalidOption, match=r"tideline\.lease\.ttl"):
        open_table(storage, clock, **{"tideline.lease.ttl": 1e8})
    longest = 366 * 24 * 3600
    assert take_lease(table, ttl_s=longest) == known_lease(table, leases_of(table)[0].lease_id)


def test_a_table_that_hudi_writes_has_no_leases(monkeypatch):
    table, _, _, _ = written(1)
    monkeypatch.setattr(type(table.timeline), "capabilities", SHARED)
    with pytest.raises(UnsupportedTable, match="knows no leases"):
        take_lease(table)
