import json
import signal
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from tideline_launcher.application import Application, End, EndKind, Place, PlanKey
from tideline_launcher.failure import cause_in, exit_text, kind_of_exit, recovery_in
from tideline_launcher.history import LOSSES_AT_ONCE, History, history_of
from tideline_runtime.loop import Backoff
from tideline_runtime.redaction import HIDDEN
from tideline_spark.invocation import ExitCode
from tideline_table.action import TableService
from tideline_table.errors import Recovery

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
BACKOFF = Backoff(5, 60)


def ended(kind, attempt=1, recovery=None, step=0):
    end = None if kind is None else End(kind, "", EPOCH, recovery)
    return Application("x", PlanKey("1", "t"), attempt, TableService.COMPACTION, "/t", 0, step, EPOCH, end=end)


def after(*kinds, can_grow=True):
    history = History()
    for attempt, kind in enumerate(kinds, 1):
        history = history.after(ended(kind, attempt, step=history.memory_step), 100, BACKOFF, can_grow=can_grow)
    return history


@pytest.mark.parametrize(
    ("code", "kind", "text"),
    [
        (0, EndKind.SUCCEEDED, ""),
        (ExitCode.YIELDED, EndKind.YIELDED, "exit code 3"),
        (ExitCode.SUPERSEDED, EndKind.SUPERSEDED, "exit code 4"),
        (1, EndKind.FAILED, "exit code 1"),
        (11, EndKind.FAILED, "exit code 11"),
        (137, EndKind.FAILED, "exit code 137 (SIGKILL)"),
        (-9, EndKind.FAILED, "exit code -9 (SIGKILL)"),
        (ExitCode.TERMINATED, EndKind.LOST, "exit code 143"),
        (-signal.SIGTERM, EndKind.LOST, "exit code -15 (SIGTERM)"),
        (255, EndKind.FAILED, "exit code 255"),
    ],
)
def test_exit_codes(code, kind, text):
    assert (kind_of_exit(code), exit_text(code)) == (kind, text)


def test_the_recovery_of_the_error_is_in_the_log():
    error = json.dumps({"event": "clustering ended without a commit", "recovery": "stop", "exit_code": 1})
    assert (
        recovery_in(f'{{"recovery": "retry"}}\n{error}\n26/01/01 INFO ShutdownHookManager: Shutdown "recovery"\n') is Recovery.STOP
    )
    assert recovery_in(error.replace("stop", "refresh")) is Recovery.REFRESH
    for other in (
        "",
        "Killed",
        '{"recovery": "stop"}',
        '{"recovery": "other", "exit_code": 1}',
        '{"recovery": ',
        "[" * 100_000 + '"recovery"',
    ):
        assert recovery_in(other) is None
        assert cause_in(other) == ""


def test_the_cause_is_one_line_whatever_the_error_found():
    error = {
        "error": "StorageError",
        "found": "no answer of https://u:pass@store.example\n\tat Driver.run\n" + "x" * 100_000,
        "recovery": "retry",
        "exit_code": 1,
    }
    cause = cause_in(json.dumps(error))
    assert cause.startswith(f"StorageError: no answer of https://u:{HIDDEN}@store.example at Driver.run xxx")
    assert len(cause) < 1000


def test_failures_count_and_are_tried_again_at_once():
    assert after(EndKind.FAILED, EndKind.TIMED_OUT) == History(attempt=2, failures=2, is_alone=True, cause="timed_out")


def test_a_permanent_error_of_the_table_is_hopeless():
    history = History().after(ended(EndKind.FAILED, recovery=Recovery.STOP), 0, BACKOFF, can_grow=True)
    assert history.is_exhausted(3)
    history = History().after(ended(EndKind.FAILED, recovery=Recovery.RETRY), 0, BACKOFF, can_grow=True)
    assert not history.is_exhausted(3)


def test_losses_do_not_count_and_wait_only_after_several():
    few = after(*[EndKind.LOST] * LOSSES_AT_ONCE)
    assert (few.failures, few.not_before_s) == (0, 100)
    assert [after(*[EndKind.LOST] * (LOSSES_AT_ONCE + n)).not_before_s for n in (1, 2, 3, 50)] == [105, 110, 120, 160]


def test_what_does_not_start_waits_longer_and_longer():
    assert [after(*[EndKind.NOT_STARTED] * n).not_before_s for n in (1, 2, 3, 50)] == [105, 110, 120, 160]
    assert after(*[EndKind.NOT_STARTED] * 50).failures == 0


def test_a_plan_that_is_still_pending_after_a_yield_waits():
    assert after(EndKind.YIELDED).not_before_s == 105


def test_out_of_memory_takes_a_step_or_counts():
    assert after(EndKind.OUT_OF_MEMORY, EndKind.OUT_OF_MEMORY) == History(attempt=2, memory_step=2, is_alone=True)
    assert after(EndKind.OUT_OF_MEMORY, can_grow=False) == History(attempt=1, failures=1, is_alone=True, cause="out_of_memory")


def test_the_history_of_pods_left_by_another_launcher():
    pods = [ended(EndKind.OUT_OF_MEMORY, 3), ended(EndKind.FAILED, 1), ended(EndKind.LOST, 2), ended(None, 4)]
    expected = History(attempt=4, failures=1, memory_step=1, not_before_s=7, is_alone=True, cause="failed")
    assert history_of(pods, 7, BACKOFF) == expected
    assert history_of([], 7, BACKOFF) == History()


@pytest.mark.parametrize(
    ("kind", "is_alone"),
    [
        (EndKind.SUCCEEDED, False),
        (EndKind.YIELDED, False),
        (EndKind.SUPERSEDED, False),
        (EndKind.NOT_STARTED, False),
        (EndKind.FAILED, True),
        (EndKind.TIMED_OUT, True),
        (EndKind.OUT_OF_MEMORY, True),
        (EndKind.LOST, True),
    ],
)
def test_a_plan_that_was_in_a_driver_that_died_shares_no_further_one(kind, is_alone):
    assert after(kind).is_alone is is_alone
    assert after(kind, EndKind.NOT_STARTED).is_alone is is_alone, "it stays so"
    assert History().disturbed(0, BACKOFF, 0).is_alone is False, "a refused launch says nothing about the plan"


@pytest.mark.parametrize(
    ("kind", "recovery", "needs_spark"),
    [
        (EndKind.OUT_OF_MEMORY, None, True),
        (EndKind.TIMED_OUT, None, True),
        (EndKind.FAILED, None, True),
        (EndKind.FAILED, Recovery.RETRY, True),
        (EndKind.FAILED, Recovery.STOP, True),
        (EndKind.LOST, None, True),
        (EndKind.NOT_STARTED, None, True),
        (EndKind.YIELDED, None, False),
        (EndKind.SUCCEEDED, None, False),
    ],
)
def test_a_plan_that_a_worker_did_not_bear_runs_on_spark_from_then_on(kind, recovery, needs_spark):
    in_worker = replace(ended(kind, recovery=recovery), place=Place.WORKER)
    history = History().after(in_worker, 100, BACKOFF, can_grow=True)
    assert history.needs_spark is needs_spark
    assert not history.is_hopeless, "Spark has another image and another memory"
    assert history.after(ended(EndKind.LOST, 2), 100, BACKOFF, can_grow=True).needs_spark is needs_spark
    assert not History().after(ended(kind, recovery=recovery), 100, BACKOFF, can_grow=True).needs_spark, "it was on Spark"
