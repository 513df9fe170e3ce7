"""Which plans share an application, how each of them ended, and which lines of its log are its own: pure functions."""

import json
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.services.test_launcher_decision import plan

from tideline_launcher.application import Application, End, EndKind, PlanKey
from tideline_launcher.decision import Limits, TableLimits, decide
from tideline_launcher.history import History
from tideline_launcher.job_logs import plan_logs
from tideline_launcher.plan_ends import plan_ends
from tideline_launcher.resources import PlanWork, resources_for, shared
from tideline_launcher.settings import GIB, MIB, ResourceSettings, SharingSettings
from tideline_launcher.sharing import Candidate, batches, waiting_since
from tideline_spark.invocation import ExitCode
from tideline_spark.outcomes import PLAN_BEGINS, PLAN_ENDED, PLANS_BEGIN, Outcomes, PlanOutcome
from tideline_table.action import TableService
from tideline_table.errors import Recovery

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
SMALL, LARGE = PlanWork((MIB,)), PlanWork((GIB,) * 4)


def candidate(instant, size=0, since_s=0.0, table="t"):
    return Candidate(PlanKey(instant, table), size, since_s)


def grouped(candidates, **settings):
    return [[key.instant for key in b.keys] for b in batches(candidates, SharingSettings(**settings))]


def test_batches_are_filled_in_order_up_to_the_most_plans():
    candidates = [candidate(str(n), table=f"t{n % 3}") for n in range(7)]
    assert grouped(candidates, max_plans=3) == [["0", "1", "2"], ["3", "4", "5"], ["6"]]
    assert grouped(candidates, max_plans=1) == [[str(n)] for n in range(7)]
    assert grouped([], max_plans=3) == []


def test_batches_are_filled_up_to_the_most_bytes():
    sizes = [4, 4, 4, 11, 1, 9, 10, 2]
    candidates = [candidate(str(n), size) for n, size in enumerate(sizes)]
    assert grouped(candidates, max_plans=9, max_bytes=10) == [["0", "1"], ["2"], ["3"], ["4", "5"], ["6"], ["7"]]


def test_only_the_last_batch_waits_for_more_plans_until_its_oldest_plan_has_waited_enough():
    candidates = [candidate(str(n), since_s=100.0 + n) for n in range(5)]
    found = batches(candidates, SharingSettings(max_plans=2, max_wait_s=30))
    assert [b.not_before_s for b in found] == [100, 102, 134]
    assert batches(candidates[:4], SharingSettings(max_plans=2, max_wait_s=30))[-1].not_before_s == 102, "a full one does not wait"


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 3)), max_size=40), st.integers(1, 9), st.integers(1, 40))
def test_every_plan_is_in_one_batch_within_the_maxima(plans, most, most_bytes):
    candidates = [candidate(f"{n:03}", size, table=f"t{table}") for n, (size, table) in enumerate(plans)]
    found = batches(candidates, SharingSettings(max_plans=most, max_bytes=most_bytes))
    assert [key for b in found for key in b.keys] == [c.key for c in candidates]
    sizes = {c.key: c.input_bytes for c in candidates}
    for batch in found:
        assert 1 <= len(batch.keys) <= most
        assert len(batch.keys) == 1 or sum(sizes[key] for key in batch.keys) <= most_bytes


def test_a_plan_keeps_the_time_at_which_it_was_first_seen():
    one, two, three = (PlanKey(n, "t") for n in "123")
    assert waiting_since([two, three], {one: 1.0, two: 2.0}, 9.0) == {two: 2.0, three: 9.0}


def decided(plans, histories=None, most=9, running=(), now_s=0.0, since_s=None, alone=(), **sharing):
    limits = Limits(most, 3, ResourceSettings(), SharingSettings(**sharing))
    found = decide(plans, running, histories or {}, limits, now_s, since_s, alone)
    return [[p.key.instant for p in c.plans] for c in found.launch], found.wait_until_s


def test_small_plans_of_different_tables_share_an_application_and_large_ones_have_their_own():
    plans = [plan("1", work=SMALL), plan("2", work=LARGE, table="u"), plan("3", work=SMALL, table="v"), plan("4", work=SMALL)]
    assert decided(plans)[0] == [["1", "3", "4"], ["2"]]
    assert decided(plans, max_plans=1)[0] == [["1"], ["2"], ["3"], ["4"]]


def test_a_shared_application_takes_one_place_and_its_plans_are_not_launched_again():
    members = [
        Application(f"a{n}", PlanKey(n, "t"), 1, TableService.CLUSTERING, "/t", 0, 0, EPOCH, shared="shared-1") for n in "12"
    ]
    plans = [plan(n, work=SMALL) for n in "1234"]
    assert decided(plans, running=members, most=2)[0] == [["3", "4"]]
    assert decided(plans, running=members, most=1)[0] == []


def test_plans_that_a_driver_died_with_run_alone():
    plans = [plan(n, work=SMALL) for n in "1234"]
    histories = {PlanKey("2", "t"): History(attempt=1, is_alone=True), PlanKey("3", "t"): History(attempt=1)}
    assert decided(plans, histories)[0] == [["1", "3", "4"], ["2"]]
    assert decided([plan(n, table=n, work=SMALL) for n in "123"], alone={"2"})[0] == [["1", "3"], ["2"]]


def test_plans_that_wait_run_or_are_given_up_are_in_no_batch():
    plans = [plan("1", work=SMALL), plan("2", work=SMALL, driven=True), plan("3", work=SMALL), plan("4", work=SMALL)]
    histories = {PlanKey("3", "t"): History(not_before_s=5), PlanKey("4", "t"): History(failures=3)}
    assert decided(plans, histories)[0] == [["1"]]


def test_plans_whose_tables_have_other_limits_of_time_share_no_application():
    plans = [plan(n, table=n, work=SMALL, timeout_s=60 if n in "24" else 3600) for n in "12345"]
    assert decided(plans)[0] == [["1", "3", "5"], ["2", "4"]]


def test_a_table_whose_driver_only_bytes_are_less_has_an_application_of_its_own():
    own = TableLimits(3, ResourceSettings(driver_only_bytes=0))
    plans = [plan("1", work=SMALL), plan("2", work=SMALL, table="u", limits=own), plan("3", work=SMALL)]
    assert decided(plans)[0] == [["1", "3"], ["2"]]


def test_a_batch_that_waits_takes_no_place():
    plans = [plan("1", work=SMALL), plan("2", work=LARGE)]
    since_s = {PlanKey("1", "t"): 90.0}
    assert decided(plans, most=1, now_s=100, since_s=since_s, max_wait_s=30) == ([["2"]], 120.0)
    assert decided(plans, most=1, now_s=120, since_s=since_s, max_wait_s=30) == ([["1"]], None)


def test_a_driver_has_enough_for_each_of_its_plans():
    settings = ResourceSettings()
    wanted = [resources_for(PlanWork(sizes), settings) for sizes in ((MIB,), (MIB,) * 4, (200 * MIB,))]
    found = shared(wanted)
    assert (found.executors, found.cores) == (0, 2)
    assert found.driver_memory_bytes == max(r.driver_memory_bytes for r in wanted)


DIED = End(EndKind.OUT_OF_MEMORY, "OOMKilled", EPOCH, Recovery.STOP)
REPORT = Outcomes(
    frozenset(range(4)),
    {
        0: PlanOutcome(ExitCode.SUCCEEDED),
        1: PlanOutcome(ExitCode.FAILED, Recovery.STOP),
        2: PlanOutcome(ExitCode.YIELDED, Recovery.REFRESH),
    },
)


def kinds(plans, end, report):
    return [e.kind for e in plan_ends(plans, end, report)]


def test_a_death_ends_the_plan_that_ran_and_loses_those_that_had_not_begun():
    assert kinds(6, DIED, REPORT) == [
        EndKind.SUCCEEDED,
        EndKind.FAILED,
        EndKind.YIELDED,
        EndKind.OUT_OF_MEMORY,
        EndKind.LOST,
        EndKind.LOST,
    ]
    found = plan_ends(6, DIED, REPORT)
    assert [e.recovery for e in found] == [None, Recovery.STOP, Recovery.REFRESH, None, None, None], "no error of another plan"
    assert found[4].reason == "the shared application ended before this plan ran (out_of_memory: OOMKilled)"


@pytest.mark.parametrize("kind", [k for k in EndKind if k is not EndKind.NOT_STARTED])
def test_without_a_report_no_plan_is_blamed(kind):
    assert kinds(3, End(kind, "", EPOCH), Outcomes()) == [EndKind.LOST] * 3


def test_an_application_that_did_not_start_started_no_plan():
    assert kinds(2, End(EndKind.NOT_STARTED, "no image", EPOCH), Outcomes()) == [EndKind.NOT_STARTED] * 2


def test_the_end_of_a_single_plan_is_that_of_its_application():
    assert plan_ends(1, DIED, Outcomes()) == (DIED,)


@pytest.mark.parametrize("kind", [EndKind.LOST, EndKind.TIMED_OUT])
def test_a_plan_that_sigterm_ended_has_the_reason_of_the_signal(kind):
    report = Outcomes(frozenset({0}), {0: PlanOutcome(ExitCode.TERMINATED, Recovery.RETRY)})
    assert kinds(2, End(kind, "", EPOCH), report) == [kind, EndKind.LOST]


def mark(event, table="", instant=""):
    return json.dumps({"event": event, "table": table, "instant": instant}).encode() + b"\n"


def line_of(table, instant):
    return f"line of {table} {instant}\n".encode()


PLANS = [("/a", "1"), ("/b", "1"), ("/a", "2")]
LOG = b"".join(
    [
        b"start\n",
        mark(PLANS_BEGIN),
        *(b"".join([mark(PLAN_BEGINS, *p), line_of(*p), mark(PLAN_ENDED, *p), b"between\n"]) for p in PLANS[:2]),
        mark(PLAN_BEGINS, *PLANS[2]),
        line_of(*PLANS[2]),
        b'Killed "plan ended" {\n',
    ]
)


def test_a_plan_gets_its_own_lines_of_the_log_and_those_of_no_plan():
    for (table, instant), found in zip(PLANS, plan_logs(LOG, PLANS), strict=True):
        assert found.startswith(b"start\n")
        assert [p for p in PLANS if line_of(*p) in found] == [(table, instant)]
        assert found.count(b"between\n") == 2
    assert plan_logs(LOG, PLANS[2:])[0].endswith(b'Killed "plan ended" {\n'), "what came last belongs to the plan that ran"
    assert plan_logs(LOG, [("/c", "9")])[0] == b"start\n" + mark(PLANS_BEGIN) + b"between\n" * 2


def test_a_log_without_its_beginning_gives_no_plan_the_lines_of_another():
    for cut in range(len(LOG) + 1):
        for (table, instant), found in zip(PLANS, plan_logs(LOG[cut:], PLANS), strict=True):
            others = [p for p in PLANS if p != (table, instant)]
            assert not [p for p in others if f"{p[0]} {p[1]}\n".encode() in found], cut
