"""What is said about a table that writers refuse: status, verdicts and health name the reason, and looking changes nothing."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.unit.table.shared import SHARING, opened, put, shared_table, upgrade
from tests.unit.table.tables import contents, listing, new_table, open_table, set_properties, write

from tideline_locks import open_hudi_lock
from tideline_table.action import Outcome, Rules, TableService, examine, judge, maintain
from tideline_table.clock import ManualClock
from tideline_table.errors import TableFrozen, UnsupportedTable
from tideline_table.hudi import properties as p
from tideline_table.hudi.properties import read_properties
from tideline_table.log.entry import LOG_FOLDER
from tideline_table.storage import MemoryStorage, Storage
from tideline_table.table import IDENTITY_PATH, FindingKind, Table, TableType, damage_of, health_of, share_table, why_unsharable
from tideline_table.table.standing import why_refused
from tideline_table.writer import Operation

ROWS = [(f"k{n}", f"p{n % 2}", n, "x") for n in range(6)]


@pytest.fixture(params=[TableType.COW, TableType.MOR], ids=["cow", "mor"])
def table(request: pytest.FixtureRequest) -> Table:
    found, _, _ = new_table(type=request.param)
    write(found, ROWS)
    return found


def append_as_hudi(storage: Storage) -> None:
    storage.put(".hoodie/20990101000000000.commit.requested", b"")


def copy_of(storage: Storage, clock: ManualClock) -> Table:
    other = MemoryStorage("memory://elsewhere", clock=clock)
    for path, content in listing(storage).items():
        other.put(path, content)
    return open_table(other, clock)


def refuses(table: Table, words: str) -> None:
    """Every entrance names the reason, nothing was written, and no service seems idle or due."""
    before = listing(table.storage)
    status = examine(table, Rules())
    assert status.verdict == "attention"
    assert [f.kind for f in status.findings] == [FindingKind.REFUSED]
    assert words in status.findings[0].text
    assert {v.outcome for v in status.verdicts} == {Outcome.FAILED}
    assert all(words in v.reason and v.until for v in status.verdicts)
    assert judge(table, TableService.CLEAN, Rules()).outcome is Outcome.FAILED
    assert [words in text for text in health_of(table).problems] == [True]
    assert {step.outcome for step in maintain(table, Rules(), dry_run=True)} == {"failed"}
    assert listing(table.storage) == before


def test_a_sound_table_is_not_refused(table: Table) -> None:
    assert why_refused(table) is None
    assert examine(table, Rules()).findings == ()
    assert damage_of(table) == ()
    assert health_of(table).is_healthy


def test_a_copied_table(table: Table) -> None:
    refuses(copy_of(table.storage, table.clock), "tideline adopt")


def test_an_instant_of_another_writer(table: Table) -> None:
    append_as_hudi(table.storage)
    refuses(table, "20990101000000000 (commit, requested) that no Tideline writer made")


@pytest.mark.parametrize(
    ("lose", "words"),
    [
        (lambda storage: storage.delete_below(LOG_FOLDER), "table log without entry"),
        (lambda storage: storage.delete(p.PROPERTIES_PATH), "without .hoodie/hoodie.properties"),
        (lambda storage: storage.delete(IDENTITY_PATH), "without identity"),
        (lambda storage: storage.put(IDENTITY_PATH, b"{"), "cannot be read"),
    ],
    ids=["log", "properties", "identity", "damaged identity"],
)
def test_a_table_that_lost_files_while_it_was_open(table: Table, lose: Callable[[Storage], None], words: str) -> None:
    lose(table.storage)
    refuses(table, words)


def test_looking_leaves_files_that_a_writer_would_remove(table: Table) -> None:
    # A rolled-back write whose files a slow writer created again.
    first = min(table.state.actions)
    table.storage.put(f".hoodie/{first}.rollback.requested", b"")
    refuses(table, f"{first} (rollback, requested)")


def test_an_upgraded_exclusive_table_is_read_and_refused_by_name(table: Table) -> None:
    before = contents(table)
    upgrade(table.storage)
    refuses(table, "upgraded")  # a process that has it open
    reader = open_table(table.storage, table.clock)
    assert (contents(reader), reader.capabilities.keeps_log, reader.capabilities.log_is_truth) == (before, False, False)
    refuses(reader, "version 9 with timeline layout 2: the table was upgraded")
    with pytest.raises(TableFrozen, match="version 9") as caught:
        write(reader, ROWS)
    assert "downgrade" in caught.value.remedy


def test_an_upgraded_shared_table_is_refused_by_name() -> None:
    table, storage, clock = shared_table()
    put(table, ROWS)
    assert why_refused(table) is None
    upgrade(storage)
    reader = opened(storage, clock)
    assert len(contents(reader)) == len(ROWS)
    refuses(reader, "hoodie.write.auto.upgrade=false")


def test_damaged_files_of_the_newest_slices_are_named(table: Table) -> None:
    paths = sorted(path for s in table.state.latest_slices() for path in s.applied.paths)
    content = table.storage.read(paths[0])
    table.storage.put(paths[0], content[:-1])
    (found,) = damage_of(table)
    assert found.kind is FindingKind.DAMAGED
    assert paths[0] in found.text
    assert f"{len(content) - 1} bytes" in found.text
    table.storage.delete(paths[0])
    table.storage.delete(paths[1])
    (found,) = damage_of(table)
    assert "is gone" in found.text
    assert "(and 1 more)" in found.text


def test_files_that_a_clean_deleted_since_are_no_damage(table: Table) -> None:
    behind = open_table(table.storage, table.clock)
    old = [str(path) for s in table.state.latest_slices() for path in s.paths]
    write(table, ROWS)
    if not table.definition.has_logs:
        for path in old:
            table.storage.delete(path)
    assert damage_of(behind) == ()


def test_tables_of_hudi_are_advised_to_share_only_where_that_works(table: Table) -> None:
    table.storage.delete_below(".hoodie/.tideline")
    reader = open_table(table.storage, table.clock)
    found = judge(reader, TableService.CLEAN, Rules())
    assert (found.outcome, "tideline share PATH" in found.until) == (Outcome.NOT_APPLICABLE, True)
    set_properties(table.storage, {**read_properties(table.storage), p.DROP_PARTITION_COLUMNS: "true"})
    reader = open_table(table.storage, table.clock)
    found = judge(reader, TableService.CLEAN, Rules())
    assert (found.outcome, "tideline share PATH" in found.until) == (Outcome.NOT_APPLICABLE, False)
    assert "drops its partition columns" in found.until


def test_a_table_without_meta_fields_is_not_shared_because_its_services_would_refuse() -> None:
    table, storage, _ = new_table(meta_fields=False)
    write(table, ROWS, Operation.INSERT)
    before = listing(storage)
    with pytest.raises(UnsupportedTable, match="has no meta fields") as caught:
        share_table(table, SHARING, open_hudi_lock)
    assert "share that" in caught.value.remedy
    assert "has no meta fields" in why_unsharable(table)
    assert {path for path in listing(storage) if path not in before} == set()
