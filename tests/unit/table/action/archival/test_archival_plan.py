"""Which instants leave the timeline: the selection of Apache Hudi 0.15 (format reference 7), and what Tideline adds to it."""

from __future__ import annotations

import re
from datetime import UTC, datetime

import pytest
from tests.unit.table.tables import History, base_stat, instant, log_stat

from tideline_table.action.archival.late_files import due
from tideline_table.action.archival.plan import Bounds, archivable, barriers, bounds, held_back
from tideline_table.action.clean.plan import CleanResult, clean_metadata, plan_clean
from tideline_table.action.decision import Due
from tideline_table.config import ARCHIVAL_MIN_AGE_S, KEEP_MAX_COMMITS, KEEP_MIN_COMMITS, Options
from tideline_table.errors import InvalidOption
from tideline_table.file_group.slice import FileGroupId
from tideline_table.hudi.instant import Action, State
from tideline_table.log.plan import ArchivedInstants
from tideline_table.log.state import TableState

OPTIONS = Options({"hoodie.keep.min.commits": 3, "hoodie.keep.max.commits": 5, "hoodie.cleaner.commits.retained": 2})
LATER = datetime(2026, 1, 2, tzinfo=UTC)


def leaving(
    history: History, saved: frozenset[str] = frozenset(), cleaned_up: frozenset[str] = frozenset(), **options: object
) -> list[str]:
    found = archivable(history.state, OPTIONS.merged(options), LATER, saved, cleaned_up)
    return list(found.instants) if found else []


def committed(count: int, start: int = 1) -> History:
    history = History()
    for n in range(start, start + count):
        history.commit(instant(n), base_stat(f"f{n}", instant(n)))
    return history


def clean(history: History, at: str, retained: int = 2) -> None:
    due = plan_clean(history.state, "memory:/t", OPTIONS.merged({"hoodie.cleaner.commits.retained": retained}))
    assert isinstance(due, Due)
    plan = due.body.plan
    files = {p: tuple(f["filePath"].rsplit("/", 1)[-1] for f in fs) for p, fs in plan["filePathsToBeDeletedPerPartition"].items()}
    history.clean(at, plan, clean_metadata(at, plan, CleanResult(files), 1))


def test_nothing_leaves_before_there_are_too_many():
    assert leaving(committed(5)) == []
    assert leaving(committed(6)) == [instant(n) for n in (1, 2, 3)]


def test_the_plan_says_where_the_timeline_begins_then():
    found = archivable(committed(7).state, OPTIONS, LATER)
    assert found == ArchivedInstants(tuple(instant(n) for n in (1, 2, 3, 4)), instant(5))


@pytest.mark.parametrize(("least", "most", "retained"), [(2, 5, 2), (5, 4, 2)])
def test_numbers_that_do_not_fit_together(least, most, retained):
    options = OPTIONS.merged(
        {"hoodie.keep.min.commits": least, "hoodie.keep.max.commits": most, "hoodie.cleaner.commits.retained": retained}
    )
    with pytest.raises(InvalidOption, match=re.escape("hoodie.keep.min.commits")):
        archivable(committed(9).state, options, LATER)


def test_the_defaults_fit_together():
    defaults = Options()
    assert archivable(committed(30).state, defaults, LATER) is None
    found = archivable(committed(31).state, defaults, LATER)
    assert found is not None
    assert len(found.instants) == 31 - defaults[KEEP_MIN_COMMITS]
    assert defaults[KEEP_MAX_COMMITS] == 30


def test_what_is_not_set_follows_from_what_cleaning_retains():
    assert bounds(Options()) == Bounds(20, 30)
    assert bounds(Options({"hoodie.cleaner.commits.retained": 24})) == Bounds(34, 44)
    assert bounds(Options({"hoodie.keep.min.commits": 25})) == Bounds(25, 35)


def test_what_ended_just_now_stays():
    history = committed(8)
    now = datetime(2026, 1, 1, 0, 59, 59, tzinfo=UTC)
    assert archivable(history.state, OPTIONS, now) is None
    assert "less than 3600 s ago" in held_back(history.state, OPTIONS, now).reason
    assert archivable(history.state, OPTIONS.merged({ARCHIVAL_MIN_AGE_S.key: 60}), now) is not None


@pytest.mark.parametrize("action", [Action.COMMIT, Action.DELTA_COMMIT])
def test_stops_at_the_newest_write_before_the_oldest_pending_one(action):
    """The timeline has to begin before it: files of what is older than the timeline count as committed (#10964)."""
    history = committed(3)
    history.begin(instant(4), action)
    for n in range(5, 10):
        history.commit(instant(n), base_stat(f"f{n}", instant(n)))
    assert leaving(history) == [instant(1), instant(2)]
    assert instant(4) in held_back(history.state, OPTIONS, LATER).reason


def test_a_write_that_was_pending_from_the_start_holds_everything():
    history = History()
    history.begin(instant(1))
    for n in range(2, 10):
        history.commit(instant(n), base_stat(f"f{n}", instant(n)))
    assert leaving(history) == []


def test_stops_at_pending_plans():
    history = committed(4)
    history.plan_clustering(instant(5), [FileGroupId("p", "f1")])
    for n in range(6, 10):
        history.commit(instant(n), base_stat(f"f{n}", instant(n)))
    assert leaving(history) == [instant(n) for n in (1, 2, 3)]


def test_pending_cleans_hold_nothing():
    history = committed(7)
    history.step(instant(8), Action.CLEAN, State.NONE, State.REQUESTED, {"plan": {}}, "CLEAN")
    assert leaving(history) == [instant(n) for n in (1, 2, 3, 4)]


def test_stops_at_savepoints():
    assert leaving(committed(9), saved=frozenset({instant(3), instant(6)})) == [instant(1), instant(2)]


def test_never_passes_what_replaced_files_that_are_not_cleaned():
    """Forgotten, the replacement would bring them back as duplicates (#6938, PR 7401, PR 11440)."""
    history = committed(3)
    history.plan_clustering(instant(4), [FileGroupId("p", "f1")])
    history.start_clustering(instant(4))
    history.complete(instant(4), base_stat("c", instant(4)), replaced={"p": ["f1"]})
    for n in range(5, 10):
        history.commit(instant(n), base_stat("g", instant(n)))
    assert leaving(history) == [instant(n) for n in (1, 2, 3)]
    clean(history, instant(10))
    assert not history.state.replaced
    assert leaving(history) == [instant(n) for n in (1, 2, 3, 4, 5, 6)]


def test_merge_on_read_keeps_the_delta_commits_that_compactions_count():
    history = History()
    history.commit(instant(1), base_stat("f", instant(1)))
    for n in range(2, 11):
        history.begin(instant(n), Action.DELTA_COMMIT)
        history.complete(instant(n), log_stat("f", instant(1), n))
    few = {"hoodie.compact.inline.max.delta.commits": 4}
    assert leaving(history, **few) == [instant(n) for n in range(1, 7)]
    many = {"hoodie.compact.inline.max.delta.commits": 20}
    assert leaving(history, **many) == [instant(1)]


def test_merge_on_read_keeps_the_last_compaction():
    history = History()
    history.commit(instant(1), base_stat("f", instant(1)))
    history.commit(instant(2), base_stat("g", instant(2)))
    history.plan_compaction(instant(3), [FileGroupId("p", "f")])
    history.run_compaction(instant(3), base_stat("f", instant(3)))
    for n in range(4, 9):
        history.begin(instant(n), Action.DELTA_COMMIT)
        history.complete(instant(n), log_stat("f", instant(3), n))
    assert leaving(history, **{"hoodie.compact.inline.max.delta.commits": 20}) == [instant(1), instant(2)]


def rolled_back() -> History:
    """The third of many writes was rolled back by `instant(4)`."""
    history = committed(2)
    history.begin(instant(3))
    history.fence(instant(4), instant(3))
    history.finish_rollback(instant(4), instant(3))
    for n in range(5, 12):
        history.commit(instant(n), base_stat(f"f{n}", instant(n)))
    return history


def test_does_not_pass_a_rolled_back_write_until_it_was_cleaned_up():
    history = rolled_back()
    assert leaving(history) == [instant(1)]
    assert [b.instant for b in barriers(history.state)] == [instant(3)]
    assert leaving(history, cleaned_up=frozenset({instant(3)})) == [instant(n) for n in (1, 2, 3, 5, 6, 7, 8)]


def test_a_cleanup_waits_for_the_longest_task():
    state = rolled_back().state
    waiting = [state.actions[instant(3)]]
    ended = datetime(2026, 1, 1, tzinfo=UTC)
    assert due(state, waiting, Options({"tideline.task.max.lifetime": 86401}), LATER) == []
    assert due(state, waiting, Options({"tideline.task.max.lifetime": 86400}), LATER) == waiting
    assert due(state, waiting, Options({"tideline.task.max.lifetime": 0}), ended) == waiting


def test_rollbacks_leave_by_number_and_never_before_their_target():
    history = committed(2)
    for n in range(3, 21, 3):
        history.begin(instant(n))
        history.fence(instant(n + 1), instant(n))
        history.finish_rollback(instant(n + 1), instant(n))
        history.commit(instant(n + 2), base_stat(f"f{n}", instant(n + 2)))
    targets = frozenset(instant(n) for n in range(3, 21, 3))
    gone = leaving(history, cleaned_up=targets)
    assert [i for i in gone if history.state.actions[i].action is Action.ROLLBACK] == [instant(4), instant(7), instant(10)]
    assert [i for i in gone if i in targets] == [instant(n) for n in (3, 6, 9, 12)]
    assert leaving(history, cleaned_up=frozenset({instant(3)})) == [instant(n) for n in (1, 2, 3, 4)]


def test_a_rollback_stays_that_says_where_to_clean_up():
    history = History()
    for n in range(1, 13, 2):
        history.begin(instant(n))
        history.fence(instant(n + 1), instant(n))
        history.finish_rollback(instant(n + 1), instant(n))
    for n in range(20, 30):
        history.commit(instant(n), base_stat(f"f{n}", instant(n)))
    assert leaving(history) == []
    first = frozenset({instant(1), instant(5)})
    assert leaving(history, cleaned_up=first) == [instant(n) for n in (1, 2, 5, 6)]


def test_cleans_leave_by_number():
    history = History()
    number = 0
    for n in range(1, 10):
        history.commit(instant(number := number + 1), base_stat("f", instant(number)))
        if n > 2:
            clean(history, instant(number := number + 1), retained=1)
    gone = leaving(history, **{"hoodie.cleaner.commits.retained": 1})
    cleans = [a.instant for a in history.state.actions.values() if a.action is Action.CLEAN]
    assert [i for i in gone if i in cleans] == cleans[:4]
    assert len(cleans) == 7


def archive(history: History, at: str) -> None:
    found = archivable(history.state, OPTIONS, LATER)
    assert found is not None
    history.step(at, Action.ARCHIVAL, State.NONE, State.REQUESTED, {"plan": found.to_json()}, "ARCHIVE")
    assert history.state.under_archival() == frozenset(found.instants)
    history.step(at, Action.ARCHIVAL, State.REQUESTED, State.INFLIGHT, {}, "ARCHIVE")
    history.step(at, Action.ARCHIVAL, State.INFLIGHT, State.COMPLETED, {"metadata": found.to_json(), "file": "x"}, "ARCHIVE")


def test_the_table_forgets_what_left_and_keeps_its_files():
    history = committed(8)
    slices = history.state.latest_slices()
    archive(history, instant(9))
    state = history.state
    assert sorted(state.actions) == [instant(n) for n in (6, 7, 8, 9)]
    assert (state.archived_before, state.archived_sequence) == (instant(6), 10)
    assert state.latest_slices() == slices
    assert not state.under_archival()
    for n in range(10, 16):
        history.commit(instant(n), base_stat(f"f{n}", instant(n)))
    archive(history, instant(20))
    assert instant(9) not in history.state.actions, "an archival is kept until the next one"
    again = TableState()
    for entry in history.entries:
        again.apply(entry)
    assert again == history.state
