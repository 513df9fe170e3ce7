"""Progress in commits: moved with the rows or not at all, found by key, lost by nothing."""

import threading

import pytest
from tests.plans import schedule_clean, schedule_clustering, schedule_compaction
from tests.unit.table.tables import (
    DEATH_S,
    History,
    cluster,
    contents,
    create,
    instant,
    new_table,
    open_table,
    rows_of,
    write,
)

from tideline_table.action import roll_back_dead, run_clean, run_compaction, write_rows
from tideline_table.action.compaction.plan import compact_slice
from tideline_table.clock import SystemClock
from tideline_table.coordination import WriteSet, find_conflict
from tideline_table.errors import CommitUnknown, InvalidOption, ProgressMoved, StorageError, TransactionRolledBack
from tideline_table.hudi.instant import State
from tideline_table.hudi_written import hudi_written_state
from tideline_table.log.checkpoint import CHECKPOINT_FOLDER
from tideline_table.log.entry import LOG_FOLDER
from tideline_table.log.progress import MAX_VALUE_BYTES, Progress, ProgressStep
from tideline_table.storage import MemoryStorage
from tideline_table.table.definition import TableType
from tideline_table.writer import Operation

KEY = "ingest.orders"


def feed(table, rows, expected, value, **more):
    return write_rows(table, rows_of(rows), Operation.UPSERT, progress=ProgressStep(KEY, expected, value), parallelism=1, **more)


def held(table, key=KEY):
    found = table.refresh().progress.get(key)
    return found.value if found else None


def test_rows_and_progress_change_together():
    table, storage, clock = new_table()
    committed = feed(table, [("a", "p", 1, "x")], None, "1")
    assert table.state.progress == {KEY: Progress("1", committed.instant)}
    clock.advance(1)
    feed(table, [("b", "p", 1, "x")], "1", "2", extra={"owner": "me"})
    assert held(open_table(storage, clock)) == "2"
    assert contents(table) == [("a", "p", 1, "x"), ("b", "p", 1, "x")]


@pytest.mark.parametrize("expected", [None, "0", "2"])
def test_progress_that_stands_elsewhere_refuses_the_write(expected):
    table, _, clock = new_table()
    feed(table, [("a", "p", 1, "x")], None, "1")
    clock.advance(1)
    before = table.state.sequence
    with pytest.raises(ProgressMoved) as refused:
        feed(table, [("a", "p", 9, "twice")], expected, "2")
    assert (refused.value.key, refused.value.held) == (KEY, "1")
    assert contents(table) == [("a", "p", 1, "x")]
    assert table.refresh().sequence == before, "a write that cannot be is not even begun"


def test_a_write_without_rows_moves_progress():
    table, _, _ = new_table()
    feed(table, [], None, "1")
    assert held(table) == "1"
    assert contents(table) == []


def test_keys_do_not_disturb_each_other():
    table, _, clock = new_table()
    feed(table, [("a", "p", 1, "x")], None, "1")
    clock.advance(1)
    other = ProgressStep("stream.other", None, "7")
    write_rows(table, rows_of([("b", "p", 1, "x")]), Operation.UPSERT, progress=other, parallelism=1)
    assert (held(table), held(table, "stream.other")) == ("1", "7")


def test_the_check_is_part_of_the_commit():
    """Both looked before either committed: what counts is the state at the commit point, not the one at the begin."""
    table, storage, clock = new_table()
    zombie = open_table(storage, clock, "zombie")
    met = threading.Barrier(2, timeout=30)

    class Meets:
        """Both have written their files and wait for each other behind their last look at the progress."""

        def hold(self, fence):
            met.wait()
            return _Free()

    class _Free:
        def __enter__(self):
            return None

        def __exit__(self, *_):
            return None

    table.lock = zombie.lock = Meets()
    outcomes = {}

    def run(name, mine):
        try:
            outcomes[name] = feed(mine, [(name, f"p-{name}", 1, name)], None, name)
        except ProgressMoved as refused:
            outcomes[name] = refused

    threads = [threading.Thread(target=run, args=(name, mine)) for name, mine in (("a", table), ("b", zombie))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    losers = [name for name, outcome in outcomes.items() if isinstance(outcome, ProgressMoved)]
    assert len(losers) == 1
    (winner,) = outcomes.keys() - set(losers)
    assert held(table) == winner
    assert [row[0] for row in contents(table)] == [winner], "no row of the loser, although their keys do not meet"
    assert not list(table.state.pending()), "the loser is rolled back"


def test_find_conflict_checks_progress_on_the_state_it_is_given():
    history = History()
    history.begin(instant(10))
    own = WriteSet(instant(10), progress=ProgressStep(KEY, None, "1"))
    assert find_conflict(own, history.state, []) is None
    history.state.progress[KEY] = Progress("1", instant(9))
    with pytest.raises(ProgressMoved):
        find_conflict(own, history.state, [])
    history.fence(instant(12), instant(10))
    with pytest.raises(TransactionRolledBack):
        find_conflict(own, history.state, [])


@pytest.mark.parametrize("applied", [True, False])
def test_an_unknown_outcome_is_told_by_the_progress(applied):
    class Unsure(MemoryStorage):
        silent = False

        def put_if_absent(self, path, content):
            if self.silent and path.startswith(LOG_FOLDER) and b'"completed"' in content:
                if applied:
                    super().put_if_absent(path, content)
                raise StorageError("no answer")
            super().put_if_absent(path, content)

        def read(self, path):
            if self.silent and path.startswith(LOG_FOLDER):
                try:
                    super().read(path)
                finally:
                    raise StorageError("no answer")
            return super().read(path)

    clock = SystemClock()
    storage = Unsure(clock=clock)
    create(storage, clock)
    table = open_table(storage, clock)
    feed(table, [("a", "p", 1, "x")], None, "1")
    original = table.timeline.log.append

    def append(draft, sequence):
        storage.silent = draft.after is State.COMPLETED
        return original(draft, sequence)

    table.timeline.log.append = append
    table.timeline.log._clock = _Impatient()
    with pytest.raises(CommitUnknown):
        feed(table, [("b", "p", 1, "x")], "1", "2")
    storage.silent = False
    again = open_table(storage, clock)
    assert held(again) == ("2" if applied else "1")
    if applied:
        with pytest.raises(ProgressMoved):
            feed(again, [("b", "p", 1, "x")], "1", "2")
    else:
        feed(again, [("b", "p", 1, "x")], "1", "2")
    assert contents(again) == [("a", "p", 1, "x"), ("b", "p", 1, "x")]


class _Impatient(SystemClock):
    def sleep(self, duration_s):
        """Retries need not wait here."""


@pytest.mark.parametrize("kind", list(TableType))
def test_table_services_and_other_writers_neither_hide_nor_lose_it(kind):
    table, storage, clock = new_table(type=kind)
    feed(table, [("a", "p", 1, "x")], None, "1")
    for n in range(6):
        write(table, [("a", "p", n + 2, "y"), (f"n{n}", "p", 1, "x")])
    if kind is TableType.MOR:
        assert schedule_compaction(table)
        assert run_compaction(table, run=lambda tasks: [compact_slice(task, storage) for task in tasks])
    assert schedule_clustering(table)
    assert cluster(table)
    write(table, [("a", "p", 20, "y")])
    write(table, [("a", "p", 21, "y")])
    assert schedule_clean(table, {"hoodie.cleaner.commits.retained": 1})
    run_clean(table)
    clock.advance(DEATH_S)
    roll_back_dead(table)
    assert held(table) == held(open_table(storage, clock)) == "1"


def test_it_outlives_the_entry_that_set_it():
    options = {"tideline.log.checkpoint.interval": 2, "tideline.log.retained.entries": 10, "tideline.log.retention": 90}
    table, storage, clock = new_table()
    table = open_table(storage, clock, **options)
    feed(table, [("a", "p", 1, "x")], None, "1")
    set_at = table.state.sequence
    for n in range(30):
        clock.advance(10)
        write(table, [("b", "p", n, "y")])
    assert table.timeline.log.trimmed_to() > set_at
    opened = open_table(storage, clock, **options)
    assert held(opened) == "1"
    feed(opened, [("c", "p", 1, "x")], "1", "2")
    assert held(table) == "2"


def test_checkpoints_of_earlier_releases_have_none():
    table, storage, clock = new_table()
    table = open_table(storage, clock, **{"tideline.log.checkpoint.interval": 2})
    write(table, [("a", "p", 1, "x")])
    (path,) = [o.path for o in storage.list_folder(CHECKPOINT_FOLDER).objects if o.path.endswith("2.json")]
    storage.put(path, storage.read(path).replace(b', "progress": []', b""))
    assert open_table(storage, clock).state.progress == {}


def test_other_readers_of_the_timeline_find_it_too():
    table, storage, _ = new_table()
    committed = feed(table, [("a", "p", 1, "x")], None, "1")
    assert hudi_written_state(storage, table.definition.properties).progress == {KEY: Progress("1", committed.instant)}


@pytest.mark.parametrize(
    ("key", "value"), [("", "1"), ("a b", "1"), ("-a", "1"), ("k" * 201, "1"), ("a", "x" * (MAX_VALUE_BYTES + 1))]
)
def test_what_cannot_be_kept_is_refused(key, value):
    with pytest.raises(InvalidOption):
        ProgressStep(key, None, value)
