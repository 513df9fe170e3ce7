"""Random writes of two writers with a global index, some in the middle of each other, against a dictionary that says what must
be in the table."""

from collections import Counter
from unittest import mock

from hypothesis import given
from hypothesis import strategies as st
from tests.plans import schedule_clustering
from tests.property.profile import few
from tests.unit.table.tables import cluster, compact, create, open_table, write

from tideline_table.action.write import run as module
from tideline_table.clock import ManualClock
from tideline_table.storage import MemoryStorage
from tideline_table.table import TableType
from tideline_table.writer import Operation

MOVES = ("hoodie.simple.index.update.partition.path", "hoodie.bloom.index.update.partition.path")
DROP = {"hoodie.datasource.insert.dup.policy": "drop"}
rows = st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from("pqr"), st.integers(0, 4)), min_size=1, max_size=4)
writes = st.tuples(st.sampled_from(["upsert", "upsert", "insert drop", "delete"]), rows, st.booleans())
steps = st.one_of(
    st.tuples(st.just("write"), writes, st.one_of(st.none(), writes)),
    st.just(("cluster", None, None)),
    st.just(("compact", None, None)),
)
Held = dict[str, tuple[str, str, int, str]]
"""Key → partition path, partition column, ordering value, who wrote it."""


def written(held: Held, step, value) -> Held:
    """What a write makes of the rows."""
    kind, given_rows, moves = step
    best: Held = {}
    for key, part, ts in given_rows:
        if key not in best or ts >= best[key][2]:
            best[key] = (part, part, ts, value)
    after = dict(held)
    for key, row in best.items():
        if kind == "delete":
            after.pop(key, None)
        elif key not in held:
            after[key] = row
        elif kind == "upsert" and row[2] >= held[key][2]:
            after[key] = row if moves else (held[key][0], *row[1:])
    return after


def perform(table, step, value):
    kind, given_rows, moves = step
    operation = {"upsert": Operation.UPSERT, "insert drop": Operation.INSERT, "delete": Operation.DELETE}[kind]
    more = DROP if kind == "insert drop" else {}
    write(table, [(k, p, ts, value) for k, p, ts in given_rows], operation, **dict.fromkeys(MOVES, moves), **more)


def found_in(table) -> Held:
    names = ["_hoodie_record_key", "_hoodie_partition_path", "part", "ts", "v"]
    found = [tuple(row.values()) for row in table.read(names).to_pylist()]
    twice = [key for key, count in Counter(row[0] for row in found).items() if count > 1]
    assert not twice, found
    return {key: tuple(rest) for key, *rest in found}


@few
@given(
    st.sampled_from(["cow", "mor", "logs"]),
    st.sampled_from([0, 10**8]),
    st.sampled_from(["GLOBAL_SIMPLE", "GLOBAL_BLOOM"]),
    st.lists(steps, min_size=2, max_size=8),
)
def test_random_writes(kind, small, index, history):
    clock = ManualClock()
    storage = MemoryStorage(clock=clock)
    create(storage, clock, type=TableType.COW if kind == "cow" else TableType.MOR)
    options = {
        "hoodie.index.type": index,
        "hoodie.parquet.small.file.limit": small,
        "tideline.insert.to.log": kind == "logs",
    }
    one, two = (open_table(storage, clock, name, **options) for name in ("one", "two"))
    held: Held = {}
    stage = module._Attempt._write
    for number, (what, step, between) in enumerate(history):
        if what == "cluster":
            if schedule_clustering(one, {"tideline.clustering.min.input.files": 1}) is not None:
                cluster(one)
        elif what == "compact":
            if kind != "cow":
                compact(one)
        else:
            pending = [between] if between else []

            def interrupted(self, transaction, routed, pending=pending, number=number):
                if transaction.timeline.log.writer_id == "one" and pending:
                    perform(two, pending.pop(), f"two{number}")
                return stage(self, transaction, routed)

            with mock.patch.object(module._Attempt, "_write", interrupted):
                perform(one, step, f"one{number}")
            mine, both = written(held, step, f"one{number}"), [written(held, step, f"one{number}")]
            if between:
                theirs = written(held, between, f"two{number}")
                both = [written(theirs, step, f"one{number}"), written(mine, between, f"two{number}")]
            one.refresh()
            found = found_in(one)
            for key in {*found, *both[0], *both[-1]}:
                # Each row as if one of the two had gone first.
                assert found.get(key) in [outcome.get(key) for outcome in both], (number, key)
            held = found
        one.refresh()
        assert found_in(one) == held
