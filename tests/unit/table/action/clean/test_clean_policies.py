"""Cleaning by file versions and by hours, the bound on what a clean deletes, and the look before each batch of deletions."""

import random
from datetime import timedelta

import pytest
from tests.plans import schedule_clean
from tests.unit.table.action.clean.test_clean_plan import random_history
from tests.unit.table.tables import History, base_stat, beside, compact, contents, instant, log_stat, new_table, open_table, write

from tideline_table.action import request_clean, run_clean
from tideline_table.action.clean import plan as clean_plan
from tideline_table.action.clean.plan import earliest_since, plan_clean
from tideline_table.action.decision import Due, NotDue
from tideline_table.config import CLEAN_POLICY, Options
from tideline_table.errors import CleanRefused, CorruptMetadata
from tideline_table.file_group.slice import FileGroupId
from tideline_table.hudi.instant import Action, State, time_from_instant
from tideline_table.log.body import Cleaned
from tideline_table.table import TableType

ROOT = "memory:/table"
VERSIONS = {"hoodie.clean.policy": "KEEP_LATEST_FILE_VERSIONS"}
HOURS = {"hoodie.clean.policy": "KEEP_LATEST_BY_HOURS"}


def doomed(state, options, **more):
    found = plan_clean(state, ROOT, Options(options), **more)
    if isinstance(found, NotDue):
        return set()
    return {
        f["filePath"].removeprefix(f"{ROOT}/") for fs in found.body.plan["filePathsToBeDeletedPerPartition"].values() for f in fs
    }


@pytest.mark.parametrize("seed", range(40))
def test_versions_keeps_the_newest_slices_of_each_group_and_none_of_a_replaced_one(seed):
    history, _ = random_history(seed)
    state, versions = history.state, random.Random(seed).randint(1, 3)
    pending = {*state.groups_under_clustering(), *state.groups_under_compaction()}
    expected = set()
    for group, slices in state.slices.items():
        if group in pending:
            continue
        newest = sorted(slices, reverse=True)
        gone = newest if group in state.replaced else newest[versions:]
        expected |= {path for at in gone for path in slices[at].paths}
    assert doomed(state, {**VERSIONS, "hoodie.clean.fileversions.retained": versions}) == expected


def test_a_clean_by_versions_says_no_earliest_instant():
    table, _, _ = new_table()
    commits = [write(table, [("a", "p", n, f"v{n}")]) for n in range(4)]
    at = schedule_clean(table, {**VERSIONS, "hoodie.clean.fileversions.retained": 2})
    plan = table.state.plans[at].plan
    assert plan["earliestInstantToRetain"] is None
    assert plan["policy"] == "KEEP_LATEST_FILE_VERSIONS"
    assert run_clean(table) == 2
    entry = table.timeline.log.read(table.state.sequence)
    assert isinstance(entry.body, Cleaned)
    assert entry.body.metadata["earliestCommitToRetain"] == ""
    # Queries of the kept slices are answered, older ones are refused.
    assert contents(table, commits[2].instant) == [("a", "p", 2, "v2")]
    with pytest.raises(Exception, match="cleaned"):
        table.read(as_of=commits[0].instant)
    assert contents(open_table(table.storage, table.clock)) == contents(table) == [("a", "p", 3, "v3")]


def test_versions_keep_the_slice_that_logs_without_base_file_are_merged_with():
    history = History()
    one, two, three = instant(1), instant(2), instant(3)
    history.commit(one, base_stat("a-0", one))
    history.commit(two, base_stat("a-0", two))
    history.begin(three, Action.DELTA_COMMIT)
    # A log file of a slice whose base file was never written.
    history.complete(three, log_stat("a-0", three))
    assert doomed(history.state, {**VERSIONS, "hoodie.clean.fileversions.retained": 1}) == {
        s.path for s in history.state.every_slice() if s.base_instant == one
    }


@pytest.mark.parametrize("seed", range(60))
def test_by_hours_queries_of_the_time_stay_readable(seed):
    history, time = random_history(seed)
    state = history.state
    before = {n: state.latest_slices(instant(n)) for n in range(time + 2)}
    for moment in range(1, time + 1):
        since = time_from_instant(instant(moment))
        earliest = earliest_since(state, since)
        gone = doomed(state, {**HOURS, "hoodie.clean.hours.retained": 1}, now=since + timedelta(hours=1))
        if earliest is None:
            assert not gone
            continue
        assert earliest.instant <= min((a.instant for a in state.completed_writes() if a.instant >= instant(moment)), default="9")
        for n in range(time + 2):
            if instant(n) >= earliest.instant:
                assert not {s.path for s in before[n]} & gone


def test_by_hours_deletes_in_random_histories():
    """The check above looks at plans that delete something."""
    deleting = 0
    for seed in range(60):
        history, time = random_history(seed)
        now = time_from_instant(instant(time)) + timedelta(hours=1)
        deleting += bool(doomed(history.state, {**HOURS, "hoodie.clean.hours.retained": 1}, now=now))
    assert deleting > 10


def test_by_hours_on_a_table():
    table, _, clock = new_table()
    old = [write(table, [("a", "p", n, f"v{n}")]) for n in range(3)]
    clock.advance(3 * 3600)
    new = [write(table, [("a", "p", n, f"v{n}")]) for n in range(3, 5)]
    answer = request_clean(table, {**HOURS, "hoodie.clean.hours.retained": 4})
    assert isinstance(answer, NotDue)
    assert schedule_clean(table, {**HOURS, "hoodie.clean.hours.retained": 2})
    # The newest slice before the first write of the last two hours is kept for queries that run.
    assert run_clean(table) == 2
    assert table.state.last_clean_retained == new[0].instant
    assert contents(table, new[0].instant) == [("a", "p", 3, "v3")]
    with pytest.raises(Exception, match="cleaned"):
        table.read(as_of=old[2].instant)


def test_by_hours_a_write_that_only_completed_lately_counts_by_its_begin():
    """Queries of the last hours read what it replaced."""
    table, storage, clock = new_table()
    for n in range(3):
        write(table, [("a", "p", n, f"v{n}")])

    def sleep() -> None:
        for n in range(3):
            write(open_table(storage, clock, "other"), [("b", "q", n, f"v{n}")])
        clock.advance(3 * 3600)

    with pytest.MonkeyPatch.context() as patched:
        beside(patched, sleep)
        slow = write(table, [("a", "p", 9, "slow")])
    newest = write(table, [("c", "r", 1, "new")])
    at = schedule_clean(table, {**HOURS, "hoodie.clean.hours.retained": 2})
    assert table.state.plans[at].plan["earliestInstantToRetain"]["timestamp"] == slow.instant < newest.instant
    assert run_clean(table) == 2
    assert contents(table, slow.instant)[0] == ("a", "p", 9, "slow")


def test_by_hours_nothing_goes_if_nobody_wrote_lately():
    table, _, clock = new_table()
    for n in range(4):
        write(table, [("a", "p", n, f"v{n}")])
    clock.advance(48 * 3600)
    answer = request_clean(table, HOURS)
    assert isinstance(answer, NotDue)
    assert "last 24 hours" in answer.reason


def test_old_names_of_the_options_count():
    old = Options({"hoodie.cleaner.policy": "KEEP_LATEST_FILE_VERSIONS", "hoodie.cleaner.fileversions.retained": 7})
    assert old[CLEAN_POLICY] == "KEEP_LATEST_FILE_VERSIONS"
    assert old.given() == {"hoodie.clean.policy": "KEEP_LATEST_FILE_VERSIONS", "hoodie.clean.fileversions.retained": "7"}
    assert Options({"hoodie.clean.commits.retained": 3}).given() == {"hoodie.cleaner.commits.retained": "3"}


# --- the bound ---------------------------------------------------------------------------------------------------------------


def test_a_clean_beyond_the_allowed_share_deletes_nothing():
    table, storage, _ = new_table()
    for n in range(5):
        write(table, [("a", "p", n, f"v{n}")])
    keep_one = {"hoodie.cleaner.commits.retained": 1}
    share = "tideline.clean.max.deleted.share"
    files = {o.path for o in storage.list_objects("p")}
    with pytest.raises(CleanRefused, match=r"expected at most 1 times as many .*--dry-run"):
        schedule_clean(table, {**keep_one, share: 1})
    assert not list(table.state.pending())
    # A plan of another writer, made without the bound, is not run either.
    at = schedule_clean(table, keep_one)
    with pytest.raises(CleanRefused):
        run_clean(table, options={share: 1})
    assert {o.path for o in storage.list_objects("p")} == files
    assert table.state.actions[at].state is State.REQUESTED
    assert run_clean(table, options={share: 4}) == 3


def test_a_small_clean_passes_the_bound():
    table, _, _ = new_table()
    for n in range(3):
        write(table, [("a", "p", n, f"v{n}")])
    assert schedule_clean(table, {"hoodie.cleaner.commits.retained": 1, "tideline.clean.max.deleted.share": 1.5})
    assert run_clean(table, options={"tideline.clean.max.deleted.share": 1.5}) == 1


# --- before each batch -------------------------------------------------------------------------------------------------------


def test_files_that_must_stay_are_looked_up_again_before_each_batch(monkeypatch):
    table, storage, _ = new_table()
    for n in range(6):
        write(table, [("a", "p", n, f"v{n}")])
    monkeypatch.setattr(clean_plan, "BATCH_FILES", 1)
    at = schedule_clean(table, {"hoodie.cleaner.commits.retained": 1})
    doomed_files = [
        f["filePath"].removeprefix(f"{storage.root}/") for f in table.state.plans[at].plan["filePathsToBeDeletedPerPartition"]["p"]
    ]
    assert len(doomed_files) == 4
    real_delete, gone = storage.delete, []

    def delete(path):
        if path in doomed_files:
            gone.append(path)
            if len(gone) == 2:
                # Whatever makes a file of the plan visible again: here the state itself.
                group = FileGroupId("p", next(s.group.file_id for s in table.slices()))
                kept = table.timeline.state.slices[group]
                newest = max(kept)
                kept[newest] = next(s for s in kept.values() if s.path not in {*gone, kept[newest].path})
        real_delete(path)

    monkeypatch.setattr(storage, "delete", delete)
    with pytest.raises(CorruptMetadata, match="latest slice"):
        run_clean(table)
    assert len(gone) < 4


def test_cleaning_by_versions_merge_on_read():
    table, storage, _ = new_table(type=TableType.MOR)
    for n in range(3):
        write(table, [("a", "p", n, f"v{n}")])
        compact(table)
    write(table, [("a", "p", 9, "last")])
    before = contents(table)
    found = plan_clean(table.state, storage.root, table.options.merged({**VERSIONS, "hoodie.clean.fileversions.retained": 1}))
    assert isinstance(found, Due)
    assert schedule_clean(table, {**VERSIONS, "hoodie.clean.fileversions.retained": 1})
    assert run_clean(table)
    assert contents(table) == before
    left = {o.path for o in storage.list_objects("p") if "partition_metadata" not in o.path}
    assert left == {path for s in table.slices() for path in s.paths}
