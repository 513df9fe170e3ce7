"""What every platform of applications promises."""

import pytest
from tests.contract.launcher.conftest import all_ended, application, ended, wait_until

from tideline_launcher.application import EndKind
from tideline_table.errors import Recovery


def test_a_launched_application_is_known(platform):
    applications = platform.open()
    assert applications.known() == []
    spec = platform.spec(EndKind.SUCCEEDED)
    applications.launch(spec)
    found = application(applications, spec.name)
    (plan,) = spec.plans
    assert (found.key, found.attempt, found.service, found.base_path) == (plan.key, 1, plan.service, plan.base_path)
    assert (found.end, found.condition, found.is_collected) == (None, None, False)
    assert [a.name for a in applications.attempts([spec.plans[0].key])] == [spec.name]


def test_a_name_is_launched_once(platform):
    applications = platform.open()
    spec = platform.spec(EndKind.SUCCEEDED)
    for _ in range(3):
        applications.launch(spec)
    assert [a.name for a in applications.known()] == [spec.name]
    platform.let_end(spec.name, EndKind.SUCCEEDED)
    end = ended(applications, spec.name).end
    applications.launch(spec)
    assert application(applications, spec.name).end == end, "one that has ended is not started again"


@pytest.mark.parametrize(
    ("kind", "reason", "recovery"),
    [
        (EndKind.SUCCEEDED, "", None),
        (EndKind.SUPERSEDED, "exit code 4", None),
        (EndKind.FAILED, "exit code 1", Recovery.STOP),
    ],
)
def test_an_end_has_kind_reason_and_recovery(platform, kind, reason, recovery):
    applications = platform.open()
    spec = platform.spec(kind)
    applications.launch(spec)
    platform.let_end(spec.name, kind)
    end = ended(applications, spec.name).end
    assert (end.kind, end.reason) == (kind, reason)
    assert recovery in (end.recovery, None)


def test_a_killed_application_failed(platform):
    applications = platform.open()
    spec = platform.spec(EndKind.SUCCEEDED)
    applications.launch(spec)
    platform.kill(spec.name)
    end = ended(applications, spec.name).end
    assert (end.kind, end.reason.rpartition(" ")[2]) == (EndKind.FAILED, "(SIGKILL)")


def test_the_end_of_the_log(platform):
    applications = platform.open()
    spec = platform.spec(EndKind.FAILED)
    applications.launch(spec)
    platform.let_end(spec.name, EndKind.FAILED)
    ended(applications, spec.name)
    whole = applications.log_tail(spec.name, 1_000_000)
    assert b'"recovery": "stop"' in whole
    assert applications.log_tail(spec.name, 40) == whole[-40:]
    assert applications.log_tail("no-such-application", 40) == b""


def test_a_collected_application_makes_room_for_the_next_attempt(platform):
    applications = platform.open()
    spec = platform.spec(EndKind.FAILED)
    applications.launch(spec)
    platform.let_end(spec.name, EndKind.FAILED)
    ended(applications, spec.name)
    applications.collect(spec.name)
    wait_until(lambda: not [a for a in applications.known() if not a.is_collected])
    applications.collect(spec.name)
    following = platform.spec(EndKind.FAILED, 2)
    applications.launch(following)
    assert [a.name for a in applications.attempts([spec.plans[0].key]) if a.end is None] == [following.name]


def test_a_further_launcher_finds_what_outlived_the_first(platform):
    first = platform.open()
    spec = platform.spec(EndKind.SUCCEEDED)
    first.launch(spec)
    platform.close(first)
    further = platform.open()
    assert [a.name for a in further.known()] == ([spec.name] if platform.outlives_launchers else [])
    further.launch(spec)
    platform.let_end(spec.name, EndKind.SUCCEEDED)
    assert ended(further, spec.name).end.kind is EndKind.SUCCEEDED


KINDS = (EndKind.SUCCEEDED, EndKind.FAILED, EndKind.SUPERSEDED, EndKind.SUCCEEDED)


def test_each_plan_of_an_application_is_known(platform):
    applications = platform.open()
    spec = platform.shared_spec(*KINDS)
    for _ in range(2):
        applications.launch(spec)
    found = [a for a in applications.known() if a.driver == spec.name]
    assert [(a.name, a.key, a.attempt, a.service, a.base_path) for a in found] == [
        (p.name, p.key, p.attempt, p.service, p.base_path) for p in spec.plans
    ]
    assert {(a.shared, a.executors, a.end, a.is_collected) for a in found} == {(spec.name, 0, None, False)}
    for plan in spec.plans:
        assert plan.name in [a.name for a in applications.attempts([plan.key])]
    assert len(applications.attempts([p.key for p in spec.plans])) == len(spec.plans)


def test_each_plan_of_an_application_has_its_end(platform):
    applications = platform.open()
    spec = platform.shared_spec(*KINDS)
    applications.launch(spec)
    platform.let_all_end(spec.name, KINDS)
    found = all_ended(applications, spec.name)
    assert [a.end.kind for a in found] == list(KINDS)
    assert [a.end.recovery for a in found if a.end.kind is EndKind.FAILED] == [Recovery.STOP]
    applications.collect(spec.name)
    wait_until(lambda: all(a.is_collected for a in applications.known() if a.driver == spec.name))


def test_an_application_that_was_killed_before_its_first_plan_blames_none(platform):
    applications = platform.open()
    spec = platform.shared_spec(*KINDS)
    applications.launch(spec)
    platform.kill(spec.name)
    assert [a.end.kind for a in all_ended(applications, spec.name)] == [EndKind.LOST] * len(KINDS)


def test_a_launcher_that_follows_a_killed_one_knows_each_attempt(platform):
    first = platform.open()
    spec = platform.shared_spec(*KINDS)
    first.launch(spec)
    platform.kill_launcher(first)
    further = platform.open()
    found = [a for a in further.known() if a.driver == spec.name]
    assert [(a.name, a.key, a.attempt) for a in found] == [(p.name, p.key, p.attempt) for p in spec.plans]
    if not platform.outlives_launchers:
        assert [a.end.kind for a in found] == [EndKind.LOST] * len(KINDS)
        further.collect(spec.name)
        platform.close(further)
        assert platform.open().known() == [], "once only"
    else:
        assert [a.end for a in found] == [None] * len(KINDS)


def test_closing_is_safe_without_applications(platform):
    applications = platform.open()
    platform.close(applications)
    assert platform.opened == []
