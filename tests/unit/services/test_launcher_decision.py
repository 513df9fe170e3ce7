from datetime import UTC, datetime

import pytest

from tideline_launcher.application import (
    Application,
    PlanKey,
)
from tideline_launcher.decision import Limits, PendingPlan, TableLimits, decide
from tideline_launcher.history import History
from tideline_launcher.resources import PlanWork
from tideline_launcher.settings import GIB, ResourceSettings, SharingSettings
from tideline_table.action.decision import TableService

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)


def plan(instant, *, driven=False, table="t", **more):
    return PendingPlan(PlanKey(instant, table), f"/{table}", table, driven, **more)


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
