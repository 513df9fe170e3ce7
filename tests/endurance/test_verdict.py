"""The verdict on a run of real processes knows bad ones."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.endurance.ledger import Ledger
from tests.endurance.member import OPTIONS, digest, read_values, write_once
from tests.endurance.verdict import Told, problems, told
from tests.endurance.workload import LISTS, SCHEMA, Op, operation_of

from tideline_table.action import write_rows
from tideline_table.action.archival.late_files import clean_up_orphans
from tideline_table.action.archival.plan import to_clean_up
from tideline_table.action.write.transaction import WriteTransaction
from tideline_table.file_group import new_file_id
from tideline_table.table import Table, TableRequest, TableType, create_table
from tideline_table.writer import Operation


@pytest.fixture(params=[TableType.COW, TableType.MOR])
def run(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Table, Told]:
    """A good one."""
    base_path = f"file:{tmp_path / 'table'}"
    create_table(base_path, TableRequest("t", SCHEMA, ("id",), ("part",), type=request.param))
    table = Table.open(base_path, options=OPTIONS, writer_id="w0#0")
    ops = [operation_of(1, writer, number) for number in range(3) for writer in (0, 1)]
    ops += [Op("x.1", "append", ("L0",)), Op("x.2", "append", ("L0", "L1"))]
    done = {op.id: write_once(table, op).sequence for op in ops}
    values = read_values(table)
    seen = {"sequence": table.state.sequence, "digest": digest(values), "lists": {}}
    return table, Told({op.id: op for op in ops}, done, frozenset(), (seen,), ())


def test_a_good_run_has_no_problems(run: tuple[Table, Told]) -> None:
    assert problems(*run) == []


def test_what_is_missing_or_too_much_is_told(run: tuple[Table, Told]) -> None:
    table, good = run
    unheard = replace(good, done={op: s for op, s in good.done.items() if op != "x.2"})
    assert any("never learned" in p for p in problems(table, unheard))
    assert any("not acknowledged ['x.2']" in p for p in problems(table, unheard))
    ghost = Op("ghost", "append", ("L0",))
    claimed = replace(good, begun={**good.begun, "ghost": ghost}, done={**good.done, "ghost": 999})
    assert any("lost ['ghost']" in p for p in problems(table, claimed))
    seen = {**good.snapshots[0], "digest": "another", "lists": dict.fromkeys(LISTS, "x.9")}
    assert any("saw another table" in p and "x.9" in p for p in problems(table, replace(good, snapshots=(seen,))))


def test_a_lost_update_a_stray_file_and_a_stuck_instant_are_told(run: tuple[Table, Told]) -> None:
    table, good = run
    rows = table.read(["id", "part", "v"])
    write_rows(table, rows.set_column(2, "v", [["x.2"] * rows.num_rows]).cast(SCHEMA), Operation.UPSERT)
    assert any("list L0: lost" in p and "x.1" in p for p in problems(table, good))
    table.storage.put("p0/stray.parquet", b"")
    assert "p0/stray.parquet is a stray file" in problems(table, good)
    transaction = WriteTransaction.begin(table.timeline, table.lock, "upsert", next(iter(table.state.completed_writes())).action)
    assert any("stuck" in p for p in problems(table, good))
    transaction.roll_back()
    # Its process had only been stopped, and goes on.
    late = f"p0/{new_file_id(transaction.instant, '0')}_0-0-0_{transaction.instant}.parquet"
    table.storage.put(f".hoodie/.temp/{transaction.instant}/{late}.marker.CREATE", b"")
    table.storage.put(late, b"")
    assert f"{late} is a stray file" in problems(table, good)
    assert late in clean_up_orphans(table.storage, table.timeline.format, table.state, to_clean_up(table.refresh())).deleted
    assert not any(late in p for p in problems(table, good))


def test_a_torn_line_of_a_killed_writer_is_passed_over(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "w.jsonl")
    ledger.note(event="begins", op=Op("a", "append", ("L0",)).to_json(), head=0)
    with (tmp_path / "w.jsonl").open("ab") as lines:
        lines.write(b'{"event": "done", "id": "a", "seq')
    ledger.note(event="void", id="a")
    assert [note["event"] for note in ledger.read()] == ["begins", "void"]
    assert told(tmp_path).void == {"a"}
