"""Positions in the commits of a pipeline's target."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.tideline.conftest import SCHEMA, ids, trips_of

import tideline
from tideline.errors import Conflict, InvalidInput, SchemaMismatch

NEW = trips_of(("d", "tue", 1.0, 1))


@pytest.mark.parametrize("is_shared", [False, True])
def test_rows_and_position_change_together(table: tideline.Table, is_shared: bool) -> None:
    if is_shared:
        table.maintenance.share(lock_expiry_min=7)
        table = tideline.open(table.path)
    start = table.inspect.progress("fares")
    assert dict(start) == {}
    table.upsert(NEW, delete=[{"id": "a", "day": "mon"}], progress=start.moved(trips=7))
    with pytest.raises(Conflict, match="progress 'fares'"):
        table.upsert(trips_of(("e", "tue", 1.0, 1)), progress=start.moved(trips=8))
    done = tideline.open(table.path).inspect.progress("fares")
    assert (dict(done), ids(table.read())) == ({"trips": 7}, ["b", "c", "d"])
    table.delete(["b"], progress=done.moved({"other table": "x"}))
    assert dict(table.inspect.progress("fares")) == {"trips": 7, "other table": "x"}


def test_every_write_of_rows_moves_it_and_nothing_else_does(table: tideline.Table) -> None:
    writes = (table.upsert, table.insert, table.bulk_insert, table.insert_overwrite, table.insert_overwrite_table)
    for number, write in enumerate(writes):
        write(NEW if number != 1 else SCHEMA.empty_table(), progress=table.inspect.progress("p").moved(source=number))
        assert table.inspect.progress("p")["source"] == number
    table.upsert(NEW)
    assert table.maintenance.cluster(options={"tideline.clustering.min.input.files": 1})
    assert table.inspect.progress("p")["source"] == 4


def test_it_outlives_archival(table: tideline.Table) -> None:
    table.upsert(NEW, progress=table.inspect.progress("p").moved(source=1))
    if table.inspect.type == "mor":  # archival keeps the delta commits that the next compaction counts
        table.upsert(NEW)
        table.maintenance.compact(options={"hoodie.compact.inline.max.delta.commits": 1})
    for _ in range(6):
        table.insert_overwrite(NEW)
    few: dict[str, object] = {"hoodie.cleaner.commits.retained": 1, "hoodie.keep.min.commits": 2, "hoodie.keep.max.commits": 3}
    table.maintenance.clean(options=few)
    archived = table.maintenance.archive(options={**few, "tideline.archive.min.age": 0})
    assert len(archived.instants) > 2
    assert dict(tideline.open(table.path).inspect.progress("p")) == {"source": 1}


def test_deletions_beside_rows_name_their_partition(table: tideline.Table) -> None:
    """The key alone found nothing, and nothing said so."""
    with pytest.raises(SchemaMismatch, match="'day'"):
        table.upsert(NEW, delete=["a"])
    with pytest.raises(InvalidInput, match="both written and removed"):
        table.upsert(NEW, delete=NEW)
    assert ids(table.read()) == ["a", "b", "c"]


def test_a_step_comes_from_the_progress_that_was_read(table: tideline.Table, tmp_path: Path) -> None:
    wrong: list[object] = [{"trips": 7}, "7"]
    for given in wrong:
        with pytest.raises(InvalidInput, match=r"Progress\.moved"):
            table.upsert(NEW, progress=given)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="no JSON"):
        table.inspect.progress("p").moved(trips=tmp_path)
    with pytest.raises(InvalidInput, match="progress key"):
        table.inspect.progress("my pipeline").moved(trips=1)
