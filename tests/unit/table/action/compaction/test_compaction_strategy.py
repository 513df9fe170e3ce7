"""Which file groups a compaction plan takes, by strategy; and that no group waits forever beside writers that are never idle."""

from datetime import date

import pytest
from tests.plans import schedule_compaction
from tests.unit.table.tables import History, base_stat, contents, instant, log_stat, new_table, rows_of

from tideline_table.action import run_compaction, write_rows
from tideline_table.action.compaction.plan import compact_slice, plan_compaction
from tideline_table.action.compaction.strategy import candidates, chosen
from tideline_table.action.decision import Due, NotDue
from tideline_table.config import COMPACTION_STRATEGIES, Options
from tideline_table.errors import InvalidOption
from tideline_table.file_group.slice import FileGroupId
from tideline_table.hudi.instant import Action
from tideline_table.table import TableType
from tideline_table.writer import Operation

STRATEGY = "hoodie.compaction.strategy"
MIB = 1024 * 1024
HUDI = "org.apache.hudi.table.action.compact.strategy."


def table_of(*groups):
    """Groups of (file id, partition, sizes of their log files), each log file of a delta commit of its own, in the order given."""
    history, at = History(), 1
    history.begin(instant(at), Action.DELTA_COMMIT)
    history.complete(instant(at), *(base_stat(f, instant(1), partition, size=MIB) for f, partition, _ in groups))
    for number in range(max(len(sizes) for *_, sizes in groups)):
        for f, partition, sizes in groups:
            if number < len(sizes):
                at += 1
                history.begin(instant(at), Action.DELTA_COMMIT)
                history.complete(instant(at), log_stat(f, instant(1), number + 1, partition, sizes[number]))
    return history.state


def order(state, today=date(2026, 2, 1), **options):
    given = Options({"tideline.compaction.max.wait.commits": 0, **{k.replace("__", "."): v for k, v in options.items()}})
    return [c.group.file_id for c in chosen(candidates(state, state.latest_slices()), given, today)]


STATE = table_of(
    ("a", "2026/01/01", [10, 10, 10]), ("b", "2026/01/31", [100]), ("c", "2026/01/20", [20, 20]), ("d", "2026/01/31", [])
)


@pytest.mark.parametrize(
    ("strategy", "more", "expected"),
    [
        ("log_size", {}, ["b", "c", "a"]),
        ("log_size", {"hoodie__compaction__logfile__size__threshold": 40}, ["b", "c"]),
        ("log_count", {}, ["a", "c", "b"]),
        ("log_count", {"hoodie__compaction__logfile__num__threshold": 2}, ["a", "c"]),
        ("bounded_io", {}, ["a", "c", "b"]),
        ("age", {}, ["a", "b", "c"]),
        ("unbounded", {}, ["a", "c", "b"]),
        ("day_based", {"hoodie__compaction__daybased__target__partitions": 2}, ["b", "c"]),
        ("recent_days", {"hoodie__compaction__daybased__target__partitions": 12}, ["c", "b"]),
        ("older_days", {"hoodie__compaction__daybased__target__partitions": 12}, ["a"]),
        # Each group reads and writes 2 MiB and a little: the one that reaches the bound is the last.
        ("log_size", {"hoodie__compaction__target__io": 1}, ["b"]),
        ("log_size", {"hoodie__compaction__target__io": 3}, ["b", "c"]),
        ("log_count", {"hoodie__compaction__target__io": 1}, ["a"]),
        ("bounded_io", {"hoodie__compaction__target__io": 3}, ["a", "c"]),
        ("age", {"hoodie__compaction__target__io": 1}, ["a"]),
        ("unbounded", {"hoodie__compaction__target__io": 1}, ["a", "c", "b"]),
    ],
)
def test_order(strategy, more, expected):
    assert order(STATE, **{"hoodie__compaction__strategy": strategy, **more}) == expected


@pytest.mark.parametrize("name", [name for name in COMPACTION_STRATEGIES if name.startswith(HUDI)])
def test_hudis_class_names_stand_for_the_same(name):
    more = {"hoodie__compaction__daybased__target__partitions": 12, "hoodie__compaction__target__io": 3}
    found = order(STATE, **{"hoodie__compaction__strategy": name, **more})
    assert found == order(STATE, **{"hoodie__compaction__strategy": COMPACTION_STRATEGIES[name], **more})


@pytest.mark.parametrize("path", ["day=2026-01-31", "2026-01-31", "year=2026/month=1/day=31", "20260131", "eu/2026/01/31"])
def test_days_in_partition_paths(path):
    state = table_of(("a", path, [1]), ("b", "2026/01/01", [1]))
    assert order(state, hoodie__compaction__strategy="day_based", hoodie__compaction__daybased__target__partitions=1) == ["a"]


@pytest.mark.parametrize("path", ["", "Paris", "2026/13/01", "1/2/3"])
def test_partitions_without_a_date_are_refused_by_name(path):
    state = table_of(("a", path, [1]))
    with pytest.raises(InvalidOption, match="has no date"):
        order(state, hoodie__compaction__strategy="day_based")


def test_the_plan_names_its_strategy_and_the_executor_of_hudi_finds_no_class_in_it():
    found = plan_compaction(STATE, Options({"hoodie.compact.inline.max.delta.commits": 1, STRATEGY: "log_count"}))
    assert isinstance(found, Due)
    assert found.body.plan["extraMetadata"] == {STRATEGY: "log_count"}
    assert found.body.plan["strategy"] is None


def test_a_strategy_that_leaves_all_out_says_so():
    options = Options({"hoodie.compact.inline.max.delta.commits": 1, "hoodie.compaction.logfile.size.threshold": 1000})
    found = plan_compaction(STATE, options)
    assert isinstance(found, NotDue)
    assert "log_size leaves out 3" in found.reason


# --- no group waits forever --------------------------------------------------------------------------------------------------


def test_an_overdue_group_goes_before_all_others_and_past_thresholds_bounds_and_reservations():
    options = {
        "hoodie.compact.inline.max.delta.commits": 1,
        "hoodie.compaction.target.io": 1,
        "hoodie.compaction.logfile.size.threshold": 50,
    }
    reserved = {"a", "b", "c"}
    overdue = Options({**options, "tideline.compaction.max.wait.commits": 6})
    found = plan_compaction(STATE, overdue, reserved)
    assert isinstance(found, Due)
    assert [o["fileId"] for o in found.body.plan["operations"]] == ["a"]
    assert "1 overdue" in found.reason
    assert isinstance(plan_compaction(STATE, Options({**options, "tideline.compaction.max.wait.commits": 0}), reserved), NotDue)


WAIT, EVERY = 12, 5


@pytest.mark.parametrize("strategy", ["log_size", "log_count", "bounded_io", "day_based", "age"])
@pytest.mark.parametrize("is_fair", [True, False])
def test_four_writers_that_are_never_idle(strategy, is_fair):
    """Each of four writers always has an open delta commit. Without the limit some group starves, with it none waits longer."""
    groups = [f"g{n}" for n in range(12)]
    partition = {g: f"2026/01/{1 + n // 2:02d}" for n, g in enumerate(groups)}
    history, clock = History(), 1
    history.begin(instant(1), Action.DELTA_COMMIT)
    history.complete(instant(1), *(base_stat(g, instant(1), partition[g], size=MIB) for g in groups))
    options = Options(
        {
            "hoodie.compact.inline.max.delta.commits": EVERY,
            "hoodie.compaction.target.io": 3,
            "hoodie.compaction.daybased.target.partitions": 1,
            STRATEGY: strategy,
            "tideline.compaction.max.wait.commits": WAIT if is_fair else 0,
        }
    )
    open_writes, waits, pending = [], {}, None
    for step in range(200):
        clock += 1
        history.begin(instant(clock), Action.DELTA_COMMIT)
        open_writes.append((instant(clock), step))
        if len(open_writes) < 4:
            continue
        at, number = open_writes.pop(0)
        # All writers write the same three hot groups every time, and one cold group in turn, with few bytes.
        touched = [("g0", 500), ("g1", 400), ("g11", 300), (groups[2 + number % 9], 1)]
        under = history.state.groups_under_compaction()
        stats = []
        for g, size in touched:
            group = FileGroupId(partition[g], g)
            base = under.get(group) or history.state.latest_slice(group).base_instant
            known = history.state.slices[group].get(base)
            stats.append(log_stat(g, base, 1 + (len(known.log_files) if known else 0), partition[g], size))
        history.complete(at, *stats)
        if pending is not None:
            # The executor is slow: the plan runs while the writers go on.
            names = {(o["partitionPath"], o["fileId"]) for o in pending[1]}
            history.run_compaction(pending[0], *(base_stat(f, pending[0], p, size=MIB) for p, f in sorted(names)))
            pending = None
        found = plan_compaction(history.state, options)
        if isinstance(found, Due):
            clock += 1
            history.plan_compaction(
                instant(clock), [FileGroupId(o["partitionPath"], o["fileId"]) for o in found.body.plan["operations"]]
            )
            pending = instant(clock), found.body.plan["operations"]
        taken = history.state.groups_under_compaction()
        for c in candidates(history.state, history.state.latest_slices()):
            if c.group not in taken:
                waits[c.group.file_id] = max(waits.get(c.group.file_id, 0), c.waited)
    # A plan is made every five commits, and a group that becomes overdue behind one waits for the next. Writes that complete in
    # another order than they began count, too.
    bound = WAIT + EVERY + 4
    if is_fair:
        assert max(waits.values()) <= bound
    elif strategy != "age":
        assert max(waits.values()) > 3 * bound, "the check cannot fail"


def test_groups_with_few_log_bytes_are_compacted_on_a_table():
    """On a real table: each plan takes one group, by size, and the small ones get their turn; no row is lost or doubled."""
    table, storage, _ = new_table(type=TableType.MOR)
    rows = {n: (f"k{n}", f"2026-01-0{1 + n}", 0, "x") for n in range(4)}
    write_rows(table, rows_of(rows.values()), Operation.UPSERT, parallelism=1)
    options = {
        "hoodie.compact.inline.max.delta.commits": 2,
        "tideline.compaction.max.groups": 1,
        "tideline.compaction.max.wait.commits": 6,
    }
    compacted = []
    for step in range(1, 25):
        cold = 1 + step % 3
        rows[0], rows[cold] = ("k0", "2026-01-01", step, "y" * 5000), (f"k{cold}", f"2026-01-0{1 + cold}", step, "z")
        write_rows(table, rows_of([rows[0], rows[cold]]), Operation.UPSERT, parallelism=1)
        if schedule_compaction(table, options):
            done = run_compaction(table, run=lambda tasks: [compact_slice(t, storage) for t in tasks])
            compacted += [stat.partition_path for stat in done.stats]
    assert set(compacted) == {f"2026-01-0{1 + n}" for n in range(4)}
    assert contents(table) == sorted(rows.values())
