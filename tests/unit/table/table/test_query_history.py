"""Points that reach into history which was archived, cleaned, or written before Tideline took the table in: the rows, or an
error that says why."""

from __future__ import annotations

import itertools
import shutil

import pytest
from tests.plans import schedule_clean
from tests.unit.table.fixtures import names, unpacked
from tests.unit.table.tables import create, open_table, write

from tideline_locks import open_hudi_lock
from tideline_table.action import run_clean
from tideline_table.clock import ManualClock
from tideline_table.errors import HistoryUnavailable
from tideline_table.hudi.formats import format_of
from tideline_table.hudi.properties import parse_properties
from tideline_table.log.sharing import HudiLockKind, Sharing
from tideline_table.storage import LocalStorage
from tideline_table.table import Table, share_table
from tideline_table.table.changes import sequence_of

ARCHIVED = [name for name in names("timelines") if name.endswith("_archived")]
ADOPTABLE = [name for name in names("tables") if "_v6_" in name and "empty" not in name]


def keys_of(rows):
    return sorted((r["_hoodie_commit_time"], r["_hoodie_partition_path"], r["_hoodie_record_key"]) for r in rows.to_pylist())


def images_of(found):
    pairs = [change for batch in found.scan() for change in batch.to_pylist()]
    return sorted((c["op"], str(c["before"]), str(c["after"])) for c in pairs)


@pytest.mark.parametrize("name", ARCHIVED)
def test_points_in_the_archive_of_a_table_of_hudi(name, tmp_path):
    table = Table.open(str(unpacked("timelines", name, tmp_path)))
    archived = format_of(parse_properties(table.storage.read(".hoodie/hoodie.properties"))).archived_instants(table.storage)
    assert len(archived) > 2
    point = archived[len(archived) // 2]
    since = point.completion or point.time
    first = table.state.archived_before
    # Both ends of a change have to be read: what was visible then is not known any more.
    for ask in (
        lambda: table.changes(since),
        lambda: table.incremental("", since),
        lambda: table.incremental(archived[0].time, since),
    ):
        with pytest.raises(HistoryUnavailable, match=f"active timeline, which begins with {first}") as raised:
            ask()
        assert "snapshot" in raised.value.remedy
        assert raised.value.expected == "a later point"
    # Rows of now say themselves which write they are of.
    rows = table.read()
    later = [at for at in rows.column("_hoodie_commit_time").to_pylist() if at > since]
    assert 0 < len(later) <= rows.num_rows
    assert sorted(table.incremental(since).read().column("_hoodie_commit_time").to_pylist()) == sorted(later)


@pytest.mark.parametrize("is_ours", [True, False])
def test_cleaned_history(is_ours, tmp_path):
    clock = ManualClock()
    storage = LocalStorage(tmp_path / "t")
    create(storage, clock)
    table = open_table(storage, clock)
    done = [write(table, [("a", "p", n, str(n)), ("b", "p", n, str(n))]) for n in range(1, 6)]
    schedule_clean(table, {"hoodie.cleaner.commits.retained": 2})
    assert run_clean(table)
    if not is_ours:
        shutil.rmtree(tmp_path / "t/.hoodie/.tideline")
    table = Table.open(str(tmp_path / "t"))
    assert table.capabilities.keeps_log == is_ours
    points = [d.sequence if is_ours else d.instant for d in done]
    retained = table.state.last_clean_retained
    for ask in (lambda: table.changes(points[0]), lambda: table.incremental("", points[1])):
        with pytest.raises(HistoryUnavailable, match="cleaning removed files") as raised:
            ask()
        assert raised.value.expected == f"a point from instant {retained} on"
        assert "snapshot" in raised.value.remedy
    assert [c["op"] for batch in table.changes(points[3]).scan() for c in batch.to_pylist()] == ["u", "u"]
    assert table.incremental(points[0]).read().num_rows == 2, "the rows of now need no old files"


@pytest.mark.parametrize("name", ADOPTABLE)
def test_points_before_a_table_was_taken_in(name, tmp_path):
    """They mean the same as before: the table log holds all of that history under one sequence."""
    hudi_written = Table.open(str(unpacked("tables", name, tmp_path)))
    before = [a.instant for a in hudi_written.state.completed_writes()]
    assert len(before) > 1
    expected = {since: keys_of(hudi_written.incremental(since).read()) for since in before}
    changed = {pair: images_of(hudi_written.changes(*pair)) for pair in itertools.combinations(before, 2)}
    shared = share_table(hudi_written, Sharing(HudiLockKind.FILE_SYSTEM), open_hudi_lock)
    assert shared.capabilities.keeps_log
    assert any(expected.values())
    for since, rows in expected.items():
        assert keys_of(shared.incremental(since).read()) == rows
    for pair, found in changed.items():
        assert images_of(shared.changes(*pair)) == found
    assert sequence_of(shared.state, before[-1]) == 2
    for point in (before[0], "20000101000000000"):
        # Who keeps sequences, as a stream does, would take the later ones for seen.
        with pytest.raises(HistoryUnavailable, match="before the table had a table log") as raised:
            sequence_of(shared.state, point)
        assert before[-1] in raised.value.expected or before[0] in raised.value.expected
    assert images_of(shared.changes("20000101000000000")) == images_of(shared.changes())
    shared.storage.put(".hoodie/archived/.commits_.archive.1_1-0-1", b"")
    with pytest.raises(HistoryUnavailable, match="before the active timeline"):
        shared.changes("20000101000000000")
    assert keys_of(shared.incremental("20000101000000000").read()) == keys_of(shared.read())
