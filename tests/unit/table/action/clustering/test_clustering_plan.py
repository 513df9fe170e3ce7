import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.plans import schedule_clustering
from tests.unit.table.tables import SCHEMA, History, base_stat, cluster, contents, instant, new_table, write

from tideline_table.action.clustering import outputs
from tideline_table.action.clustering.execute import cluster_group
from tideline_table.action.clustering.plan import plan_clustering
from tideline_table.action.clustering.task import clustering_tasks
from tideline_table.action.decision import NotDue
from tideline_table.config import Options
from tideline_table.coordination import roll_back
from tideline_table.errors import CorruptMetadata, SchemaMismatch, UnsafePath, VerificationFailed, WriteConflict
from tideline_table.file_group.slice import FileGroupId

ROOT = "memory:/table"
SMALL = "hoodie.clustering.plan.strategy.small.file.limit"
TARGET = "hoodie.clustering.plan.strategy.target.file.max.bytes"
GROUP = "hoodie.clustering.plan.strategy.max.bytes.per.group"
GROUPS = "hoodie.clustering.plan.strategy.max.num.groups"
SORT = "hoodie.clustering.plan.strategy.sort.columns"
MIN = "tideline.clustering.min.input.files"
YIELDS = "tideline.clustering.yields"


def planned(history, **options):
    plan = plan_clustering(history.state, ROOT, Options(options), SCHEMA)
    if isinstance(plan, NotDue):
        return None
    return [[s["fileId"] for s in g["slices"]] for g in plan.body.plan["clusteringPlan"]["inputGroups"]]


@pytest.fixture
def history():
    history = History()
    history.commit(
        instant(1), *(base_stat(f"a{n}-0", instant(1), "p", 1000) for n in range(3)), base_stat("big-0", instant(1), "p", 9000)
    )
    history.commit(
        instant(2), *(base_stat(f"b{n}-0", instant(2), "q", 1000) for n in range(2)), base_stat("one-0", instant(2), "r", 10)
    )
    return history


def test_small_files_of_partitions_with_enough_of_them(history):
    assert planned(history, **{SMALL: 9000}) == [["a0-0", "a1-0", "a2-0"], ["b0-0", "b1-0"]]
    assert planned(history, **{SMALL: 9001}) == [["a0-0", "a1-0", "a2-0", "big-0"], ["b0-0", "b1-0"]]
    assert planned(history, **{SMALL: 9000, MIN: 3}) == [["a0-0", "a1-0", "a2-0"]]
    assert planned(history, **{SMALL: 1000}) is None
    assert planned(history, **{SMALL: 9000, MIN: 1}) == [["a0-0", "a1-0", "a2-0"], ["b0-0", "b1-0"], ["one-0"]]


def test_groups_are_bounded_in_bytes_and_number(history):
    assert planned(history, **{SMALL: 9000, GROUP: 2000}) == [["a0-0", "a1-0"], ["b0-0", "b1-0"]]
    assert planned(history, **{SMALL: 9000, GROUPS: 1}) == [["a0-0", "a1-0", "a2-0"]]
    assert planned(history, **{SMALL: 9000, GROUP: 1999, MIN: 2}) is None


def test_older_slices_come_first(history):
    history.commit(instant(3), base_stat("a0-0", instant(3), "p", 1000))
    assert planned(history, **{SMALL: 9000, GROUPS: 1}) == [["a1-0", "a2-0", "a0-0"]]


def test_output_files_follow_the_target(history):
    def outputs(target):
        plan = plan_clustering(history.state, ROOT, Options({SMALL: 9000, TARGET: target}), SCHEMA).body.plan
        return [g["numOutputFileGroups"] for g in plan["clusteringPlan"]["inputGroups"]]

    assert outputs(3000) == [1, 1]
    assert outputs(2999) == [2, 1]
    assert outputs(1024) == [3, 2]


def test_plan_names_files_below_the_root(history):
    plan = plan_clustering(history.state, ROOT, Options({SMALL: 9000}), SCHEMA).body.plan
    first = plan["clusteringPlan"]["inputGroups"][0]["slices"][0]
    assert first["dataFilePath"] == f"{ROOT}/p/a0-0_0-0-0_{instant(1)}.parquet"


def test_groups_under_a_pending_plan_are_left_out(history):
    history.plan_clustering(instant(3), [FileGroupId("p", "a0-0")])
    assert planned(history, **{SMALL: 9000}) == [["a1-0", "a2-0"], ["b0-0", "b1-0"]]
    history.fence(instant(4), instant(3))
    assert planned(history, **{SMALL: 9000}) == [["a0-0", "a1-0", "a2-0"], ["b0-0", "b1-0"]]


def test_replaced_groups_are_left_out(history):
    history.plan_clustering(instant(3), [FileGroupId("p", "a0-0")])
    history.start_clustering(instant(3))
    history.complete(instant(3), base_stat("c-0", instant(3), "p", 8999), replaced={"p": ["a0-0"]})
    assert planned(history, **{SMALL: 8000}) == [["a1-0", "a2-0"], ["b0-0", "b1-0"]]


def test_priority_after_so_many_losses(history):
    def has_priority(yields):
        plan = plan_clustering(history.state, ROOT, Options({SMALL: 9000, YIELDS: yields}), SCHEMA).body.plan
        return plan["clusteringPlan"]["extraMetadata"] == {"tideline.priority": "true"}

    assert has_priority(0)
    for loss in range(1, 4):
        at = instant(10 * loss)
        history.plan_clustering(at, [FileGroupId("p", "a1-0")])
        history.fence(instant(10 * loss + 1), at)
        history.finish_rollback(instant(10 * loss + 1), at)
        assert [has_priority(n) for n in (1, 2, 3, 4)] == [loss >= n for n in (1, 2, 3, 4)]


def test_unknown_sort_column_is_refused(history):
    with pytest.raises(SchemaMismatch, match="'nope'"):
        planned(history, **{SORT: "ts,nope"})


def tasks_of(plan):
    return clustering_tasks(ROOT, instant(9), plan, ROOT, SCHEMA, "{}", 1, Options())


@pytest.mark.parametrize(
    ("path", "error"),
    [
        ("file:/etc/passwd", CorruptMetadata),
        (f"{ROOT}x/p/f", CorruptMetadata),
        (f"{ROOT}/../etc/passwd", UnsafePath),
        (f"{ROOT}/p/../../x", UnsafePath),
        (f"{ROOT}//etc", UnsafePath),
    ],
)
def test_plans_that_name_other_files_are_refused(history, path, error):
    plan = plan_clustering(history.state, ROOT, Options({SMALL: 9000}), SCHEMA).body.plan
    plan["clusteringPlan"]["inputGroups"][0]["slices"][0]["dataFilePath"] = path
    with pytest.raises(error):
        tasks_of(plan)


def test_plans_of_apache_hudi_name_files_with_and_without_a_scheme(history):
    """With a metadata table, Apache Hudi names files below the base path as its writer was given it."""
    root, hadoops = "file:/a%20table", "file:/a table"
    plan = plan_clustering(history.state, root, Options({SMALL: 9000}), SCHEMA).body.plan
    tasks = clustering_tasks(root, instant(9), plan, root, SCHEMA, "{}", 1, Options())
    slices = [one for group in plan["clusteringPlan"]["inputGroups"] for one in group["slices"]]
    assert all(one["dataFilePath"].startswith(f"{hadoops}/") for one in slices)
    # Plans of earlier releases have the escapes of the URI.
    for spelling in ("/a table", root):
        for one in slices:
            one["dataFilePath"] = f"{spelling}/{one['dataFilePath'].partition('table/')[2]}"
        assert clustering_tasks(root, instant(9), plan, root, SCHEMA, "{}", 1, Options()) == tasks


def test_plans_over_two_partitions_are_refused(history):
    plan = plan_clustering(history.state, ROOT, Options({SMALL: 9000}), SCHEMA).body.plan
    plan["clusteringPlan"]["inputGroups"][0]["slices"][0]["partitionPath"] = "q"
    with pytest.raises(CorruptMetadata, match="2 partitions"):
        tasks_of(plan)


@pytest.fixture
def table():
    table, storage, _ = new_table()
    for n in range(3):
        write(table, [(f"k{n}{i}", "p", i, f"v{9 - n}{i}") for i in range(4)])
    return table, storage


def test_clustering_keeps_rows_and_sorts_them(table):
    table, storage = table
    before, meta = (
        contents(table),
        table.read().select(["_hoodie_commit_time", "_hoodie_commit_seqno", "_hoodie_record_key"]).to_pylist(),
    )
    schedule_clustering(table, {SORT: "v", TARGET: 8192})
    committed = cluster(table)
    assert contents(table) == before
    after = table.read()
    assert len(committed.stats) > 1
    assert after.column("v").to_pylist() == sorted(r[3] for r in before) or len(table.slices()) > 1
    ordered = [
        storage_rows
        for s in sorted(committed.stats, key=lambda s: s.file_id.rsplit("-", 1)[1])
        for storage_rows in _values(storage, s.path, "v")
    ]
    assert ordered == sorted(r[3] for r in before)
    assert sorted(after.select(list(meta[0])).to_pylist(), key=repr) == sorted(meta, key=repr)
    assert set(after.column("_hoodie_file_name").to_pylist()) == {s.path.rsplit("/", 1)[1] for s in committed.stats}


def _values(storage, path, column):

    return pq.read_table(pa.BufferReader(storage.read(path))).column(column).to_pylist()


def test_running_a_task_again_writes_the_same_file_ids(table):
    table, storage = table
    at = schedule_clustering(table)
    plan = table.state.plans[at].plan
    one, two = (
        clustering_tasks(ROOT, at, plan, table.log_rule(), table.schema, table.footer_schema(), n, Options())[0] for n in (1, 2)
    )
    first, second = cluster_group(one, storage).stats, cluster_group(two, storage).stats
    assert [s.file_id for s in first] == [s.file_id for s in second]
    assert {s.path for s in first}.isdisjoint({s.path for s in second})


def test_a_task_that_drops_a_row_is_caught_before_its_commit(table, monkeypatch):
    table, _ = table
    before = contents(table)
    at = schedule_clustering(table, {SORT: "v"})
    cut = outputs._cut
    monkeypatch.setattr(outputs, "_cut", lambda *given: ((file, rows.slice(1)) for file, rows in cut(*given)))
    with pytest.raises(VerificationFailed):
        cluster(table)
    monkeypatch.undo()
    assert contents(table) == before
    assert table.state.actions[at].state.value == "rolledback"
    assert table.state.clustering_losses


def test_clustering_yields_to_a_write_and_then_goes_first(table):
    table, _ = table
    for _ in range(3):
        at = schedule_clustering(table)
        assert not table.state.has_priority(at)
        write(table, [("k00", "p", 99, "won")])
        with pytest.raises(WriteConflict, match="written by"):
            cluster(table)
    at = schedule_clustering(table)
    assert table.state.has_priority(at)
    with pytest.raises(WriteConflict, match="goes first"):
        write(table, [("k00", "p", 100, "waits")], **{"tideline.write.conflict.retries": 0})
    write(table, [("new", "p", 1, "inserts go on")], **{"tideline.write.conflict.retries": 0})
    cluster(table)
    write(table, [("k00", "p", 100, "done")])
    assert ("k00", "p", 100, "done") in contents(table)


def test_nothing_to_run(table):
    table, _ = table
    assert cluster(table) is None
    at = schedule_clustering(table)
    assert schedule_clustering(table) is None
    roll_back(table.timeline, at, force=True)
    assert cluster(table) is None
