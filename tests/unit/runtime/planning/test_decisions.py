"""Golden decisions of the planner: what is due, what a policy lets pass, and who comes first. No I/O."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.property.profile import few

from tideline_runtime.planning import Demand, Held, HeldBy, Ledger, Thresholds, arbitrate, examine, score
from tideline_runtime.planning.examination import services_of, shrunk
from tideline_runtime.planning.ledger import rewrite_in
from tideline_runtime.policy import Fleet, parse_policies
from tideline_table.action import (
    Due,
    NotDue,
    TableService,
    Trigger,
    pending_bytes,
    pending_rewrites,
    plan_check,
    plan_clustering,
    plan_compaction,
    plan_log_compaction,
)
from tideline_table.config import Options
from tideline_table.coordination.capabilities import EXCLUSIVE, SHARED
from tideline_table.file_group import FileGroupId, FileSlice, LogFile
from tideline_table.hudi import Action, CommitMetadata, State
from tideline_table.hudi.instant import CLUSTER
from tideline_table.hudi.properties import CREATE_SCHEMA
from tideline_table.hudi.write_stats import WriteStat
from tideline_table.log import ActionRecord, Entry, Published, TableState
from tideline_table.log.action import COMPACT, LOG_COMPACT
from tideline_table.log.plan import CompactionPlanned
from tideline_table.schema.avro import avro_from_arrow
from tideline_table.table import TableDefinition, TableType, TableView

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)  # a Friday
MIB = 1 << 20
CLUSTERING, COMPACTION, LOG_COMPACTION = TableService.CLUSTERING, TableService.COMPACTION, TableService.LOG_COMPACTION
SCHEMA = pa.schema([("id", pa.string()), ("at", pa.int64())])
PATH = "s3://lake/t"
DEFINITION = TableDefinition.from_properties(
    {
        "hoodie.table.name": "t",
        "hoodie.table.version": "6",
        "hoodie.table.type": "MERGE_ON_READ",
        CREATE_SCHEMA: avro_from_arrow(SCHEMA, "t"),
    }
)
THRESHOLDS = Thresholds(min_files=3, min_commits=2)


def at(hours: float) -> str:
    """The instant so many hours before NOW."""
    return f"{NOW - timedelta(hours=hours):%Y%m%d%H%M%S}000"


def table(sizes=(), *, writes=4, log_bytes=0, log_age_h=1.0, failed=(), options=None, delta_commits=False) -> TableView:
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
    return TableView(PATH, "uid", PATH, DEFINITION, state, Options(options or {}), EXCLUSIVE, holds_keys_once=False)


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
    assert ("due" if isinstance(found, Demand) else found.by.value, why in found.reason) == (verdict, True), found


def planned_before(view, service, *, ended_min, state=State.COMPLETED, groups=()):
    """The view with a plan of the service that began behind all writes so far, and ended so many minutes ago."""
    action, operation = (Action.COMPACTION, COMPACT) if service is COMPACTION else (Action.REPLACE_COMMIT, CLUSTER)
    ended = (NOW - timedelta(minutes=ended_min)).isoformat()
    view.state.actions["5"] = ActionRecord("5", action, state, operation, 501, 500, "p", ended)
    if state is not State.COMPLETED:
        named = [{"partitionPath": "p", "fileId": g, "baseInstantTime": at(9), "deltaFilePaths": []} for g in groups]
        view.state.plans["5"] = CompactionPlanned({"operations": named})
    return view


def logged(view, name, *, sequence, log_age_h=0.1):
    """The view with one more write, which appended to file group `name`."""
    instant, group = at(log_age_h), FileGroupId("p", name)
    view.state.actions[instant] = ActionRecord(instant, Action.DELTA_COMMIT, State.COMPLETED, "UPSERT", sequence, sequence - 1, "w")
    (held,) = view.state.slices[group].values()
    more = LogFile(f".{name}_2.log.2_0-0-0", MIB, instant, 2)
    view.state.slices[group] = {held.base_instant: replace(held, log_files=(*held.log_files, more))}
    return view


def decision(service, view, text="", thresholds=THRESHOLDS):
    found = examine(service, view, policy(text), thresholds, Ledger(), NOW)
    return "due" if isinstance(found, Demand) else (found.by.value, found.until and (found.until - NOW).total_seconds())


AGED = "objectives: {unmerged_log_age: 30m}"


def merging(log_bytes=MIB):
    """Five delta commits, whose log files wait in two of three file groups."""
    view = table([MIB] * 2, writes=5, log_bytes=log_bytes, delta_commits=True)
    view.state.slices |= table([MIB] * 3).state.slices | view.state.slices
    return view


def test_an_urgent_objective_is_met_although_no_write_came_since_a_plan_that_was_too_small():
    assert decision(COMPACTION, planned_before(merging(), COMPACTION, ended_min=1)) == ("not_due", 9 * 60)
    assert decision(COMPACTION, planned_before(merging(), COMPACTION, ended_min=1), AGED) == "due"
    # One plan at a time, so that the bound on a plan bounds what is rewritten at once.
    pending = planned_before(merging(), COMPACTION, ended_min=1, state=State.REQUESTED, groups=["f0"])
    assert decision(COMPACTION, pending, AGED) == ("not_due", None)
    assert decision(COMPACTION, logged(pending, "f1", sequence=600), AGED) == "due"


def test_what_a_compaction_left_over_is_planned_after_the_interval():
    assert decision(COMPACTION, planned_before(merging(), COMPACTION, ended_min=9)) == ("not_due", 60)
    assert decision(COMPACTION, planned_before(merging(), COMPACTION, ended_min=10)) == "due"
    assert (
        decision(COMPACTION, planned_before(merging(), COMPACTION, ended_min=1), thresholds=replace(THRESHOLDS, interval_s=60))
        == "due"
    )
    pending = planned_before(merging(), COMPACTION, ended_min=99)
    pending.state.actions["4"] = ActionRecord("4", Action.COMPACTION, State.INFLIGHT, COMPACT, 490, 489, "p", "")
    assert decision(COMPACTION, pending) == ("not_due", None), "one plan after the other"


def test_log_files_that_came_since_the_last_compaction_wait_for_more_of_them():
    """Otherwise a table with one write an hour would be rewritten each hour."""
    fresh = logged(planned_before(table([MIB] * 3, delta_commits=True), COMPACTION, ended_min=99), "f0", sequence=600)
    assert decision(COMPACTION, fresh) == ("not_due", None)


def test_what_a_strategy_leaves_out_is_not_left_over():
    """Another job takes it. Plans of the rest must not come every ten minutes because of it."""
    view = logged(planned_before(merging(), COMPACTION, ended_min=99), "f2", sequence=600)
    least = {"hoodie.compaction.strategy": "log_size", "hoodie.compaction.logfile.size.threshold": MIB}
    for log_bytes, verdict in ((MIB, "due"), (1, ("not_due", None))):
        view = logged(planned_before(merging(log_bytes), COMPACTION, ended_min=99), "f2", sequence=600)
        assert decision(COMPACTION, replace(view, options=Options(least))) == verdict


def test_what_a_clustering_left_over_is_planned_after_the_interval():
    assert decision(CLUSTERING, planned_before(table(FOUR), CLUSTERING, ended_min=9)) == ("not_due", 60)
    assert decision(CLUSTERING, planned_before(table(FOUR), CLUSTERING, ended_min=10)) == "due"
    # Outputs of clusterings, and files that came since, are not left over.
    for base_instant in ("3", "5", at(0.1)):
        view = planned_before(table(), CLUSTERING, ended_min=99)
        view.state.actions["3"] = ActionRecord("3", Action.REPLACE_COMMIT, State.COMPLETED, CLUSTER, 480, 479, "p")
        view.state.actions[at(0.1)] = ActionRecord(at(0.1), Action.COMMIT, State.COMPLETED, "INSERT", 600, 599, "w")
        for n in range(4):
            group = FileGroupId("p", f"f{n}")
            view.state.slices[group] = {base_instant: FileSlice(group, base_instant, f"f{n}.parquet", MIB, 1)}
        assert decision(CLUSTERING, view) == ("not_due", None)


@pytest.mark.parametrize(
    ("kind", "found"),
    [
        ({}, "due"),
        ({"definition": replace(DEFINITION, type=TableType.COW)}, "for merge-on-read tables only"),
        ({"capabilities": SHARED}, "not for tables that Apache Hudi writes"),
    ],
)
@pytest.mark.parametrize("text", ["", "objectives: {small_files: 2}"])
def test_a_clustering_with_carry_over_is_due_only_where_a_plan_of_it_can_be_made(kind, found, text):
    """Otherwise the fleet's budget and number of plans would be charged for a plan that is refused at its publication."""
    view = replace(table(FOUR, options={"hoodie.clustering.updates.strategy": "carry-over"}), **kind)
    decided = examine(CLUSTERING, view, policy(text), THRESHOLDS, Ledger(), NOW)
    if found == "due":
        assert isinstance(decided, Demand)
    else:
        assert isinstance(decided, Held)
        assert (decided.by, found in decided.reason, decided.until) == (HeldBy.NOT_DUE, True, None), decided
        other = replace(view, options=Options({}))
        assert isinstance(examine(CLUSTERING, other, policy(text), THRESHOLDS, Ledger(), NOW), Demand)


def test_a_back_off_is_never_zero():
    view, at_once = table(FOUR, failed=[0]), replace(THRESHOLDS, backoff_s=0.0)
    assert decision(CLUSTERING, view, thresholds=at_once) == ("backing_off", 1.0)


def test_a_cancelled_compaction_is_not_planned_again_at_once():
    def cancelled(ended_min):
        view = merging()
        ended = (NOW - timedelta(minutes=ended_min)).isoformat()
        view.state.actions["8"] = ActionRecord("8", Action.COMPACTION, State.ROLLED_BACK, COMPACT, 80, 79, "p", "", "9")
        view.state.actions["9"] = ActionRecord("9", Action.ROLLBACK, State.COMPLETED, "", 82, 81, "p", ended)
        return view

    assert decision(COMPACTION, cancelled(1)) == ("backing_off", 9 * 60)
    assert decision(COMPACTION, cancelled(10)) == "due"
    assert decision(COMPACTION, cancelled(1), AGED) == ("backing_off", 9 * 60), "a user wanted it"


def many_logs(files=5, *, log_bytes=MIB, base_bytes=64 * MIB, delta_commits=4, options=None, merged=False, name="f0"):
    """File groups f0 and f1, of which one has so many log files."""
    enabled = {"hoodie.log.compaction.enable": True, **(options or {})}
    view = table([base_bytes] * 2, writes=delta_commits, delta_commits=True, options=enabled)
    group = FileGroupId("p", name)
    names = [(n, f".{name}_{at(9)}.log.{n}_0-1-1") for n in range(1, files + 1)]
    logs = tuple(LogFile(text, log_bytes, at(8 - n / 10), n) for n, text in names)
    if merged:
        logs += (LogFile(f".{name}_{at(9)}.log.{files}_0-9-9", log_bytes, at(1), files, merges_earlier=True),)
    (held,) = view.state.slices[group].values()
    view.state.slices[group] = {at(9): replace(held, log_files=logs)}
    return view


def log_compaction(state, *, view, minutes=1.0):
    """The view with a log compaction of f0 in this state."""
    view.state.actions["8"] = ActionRecord("8", Action.LOG_COMPACTION, state, LOG_COMPACT, 80, 79, "p", "", "9")
    if state is State.ROLLED_BACK:
        ended = (NOW - timedelta(minutes=minutes)).isoformat()
        view.state.actions["9"] = ActionRecord("9", Action.ROLLBACK, State.COMPLETED, "", 82, 81, "p", ended)
    else:
        view.state.actions["8"] = replace(view.state.actions["8"], fenced_by="")
        view.state.plans["8"] = CompactionPlanned({"operations": [{"partitionPath": "p", "fileId": "f0"}]})
    return view


AT_NIGHT = "windows: [{from: '22:00', to: '05:00', time_zone: UTC}]"


@pytest.mark.parametrize(
    ("view", "text", "spent", "verdict", "why"),
    [
        (many_logs(), "", 0, "due", "1 slice(s) have 5 log files or more"),
        (many_logs(4), "", 0, "not_due", "at most 4 log file(s)"),
        (many_logs(4, options={"hoodie.log.compaction.blocks.threshold": 4}), "", 0, "due", ""),
        (many_logs(merged=True), "", 0, "not_due", "at most 1 log file(s)"),
        (many_logs(log_bytes=30 * MIB), "", 0, "not_due", "more log bytes than tideline.log.compaction.max.bytes"),
        (many_logs(), "services: {logcompaction: false}", 0, "off", "off by defaults"),
        (many_logs(), "pause: {reason: audit}", 0, "paused", "audit"),
        (many_logs(), AT_NIGHT, 0, "window", "2026-11-20 22:00"),
        (many_logs(), "budget: {bytes_per_day: 5 MiB}", 0, "due", ""),
        (many_logs(), "budget: {bytes_per_day: 5 MiB}", 1, "budget", "the plan reads 5242880"),
        # A compaction that may run now merges the same files. One that is held leaves readers with them.
        (many_logs(delta_commits=5), "", 0, "not_due", "a compaction is due"),
        (many_logs(delta_commits=5), "services: {compaction: false}", 0, "due", ""),
        (many_logs(delta_commits=5), "budget: {bytes_per_day: 50 MiB}", 0, "due", ""),
        (log_compaction(State.ROLLED_BACK, view=many_logs(), minutes=0.1), "", 0, "backing_off", "logcompaction was rolled back"),
        (log_compaction(State.ROLLED_BACK, view=many_logs()), "", 0, "due", ""),
        (log_compaction(State.REQUESTED, view=many_logs()), "", 0, "not_due", "log compaction 8 is pending"),
        (log_compaction(State.INFLIGHT, view=many_logs(name="f1")), "", 0, "not_due", "log compaction 8 is pending"),
    ],
)
def test_when_log_files_are_merged(view, text, spent, verdict, why):
    ledger = Ledger(((NOW - timedelta(hours=2), spent),) if spent else ())
    found = examine(LOG_COMPACTION, view, policy(text), THRESHOLDS, ledger, NOW)
    assert ("due" if isinstance(found, Demand) else found.by.value, why in found.reason) == (verdict, True), found


def test_a_log_compaction_costs_its_log_files_and_saves_readers_all_but_one():
    found = examine(LOG_COMPACTION, many_logs(), policy(), THRESHOLDS, Ledger(), NOW)
    assert isinstance(found, Demand)
    assert (found.cost_bytes, found.files_saved, found.log_bytes) == (5 * MIB, 4, 0)
    assert found.since == NOW - timedelta(hours=7.9)
    smaller = shrunk(found, many_logs(), policy(), THRESHOLDS, NOW, 4 * MIB)
    assert isinstance(smaller, Held)


def test_log_compaction_is_examined_where_it_is_possible_and_switched_on():
    assert services_of(many_logs()) == (CLUSTERING, COMPACTION, LOG_COMPACTION)
    assert services_of(table(FOUR)) == (CLUSTERING, COMPACTION)
    assert services_of(replace(many_logs(), capabilities=SHARED)) == (CLUSTERING, COMPACTION)


def test_its_bytes_count_for_budgets():
    view = log_compaction(State.REQUESTED, view=many_logs())
    assert pending_bytes(view.state) == 5 * MIB
    assert [(service, record.instant) for service, record in pending_rewrites(view.state)] == [(LOG_COMPACTION, "8")]
    stat = WriteStat("f0", "p", ".f0_1.log.1_0-1-1", "", 1, file_size_bytes=7)
    body = Published(CommitMetadata(LOG_COMPACT, (stat,), {}, compacted=True))
    entry = Entry(9, "", NOW.isoformat(), "w", "8", Action.LOG_COMPACTION, State.INFLIGHT, State.COMPLETED, LOG_COMPACT, body)
    assert rewrite_in(entry) == (NOW, 7)


def test_the_budget_of_a_table_is_charged_for_its_pending_plans():
    """No entry of the ledger has them yet."""
    view = planned_before(table([MIB] * 8, log_bytes=MIB), COMPACTION, ended_min=0, state=State.REQUESTED, groups=["f0"])
    assert pending_bytes(view.state) == 2 * MIB
    ledger = Ledger(((NOW - timedelta(hours=2), MIB),))
    found = examine(CLUSTERING, view, policy("budget: {bytes_per_day: 100 MiB}"), THRESHOLDS, ledger, NOW)
    assert isinstance(found, Demand)
    assert found.max_bytes == (100 - 1 - 2) * MIB


def test_the_last_check_of_a_log_compaction_and_of_plans_beside_it():
    view = many_logs()
    merging = plan_log_compaction(view.state, view.options)
    compacting = plan_compaction(view.state, view.options, now=NOW, min_commits=0)
    assert isinstance(merging, Due)
    assert isinstance(compacting, Due)
    assert plan_check(LOG_COMPACTION, 5 * MIB)(view.state, merging) is None
    assert "reads 5242880 bytes" in _refusal(plan_check(LOG_COMPACTION, 4 * MIB), view, merging)
    planned = log_compaction(State.REQUESTED, view=many_logs())
    assert "overlaps plan 8" in _refusal(plan_check(LOG_COMPACTION), planned, merging)
    assert plan_check(COMPACTION)(planned.state, compacting) is None, "it gives way"
    running = log_compaction(State.INFLIGHT, view=many_logs())
    assert "overlaps plan 8" in _refusal(plan_check(COMPACTION), running, compacting)
    assert "other files" in _refusal(plan_check(LOG_COMPACTION), many_logs(6), merging)
    assert "other files" in _refusal(plan_check(LOG_COMPACTION), many_logs(merged=True), merging)
    grown = many_logs(merged=True, options={"hoodie.log.compaction.blocks.threshold": 2})
    (held,) = grown.state.slices[FileGroupId("p", "f0")].values()
    more = LogFile(f".f0_{at(9)}.log.6_0-1-1", MIB, at(0.5), 6)
    grown.state.slices[held.group] = {at(9): replace(held, log_files=(*held.log_files, more))}
    again = plan_log_compaction(grown.state, grown.options)
    assert isinstance(again, Due)
    assert plan_check(LOG_COMPACTION, 2 * MIB)(grown.state, again) is None, "it reads what readers open"


def _refusal(check, view, plan) -> str:
    refused = check(view.state, plan)
    assert isinstance(refused, NotDue)
    return refused.reason


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


def test_what_waits_for_the_budget_of_the_fleet_says_when_some_of_it_is_free_again():
    frees_at = NOW + timedelta(hours=2)
    found = arbitrate([demand()], Fleet(bytes_per_day=MIB), MIB, 0, NOW, cut, frees_at)
    assert [(c.held and (c.held.by, c.held.until)) for c in found] == [(HeldBy.FLEET_BUDGET, frees_at)]


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
    plan, check = due(view), plan_check(CLUSTERING, 4 * MIB)
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
        assert isinstance(refused, NotDue)
        assert said in refused.reason


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
