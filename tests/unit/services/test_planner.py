from dataclasses import replace

import pyarrow as pa
import pytest
from tests.unit.services.fleet import SCHEMA, Fleet, rows, update, write

from tideline_events import TIMELINE
from tideline_mirror.mirroring import MirrorService
from tideline_mirror.settings import MirrorSettings
from tideline_planner.metrics import PLANS
from tideline_planner.planning import PlannerService
from tideline_planner.settings import PlannerSettings
from tideline_table.action import run_clustering, run_compaction, write_rows
from tideline_table.action.clustering.plan import Trigger, plan_clustering
from tideline_table.action.decision import Due, NotDue
from tideline_table.config import Options
from tideline_table.file_group.slice import FileGroupId, FileSlice, LogFile
from tideline_table.hudi.instant import CLUSTER, Action, State
from tideline_table.log import TableState
from tideline_table.log.action import ActionRecord
from tideline_table.table import BucketIndex, TableType
from tideline_table.writer import Operation

SORT = "hoodie.clustering.plan.strategy.sort.columns"
OPTIONS = Options({"hoodie.clustering.plan.strategy.small.file.limit": 100})
TRIGGER = Trigger(min_files=3, min_commits=2)
HOUR_S = 3600.0


def state(*, sizes=(), commits=0, clusterings=(), elsewhere=(), log_bytes=0):
    """Commits 1.. in order; clusterings as (state, planned after so many commits).

    Each slice has a log file if there are `log_bytes`.
    """
    made = TableState()
    logs = (LogFile(".f_1.log.1_0-0-0", log_bytes, "2", 1),) if log_bytes else ()
    places = [("p", size) for size in sizes] + [("q", size) for size in elsewhere]
    for number, (partition, size) in enumerate(places):
        group = FileGroupId(partition, f"f{number}")
        made.slices[group] = {"1": FileSlice(group, "1", "f.parquet", size, 1, logs)}
    for n in range(1, commits + 1):
        made.actions[f"c{n}"] = ActionRecord(f"c{n}", Action.COMMIT, State.COMPLETED, "INSERT", 10 * n, 10 * n - 1, "w")
    for number, (standing, after) in enumerate(clusterings):
        sequence = 10 * after + 1 + number
        made.actions[f"r{number}"] = ActionRecord(
            f"r{number}", Action.REPLACE_COMMIT, standing, CLUSTER, sequence + 2, sequence, "p"
        )
    return made


@pytest.mark.parametrize(
    ("given", "is_due", "reason"),
    [
        (state(), False, "0 of 2 commits"),
        (state(sizes=[50, 50, 50], commits=1), False, "1 of 2 commits"),
        (state(sizes=[50, 50, 50], commits=2), True, "3 candidates in partition 'p', 2 writes"),
        (state(sizes=[50, 50, 100], commits=2), False, "no partition has 3 or more files below"),
        (state(sizes=[50, 50], elsewhere=[50, 50], commits=5), False, "no partition has 3 or more files below"),
        (state(sizes=[50, 50], elsewhere=[50, 50, 50], commits=5), True, "partition 'q'"),
        (state(sizes=[500] * 9, commits=5), False, "no partition has 3 or more files below"),
        (state(sizes=[50] * 3, log_bytes=49, commits=5), True, "3 candidates"),
        (state(sizes=[50] * 3, log_bytes=50, commits=5), False, "no partition has 3 or more files below"),
        (state(sizes=[50] * 3, commits=5, clusterings=[(State.REQUESTED, 3)]), False, "clustering r0 is pending"),
        (state(sizes=[50] * 3, commits=5, clusterings=[(State.INFLIGHT, 3)]), False, "clustering r0 is pending"),
        (state(sizes=[50] * 3, commits=5, clusterings=[(State.COMPLETED, 4)]), False, "1 of 2 commits"),
        (state(sizes=[50] * 3, commits=5, clusterings=[(State.COMPLETED, 3)]), True, "2 writes"),
        (state(sizes=[50] * 3, commits=5, clusterings=[(State.ROLLED_BACK, 4)]), True, "5 writes since the last plan"),
        (state(sizes=[50] * 3, commits=5, clusterings=[(State.COMPLETED, 2), (State.ROLLED_BACK, 4)]), True, "3 writes"),
        (state(sizes=[50] * 3, commits=5, clusterings=[(State.COMPLETED, 1), (State.COMPLETED, 4)]), False, "1 of 2 commits"),
    ],
)
def test_when_the_planner_clusters(given, is_due, reason):
    answer = plan_clustering(given, "memory:/t", OPTIONS, SCHEMA, trigger=TRIGGER)
    assert (isinstance(answer, Due), reason in answer.reason) == (is_due, True), answer


def test_for_a_writer_that_clusters_behind_its_commits_a_lost_clustering_is_an_attempt():
    """It has no back-off: at once, it would meet the same writers again."""
    given = state(sizes=[50] * 3, commits=5, clusterings=[(State.ROLLED_BACK, 4)])
    answer = plan_clustering(given, "memory:/t", OPTIONS, SCHEMA, trigger=replace(TRIGGER, counts_lost=True))
    assert isinstance(answer, NotDue)
    assert "1 of 2 commits" in answer.reason


def planner(fleet: Fleet, **explicit):
    return fleet.service(PlannerService, PlannerSettings, "planner", clustering_min_files=3, clustering_min_commits=2, **explicit)


def test_plans_when_small_files_pile_up_and_does_not_plan_twice(fleet):
    table = fleet.create()
    service, context = planner(fleet)
    for n in range(2):
        write(table, 10 * n)
        service.tick()
    table.refresh()
    assert table.state.pending_clusterings() == []
    write(table, 20)
    service.tick()
    table.refresh()
    (plan,) = table.state.pending_clusterings()
    assert len(table.state.planned_groups(plan.instant)) == 3
    assert plan.state is State.REQUESTED
    assert context.metrics.value(PLANS, service="clustering") == 1
    assert service._decisions.drained(60)
    assert [(hint.table_uid, hint.reason) for hint in fleet.events("tideline.hints")] == [(table.uid, "clustering planned")]
    write(table, 30)
    service.tick()
    service.tick()
    table.refresh()
    assert table.state.pending_clusterings() == [plan]
    run_clustering(table)
    service.tick()
    table.refresh()
    assert table.state.pending_clusterings() == []


def test_plans_compaction_of_merge_on_read_tables_once_enough_was_logged(fleet):
    table = fleet.create(type=TableType.MOR)
    options = {"hoodie.compact.inline.max.delta.commits": "3"}
    service, context = fleet.service(PlannerService, PlannerSettings, "planner", clustering_min_files=100, options=options)
    for n in range(3):
        assert table.refresh().pending_compactions() == [], f"after {n} writes"
        (update if n else write)(table, 0)
        service.tick()
    (plan,) = table.refresh().pending_compactions()
    assert context.metrics.value(PLANS, service="compaction") == 1
    update(table, 0)
    service.tick()
    assert table.refresh().pending_compactions() == [plan]


def test_planning_goes_on_while_compaction_waits_for_an_instant_that_lies_ahead(fleet):
    table = fleet.create(type=TableType.MOR)
    write(table, 0)
    fleet.clock.advance(HOUR_S)
    update(fleet.open(options={"tideline.instant.max.skew": 2 * HOUR_S}), 0)
    fleet.clock.advance(-HOUR_S)
    options = {"hoodie.compact.inline.max.delta.commits": "1"}
    service, context = fleet.service(PlannerService, PlannerSettings, "planner", clustering_min_files=100, options=options)
    service.tick()
    assert table.refresh().pending_compactions() == []
    assert context.metrics.value(PLANS, service="compaction") == 0
    table.refresh()
    update(table, 0)
    service.tick()
    assert table.refresh().pending_compactions() == []


def test_a_restarted_planner_does_not_plan_again(fleet):
    table = fleet.create()
    for n in range(3):
        write(table, 10 * n)
    service, _ = planner(fleet)
    service.tick()
    fleet.stop(service)
    service, _ = planner(fleet)
    service.tick()
    table.refresh()
    assert len(table.state.pending_clusterings()) == 1


def sorted_by(table):
    (plan,) = table.refresh().pending_clusterings()
    return table.state.plans[plan.instant].plan["clusteringPlan"]["strategy"]["strategyParams"].get(SORT, "")


def test_sort_columns_of_the_options_hold_for_tables_that_have_none_of_their_own(fleet):
    tables = [fleet.create(name) for name in ("a", "b", "c")]
    for table in tables:
        for n in range(3):
            write(table, 10 * n)
    service, _ = planner(fleet, options={SORT: "fare"}, clustering_sort_columns={"b": "id", "c": ""})
    service.tick()
    assert [sorted_by(t) for t in tables] == ["fare", "id", ""]


def test_input_files_of_the_options_bound_what_is_planned(fleet):
    """Partition `a` makes the plan due; `b` joins it only when two files are enough."""
    for least, partitions in (("3", {"a"}), ("2", {"a", "b"})):
        table = fleet.create(f"least{least}")
        for n in range(3):
            write(table, 10 * n, city="a")
        for n in range(2):
            write(table, 100 + 10 * n, city="b")
        service, _ = planner(fleet, options={"tideline.clustering.min.input.files": least})
        service.tick()
        (plan,) = table.refresh().pending_clusterings()
        assert {g.partition_path for g in table.state.planned_groups(plan.instant)} == partitions
        fleet.stop(service)


def test_a_table_with_a_wrong_sort_column_does_not_starve_the_others(fleet):
    tables = [fleet.create("a"), fleet.create("b")]
    for table in tables:
        for n in range(3):
            write(table, 10 * n)
    service, context = planner(fleet, clustering_sort_columns={"a": "no_such_column", "b": "fare"})
    service.tick()
    for table in tables:
        table.refresh()
    assert [len(t.state.pending_clusterings()) for t in tables] == [0, 1]
    assert context.metrics.value(PLANS, service="clustering") == 1


def test_a_transition_on_the_event_log_wakes_it(fleet):
    table = fleet.create()
    _, context = planner(fleet)
    mirror, _ = fleet.service(MirrorService, MirrorSettings, "mirror")
    for n in range(400):
        # Only transitions after the start of its watch count; when that has begun is its own affair.
        write(table, 10 * n)
        mirror.tick()
        if context.wakeup.wait(0.025):
            break
    assert context.wakeup.is_set()
    assert fleet.events(TIMELINE.name)


def test_tables_with_a_bucket_index_are_compacted_and_never_clustered(fleet):
    plain, bucketed = fleet.create("plain"), fleet.create("bucketed", index=BucketIndex(8))
    logged = fleet.create("logged", type=TableType.MOR, index=BucketIndex(8))
    service, context = planner(fleet, options={"hoodie.compact.inline.max.delta.commits": "3"})
    for n in range(4):
        write(plain, 10 * n)
        write(bucketed, 10 * n)
        update(logged, 10 * (n > 0))
        service.tick()
    assert len(plain.refresh().pending_clusterings()) == 1, "these files are small enough"
    for table in (bucketed, logged):
        assert len(table.refresh().latest_slices()) >= 3
        assert table.state.pending_clusterings() == []
    assert len(logged.state.pending_compactions()) == 1
    assert context.metrics.value(PLANS, service="clustering") == 1


def test_what_a_bounded_compaction_left_over_is_planned_when_writes_have_ended(fleet):
    table = fleet.create(type=TableType.MOR)
    write(table, 0)
    write(table, 10, city="bergen")
    both = pa.concat_tables([rows(0), rows(10, city="bergen")])
    for _ in range(3):
        write_rows(table, both, Operation.UPSERT, parallelism=1)
    options = {"hoodie.compact.inline.max.delta.commits": "3", "tideline.compaction.max.groups": "1"}
    service, _ = fleet.service(PlannerService, PlannerSettings, "planner", clustering_min_files=100, options=options)
    cities = []
    for ahead_s in (0.0, 300.0, 310.0):
        fleet.clock.advance(ahead_s)
        service.tick()
        for plan in table.refresh().pending_compactions():
            cities += [(ahead_s, group.partition_path) for group in table.state.planned_groups(plan.instant)]
            run_compaction(table, plan.instant)
        service.tick()
        assert table.refresh().pending_compactions() == []
    assert sorted(cities) == [(0.0, cities[0][1]), (310.0, cities[1][1])]
    assert {city for _, city in cities} == {"oslo", "bergen"}
    assert not any(file_slice.log_files for file_slice in table.slices())
