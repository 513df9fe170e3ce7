from dataclasses import replace
from datetime import UTC, datetime

import pytest

from tideline_launcher.application import (
    Application,
    Place,
    PlanKey,
)
from tideline_launcher.decision import Limits, PendingPlan, TableLimits, decide
from tideline_launcher.history import History
from tideline_launcher.resources import PlanWork
from tideline_launcher.settings import GIB, MIB, ResourceSettings, SharingSettings, WorkerSettings
from tideline_table.action.decision import TableService

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)


def plan(instant, *, driven=False, table="t", **more):
    service = more.pop("service", TableService.CLUSTERING)
    return PendingPlan(PlanKey(instant, table), f"/{table}", table, driven, service, **more)


def running(instant, table="t", executors=0):
    return Application(f"{table}-{instant}", PlanKey(instant, table), 1, TableService.CLUSTERING, f"/{table}", executors, 0, EPOCH)


def limits(most=1, **resources):
    """Without shared applications."""
    return Limits(most, 3, ResourceSettings(**resources), SharingSettings(max_plans=1))


@pytest.mark.parametrize(
    ("plans", "busy", "failures", "most", "launch", "give_up"),
    [
        ([], [], {}, 1, [], []),
        (["1"], [], {}, 1, ["1"], []),
        (["3", "1", "2"], [], {}, 2, ["1", "2"], []),
        (["1", "2"], ["1"], {}, 1, [], []),
        (["1", "2"], ["1"], {}, 2, ["2"], []),
        (["1", "2"], ["8", "9"], {}, 1, [], []),
        (["1!", "2"], [], {}, 1, ["2"], []),
        (["1"], [], {"1": 2}, 1, ["1"], []),
        (["1", "2"], [], {"1": 3}, 1, ["2"], ["1"]),
        (["1", "2"], ["2"], {"1": 4}, 1, [], ["1"]),
        (["1!"], [], {"1": 3}, 1, [], []),
        (["1"], ["1"], {"1": 3}, 1, [], []),
    ],
)
def test_decision(plans, busy, failures, most, launch, give_up):
    """Plans by instant; a `!` marks one that a live process drives."""
    decision = decide(
        [plan(p.rstrip("!"), driven=p.endswith("!")) for p in plans],
        [running(i) for i in busy],
        {PlanKey(i, "t"): History(failures=n) for i, n in failures.items()},
        limits(most),
        0,
    )
    assert ([c.plans[0].key.instant for c in decision.launch], [p.key.instant for p in decision.give_up]) == (launch, give_up)


def test_equal_instants_of_two_tables_are_two_plans():
    plans = [plan("1", table="b"), plan("1", table="a")]
    decision = decide(plans, [running("1", "a")], {}, limits(2), 0)
    assert [c.plans[0].key.table_uid for c in decision.launch] == ["b"]


def test_a_plan_waits_until_its_pause_is_over():
    histories = {PlanKey("1", "t"): History(not_before_s=10)}
    assert decide([plan("1"), plan("2")], [], histories, limits(), 9.9).launch[0].plans[0].key.instant == "2"
    assert decide([plan("1"), plan("2")], [], histories, limits(), 10).launch[0].plans[0].key.instant == "1"


def test_a_hopeless_plan_is_given_up_at_once():
    decision = decide([plan("1")], [], {PlanKey("1", "t"): History(failures=1, is_hopeless=True)}, limits(), 0)
    assert (decision.launch, [p.key.instant for p in decision.give_up]) == ((), ["1"])


def test_executors_stay_below_the_caps_of_table_and_fleet():
    large, small = PlanWork((GIB,) * 8), PlanWork((1024,))
    caps = {"max_executors_per_application": 4, "max_executors_per_table": 5, "max_executors": 6}
    plans = [
        plan("1", work=large),
        plan("2", work=large),
        plan("3", work=large),
        plan("4", table="u", work=large),
        plan("5", work=small),
    ]
    chosen = decide(plans, [], {}, limits(9, **caps), 0).launch
    assert [(c.plans[0].key.instant, c.resources.executors) for c in chosen] == [("1", 4), ("2", 1), ("4", 1), ("5", 0)]
    chosen = decide(plans, [running("9", "x", executors=5)], {}, limits(9, **caps), 0).launch
    assert [(c.plans[0].key.instant, c.resources.executors) for c in chosen] == [("1", 1), ("5", 0)]


def test_a_table_with_caps_of_its_own_keeps_to_them_and_to_those_of_the_fleet():
    large = PlanWork((GIB,) * 8)
    caps = {"max_executors_per_application": 4, "max_executors_per_table": 5, "max_executors": 9}
    tight = TableLimits(1, ResourceSettings(max_executors_per_application=2, max_executors_per_table=3, driver_cores=1))
    wide = TableLimits(9, ResourceSettings(max_executors_per_application=8, max_executors_per_table=8, max_executors=99))
    plans = [plan("1", work=large, limits=tight), plan("2", work=large, limits=tight)]
    plans += [plan("3", table="u", work=large), plan("4", table="v", work=large, limits=wide)]
    chosen = decide(plans, [], {}, limits(9, **caps), 0).launch
    assert [(c.plans[0].key.instant, c.resources.executors) for c in chosen] == [("1", 2), ("2", 1), ("3", 4), ("4", 2)]
    failed = {p.key: History(failures=2) for p in plans}
    decision = decide(plans, [], failed, limits(9, **caps), 0)
    assert [p.key.instant for p in decision.give_up] == ["1", "2"], "after one failure; the others have more attempts"


def with_workers(most=1, sharing=1, resources=None, **workers):
    given = {"count": 1, "max_queued": 1, **workers}
    return Limits(
        most, 3, ResourceSettings(**(resources or {})), SharingSettings(max_plans=sharing), WorkerSettings.model_validate(given)
    )


def in_worker(instant):
    return replace(running(instant), place=Place.WORKER)


def places(decision):
    return {p.key.instant: c.place.value for c in decision.launch for p in c.plans}


SMALL, LARGE = PlanWork((MIB, MIB)), PlanWork((65 * MIB,))


def test_the_bytes_of_a_plan_decide_whether_a_worker_runs_it():
    plans = [plan("1", work=LARGE), plan("2", work=SMALL), plan("3", work=PlanWork())]
    assert places(decide(plans, [], {}, with_workers(), 0)) == {"1": "spark", "2": "worker", "3": "worker"}
    assert places(decide(plans, [], {}, with_workers(count=0, most=3), 0)) == dict.fromkeys("123", "spark")
    assert places(decide(plans, [], {}, with_workers(max_bytes=65 * MIB, max_queued=2), 0)) == dict.fromkeys("123", "worker")


def test_a_plan_that_needs_more_memory_than_a_worker_has_runs_on_spark():
    work = PlanWork((30 * MIB, MIB))
    for memory, place in ((384 * MIB, "spark"), (512 * MIB, "worker")):
        assert places(decide([plan("1", work=work)], [], {}, with_workers(memory_bytes=memory), 0)) == {"1": place}


def test_a_table_may_have_its_own_limit_of_bytes():
    own = TableLimits(3, ResourceSettings(), WorkerSettings(max_bytes=0))
    plans = [plan("1", limits=own, work=PlanWork()), plan("2", work=PlanWork())]
    assert places(decide(plans, [], {}, with_workers(), 0)) == {"1": "spark", "2": "worker"}


def test_workers_have_a_cap_of_their_own_and_small_plans_wait_for_it():
    plans = [plan(i, work=SMALL) for i in "54321"]
    assert places(decide(plans, [], {}, with_workers(most=9), 0)) == {"1": "worker", "2": "worker"}, "the oldest"
    assert places(decide(plans, [in_worker("1")], {}, with_workers(most=9), 0)) == {"2": "worker"}
    assert places(decide(plans, [in_worker("1"), in_worker("2")], {}, with_workers(most=9), 0)) == {}
    both = [plan("1", work=LARGE), plan("2", work=SMALL)]
    assert places(decide(both, [running("8")], {}, with_workers(), 0)) == {"2": "worker"}
    assert places(decide(both, [in_worker("8"), in_worker("9")], {}, with_workers(), 0)) == {"1": "spark"}


def test_each_plan_of_a_worker_is_an_application_also_where_its_table_had_a_failure():
    plans = [plan(i, work=SMALL) for i in "12"]
    decision = decide(plans, [], {}, with_workers(sharing=16), 0, alone={"t"})
    assert [(len(c.plans), c.place, c.resources.executors) for c in decision.launch] == [(1, Place.WORKER, 0)] * 2


def test_a_plan_that_a_worker_did_not_bear_runs_on_spark_with_its_memory():
    past = History(attempt=1, memory_step=1, needs_spark=True, is_alone=True)
    (chosen,) = decide([plan("1", work=SMALL)], [], {PlanKey("1", "t"): past}, with_workers(), 0).launch
    assert (chosen.place, chosen.resources.memory_step) == (Place.SPARK, 1)
