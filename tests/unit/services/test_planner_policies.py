"""The planner on real tables with a real policy file.

Nothing outside of a window or a budget, and every table within its objective.
"""

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from tests.plans import schedule_clustering
from tests.unit.services.fleet import HEARTBEAT_GONE_S, Fleet, die, update, write
from tests.unit.services.test_launcher import HeldPlatform, launcher
from tests.unit.services.test_mirror_observed import tree

from tideline_cleaner.cleaning import CleanerService
from tideline_cleaner.settings import CleanerSettings
from tideline_events import DECISIONS, VerdictEvent
from tideline_locks import open_hudi_lock
from tideline_mirror.mirroring import MirrorService
from tideline_mirror.settings import MirrorSettings
from tideline_planner.metrics import CHANGES, PLANS, VERDICTS
from tideline_planner.planning import PlannerService
from tideline_planner.settings import PlannerSettings
from tideline_runtime.metrics import POLICY_RELOADS, POLICY_VALID
from tideline_runtime.policy import PolicyRefused
from tideline_runtime.policy.live import SETTLE_S
from tideline_table.action import TableService, run_clustering, run_compaction
from tideline_table.action.planned_run import begin_attempt
from tideline_table.hudi import Action
from tideline_table.table import HudiLockKind, Sharing, TableType, share_table

HOUR_S = 3600.0
LEAST = "tideline.clustering.min.input.files"
THRESHOLDS = "settings: {planner: {clustering_min_files: 3, clustering_min_commits: 2}}"


def put(fleet: Fleet, text: str) -> str:
    path = fleet.folder / "policies.yaml"
    path.write_text(f"version: 1\n{text}")
    return str(path)


def planner(fleet, file, **more):
    return fleet.service(PlannerService, PlannerSettings, "planner", policy_file=file, **more)


def small_files(table, first=0, count=3):
    for n in range(count):
        write(table, first + 10 * n)


def clusterings(table):
    return len(table.refresh().pending_clusterings())


def clock_time(fleet, hours):
    return f"{fleet.clock.now() + timedelta(hours=hours):%H:%M}"


@pytest.mark.parametrize("is_shared", [False, True])
def test_nothing_is_written_to_an_observed_table(fleet, is_shared):
    tables = [fleet.create("observed"), fleet.create("other")]
    if is_shared:
        tables = [share_table(table, Sharing(HudiLockKind.FILE_SYSTEM), open_hudi_lock) for table in tables]
    for one in tables:
        small_files(one)
        die(one)
        begin_attempt(one, schedule_clustering(one), TableService.CLUSTERING, "CLUSTER", one.options)
    table, other = tables
    folder = Path(fleet.path("observed"))
    file = put(fleet, f'defaults: {{{THRESHOLDS}}}\nrules: [{{match: {{tables: ["{folder}"]}}, mode: observe}}]\n')
    fleet.clock.advance(HEARTBEAT_GONE_S)
    before = tree(folder)
    service, context = planner(fleet, file)
    cleaner, _ = fleet.service(CleanerService, CleanerSettings, "cleaner", policy_file=file)
    observer, _ = fleet.service(MirrorService, MirrorSettings, "mirror", policy_file=file)
    runner, _ = launcher(fleet, HeldPlatform(), policy_file=file)
    for each in (service, cleaner, observer, runner):
        each.tick()
        fleet.clock.advance(HOUR_S)
        each.tick()
    assert tree(folder) == before
    assert fleet.event_log.cursor(table.uid).sequence == table.state.sequence
    assert [a.action for a in other.refresh().actions.values() if a.action is Action.ROLLBACK]
    assert context.metrics.value(VERDICTS, service="clustering", verdict="off") == 1


def test_a_plan_is_published_only_while_no_pause_holds_and_a_window_is_open(fleet):
    tables = {name: fleet.create(name) for name in ("free", "paused", "windowed", "off")}
    for table in tables.values():
        small_files(table)
    ends = (fleet.clock.now() + timedelta(hours=5)).isoformat()
    file = put(
        fleet,
        f"""
defaults: {{{THRESHOLDS}}}
rules:
  - match: {{tables: ["{fleet.path("paused")}"]}}
    pause: {{reason: migration, until: "{ends}"}}
  - match: {{tables: ["{tables["windowed"].uid}"]}}
    windows: [{{from: "{clock_time(fleet, 2)}", to: "{clock_time(fleet, 3)}", time_zone: UTC}}]
  - match: {{paths: ["{fleet.path("of*")}"]}}
    services: {{clustering: false}}
""",
    )
    service, context = planner(fleet, file)
    service.tick()

    def planned():
        return {name for name, table in tables.items() if clusterings(table)}

    assert planned() == {"free"}
    verdicts = {v: context.metrics.value(VERDICTS, service="clustering", verdict=v) for v in ("planned", "paused", "window", "off")}
    assert verdicts == {"planned": 1, "paused": 1, "window": 1, "off": 1}
    fleet.clock.advance(1.9 * HOUR_S)
    service.tick()
    assert planned() == {"free"}
    fleet.clock.advance(0.2 * HOUR_S)
    service.tick()
    assert planned() == {"free", "windowed"}
    fleet.clock.advance(3 * HOUR_S)
    service.tick()
    service.tick()
    assert planned() == {"free", "windowed", "paused"}
    assert context.metrics.value(CHANGES, service="clustering", verdict="planned") == 3


def test_a_copy_on_write_table_with_the_carry_over_of_the_fleet_takes_no_place_of_another_table(fleet):
    tables = {kind: fleet.create(kind.value.lower(), type=kind) for kind in (TableType.COW, TableType.MOR)}
    for table in tables.values():
        small_files(table)
    first = f'{{match: {{tables: ["{tables[TableType.COW].uid}"]}}, priority: 90}}'
    file = put(fleet, f"fleet: {{pending_plans: 1}}\ndefaults: {{{THRESHOLDS}}}\nrules: [{first}]\n")
    service, context = planner(fleet, file, options={"hoodie.clustering.updates.strategy": "carry-over", LEAST: "3"})
    service.tick()
    assert {kind: clusterings(table) for kind, table in tables.items()} == {TableType.COW: 0, TableType.MOR: 1}
    assert context.metrics.value(VERDICTS, service="clustering", verdict="not_due") == 1


def test_the_budget_of_a_day_is_read_from_the_table_log_by_every_new_planner(fleet):
    table = fleet.create()
    small_files(table, count=4)
    size = sum(s.total_bytes for s in table.refresh().latest_slices())
    own = f"budget: {{bytes_per_day: {int(1.2 * size)}}}, options: {{{LEAST}: 4}}"
    file = put(fleet, f"defaults: {{{THRESHOLDS}, {own}}}")
    service, _ = planner(fleet, file)
    service.tick()
    assert clusterings(table) == 1
    run_clustering(table)
    small_files(table, 100)
    for _ in range(2):
        service.tick()
        assert clusterings(table) == 0, "the first clustering used up the budget"
        fleet.stop(service)
        service, context = planner(fleet, file)
    service.tick()
    assert context.metrics.value(VERDICTS, service="clustering", verdict="budget") == 1
    fleet.clock.advance(25 * HOUR_S)
    service.tick()
    assert clusterings(table) == 1


def test_the_budget_of_the_fleet_goes_to_the_table_with_the_higher_priority(fleet):
    tables = [fleet.create(name) for name in ("a", "b")]
    for table in tables:
        small_files(table)
    size = sum(s.total_bytes for s in tables[0].refresh().latest_slices())
    rule = f'{{match: {{tables: ["{fleet.path("b")}"]}}, priority: 90}}'
    defaults = f"{THRESHOLDS}, options: {{{LEAST}: 3}}"
    file = put(fleet, f"fleet: {{bytes_per_day: {int(1.2 * size)}}}\ndefaults: {{{defaults}}}\nrules: [{rule}]\n")
    service, context = planner(fleet, file)
    service.tick()
    service.tick()
    assert [clusterings(table) for table in tables] == [0, 1]
    assert context.metrics.value(VERDICTS, service="clustering", verdict="fleet_budget") == 1
    run_clustering(tables[1])
    fleet.stop(service)
    service, _ = planner(fleet, file)
    service.tick()
    fleet.stop(service)
    found = [event for event in fleet.events(DECISIONS.name) if isinstance(event, VerdictEvent) and event.verdict == "fleet_budget"]
    (done,) = [a for a in tables[1].refresh().completed_writes() if a.is_clustering]
    assert found[-1].until == datetime.fromisoformat(done.since) + timedelta(days=1)
    service, _ = planner(fleet, file)
    fleet.clock.advance(23 * HOUR_S)
    service.tick()
    assert clusterings(tables[0]) == 0
    fleet.clock.advance(2 * HOUR_S)
    service.tick()
    assert clusterings(tables[0]) == 1


def test_every_table_stays_within_its_objectives_while_one_plan_runs_at_a_time(fleet):
    tables = [fleet.create(name, type=TableType.MOR) for name in ("a", "b", "c")]
    rules = f'rules: [{{match: {{tables: ["{fleet.path("c")}"]}}, priority: 5}}]'
    bounds = "objectives: {small_files: 8, unmerged_log_age: 6h}"
    file = put(fleet, f"fleet: {{pending_plans: 1}}\ndefaults: {{{bounds}}}\n{rules}\n")
    options = {"hoodie.compact.inline.max.delta.commits": "1000"}
    service, _ = planner(fleet, file, clustering_min_files=1000, options=options)
    most, oldest_s = 0, 0.0
    for hour in range(14):
        for number, table in enumerate(tables):
            table.refresh()
            if (hour + number) % 2:
                write(table, 10 * hour)
            else:
                update(table, 0)
        for _ in range(3):
            service.tick()
            pending = [
                (t, a) for t in tables for a in t.refresh().pending() if a.action in (Action.REPLACE_COMMIT, Action.COMPACTION)
            ]
            assert len(pending) <= 1
            for table, record in pending:
                (run_clustering if record.is_clustering else run_compaction)(table)
        for table in tables:
            slices = table.refresh().latest_slices()
            logs = [log.instant for s in slices for log in s.log_files]
            most = max(most, len(slices))
            if logs:
                began = datetime.strptime(min(logs), "%Y%m%d%H%M%S%f").replace(tzinfo=UTC)
                oldest_s = max(oldest_s, (fleet.clock.now() - began).total_seconds())
        fleet.clock.advance(HOUR_S)
    assert 3 <= most <= 8
    assert HOUR_S < oldest_s <= 6 * HOUR_S


def test_a_file_that_changes_is_read_live_and_an_invalid_one_leaves_the_last_good_one_in_force(fleet):
    table = fleet.create()
    small_files(table)
    path = fleet.folder / "policies.yaml"
    put(fleet, f"defaults: {{{THRESHOLDS}, services: {{clustering: false}}}}")
    service, context = planner(fleet, str(path))
    service.tick()
    reloads = dict.fromkeys(("read", "refused"), 0.0)

    def settle():
        service.tick()
        fleet.clock.advance(SETTLE_S)
        service.tick()
        return {outcome: context.metrics.value(POLICY_RELOADS, outcome=outcome) for outcome in reloads}

    assert settle() == {"read": 1, "refused": 0}
    path.write_text("version: 1\ndefaults: {services: {clustering: yes}}\n")
    assert settle() == {"read": 1, "refused": 1}
    assert context.metrics.value(POLICY_VALID) == 0
    assert "line 2: defaults.services.clustering is 'yes'" in service._tables.policies.refusal
    assert clusterings(table) == 0, "clustering is still off"
    path.unlink()
    assert settle() == {"read": 1, "refused": 2}
    other = fleet.folder / "next.yaml"
    other.write_text(f"version: 1\ndefaults: {{{THRESHOLDS}}}\n")
    os.replace(other, path)
    service.tick()
    assert clusterings(table) == 0, "the file must have settled"
    assert settle() == {"read": 2, "refused": 2}
    assert (context.metrics.value(POLICY_VALID), service._tables.policies.refusal) == (1, "")
    assert clusterings(table) == 1
    assert context.metrics.value(PLANS, service="clustering") == 1


def test_a_service_does_not_start_with_an_invalid_file(fleet):
    with pytest.raises(PolicyRefused, match=r"line 2: defaults\.x is no field"):
        planner(fleet, put(fleet, "defaults: {x: 1}\n"))


def test_contradictory_rules_stop_the_work_on_their_table_alone(fleet):
    tables = [fleet.create(name) for name in ("a", "b")]
    for table in tables:
        small_files(table)
    rules = [f'{{match: {{tables: ["{name}"]}}, priority: {n}}}' for n, name in enumerate((fleet.path("a"), tables[0].uid))]
    service, _ = planner(fleet, put(fleet, f"defaults: {{{THRESHOLDS}}}\nrules: [{', '.join(rules)}]\n"))
    service.tick()
    assert [clusterings(table) for table in tables] == [0, 1]


def test_the_cleaner_leaves_paused_tables_and_keeps_what_a_rule_retains(fleet):
    tables = {name: fleet.create(name) for name in ("plain", "kept", "paused", "off")}
    for table in tables.values():
        write(table, 0)
        for _ in range(6):
            table.refresh()
            update(table, 0)
    file = put(
        fleet,
        f"""
defaults: {{retention: {{commits: 2}}}}
rules:
  - {{match: {{tables: ["{fleet.path("kept")}"]}}, retention: {{commits: 100}}}}
  - {{match: {{tables: ["{fleet.path("paused")}"]}}, pause: {{reason: audit}}}}
  - {{match: {{tables: ["{fleet.path("off")}"]}}, services: {{clean: false}}}}
""",
    )
    service, _ = fleet.service(CleanerService, CleanerSettings, "cleaner", policy_file=file, clean_min_commits=1)
    service.tick()
    left = {name: len(table.refresh().every_slice()) for name, table in tables.items()}
    assert left["plain"] < 7
    assert (left["kept"], left["paused"], left["off"]) == (7, 7, 7)


def replace_policies(fleet: Fleet, service, text: str) -> None:
    """Change the policy file, and let the service read it: the file has to be unchanged for a second."""
    put(fleet, text)
    service.tick()
    fleet.clock.advance(2)
    service.tick()


def test_a_table_without_new_writes_is_checked_again_when_its_retention_is_lowered(fleet):
    table = fleet.create()
    write(table, 0)
    for _ in range(6):
        update(table, 0)
    file = put(fleet, "defaults: {retention: {commits: 100}}\n")
    service, _ = fleet.service(CleanerService, CleanerSettings, "cleaner", policy_file=file, clean_min_commits=1)
    service.tick()
    assert len(table.refresh().every_slice()) == 7
    replace_policies(fleet, service, "defaults: {retention: {commits: 2}}\n")
    assert len(table.refresh().every_slice()) == 3


def test_a_table_without_new_writes_is_archived_when_archival_is_switched_on(fleet):
    table = fleet.create()
    for n in range(6):
        write(table, 10 * n)
    fleet.clock.advance(3601)  # an archival leaves instants of the last hour
    few = "{retention: {commits: 1, timeline_commits: 2}, options: {hoodie.keep.max.commits: 3}"
    file = put(fleet, f"defaults: {few}, services: {{archival: false}}}}\n")
    service, _ = fleet.service(CleanerService, CleanerSettings, "cleaner", policy_file=file, clean_min_commits=1)
    service.tick()
    before = len(table.refresh().completed_writes())
    replace_policies(fleet, service, f"defaults: {few}}}\n")
    assert (before, before > len(table.refresh().completed_writes())) == (6, True)
