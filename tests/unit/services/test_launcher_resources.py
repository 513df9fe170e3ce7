import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.plans import schedule_clustering, schedule_compaction
from tests.unit.services.fleet import update, write

from tideline_launcher.resources import JVM_OVERHEAD_BYTES, PYTHON_BYTES, PlanWork, can_grow, granted, resources_for, work_of
from tideline_launcher.settings import GIB, MIB, ResourceSettings
from tideline_table.config import Options
from tideline_table.table import TableType

SETTINGS = ResourceSettings()
WORKS = st.lists(st.integers(0, 4 * GIB), max_size=60).map(lambda sizes: PlanWork(tuple(sizes)))


def test_a_small_plan_runs_in_the_driver_alone():
    chosen = resources_for(PlanWork((64 * MIB, 64 * MIB, 64 * MIB)), SETTINGS)
    assert (chosen.executors, chosen.cores) == (0, 2)
    assert chosen.driver_memory_bytes == GIB + JVM_OVERHEAD_BYTES + PYTHON_BYTES + 2 * (PYTHON_BYTES + 6 * 64 * MIB)


def test_executors_follow_bytes_and_groups():
    assert resources_for(PlanWork((256 * MIB,) * 16), SETTINGS).executors == 4, "4 GiB want 8 cores: 4 executors of 2"
    assert resources_for(PlanWork((2 * GIB,)), ResourceSettings(max_executor_memory_bytes=16 * GIB)).executors == 1, "one group"
    assert resources_for(PlanWork((256 * MIB,) * 400), SETTINGS).executors == SETTINGS.max_executors_per_application


def test_large_groups_get_fewer_cores_rather_than_too_little_memory():
    chosen = resources_for(PlanWork((GIB, GIB)), SETTINGS)
    assert (chosen.executors, chosen.cores) == (2, 1)
    assert chosen.executor_overhead_bytes == JVM_OVERHEAD_BYTES + PYTHON_BYTES + 6 * GIB


@given(WORKS, st.integers(0, 6))
def test_resources_stay_below_the_caps(work, step):
    chosen = resources_for(work, SETTINGS, step)
    assert 0 <= chosen.executors <= SETTINGS.max_executors_per_application
    assert chosen.cores >= 1
    assert chosen.driver_memory_bytes <= SETTINGS.max_driver_memory_bytes
    assert chosen.heap_bytes + chosen.executor_overhead_bytes <= SETTINGS.max_executor_memory_bytes
    assert chosen.executors * chosen.cores <= max(1, len(work.task_bytes)) + chosen.cores - 1, "no executor without a task"


@given(WORKS)
def test_memory_grows_until_the_caps_and_no_further(work):
    steps = next(step for step in range(20) if not can_grow(work, SETTINGS, step))
    taken = [resources_for(work, SETTINGS, step) for step in range(steps + 2)]
    assert taken[steps].driver_memory_bytes == taken[steps + 1].driver_memory_bytes
    per_task = [(r.executor_overhead_bytes or r.driver_memory_bytes) / r.cores for r in taken]
    assert per_task == sorted(per_task)


def test_what_is_granted():
    large, small = resources_for(PlanWork((GIB,) * 4), SETTINGS), resources_for(PlanWork(), SETTINGS)
    assert granted(large, free=2).executors == 2
    assert granted(large, free=100) == large
    assert granted(large, free=0) is None
    assert granted(small, free=0) == small


@pytest.mark.parametrize("plan", [{}, {"operations": None}, {"operations": [{"metrics": None}, {}]}, {"clusteringPlan": {}}])
def test_plans_without_metrics_have_work_without_bytes(plan):
    assert work_of(plan, Options()).total_bytes == 0


def test_the_work_of_real_plans(fleet):
    table = fleet.create("a")
    for n in range(2):
        write(table, 10 * n)
    instant = schedule_clustering(table)
    assert work_of(table.state.plans[instant].plan, table.options).task_bytes == (MIB,), (
        "metrics of a clustering group count whole mebibytes"
    )
    table = fleet.create("b", type=TableType.MOR)
    write(table, 0)
    update(table, 0)
    instant = schedule_compaction(table, {"hoodie.compact.inline.max.delta.commits": "1"})
    (read,) = work_of(table.state.plans[instant].plan, table.options).task_bytes
    assert read == sum(s.total_bytes for s in table.slices())


def clustering_of(*groups: tuple[int, int]) -> dict[str, object]:
    """A plan with groups of so many mebibytes, each into so many files."""
    found = [{"metrics": {"TOTAL_IO_READ_MB": float(size)}, "numOutputFileGroups": files} for size, files in groups]
    return {"clusteringPlan": {"inputGroups": found}}


def test_a_large_group_is_a_task_for_each_of_its_files():
    work = work_of(clustering_of((4096, 8), (100, 4), (600, 1)), Options())
    assert work.task_bytes == (512 * MIB,) * 8 + (100 * MIB, 600 * MIB)
    alone = work_of(clustering_of((4096, 8)), Options())
    chosen = resources_for(alone, SETTINGS)
    assert (chosen.executors, chosen.cores) == (4, 2), "eight cores for 4 GiB"
    assert chosen.executor_overhead_bytes == JVM_OVERHEAD_BYTES + 2 * (PYTHON_BYTES + 6 * 512 * MIB)
    whole = work_of(clustering_of((4096, 8)), Options({"tideline.clustering.split.group.bytes": 4097 * MIB}))
    assert whole.task_bytes == (4096 * MIB,)
    assert resources_for(whole, SETTINGS).executors == 1
