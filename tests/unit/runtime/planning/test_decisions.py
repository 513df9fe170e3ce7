"""Golden decisions of the planner: what is due, what a policy lets pass, and who comes first. No I/O."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.property.profile import few

from tideline_runtime.planning import Demand, Held, HeldBy, Ledger, Thresholds, View, arbitrate, examine, score
from tideline_runtime.planning.examination import shrunk
from tideline_runtime.policy import Fleet, parse_policies
from tideline_table.action import Due, Reason, TableService, Trigger, plan_check, plan_clustering
from tideline_table.config import Options
from tideline_table.file_group import FileGroupId, FileSlice, LogFile
from tideline_table.hudi import Action, State
from tideline_table.log import ActionRecord, TableState
from tideline_table.log.action import CLUSTER

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)  # a Friday
MIB = 1 << 20
CLUSTERING, COMPACTION = TableService.CLUSTERING, TableService.COMPACTION
SCHEMA = pa.schema([("id", pa.string()), ("at", pa.int64())])
PATH = "s3://lake/t"
THRESHOLDS = Thresholds(min_files=3, min_commits=2)


def at(hours: float) -> str:
    """The instant so many hours before NOW."""
    return f"{NOW - timedelta(hours=hours):%Y%m%d%H%M%S}000"


def table(sizes=(), *, writes=4, log_bytes=0, log_age_h=1.0, failed=(), options=None, delta_commits=False) -> View:
    state = TableState()
    action = Action.DELTA_COMMIT if delta_commits else Action.COMMIT
    for n in range(writes):
        sequence = 10 * n + 10
        state.actions[at(9 - n)] = ActionRecord(at(9 - n), action, State.COMPLETED, "UPSERT", sequence, sequence - 1, "w")
    for number, size in enumerate(sizes):
        group = FileGroupId("p", f"f{number}")
        logs = (LogFile(f".f{number}_1.log.1_0-0-0", log_bytes, at(log_age_h), 1),) if log_bytes else ()
        state.slices[group] = {at(9): FileSlice(group, at(9), f"f{number}.parquet", size, 1, logs)}
    for number, minutes in enumerate(failed):
        ended = (NOW - timedelta(minutes=minutes)).isoformat()
        state.actions[f"{number}x"] = ActionRecord(
            f"{number}x", Action.REPLACE_COMMIT, State.ROLLED_BACK, CLUSTER, 1, 1, "p", "", f"{number}y"
        )
        state.actions[f"{number}y"] = ActionRecord(f"{number}y", Action.ROLLBACK, State.COMPLETED, "", 2, 2, "p", ended)
    return View(PATH, "uid", PATH, state, Options(options or {}), SCHEMA, is_merge_on_read=True, has_buckets=False)


def policy(text=""):
    return parse_policies(f"version: 1\ndefaults: {{{text}}}\n", "f").of(PATH)


FOUR = [MIB] * 4


@pytest.mark.parametrize(
    ("service", "view", "text", "spent", "verdict", "why"),
    [
        (CLUSTERING, table(FOUR), "", 0, "due", "4 candidates in partition 'p'"),
        (CLUSTERING, table(FOUR), "services: {clustering: false}", 0, "off", "off by defaults (line 2)"),
        (CLUSTERING, table(FOUR), "services: {compaction: false}", 0, "due", ""),
        (CLUSTERING, table(FOUR), "pause: {reason: audit}", 0, "paused", "audit"),
        (CLUSTERING, table(FOUR), "pause: {reason: audit, until: '2026-11-20T12:00:00Z'}", 0, "due", ""),
        (CLUSTERING, table(FOUR, writes=1), "", 0, "not_due", "1 of 2 commits"),
        (CLUSTERING, table([MIB] * 2), "", 0, "not_due", "no partition has 3"),
        (CLUSTERING, table([MIB] * 2, writes=1), "objectives: {small_files: 2}", 0, "due", "2 small files, objective 2"),
        (CLUSTERING, table([MIB] * 2, writes=1), "objectives: {small_files: 3}", 0, "not_due", ""),
        (CLUSTERING, table(FOUR, failed=[0.1]), "", 0, "backing_off", "was rolled back"),
        (CLUSTERING, table(FOUR, failed=[0.2]), "", 0, "due", ""),
        (CLUSTERING, table(FOUR, failed=[0.2, 9, 99]), "", 0, "backing_off", ""),
        (CLUSTERING, table(FOUR, failed=[0.7, 9, 99]), "", 0, "due", ""),
        (CLUSTERING, table(FOUR), "windows: [{from: '22:00', to: '05:00', time_zone: UTC}]", 0, "window", "2026-11-20 22:00"),
        (CLUSTERING, table(FOUR), "windows: [{from: '11:00', to: '12:01', time_zone: UTC}]", 0, "due", ""),
        (CLUSTERING, table(FOUR), "windows: [{from: '11:00', to: '12:00', time_zone: UTC}]", 0, "window", ""),
        (CLUSTERING, table(FOUR), "budget: {bytes_per_day: 4 MiB}", 0, "due", ""),
        (CLUSTERING, table(FOUR), "budget: {bytes_per_day: 4 MiB}", 3 * MIB, "budget", "are used in 24 hours"),
        (CLUSTERING, table(FOUR), "budget: {bytes_per_day: 0}", 0, "budget", "0 of 0 bytes of defaults (line 2)"),
        (COMPACTION, table(FOUR, log_bytes=MIB), "", 0, "not_due", "0 delta commit(s)"),
        (COMPACTION, table(FOUR, log_bytes=MIB, writes=6, delta_commits=True), "", 0, "due", "6 delta commits"),
        (
            COMPACTION,
            table(FOUR, log_bytes=MIB, writes=1, delta_commits=True),
            "objectives: {log_to_base_ratio: 1.2}",
            0,
            "due",
            "1.00",
        ),
        (
            COMPACTION,
            table(FOUR, log_bytes=MIB, writes=1, delta_commits=True),
            "objectives: {log_to_base_ratio: 2}",
            0,
            "not_due",
            "",
        ),
        (
            COMPACTION,
            table(FOUR, log_bytes=MIB, writes=1, delta_commits=True, log_age_h=5),
            "objectives: {unmerged_log_age: 6h}",
            0,
            "due",
            "5.0 h old",
        ),
    ],
)
def test_what_is_decided_for_a_table(service, view, text, spent, verdict, why):
    ledger = Ledger(((NOW - timedelta(hours=2), spent),) if spent else ())
    found = examine(service, view, policy(text), THRESHOLDS, ledger, NOW)
    assert ("due" if isinstance(found, Demand) else found.by.value, why in found.why) == (verdict, True), found


def test_a_reason_that_time_ends_says_when():
    def until(view, text, rewrites=()):
        found = examine(CLUSTERING, view, policy(text), THRESHOLDS, Ledger(rewrites), NOW)
        assert isinstance(found, Held)
        return found.until

    assert until(table(FOUR), "pause: {reason: x, until: '2026-11-21T00:00:00Z'}") == NOW + timedelta(hours=12)
    assert until(table(FOUR), "windows: [{from: '12:30', to: '13:00', time_zone: UTC}]") == NOW + timedelta(minutes=30)
    rewrites = ((NOW - timedelta(hours=25), 9 * MIB), (NOW - timedelta(hours=20), MIB), (NOW - timedelta(hours=3), 2 * MIB))
    assert until(table(FOUR), "budget: {bytes_per_day: 3 MiB}", rewrites) == NOW + timedelta(hours=4)
    assert until(table(FOUR, failed=[0.1]), "") == NOW + timedelta(seconds=4)
    logged = table(FOUR, log_bytes=MIB, writes=1, delta_commits=True)
    found = examine(COMPACTION, logged, policy("objectives: {unmerged_log_age: 6h}"), THRESHOLDS, Ledger(), NOW)
    assert isinstance(found, Held)
    assert found.until == NOW + timedelta(hours=6 * 0.8 - 1)


def test_a_plan_is_made_smaller_to_fit_what_is_left_of_the_budget():
    found = examine(
        CLUSTERING, table([4 * MIB] * 6), policy("budget: {bytes_per_day: 20 MiB}"), THRESHOLDS, Ledger(((NOW, 8 * MIB),)), NOW
    )
    assert isinstance(found, Demand)
    assert (found.cost_bytes, found.max_bytes) == (12 * MIB, 12 * MIB)


def demand(name="a", **more) -> Demand:
    made = Demand(f"s3://lake/{name}", name, CLUSTERING, "", cost_bytes=100 * MIB, files_saved=10, since=NOW)
    return replace(made, **more)


def test_the_score_grows_with_what_a_plan_brings_and_falls_with_what_it_costs():
    base = score(demand(), NOW)
    assert score(demand(files_saved=20), NOW) == pytest.approx(2 * base)
    assert score(demand(cost_bytes=200 * MIB), NOW) == pytest.approx(base / 2)
    assert score(demand(log_bytes=40 * MIB), NOW) == pytest.approx(2 * base)
    assert score(demand(unsorted_bytes=100 * MIB), NOW) == pytest.approx(1.25 * base)
    assert score(demand(priority=60), NOW) == pytest.approx(2 * base)
    assert score(demand(since=NOW - timedelta(hours=1)), NOW) == pytest.approx(2 * base)
    assert score(demand(pressure=0.79), NOW) == base
    assert score(demand(pressure=1.0), NOW) == pytest.approx(5 * base)


def cut(found: Demand, max_bytes: int) -> Demand | Held:
    """Plans of which every part of 10 MiB can be left out."""
    size = min(found.cost_bytes, max_bytes // (10 * MIB) * 10 * MIB)
    return replace(found, cost_bytes=size, max_bytes=max_bytes) if size else Held(HeldBy.NOT_DUE, "")


def served(demands, fleet, spent=0, pending=0, shrink=cut):
    return [
        (c.demand.uid, c.demand.cost_bytes // MIB, c.held and c.held.by)
        for c in arbitrate(demands, fleet, spent, pending, NOW, shrink)
    ]


def test_the_fleet_serves_the_best_first_within_its_bounds():
    a, b, c = demand("a"), demand("b", files_saved=20), demand("c", priority=80)
    assert served([a, b, c], Fleet()) == [("c", 100, None), ("b", 100, None), ("a", 100, None)]
    plans, budget = HeldBy.FLEET_PLANS, HeldBy.FLEET_BUDGET
    assert served([a, b, c], Fleet(pending_plans=3), pending=1) == [("c", 100, None), ("b", 100, None), ("a", 100, plans)]
    assert served([a, b, c], Fleet(bytes_per_day=200 * MIB), spent=70 * MIB) == [
        ("c", 100, None),
        ("b", 30, None),
        ("a", 100, budget),
    ]


def test_small_demands_do_not_use_up_what_a_better_one_waits_for_but_pass_one_that_never_fits():
    def whole(found, max_bytes):
        return found if found.cost_bytes <= max_bytes else Held(HeldBy.NOT_DUE, "")

    large, small, huge = (
        demand("large", priority=90),
        demand("small", cost_bytes=MIB, priority=0),
        demand("huge", priority=99, cost_bytes=999 * MIB, files_saved=999),
    )
    fleet, held = Fleet(bytes_per_day=150 * MIB), HeldBy.FLEET_BUDGET
    assert served([large, small, huge], fleet, spent=100 * MIB, shrink=whole) == [
        ("huge", 999, held),
        ("large", 100, held),
        ("small", 1, held),
    ]
    assert served([small, huge], fleet, spent=100 * MIB, shrink=whole) == [("huge", 999, held), ("small", 1, None)]


@few
@given(st.lists(st.tuples(st.integers(30, 70), st.integers(1, 10)), min_size=2, max_size=5), st.integers(1, 3))
def test_every_table_is_served_whatever_its_priority(tables, plans):
    """New small files come to every table all the time, and the fleet serves `plans` an hour."""
    since = {f"t{n}": NOW for n in range(len(tables))}
    waiting = set(since)
    for hour in range(1, 2_000):
        now = NOW + timedelta(hours=hour)
        demands = [demand(f"t{n}", priority=p, files_saved=f, since=since[f"t{n}"]) for n, (p, f) in enumerate(tables)]
        for choice in arbitrate(demands, Fleet(pending_plans=plans), 0, 0, now, cut):
            if choice.held is None:
                since[choice.demand.uid] = now
                waiting.discard(choice.demand.uid)
        if not waiting:
            return
    raise AssertionError(f"never served: {waiting}")


def due(view, **trigger) -> Due:
    found = plan_clustering(view.state, PATH, view.options, SCHEMA, trigger=Trigger(2, 0, **trigger))
    assert isinstance(found, Due)
    return found


def test_the_last_check_refuses_plans_that_do_not_fit_the_state():
    view = table(FOUR)
    plan, check = due(view), plan_check(4 * MIB)
    assert check(view.state, plan) is None
    for damage, said in (
        (lambda s: s.replaced.update({FileGroupId("p", "f1"): "9"}), "does not exist or was replaced"),
        (
            lambda s: s.slices.update({FileGroupId("p", "f1"): {"2": FileSlice(FileGroupId("p", "f1"), "2", "g.parquet", 1, 1)}}),
            "other files",
        ),
        (lambda s: _pend(s, plan), "overlaps plan 9"),
        (lambda s: _grow(s, 2 * MIB), "reads 5242880 bytes, of 4194304"),
    ):
        state = view.state.copy()
        damage(state)
        refused = check(state, plan)
        assert isinstance(refused, Reason)
        assert said in refused.why


def _pend(state, plan):
    state.actions["9"] = ActionRecord("9", Action.REPLACE_COMMIT, State.REQUESTED, CLUSTER, 99, 99, "p")
    state.plans["9"] = plan.body


def _grow(state, size):
    group = FileGroupId("p", "f1")
    (held,) = state.slices[group].values()
    state.slices[group] = {held.base_instant: replace(held, size_bytes=size)}


def test_a_smaller_plan_is_one_of_whole_groups_within_the_bound():
    view, own = table([4 * MIB] * 6), policy()
    wanted = examine(CLUSTERING, view, own, THRESHOLDS, Ledger(), NOW)
    assert isinstance(wanted, Demand)
    assert wanted.cost_bytes == 24 * MIB
    sizes = [shrunk(wanted, view, own, THRESHOLDS, NOW, limit * MIB) for limit in (24, 17, 8, 7)]
    assert [found.cost_bytes // MIB if isinstance(found, Demand) else found.by for found in sizes] == [24, 16, 8, HeldBy.NOT_DUE]
