"""Plan strategies of clustering: partitions, candidates, groups, plug-ins; and update strategies by name."""

import json
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from tests.plans import schedule_clustering
from tests.unit.table.tables import SCHEMA, History, base_stat, cluster, contents, instant, log_stat, new_table, write

from tideline_table.action import request_clustering
from tideline_table.action.clustering import column_ranges
from tideline_table.action.clustering import run as clustering_run
from tideline_table.action.clustering.column_ranges import ColumnRange, FooterRanges
from tideline_table.action.clustering.plan import filtered_partitions, plan_clustering
from tideline_table.action.decision import NotDue
from tideline_table.clock import ManualClock
from tideline_table.config import Options
from tideline_table.errors import InvalidOption, SchemaMismatch, WriteConflict
from tideline_table.hudi.instant import Action
from tideline_table.schema.meta_fields import with_meta_fields
from tideline_table.table import TableType

PLAN = "hoodie.clustering.plan.strategy."
STRATEGY = f"{PLAN}class"
SORT = f"{PLAN}sort.columns"
MODE = "hoodie.clustering.plan.partition.filter.mode"
LAYOUT = "hoodie.layout.optimize.strategy"
ORDER = "tideline.clustering.plan.group.order"
HUDI = "org.apache.hudi.client.clustering.plan.strategy."
DAYS = [f"2026-01-{day:02d}" for day in range(1, 31)]


def chosen(mode="", hour=0, partitions=DAYS, **options):
    given = {f"{PLAN}{key.replace('_', '.')}": value for key, value in options.items()}
    return sorted(int(path[-2:]) for path in filtered_partitions(partitions, Options(given), mode, hour))


@pytest.mark.parametrize(
    ("mode", "options", "days"),
    [
        ("NONE", {}, [*range(1, 31)]),
        ("RECENT_DAYS", {}, [29, 30]),
        ("RECENT_DAYS", {"daybased_lookback_partitions": 3, "daybased_skipfromlatest_partitions": 2}, [26, 27, 28]),
        ("RECENT_DAYS", {"daybased_lookback_partitions": 0, "daybased_skipfromlatest_partitions": 28}, [1, 2]),
        ("RECENT_DAYS", {"daybased_skipfromlatest_partitions": 99}, []),
        ("OLDEST_DAYS", {"daybased_lookback_partitions": 3}, [1, 2, 3]),
        ("OLDEST_DAYS", {"daybased_lookback_partitions": 3, "daybased_skipfromlatest_partitions": 28}, [1, 2]),
        ("SELECTED_PARTITIONS", {"cluster_begin_partition": DAYS[3], "cluster_end_partition": DAYS[5]}, [4, 5, 6]),
        ("SELECTED_PARTITIONS", {"cluster_begin_partition": "2026-01-28"}, [28, 29, 30]),
        ("NONE", {"partition_regex_pattern": r".*-0[12]"}, [1, 2]),
        ("NONE", {"partition_regex_pattern": "01"}, []),
        ("RECENT_DAYS", {"partition_regex_pattern": r".*-0\d"}, [8, 9]),
        ("NONE", {"partition_selected": f"{DAYS[4]}, {DAYS[1]},2030-01-01", "partition_regex_pattern": "x"}, [2, 5]),
    ],
)
def test_partition_filters(mode, options, days):
    assert chosen(mode, **options) == days


def test_rolling_days_reach_every_partition_within_a_day():
    assert chosen("DAY_ROLLING", 0) == [1, 25]
    assert chosen("DAY_ROLLING", 5) == [6, 30]
    assert sorted(day for hour in range(24) for day in chosen("DAY_ROLLING", hour)) == [*range(1, 31)]


def test_an_invalid_regular_expression_is_refused():
    with pytest.raises(InvalidOption, match=r"partition\.regex\.pattern"):
        chosen(partition_regex_pattern="(")


@pytest.fixture
def history():
    """Partition p: five slices of 1000 bytes, s0 to s4, by commits 1 to 5; s4 is large. Partition q: two small ones by commit 6."""
    history = History()
    for n in range(5):
        history.commit(instant(n + 1), base_stat(f"s{n}-0", instant(n + 1), "p", 9000 if n == 4 else 1000))
    history.commit(instant(6), *(base_stat(f"q{n}-0", instant(6), "q", 600 + n) for n in range(2)))
    return history


def groups(history, ranges=None, **options):
    def read(slices, columns):
        known = ranges or {}
        return {
            s.group: {c: ColumnRange(*known[s.group.file_id[:2]], 0) for c in columns}
            for s in slices
            if s.group.file_id[:2] in known
        }

    given = {f"{PLAN}small.file.limit": 5000, SORT: "ts", **options}
    plan = plan_clustering(history.state, "memory:/t", Options(given), SCHEMA, read_ranges=read)
    if isinstance(plan, NotDue):
        return plan.reason
    return [[s["fileId"][:-2] for s in g["slices"]] for g in plan.body.plan["clusteringPlan"]["inputGroups"]]


@pytest.mark.parametrize("name", ["size", f"{HUDI}SparkSizeBasedClusteringPlanStrategy", "JavaSizeBasedClusteringPlanStrategy"])
def test_by_size(history, name):
    assert groups(history, **{STRATEGY: name}) == [["s0", "s1", "s2", "s3"], ["q0", "q1"]]


def test_the_small_file_limit_is_held_below_the_target_size(history):
    found = groups(history, **{f"{PLAN}small.file.limit": 10**6, f"{PLAN}target.file.max.bytes": 9000})
    assert found == [["s0", "s1", "s2", "s3"], ["q0", "q1"]]
    assert groups(history, **{f"{PLAN}small.file.limit": 10**6, f"{PLAN}target.file.max.bytes": 1000 * 2**10})[0][-1] == "s4"


def test_days_and_selected_partitions_as_strategies(history):
    recent = {STRATEGY: f"{HUDI}SparkRecentDaysClusteringPlanStrategy", f"{PLAN}daybased.lookback.partitions": 1}
    assert groups(history, **recent) == [["q0", "q1"]]
    selected = {STRATEGY: f"{HUDI}SparkSelectedPartitionsClusteringPlanStrategy", f"{PLAN}cluster.end.partition": "p"}
    assert groups(history, **selected) == [["s0", "s1", "s2", "s3"]]
    skipping = f"{PLAN}daybased.skipfromlatest.partitions"
    named = f"the partition filter ({MODE}=RECENT_DAYS, {skipping}=9) leaves none of 2 partition(s)"
    assert groups(history, **{MODE: "RECENT_DAYS", skipping: 9}) == named
    few = groups(history, **{f"{PLAN}partition.selected": "q", "tideline.clustering.min.input.files": 3})
    assert "no partition has 3 or more files" in few
    assert few.endswith(f"; the partition filter ({PLAN}partition.selected=q) leaves 1 of 2 partitions")


def test_by_key_range(history):
    ranges = {"s0": ("m", "p"), "s1": ("a", "c"), "s2": ("d", "f"), "q0": ("a", "z"), "q1": ("b", "c")}
    bounded = {STRATEGY: "key-range", f"{PLAN}max.bytes.per.group": 2000}
    # The neighbours by key are together; s3, whose keys are unknown, would be alone.
    assert groups(history, ranges, **bounded) == [["s1", "s2"], ["q0", "q1"]]
    assert groups(history, ranges, **{STRATEGY: "key-range"}) == [["s1", "s2", "s0"], ["q0", "q1"]]


def test_by_overlap(history):
    ranges = {"s0": (0, 10), "s1": (10, 20), "s2": (19, 30), "s3": (40, 50), "s4": (25, 26), "q0": (7, 7), "q1": (7, 7)}
    # s0 only touches s1, s3 is alone; s4 is large and reached through s2.
    assert groups(history, ranges, **{STRATEGY: "overlap"}) == [["s1", "s2", "s4"], ["q0", "q1"]]
    assert groups(history, {**ranges, "s4": (39, 41)}, **{STRATEGY: "overlap"}) == [["s1", "s2"], ["s3", "s4"][::-1], ["q0", "q1"]]
    apart = {name: (10 * n, 10 * n + 9) for n, name in enumerate(ranges)}
    assert "leave no group" in groups(history, apart, **{STRATEGY: "overlap"})


def test_overlap_in_all_columns_of_a_curve(history):
    def read(slices, columns):
        boxes = {"s0": ((0, 9), (0, 9)), "s1": ((0, 9), (10, 19)), "s2": ((5, 14), (5, 14))}
        return {
            s.group: {c: ColumnRange(*box, 0) for c, box in zip(columns, boxes.get(s.group.file_id[:2], ()), strict=False)}
            for s in slices
        }

    def planned(layout):
        options = Options({STRATEGY: "overlap", SORT: "ts,v", LAYOUT: layout, "tideline.clustering.min.input.files": 2})
        found = plan_clustering(history.state, "memory:/t", options, SCHEMA, read_ranges=read)
        return [[s["fileId"][:-2] for s in g["slices"]] for g in found.body.plan["clusteringPlan"]["inputGroups"]]

    # Through s2 all three overlap in both columns; in the first column alone they do directly. Slices without ranges follow by age.
    assert planned("hilbert") == [["s0", "s1", "s2"], ["s3", "s4"], ["q0", "q1"]]
    assert planned("linear")[0] == ["s0", "s1", "s2"]


def test_overlap_leaves_outputs_of_one_clustering(history):
    history.plan_clustering(instant(7), [])
    history.start_clustering(instant(7))
    history.complete(instant(7), *(base_stat(f"c{n}-0", instant(7), "r", 1000) for n in range(2)), replaced={})
    assert "leave no group" in groups(
        history, {"c0": (0, 9), "c1": (0, 9)}, **{STRATEGY: "overlap", f"{PLAN}partition.selected": "r"}
    )


def test_by_commit_time(history):
    since = {STRATEGY: "org.apache.hudi.table.action.cluster.strategy.CommitBasedClusteringPlanStrategy"}
    assert groups(history, **since, **{f"{PLAN}earliest.commit.to.cluster": instant(3)}) == [["s3", "s4"], ["q0", "q1"]]
    assert "no partition has 2" in groups(history, **since, **{f"{PLAN}earliest.commit.to.cluster": instant(6)})


def test_single_files(history):
    single = {STRATEGY: f"{HUDI}SparkSingleFileSortPlanStrategy", f"{PLAN}target.file.max.bytes": 2000}
    assert groups(history, **single) == [["s0"], ["s1"], ["s2"], ["s3"], ["q0"], ["q1"]]


@pytest.mark.parametrize(
    ("order", "first"), [("partition", "s0"), ("bytes", "s0"), ("files", "s0"), ("oldest", "s0"), ("bytes-without-p", "q0")]
)
def test_order_and_filter_of_groups(history, order, first):
    if order == "bytes-without-p":
        history.plan_clustering(instant(7), [s.group for s in history.state.latest_slices() if s.group.partition_path == "p"])
    options = {ORDER: order.split("-", 1)[0], f"{PLAN}max.num.groups": 1}
    assert groups(history, **options)[0][0] == first


def test_by_chance_each_group_comes_first_some_day(history):
    first = set()
    for number in range(20):
        found = groups(history, **{ORDER: "random"})
        assert found == groups(history, **{ORDER: "random"})
        assert sorted(found) == sorted(groups(history))
        first.add(found[0][0])
        history.commit(instant(7 + number), base_stat("r0-0", instant(7 + number), "r", 4000))
    assert first == {"s0", "q0"}


def test_groups_by_bytes_and_of_few_bytes(history):
    history.commit(instant(7), *(base_stat(f"z{n}-0", instant(7), "z", 4000) for n in range(2)))
    assert groups(history, **{ORDER: "bytes"})[0] == ["z0", "z1"]
    assert groups(history, **{ORDER: "files"})[0] == ["s0", "s1", "s2", "s3"]
    assert groups(history, **{ORDER: "oldest", "tideline.clustering.plan.group.min.bytes": 4001}) == [["z0", "z1"]]
    assert groups(history, **{"tideline.clustering.plan.group.min.bytes": 4000}) == [["s0", "s1", "s2", "s3"], ["z0", "z1"]]


def test_unknown_and_refused_names(history):
    with pytest.raises(InvalidOption, match=r"'nope'.*size, recent-days"):
        groups(history, **{STRATEGY: "nope"})
    with pytest.raises(InvalidOption, match="this release does not have"):
        groups(history, **{STRATEGY: f"{HUDI}SparkConsistentBucketClusteringPlanStrategy"})
    with pytest.raises(InvalidOption, match="sort-and-size"):
        groups(history, **{"hoodie.clustering.execution.strategy.class": "nope"})
    wide = pa.schema([(f"c{n}", pa.int64()) for n in range(17)])
    options = Options({SORT: ",".join(wide.names), LAYOUT: "z-order"})
    with pytest.raises(SchemaMismatch, match="at most 16"):
        plan_clustering(history.state, "memory:/t", options, wide)
    nested = pa.schema(
        [("a", pa.struct([("x", pa.int64())])), ("b", pa.list_(pa.int64())), ("c", pa.map_(pa.string(), pa.int64()))]
    )
    for name in nested.names:
        with pytest.raises(SchemaMismatch, match=rf"sort column '{name}' of type"):
            plan_clustering(history.state, "memory:/t", Options({SORT: name}), nested)


def test_strategies_of_an_installed_package(history, tmp_path, monkeypatch):
    folder = tmp_path / "newest_first-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: newest-first\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text(
        "[tideline.clustering.plan]\nnewest-two = newest_first_plug_in:PLAN\nbroken = newest_first_plug_in:NOTHING\nsize = x:y\n"
        "[tideline.clustering.execution]\nbackwards = newest_first_plug_in:EXECUTION\n"
        "[tideline.clustering.update]\nnever = newest_first_plug_in:never\n"
    )
    (tmp_path / "newest_first_plug_in.py").write_text(
        "import pyarrow as pa, pyarrow.compute as pc\n"
        "from tideline_table.action.clustering.plan_strategy import PlanStrategy\n"
        "from tideline_table.action.clustering.execution_strategy import ExecutionStrategy\n"
        "PLAN = PlanStrategy(lambda *_: True, lambda slices, _: [tuple(sorted(slices, key=lambda s: s.base_instant)[-2:])])\n"
        "def backwards(order, sample):\n"
        "    return lambda rows: pa.table({'k': pc.negate(rows.column(order.columns[0]))})\n"
        "EXECUTION = ExecutionStrategy(backwards)\n"
        "def never(state, instant):\n    return True\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert groups(history, **{STRATEGY: "newest-two"}) == [["s3", "s4"], ["q0", "q1"]]
    assert groups(history, **{STRATEGY: "size"})[0] == ["s0", "s1", "s2", "s3"], "a built-in name stays"
    with pytest.raises(InvalidOption, match="cannot be loaded"):
        groups(history, **{STRATEGY: "broken"})
    with pytest.raises(InvalidOption, match=r"newest-two"):
        groups(history, **{STRATEGY: "nope"})

    table, _, _ = new_table()
    for n in range(2):
        write(table, [(f"k{n}{i}", "p", 10 * i + n, "v") for i in range(3)])
    at = schedule_clustering(table, {SORT: "ts", "hoodie.clustering.execution.strategy.class": "backwards"})
    assert table.state.plans[at].plan["clusteringPlan"]["strategy"]["strategyClassName"] == "backwards"
    update = {"hoodie.clustering.updates.strategy": "never", "tideline.write.conflict.retries": 0}
    with pytest.raises(WriteConflict, match="goes first"):
        write(table, [("k00", "p", 99, "x")], **update)
    cluster(table)
    assert table.read().column("ts").to_pylist() == [21, 20, 11, 10, 1, 0]


def test_a_clustering_whose_tasks_cannot_be_made_is_rolled_back(monkeypatch):
    def refuse(*_):
        raise InvalidOption("an execution strategy", expected="one that is installed here")

    table = filled()
    schedule_clustering(table)
    monkeypatch.setattr(clustering_run, "clustering_tasks", refuse)
    with pytest.raises(InvalidOption, match="installed here"):
        cluster(table)
    monkeypatch.undo()
    assert not list(table.refresh().pending_clusterings())
    assert schedule_clustering(table)
    assert cluster(table) is not None


@pytest.mark.parametrize("name", ["reject", "org.apache.hudi.client.clustering.update.strategy.SparkRejectUpdateStrategy"])
def test_rejected_updates(name):
    table = filled()
    schedule_clustering(table)
    with pytest.raises(WriteConflict, match="goes first"):
        write(table, [("k00", "p", 99, "x")], **{"hoodie.clustering.updates.strategy": name})
    write(table, [("k00", "p", 99, "x")], **{"hoodie.clustering.updates.strategy": "SparkAllowUpdateStrategy"})
    with pytest.raises(WriteConflict, match="written by"):
        cluster(table)


@pytest.mark.parametrize("name", ["dual-write", "SparkConsistentBucketDuplicateUpdateStrategy"])
def test_dual_writes_are_refused_by_name(name):
    table = filled()
    with pytest.raises(InvalidOption, match=r"dual-write|Duplicate.*does not have.*yield"):
        write(table, [("k00", "p", 99, "x")], **{"hoodie.clustering.updates.strategy": name})


def filled(kind=TableType.COW, files=3):
    table, _, _ = new_table(ManualClock(datetime(2026, 1, 1, 5, tzinfo=UTC)), type=kind)
    for n in range(files):
        write(table, [(f"k{n}{i}", "p", 10 * i + n, None if i == 0 else f"v{9 - n}{i}") for i in range(4)])
    return table


def test_the_plan_has_ranges_of_the_sort_columns():
    table = filled()
    at = schedule_clustering(table, {SORT: "ts,v", LAYOUT: "ZORDER", STRATEGY: "key-range"})
    plan = table.state.plans[at].plan
    group = plan["clusteringPlan"]["inputGroups"][0]
    assert (
        group["metrics"] | {"COLUMN_MIN.ts": 0.0, "COLUMN_MAX.ts": 32.0, "COLUMN_NULLS.ts": 0.0, "COLUMN_NULLS.v": 3.0}
        == group["metrics"]
    )
    params = {SORT: "ts,v", LAYOUT: "z-order"}
    assert group["extraMetadata"] == {
        "tideline.column.min.ts": "0",
        "tideline.column.max.ts": "32",
        "tideline.column.min.v": "v71",
        "tideline.column.max.v": "v93",
        **params,
    }
    assert plan["clusteringPlan"]["strategy"]["strategyParams"] == params
    assert plan["extraMetadata"] == {STRATEGY: "key-range"}
    before = contents(table)
    done = cluster(table)
    assert contents(table) == before
    committed = json.loads(table.storage.read(f".hoodie/{done.instant}.replacecommit"))["extraMetadata"]
    assert (
        committed.items()
        >= {**params, "hoodie.clustering.execution.strategy.class": plan["clusteringPlan"]["strategy"]["strategyClassName"]}.items()
    )


def test_slices_with_logs_are_inputs_of_every_strategy():
    for name in ("size", "key-range", "overlap", "commit-time", "single-file"):
        table = filled(TableType.MOR)
        write(table, [("k00", "p", 500, "new"), ("k11", "p", 501, "new")])
        assert any(s.log_files for s in table.slices())
        before = contents(table)
        assert schedule_clustering(table, {STRATEGY: name, SORT: "ts"}) is not None
        cluster(table)
        assert contents(table) == before
        assert not any(s.log_files for s in table.slices())


def test_a_second_single_file_plan_leaves_sorted_files():
    table = filled()
    assert schedule_clustering(table, {STRATEGY: "single-file", SORT: "v"})
    assert len(cluster(table).stats) == 3
    again = request_clustering(table, {STRATEGY: "single-file", SORT: "v"})
    assert isinstance(again, NotDue)


def test_ranges_of_files_with_other_types_or_without_statistics_are_unknown(history):
    table = filled()
    schema = with_meta_fields(table.schema)
    assert set(FooterRanges(table.storage, schema)(table.slices(), ["ts", "v"])[table.slices()[0].group]) == {"ts", "v"}
    evolved = schema.set(schema.get_field_index("ts"), pa.field("ts", pa.string()))
    assert set(FooterRanges(table.storage, evolved)(table.slices(), ["ts", "v"])[table.slices()[0].group]) == {"v"}


def test_ranges_stay_known_where_more_are_read_than_are_kept(monkeypatch):
    table = filled()
    slices, ranges = table.slices(), FooterRanges(table.storage, with_meta_fields(table.schema))
    monkeypatch.setattr(column_ranges, "_KEPT", 1)
    ranges(slices[:-1], ["ts"])
    assert all("ts" in found for found in ranges(slices, ["ts"]).values())


def test_log_only_slices_are_grouped_by_age(history):
    history.begin(instant(7), Action.DELTA_COMMIT)
    history.complete(instant(7), log_stat("s0-0", instant(1)))
    assert ["q0", "q1"] in groups(history, {"s0": (0, 9), "s1": (5, 9)}, **{STRATEGY: "overlap"})
