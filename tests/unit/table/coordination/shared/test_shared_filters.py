"""The partition `bloom_filters` of a shared table's metadata table."""

from __future__ import annotations

import pytest
from tests.plans import schedule_clean
from tests.simulation.metadata_reader import data_for_readers
from tests.unit.table.coordination.shared.test_shared_metadata import KEPT, kept_table, sound
from tests.unit.table.shared import opened, put

from tideline_table.action import check_table, run_clean
from tideline_table.config import BLOOM_FILTERS as WRITTEN_FILTERS
from tideline_table.hudi.formats import WRITTEN
from tideline_table.log.body import Published
from tideline_table.log.entry import Entry
from tideline_table.log.metadata import BLOOM_FILTERS
from tideline_table.metadata_table.bloom_filters import BloomFiltersPartition, decode_filter
from tideline_table.metadata_table.file_keys import file_key
from tideline_table.metadata_table.finding import FindingKind
from tideline_table.metadata_table.partition import Records, Source
from tideline_table.metadata_table.stored_partition import StoredPartition
from tideline_table.reader.base_file import read_filter_text


def test_a_write_adds_the_filters_of_its_files() -> None:
    table, storage, _ = kept_table()
    done = put(table, [("a", "p", 2, "2"), ("d", "r", 2, "2")])
    held = data_for_readers(storage, BLOOM_FILTERS)
    for stat in done.stats:
        found = decode_filter(held[file_key(stat.path).encode()])
        assert (found.form, found.text) == read_filter_text(storage, stat.path)
    assert len(StoredPartition.read(storage, WRITTEN, BLOOM_FILTERS, {}).groups) == 4
    sound(table)


def test_a_clean_deletes_the_filters_of_its_files() -> None:
    table, storage, clock = kept_table()
    first = put(table, [("a", "p", 2, "2")]).stats[0].path
    for ts in (3, 4):
        put(table, [("a", "p", ts, str(ts))])
    assert file_key(first).encode() in data_for_readers(storage, BLOOM_FILTERS)
    clock.advance(1)
    assert schedule_clean(table, {"hoodie.cleaner.commits.retained": 1})
    assert run_clean(table)
    assert file_key(first).encode() not in data_for_readers(storage, BLOOM_FILTERS)
    sound(table)


def test_a_file_without_a_filter_has_no_record() -> None:
    table, storage, _ = kept_table(**{WRITTEN_FILTERS.key: False})
    done = put(table, [("a", "p", 2, "2")])
    assert file_key(done.stats[0].path).encode() not in data_for_readers(storage, BLOOM_FILTERS)
    sound(table)


@pytest.mark.parametrize("is_wrong", [False, True])
def test_the_check_finds_a_missing_and_a_wrong_filter(is_wrong: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    table, storage, clock = kept_table()
    (other,) = put(table, [("a", "p", 2, "2")]).stats
    datum = data_for_readers(storage, BLOOM_FILTERS)[file_key(other.path).encode()]

    def changed_by(_: object, _source: Source, entry: Entry) -> Records:
        assert isinstance(entry.body, Published)
        wrong = [(file_key(stat.path).encode(), datum) for stat in entry.body.metadata.stats]
        return Records.of(wrong if is_wrong else ())

    monkeypatch.setattr(BloomFiltersPartition, "changed_by", changed_by)
    (stat,) = put(table, [("z", "z", 3, "3")]).stats
    found = check_table(opened(storage, clock, **KEPT))
    assert [(f.kind, f.path) for f in found] == [(FindingKind.WRONG_RECORD if is_wrong else FindingKind.NOT_LISTED, stat.path)]
