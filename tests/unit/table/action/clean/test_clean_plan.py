"""Cleaning against an oracle: after it, every snapshot from the earliest retained instant on reads as before."""

import random

import pytest
from tests.plans import schedule_clean, schedule_clustering
from tests.unit.table.tables import History, base_stat, cluster, contents, instant, listing, log_stat, new_table, write

from tideline_table.action import run_clean
from tideline_table.action.clean.plan import CleanResult, clean_metadata, earliest_retained, execute_clean, plan_clean
from tideline_table.action.decision import Due
from tideline_table.config import Options
from tideline_table.errors import CorruptMetadata, InstantNotFound, UnsafePath
from tideline_table.file_group.slice import FileGroupId
from tideline_table.hudi.instant import Action
from tideline_table.storage import MemoryStorage

ROOT = "memory:/table"
RETAINED = "hoodie.cleaner.commits.retained"


def planned(state, retained):
    """The document of the plan, None where there is a reason for none."""
    found = plan_clean(state, ROOT, Options({RETAINED: retained}))
    return found.body.plan if isinstance(found, Due) else None


def random_history(seed):
    """Commits, clusterings and open writes over a few file groups, in random order of begin and completion."""
    choose = random.Random(seed)
    history, time, open_writes, groups = History(), 0, [], []
    for _ in range(choose.randint(5, 40)):
        time += choose.randint(1, 3)
        at = instant(time)
        kind = choose.random()
        if kind < 0.2 and len(open_writes) < 2:
            history.begin(at)
            open_writes.append(at)
        elif kind < 0.35 and open_writes:
            history.complete(open_writes.pop(0))
        elif kind < 0.5 and len(groups) > 2:
            taken = choose.sample(groups, 2)
            new = f"c{time}-0"
            history.plan_clustering(at, [FileGroupId("p", g) for g in taken])
            history.start_clustering(at)
            history.complete(at, base_stat(new, at), replaced={"p": taken})
            groups = [g for g in groups if g not in taken] + [new]
        else:
            touched = choose.sample(groups, min(len(groups), choose.randint(0, 3)))
            if choose.random() < 0.5 or not touched:
                touched.append(f"g{time}-0")
                groups.append(touched[-1])
            history.commit(at, *(base_stat(g, at) for g in touched))
    return history, time


@pytest.mark.parametrize("seed", range(120))
def test_retained_snapshots_stay_readable(seed):
    history, time = random_history(seed)
    retained = random.Random(seed + 1).randint(1, 6)
    state = history.state
    before = {n: state.latest_slices(instant(n)) for n in range(time + 2)}
    completed = state.completed_writes()
    earliest = earliest_retained(state, retained)
    plan = planned(state, retained)
    if plan is None:
        return
    assert earliest is not None
    assert sum(a.instant >= earliest.instant for a in completed) >= min(retained, len(completed))
    for pending in state.pending():
        if pending.action in (Action.COMMIT, Action.REPLACE_COMMIT):
            assert earliest.instant < pending.instant
    names = {(p, f["filePath"].rsplit("/", 1)[1]) for p, files in plan["filePathsToBeDeletedPerPartition"].items() for f in files}
    for n in range(time + 2):
        if instant(n) >= earliest.instant:
            assert not {(s.group.partition_path, s.base_file) for s in before[n]} & names
    deleted = {"p": tuple(sorted(name for _, name in names))}
    history.clean(instant(time + 2), plan, clean_metadata(instant(time + 2), plan, CleanResult(deleted), 1))
    for n in range(time + 2):
        if instant(n) >= earliest.instant:
            assert state.latest_slices(instant(n)) == before[n]
    assert state.last_clean_retained == earliest.instant
    assert planned(state, retained) is None


@pytest.mark.parametrize("seed", range(40))
def test_cleaning_is_no_hoarder(seed):
    """What no retained query and no query running since before the earliest instant reads, is gone."""
    history, time = random_history(seed)
    state = history.state
    earliest = earliest_retained(state, 1)
    plan = planned(state, 1)
    doomed = {f["filePath"] for files in plan["filePathsToBeDeletedPerPartition"].values() for f in files} if plan else set()
    if earliest is None:
        assert not doomed
        return
    moments = [instant(n) for n in range(time + 2)]
    before = max((m for m in moments if m < earliest.instant), default="")
    for file_slice in state.every_slice():
        replaced = state.replaced.get(file_slice.group)
        seen = any(file_slice in state.latest_slices(m) for m in moments if m >= before)
        kept_with_its_group = replaced is not None and replaced >= earliest.instant
        if not seen and not kept_with_its_group:
            assert f"{ROOT}/{file_slice.path}" in doomed


def test_slices_under_a_pending_clustering_are_kept():
    history = History()
    for n in (1, 2, 3, 4):
        history.commit(instant(n), base_stat("a-0", instant(n)), base_stat("b-0", instant(n)))
    history.plan_clustering(instant(5), [FileGroupId("p", "a-0")])
    plan = planned(history.state, 1)
    assert {f["filePath"].split("/")[-1][:3] for f in plan["filePathsToBeDeletedPerPartition"]["p"]} == {"b-0"}


def test_nothing_to_clean_before_enough_commits():
    history = History()
    for n in (1, 2, 3):
        history.commit(instant(n), base_stat("a-0", instant(n)))
    assert planned(history.state, 3) is None
    assert planned(history.state, 10) is None
    history.commit(instant(4), base_stat("a-0", instant(4)))
    assert earliest_retained(history.state, 3).instant == instant(2)
    assert earliest_retained(history.state, 1).instant == instant(4)


def plan_of(*paths):
    return {
        "earliestInstantToRetain": {"timestamp": instant(1), "action": "commit", "state": "COMPLETED"},
        "lastCompletedCommitTimestamp": instant(1),
        "policy": "KEEP_LATEST_COMMITS",
        "filePathsToBeDeletedPerPartition": {"p": [{"filePath": p, "isBootstrapBaseFile": False} for p in paths]},
    }


@pytest.mark.parametrize(
    ("path", "error"),
    [
        ("file:/etc/passwd", CorruptMetadata),
        ("memory:/tablet/p/x.parquet", CorruptMetadata),
        (f"{ROOT}/../x", UnsafePath),
        (f"{ROOT}/", CorruptMetadata),
        (f"{ROOT}//etc/passwd", UnsafePath),
    ],
)
def test_a_plan_that_names_other_files_deletes_nothing(path, error):
    storage = MemoryStorage(ROOT)
    fine = base_stat("a-0", instant(1)).path
    storage.put(fine, b"1")
    before = listing(storage)
    with pytest.raises(error):
        execute_clean(storage, plan_of(f"{ROOT}/{fine}", path), [])
    assert listing(storage) == before


@pytest.mark.parametrize(
    ("root", "named"), [("file:/a%20table", "/a table"), ("file:/a%20table", "file:/a table"), ("s3://bucket/t", "s3a://bucket/t")]
)
def test_a_plan_of_apache_hudi_may_write_the_base_path_in_its_own_way(root, named):
    """With a metadata table, Apache Hudi names files below the base path as its writer was given it."""
    storage, path = MemoryStorage(root), base_stat("a-0", instant(1)).path
    storage.put(path, b"1")
    execute_clean(storage, plan_of(f"{named}/{path}"), [])
    assert not listing(storage)


@pytest.mark.parametrize(
    "path",
    [
        ".hoodie/hoodie.properties",
        ".hoodie/20260101000000001.commit",
        ".hoodie/.tideline/log/00000000000000000001.json",
        "p/.hoodie_partition_metadata",
        f".hoodie/metadata/files/{base_stat('files-0000-0', instant(1)).path.rpartition('/')[2]}",
        f".hoodie/metadata/files/{log_stat('files-0000-0', instant(1)).path.rpartition('/')[2]}",
    ],
)
def test_a_plan_never_costs_metadata(path):
    """Only data files of the table can be named."""
    storage = MemoryStorage(ROOT)
    storage.put(path, b"1")
    with pytest.raises(CorruptMetadata, match="data file"):
        execute_clean(storage, plan_of(f"{ROOT}/{path}"), [])
    assert storage.read(path) == b"1"


def test_a_plan_that_names_a_visible_file_deletes_nothing():
    table, storage, _ = new_table()
    write(table, [("a", "p", 1, "x")])
    (visible,) = table.slices()
    with pytest.raises(CorruptMetadata, match="latest slice"):
        execute_clean(storage, plan_of(f"{storage.root}/{visible.path}"), table.slices())
    assert contents(table)


def test_on_a_table():
    table, storage, _ = new_table()
    commits = [write(table, [("a", "p", n, f"v{n}"), (f"k{n}", "p", 1, "x")]) for n in range(5)]
    seen = {c.instant: contents(table, c.instant) for c in commits}
    at = schedule_clean(table, {RETAINED: 2})
    assert schedule_clean(table, {RETAINED: 2}) is None
    assert run_clean(table) == 2
    assert run_clean(table) is None
    assert table.state.actions[at].state.value == "completed"
    files = {o.path for o in storage.list_objects("p") if o.path.endswith(".parquet")}
    assert files == {s.path for s in table.state.every_slice()}
    for commit in commits[3:]:
        assert contents(table, commit.instant) == seen[commit.instant]
    with pytest.raises(InstantNotFound, match="cleaned"):
        table.read(as_of=commits[2].instant)


def test_replaced_groups_go_when_no_retained_query_reads_them():
    table, storage, _ = new_table()
    for n in range(3):
        write(table, [(f"k{n}", "p", 1, "x")])
    schedule_clustering(table)
    cluster(table)
    write(table, [("z", "p", 1, "x")])
    assert schedule_clean(table, {RETAINED: 2}) is None
    before = contents(table)
    assert schedule_clean(table, {RETAINED: 1})
    assert run_clean(table) == 3
    assert contents(table) == before
    assert len([o for o in storage.list_objects("p") if o.path.endswith(".parquet")]) == 2
    assert table.state.replaced == {}
