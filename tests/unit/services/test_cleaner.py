import json
import os
import subprocess
import sys
from datetime import timedelta

import pyarrow as pa
from tests.plans import schedule_archival, schedule_clean, schedule_clustering
from tests.unit.services.fleet import HEARTBEAT_GONE_S, SCHEMA, Fleet, begin, date_files_by, die, rows, write

from tideline_cleaner import cleaning
from tideline_cleaner.cleaning import CleanerService
from tideline_cleaner.metrics import ARCHIVED, EXPIRED, EXPIRED_ROWS, FILES_DELETED, HALF_WRITTEN, LATE_FILES, ROLLBACKS
from tideline_cleaner.settings import CleanerSettings
from tideline_locks import open_hudi_lock
from tideline_table.action import write_rows
from tideline_table.coordination.heartbeat import heartbeat_path
from tideline_table.hudi.instant import Action, State, next_instant
from tideline_table.log.body import Bare
from tideline_table.log.plan import RollbackStep
from tideline_table.log.table_log import Draft
from tideline_table.storage import STAGING
from tideline_table.table import (
    HudiLockKind,
    Sharing,
    Table,
    TableRequest,
    create_table,
    release_lease,
    resume_services,
    share_table,
    take_lease,
)
from tideline_table.writer import Operation
from tideline_table.writer.marker import MarkerType, create_marker

RETAINED = {"hoodie.cleaner.commits.retained": "1"}


def cleaner(fleet: Fleet, **explicit):
    return fleet.service(CleanerService, CleanerSettings, "cleaner", options=RETAINED, **explicit)


def base_files(fleet):
    return sorted(p.name for p in (fleet.folder / "tables" / "trips" / "oslo").glob("*.parquet"))


def upsert(table):
    return write_rows(table, rows(0), Operation.UPSERT, parallelism=1)


def test_rolls_a_dead_writer_back_and_leaves_a_live_one_alone(fleet):
    table = fleet.create()
    dead = die(table)
    service, context = cleaner(fleet)
    service.tick()
    table.refresh()
    assert table.state.actions[dead].state is State.INFLIGHT
    fleet.clock.advance(HEARTBEAT_GONE_S)
    live = begin(table)
    service.tick()
    service.tick()
    table.refresh()
    assert table.state.actions[dead].state is State.ROLLED_BACK
    assert table.state.actions[live.instant].state is State.INFLIGHT
    assert context.metrics.value(ROLLBACKS, table=table.uid) == 1
    assert service._hints.drained(60)
    assert [hint.table_uid for hint in fleet.events("tideline.hints")] == [table.uid], "one for the visit with the rollback"
    live.roll_back()


def test_cleans_while_the_event_log_cannot_be_reached_and_ends(fleet):
    table = fleet.create()
    dead = die(table)
    fleet.clock.advance(HEARTBEAT_GONE_S)
    service, _ = cleaner(fleet, event_log=f"sqlite://{fleet.folder}/tables/trips/.hoodie/hoodie.properties/events.db")
    service.tick()
    assert table.refresh().actions[dead].state is State.ROLLED_BACK
    assert not service._hints.drained(0.2)
    fleet.stop(service)


def test_leaves_a_job_of_apache_hudi_alone_that_makes_no_heartbeats_for_an_hour_after_its_last_marker(fleet):
    """It cleans failed writes eagerly, and may need longer than two minutes."""
    table = share_table(fleet.create(), Sharing(HudiLockKind.FILE_SYSTEM), open_hudi_lock)
    instant = next_instant(fleet.clock.now(), table.state.last_instant)
    for state in ("requested", "inflight"):
        table.storage.put(f".hoodie/{instant}.{'commit.' if state == 'requested' else ''}{state}", b"")
    create_marker(table.storage, instant, "oslo/a-0_0-0-0_1.parquet", MarkerType.CREATE)
    service, _ = cleaner(fleet)
    for passed_s, state in ((0, State.INFLIGHT), (3000, State.INFLIGHT), (900, State.ROLLED_BACK)):
        fleet.clock.advance(passed_s)
        table.timeline.catch_up()
        service.tick()
        service.tick()
        assert table.refresh().actions[instant].state is state, passed_s


def test_deletes_what_a_writer_killed_after_its_commit_left(fleet):
    table = fleet.create()
    done = upsert(table)
    table.storage.put(heartbeat_path(done.instant), b"")
    create_marker(table.storage, done.instant, done.stats[0].path, MarkerType.CREATE)
    fleet.clock.advance(HEARTBEAT_GONE_S)
    service, _ = cleaner(fleet, clean_min_commits=1)
    service.tick()
    for folder in (".hoodie/.heartbeat", ".hoodie/.temp"):
        assert list(table.storage.list_objects(folder)) == []


def test_finishes_a_rollback_that_died(fleet):
    table = fleet.create()
    dead = die(table)
    body = RollbackStep(dead, "commit", plan={}, attempt="a")
    table.timeline.append(
        lambda state: Draft(table.timeline.mint(state), Action.ROLLBACK, State.NONE, State.INFLIGHT, "ROLLBACK", body)
    )
    service, _ = cleaner(fleet)
    service.tick()
    table.refresh()
    assert table.state.actions[dead].state is State.INFLIGHT
    fleet.clock.advance(HEARTBEAT_GONE_S)
    service.tick()
    table.refresh()
    assert table.state.actions[dead].state is State.ROLLED_BACK
    assert list(table.state.pending()) == []


def test_leaves_dead_clusterings_to_the_launcher(fleet):
    table = fleet.create()
    write(table, 0)
    write(table, 10)
    plan = schedule_clustering(table)
    table.timeline.append(lambda _: Draft(plan, Action.REPLACE_COMMIT, State.REQUESTED, State.INFLIGHT, "CLUSTER", Bare()))
    fleet.clock.advance(HEARTBEAT_GONE_S)
    service, _ = cleaner(fleet)
    service.tick()
    table.refresh()
    assert table.state.actions[plan].state is State.INFLIGHT


def test_cleans_what_nobody_reads_after_enough_commits(fleet):
    table = fleet.create()
    service, context = cleaner(fleet, clean_min_commits=3)
    for _ in range(2):
        upsert(table)
    service.tick()
    assert len(base_files(fleet)) == 2
    expected = table.read(["id", "fare"])
    upsert(table)
    service.tick()
    assert len(base_files(fleet)) == 2
    assert context.metrics.value(FILES_DELETED, table=table.uid) == 1
    table.refresh()
    assert table.read(["id", "fare"]).equals(expected)
    upsert(table)
    service.tick()
    assert len(base_files(fleet)) == 3
    assert [a.state for a in table.refresh().actions.values() if a.action is Action.CLEAN] == [State.COMPLETED]


def files_before_and_after(fleet, service, wait_s):
    """Numbers of base files after a tick, and after a tick `wait_s` seconds later."""
    service.tick()
    before = len(base_files(fleet))
    fleet.clock.advance(wait_s)
    service.tick()
    return before, len(base_files(fleet))


def checks(monkeypatch):
    """Record the checks that the cleaner makes: the uid of the table of each."""
    calls, delete = [], cleaning.delete_half_written
    monkeypatch.setattr(cleaning, "delete_half_written", lambda checked: calls.append(checked.uid) or delete(checked))
    return calls


def test_a_table_whose_writes_end_before_enough_commits_is_cleaned_after_the_interval(fleet, monkeypatch):
    table = fleet.create()
    service, _ = cleaner(fleet, clean_min_commits=3, clean_interval_s=60.0)
    made = checks(monkeypatch)
    upsert(table)
    upsert(table)
    service.tick()
    fleet.clock.advance(59.0)
    service.tick()
    assert (len(base_files(fleet)), made) == (2, [])
    fleet.clock.advance(2.0)
    service.tick()
    upsert(table)
    assert len(base_files(fleet)) == 3
    fleet.clock.advance(61.0)
    service.tick()
    assert len(base_files(fleet)) == 2
    for _ in range(3):
        fleet.clock.advance(61.0)
        service.tick()
    assert len(made) == 3, "one more check after the entries of the clean, and none without new entries"


def test_a_write_that_completes_during_a_check_is_cleaned_after_the_interval(fleet, monkeypatch):
    table = fleet.create()
    for _ in range(3):
        upsert(table)
    service, _ = cleaner(fleet, clean_min_commits=3, clean_interval_s=60.0)
    run_clean = cleaning.run_clean

    def beside(checked):
        deleted = run_clean(checked)
        upsert(table)
        checked.refresh()
        return deleted

    with monkeypatch.context() as during:
        during.setattr(cleaning, "run_clean", beside)
        service.tick()
    assert files_before_and_after(fleet, service, 61.0) == (3, 2)


def test_files_whose_reader_gave_its_lease_back_are_cleaned_after_the_interval(fleet):
    table = fleet.create()
    lease = take_lease(table, upsert(table).instant, ttl_s=3600.0)
    for _ in range(2):
        upsert(table)
    service, _ = cleaner(fleet, clean_min_commits=3, clean_interval_s=60.0)
    service.tick()
    release_lease(table, lease.lease_id)
    assert files_before_and_after(fleet, service, 61.0) == (3, 2)


def test_retention_by_hours_is_checked_without_new_writes(fleet):
    table = fleet.create()
    options = {"hoodie.cleaner.policy": "KEEP_LATEST_BY_HOURS", "hoodie.cleaner.hours.retained": "1"}
    service, _ = fleet.service(CleanerService, CleanerSettings, "cleaner", options=options, clean_min_commits=3)
    upsert(table)
    upsert(table)
    fleet.clock.advance(1800.0)
    upsert(table)
    assert files_before_and_after(fleet, service, 1900.0) == (3, 2)


def test_deletes_partitions_that_no_write_changed_for_as_long_as_the_policy_says(fleet, monkeypatch, tmp_path):
    date_files_by(fleet.clock, monkeypatch)
    table = fleet.create()
    write(table, 0, city="oslo")
    file = tmp_path / "policies.json"
    option = {"hoodie.partition.ttl.strategy.days.retain": "30"}
    file.write_text(json.dumps({"version": 1, "defaults": {"options": option}}))
    service, context = fleet.service(CleanerService, CleanerSettings, "cleaner", policy_file=file)
    service.tick()
    fleet.clock.advance(29 * 86400.0)
    write(fleet.open(), 10, city="rome")
    service.tick()
    assert {s.group.partition_path for s in fleet.open().state.latest_slices()} == {"oslo", "rome"}
    fleet.clock.advance(86400.0 + 3600)
    service.tick()
    assert {s.group.partition_path for s in fleet.open().state.latest_slices()} == {"rome"}
    assert context.metrics.value(EXPIRED, table=table.uid) == 1
    sequence = fleet.open().state.sequence
    service.tick()
    assert fleet.open().state.sequence == sequence, "without an old partition no write begins"


def test_deletes_old_rows_as_the_policy_says_and_reports_a_column_that_does_not_fit(fleet, tmp_path):
    schema, day = pa.schema([*SCHEMA, ("at", pa.int64())]), 86400.0
    create_table(fleet.path("trips"), TableRequest("trips", schema, ("id",), ("city",)), fleet.clock)
    table = fleet.open()
    file = tmp_path / "policies.json"

    def started(column):
        option = {"tideline.row.ttl.column": column, "tideline.row.ttl.days": "30", "tideline.row.ttl.unit": "seconds"}
        file.write_text(json.dumps({"version": 1, "defaults": {"options": option}}))
        settings = {"policy_file": file, "options": RETAINED, "clean_min_commits": 1}
        return fleet.service(CleanerService, CleanerSettings, "cleaner", **settings)

    at = pa.array([int(fleet.clock.now().timestamp() - age * day) for age in [29, 5, 5, 5, 5]], pa.int64())
    write_rows(table, rows(0).append_column("at", at), Operation.UPSERT, parallelism=1)
    service, _ = started("fare")
    for _ in range(2):
        service.tick()
        assert "'fare'" in str(service._tables.refusals()), "an error at each visit, and of this table only"
    fleet.clock.advance(2 * day)
    service, context = started("at")
    service.tick()
    assert fleet.open().snapshot().read(["id"]).column(0).to_pylist() == ["k1", "k2", "k3", "k4"]
    assert (context.metrics.value(EXPIRED_ROWS, table=table.uid), service._tables.refusals()) == (1, {})
    sequence = fleet.open().state.sequence
    fleet.clock.advance(day)
    service.tick()
    assert fleet.open().state.sequence == sequence, "without an old row no write begins"


def test_deletes_no_old_rows_of_a_shared_table_on_probation(fleet, tmp_path):
    """A job that does not take the lock yet may write at the same time."""
    schema = pa.schema([*SCHEMA, ("at", pa.timestamp("us", "UTC"))])
    create_table(fleet.path("trips"), TableRequest("trips", schema, ("id",), ("city",)), fleet.clock)
    at = pa.array([fleet.clock.now() - timedelta(days=age) for age in [40, 1, 1, 1, 1]], schema.field("at").type)
    write_rows(fleet.open(), rows(0).append_column("at", at), Operation.UPSERT, parallelism=1)
    share_table(fleet.open(), Sharing(HudiLockKind.FILE_SYSTEM), open_hudi_lock, writers=("a job",))
    file, option = tmp_path / "policies.json", {"tideline.row.ttl.column": "at", "tideline.row.ttl.days": "30"}
    file.write_text(json.dumps({"version": 1, "defaults": {"options": option}}))
    service, context = fleet.service(CleanerService, CleanerSettings, "cleaner", policy_file=file, clean_interval_s=1)
    table = Table.open(fleet.path("trips"), clock=fleet.clock, hudi_lock=open_hudi_lock)
    for deleted in (0, 1):
        for _ in range(2):
            service.tick()
            fleet.clock.advance(10)
        assert context.metrics.value(EXPIRED_ROWS, table=table.uid) == deleted
        if not deleted:
            resume_services(table)


def test_executes_a_clean_whose_cleaner_died(fleet):
    table = fleet.create()
    for _ in range(3):
        upsert(table)
    assert schedule_clean(table, RETAINED) is not None
    service, _ = cleaner(fleet, clean_min_commits=100)
    service.tick()
    assert len(base_files(fleet)) == 2
    assert list(table.refresh().pending()) == []


def test_a_frozen_table_does_not_starve_the_others(fleet):
    frozen, well = fleet.create("a-frozen"), fleet.create()
    for table in (frozen, well):
        for _ in range(3):
            upsert(table)
    (fleet.folder / "tables" / "a-frozen" / ".hoodie" / "20200101000000000.commit").write_bytes(b"{}")
    service, _ = cleaner(fleet, clean_min_commits=3)
    service.tick()
    assert len(base_files(fleet)) == 2
    frozen.refresh()
    assert Action.CLEAN not in {a.action for a in frozen.state.actions.values()}


FEW = {"hoodie.keep.min.commits": "2", "hoodie.keep.max.commits": "3", **RETAINED}


def archiving(fleet, **more):
    return fleet.service(CleanerService, CleanerSettings, "cleaner", options={**FEW, **more}, clean_min_commits=1)


def test_archives_behind_the_clean(fleet):
    table = fleet.create()
    service, context = archiving(fleet)
    for _ in range(4):
        upsert(table)
    expected = table.read(["id", "fare"])
    service.tick()
    assert context.metrics.value(ARCHIVED, table=table.uid) == 0, "nothing that ended less than an hour ago"
    fleet.clock.advance(3601)
    upsert(table)
    service.tick()
    assert context.metrics.value(ARCHIVED, table=table.uid) == 3
    assert len(table.refresh().completed_writes()) == 2
    assert table.read(["id", "fare"]).equals(expected)
    upsert(table)
    service.tick()
    assert len(base_files(fleet)) == 2, "cleaning goes on although there are fewer commits than at the last look"
    assert len(list((fleet.folder / "tables" / "trips" / ".hoodie" / "archived").iterdir())) == 1


def test_archives_nothing_where_it_is_told_not_to(fleet):
    table = fleet.create()
    service, context = archiving(fleet, **{"hoodie.archive.automatic": "false"})
    for _ in range(4):
        upsert(table)
    fleet.clock.advance(3601)
    service.tick()
    assert context.metrics.value(ARCHIVED, table=table.uid) == 0


def test_finishes_an_archival_that_died_and_deletes_late_files(fleet):
    table = fleet.create()
    upsert(table)
    dead = die(table)
    fleet.clock.advance(HEARTBEAT_GONE_S)
    service, context = archiving(fleet)
    service.tick()
    late = fleet.folder / "tables" / "trips" / "oslo" / f"late-0_0-0-0_{dead}.parquet"
    # A recovery deletes the files that markers name; this marker only says that the write was in this partition.
    marker = fleet.folder / "tables" / "trips" / ".hoodie" / ".temp" / dead / "oslo" / f"other-{late.name}.marker.CREATE"
    marker.parent.mkdir(parents=True)
    marker.touch()
    late.write_bytes(b"")
    for _ in range(4):
        upsert(table)
    fleet.clock.advance(6 * 3600 + 1)
    table.refresh()
    assert schedule_archival(table, FEW) is None, "the late file holds it"
    service.tick()
    assert context.metrics.value(LATE_FILES, table=table.uid) == 1
    assert not late.exists()
    upsert(table)
    cleaned_up = frozenset({dead})
    planned = schedule_archival(table, FEW, cleaned_up)
    service.tick()
    table.refresh()
    assert table.state.actions[planned].state is State.COMPLETED
    assert dead not in table.state.actions
    assert context.metrics.value(ARCHIVED, table=table.uid) > 0


def test_deletes_what_killed_writers_left_half_written_once_no_task_can_be_at_it(fleet):
    table = fleet.create()
    write(table, 1)
    staging = fleet.folder / "tables" / "trips" / STAGING
    killed = (
        "with LocalStorage(Path(sys.argv[1])).open_output('p/f.parquet') as sink: sink.write(b'x' * 10**6); sink.flush(); "
        "os.kill(os.getpid(), 9)"
    )
    code = f"import os, sys\nfrom pathlib import Path\nfrom tideline_table.storage import LocalStorage\n{killed}"
    subprocess.run([sys.executable, "-c", code, str(staging.parents[2])], check=False)
    (left,) = staging.iterdir()
    assert left.stat().st_size == 10**6
    service, context = fleet.service(CleanerService, CleanerSettings, "cleaner", clean_min_commits=1)
    fleet.clock.advance(6 * 3600 - 60)
    service.tick()
    assert left.exists()
    write(table, 2)
    fleet.clock.advance(61)
    expected = table.read(["id"])
    with table.storage.open_output("oslo/alive") as sink:
        (alive,) = set(staging.iterdir()) - {left}
        # As the shifted clock would have stamped it.
        os.utime(alive, (fleet.clock.now().timestamp(),) * 2)
        service.tick()
        assert list(staging.iterdir()) == [alive]
        sink.write(b"1")
    assert context.metrics.value(HALF_WRITTEN, table=table.uid) == 1
    assert table.read(["id"]).equals(expected)
