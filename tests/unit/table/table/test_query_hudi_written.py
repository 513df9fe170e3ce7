"""Queries on tables that Apache Hudi wrote, of versions 6, 8 and 9: time travel, incremental queries and changes agree with
each other."""

from __future__ import annotations

import itertools
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from tideline_table.errors import HistoryUnavailable, InvalidOption
from tideline_table.reader.base_file import read_base_file, read_footer
from tideline_table.table import Table
from tideline_table.table.changes import completion_time
from tideline_table.table.query import KeyRanges, sorted_keys

FOLDER = Path(__file__).parents[3] / "fixtures" / "tables"
TABLES = sorted(path.stem for path in FOLDER.glob("*.zip") if "empty" not in path.stem)


@pytest.fixture(params=TABLES)
def table(request, tmp_path):
    with zipfile.ZipFile(FOLDER / f"{request.param}.zip") as archive:
        for entry in archive.infolist():
            if not entry.filename.startswith("__MACOSX"):
                archive.extract(entry, tmp_path)
    root = min((p.parents[1] for p in tmp_path.glob("**/.hoodie/hoodie.properties")), key=lambda p: len(p.parts))
    return Table.open(str(root))


def by_key(rows):
    return {(r["_hoodie_partition_path"], r["_hoodie_record_key"]): r for r in rows}


def point_of(table, action):
    return action.instant if table.definition.version < 8 else completion_time(action)


def test_changes_lead_from_one_state_to_the_next(table):
    actions = table.state.completed_writes()
    assert actions
    for first, last in [*itertools.pairwise(actions), (actions[0], actions[-1])]:
        state = by_key(table.read(as_of=first.instant).to_pylist())
        after = by_key(table.read(as_of=last.instant).to_pylist())
        for batch in table.changes(point_of(table, first), point_of(table, last)).scan():
            for change in batch.to_pylist():
                old, new = change["before"], change["after"]
                key = next(iter(by_key([old or new])))
                assert change["op"] == ("d" if new is None else "i" if old is None else "u")
                assert state.pop(key, None) == old
                if new is not None:
                    state[key] = new
        assert {k: strip(r) for k, r in state.items()} == {k: strip(r) for k, r in after.items()}
    assert list(table.changes(point_of(table, actions[-1])).scan()) == []


BEFORE_ALL = "2000-01-01"


def test_points_before_the_first_write_are_the_beginning(table):
    """No write of these tables was archived, so the table was empty then."""
    everything, first = by_key(table.read().to_pylist()), min(point_of(table, a) for a in table.state.completed_writes())
    for since in (BEFORE_ALL, first[:-3] + "000"):
        assert by_key(table.incremental(since).read().to_pylist()) == by_key(everything.values())
        changes = [change for batch in table.changes(since).scan() for change in batch.to_pylist()]
        assert {change["op"] for change in changes} <= {"i"}
        assert by_key(change["after"] for change in changes) == everything
    assert list(table.changes(BEFORE_ALL, "2000-01-02").scan()) == list(table.changes("", BEFORE_ALL).scan()) == []
    assert table.incremental(BEFORE_ALL, "2000-01-02").read().num_rows == 0


def test_points_before_the_first_write_are_refused_where_files_or_folders_show_archived_writes(table):
    form = table.definition.format
    table.storage.put(f"{form.history_folder}/manifest_1", b"")
    for ask in (lambda: table.changes(BEFORE_ALL), lambda: table.changes("", BEFORE_ALL)):
        with pytest.raises(HistoryUnavailable, match="earlier writes were archived") as raised:
            ask()
        # The point that the remedy names is taken.
        latest = raised.value.remedy.split(" to ")[1].split()[0]
        assert latest == min(point_of(table, a) for a in table.state.completed_writes())
        assert table.incremental(latest).read().num_rows <= table.read().num_rows
        list(table.changes(latest).scan())


def strip(row):
    """Clustering and compaction change the file that a row stands in, nothing else."""
    return {name: value for name, value in row.items() if name != "_hoodie_file_name"}


def test_incremental_queries_are_rows_of_the_snapshot_by_commit_time(table):
    actions = table.state.completed_writes()
    everything = table.read().to_pylist()
    assert by_key(table.incremental().read().to_pylist()) == by_key(everything)
    for action in actions:
        later = {a.instant for a in actions if point_of(table, a) > point_of(table, action)}
        expected = [r for r in everything if r["_hoodie_commit_time"] in later]
        assert by_key(table.incremental(point_of(table, action)).read().to_pylist()) == by_key(expected)


def test_points_of_other_tables_are_instants(table):
    with pytest.raises(InvalidOption, match="instant"):
        table.incremental("3")


def test_point_look_ups(table):
    rows = table.read().to_pylist()
    for row in rows:
        found = table.look_up([row["_hoodie_record_key"]]).to_pylist()
        assert row in found
        assert {r["_hoodie_record_key"] for r in found} == {row["_hoodie_record_key"]}
    assert table.look_up(["no such key"]).num_rows == 0


def test_base_files_of_others_are_told_by_their_bloom_filters(table):
    """Keys between those that are there: the ranges of the footers say maybe, the filters no."""
    ranges, visible = KeyRanges(table.storage), table.slices()
    with_filter = [s for s in visible if s.base_file and read_footer(table.storage, s.path, with_bloom=True).bloom is not None]
    for file_slice in with_filter:
        only_base = replace(file_slice, log_files=())
        keys = sorted(set(read_base_file(table.storage, file_slice.path, ["_hoodie_record_key"]).column(0).to_pylist()))
        assert all(ranges.narrowed([only_base], sorted_keys([key])) for key in keys)
        between = sorted_keys(key + "!" for key in keys[:-1])
        assert ranges.narrowed([only_base], between) == ()
    assert with_filter or not any(s.base_file for s in visible)
