import pytest
from tests.unit.runtime.test_registry import make_table

from tideline_runtime.errors import DependencyDown
from tideline_runtime.metrics import TABLE_SCAN_FAILURES, Metrics
from tideline_runtime.registry import TableRegistry
from tideline_runtime.shards import StaticShards, shard_of
from tideline_runtime.table_source import NamedTable
from tideline_table.clock import ManualClock
from tideline_table.errors import StorageError, UnsupportedTable
from tideline_table.storage import open_storage, root_uri


class Named:
    """What a source of tables says, set by the test."""

    def __init__(self, **tables):
        self.revision = 1
        self.tables = tables

    def named(self):
        if isinstance(self.tables, Exception):
            raise self.tables
        return self.tables

    def say(self, tables):
        self.revision += 1
        self.tables = tables


@pytest.fixture
def source():
    return Named()


def registry(source, *tables, **more):
    return TableRegistry([str(t) for t in tables], ManualClock(), source=source, **more)


def test_named_tables_join_those_of_patterns_at_once(tmp_path, source):
    found_by_pattern, named = make_table(tmp_path / "r/a"), make_table(tmp_path / "other/b")
    found = registry(source, tmp_path / "r/*")
    assert found.tables() == (found_by_pattern,)
    source.say({named: NamedTable(), f"{named}-without-a-table": NamedTable()})
    assert found.tables() == tuple(sorted((found_by_pattern, named))), "no scan is due"
    assert set(found.named()) == {named, f"{named}-without-a-table"}
    source.say({})
    assert found.tables() == (found_by_pattern,)


def test_the_source_decides_about_tables_of_patterns_too(tmp_path, source):
    a, b = make_table(tmp_path / "r/a"), make_table(tmp_path / "r/b")
    found = registry(source, tmp_path / "r/*")
    source.say({a: NamedTable(is_wanted=False), b: NamedTable()})
    assert found.tables() == (b,)
    assert found.named() == (b,)
    source.say({})
    assert found.tables() == (a, b)


def test_each_shard_has_its_own_named_tables(tmp_path, source):
    bases = [make_table(tmp_path / f"t{n}") for n in range(8)]
    source.say(dict.fromkeys(bases, NamedTable()))
    shards = [registry(source, shards=StaticShards(index, 2)) for index in range(2)]
    for index, shard in enumerate(shards):
        assert set(shard.tables()) == set(shard.named()) == {base for base in bases if shard_of(base, 2) == index}
    assert sum(len(shard.tables()) for shard in shards) == len(bases)


def test_nothing_is_known_before_the_source_has_answered(tmp_path, source):
    """A resource may take services or files' retention away from a table that a pattern finds."""
    a = make_table(tmp_path / "a")
    found = registry(source, tmp_path / "a")
    source.tables = DependencyDown("the API server does not answer")
    with pytest.raises(DependencyDown):
        found.tables()
    source.tables = {}
    assert found.tables() == (a,)


@pytest.mark.parametrize("error", [StorageError("down"), UnsupportedTable("no such bucket")])
def test_a_base_path_that_fails_stops_no_other(tmp_path, source, error):
    good, bad = make_table(tmp_path / "good"), make_table(tmp_path / "bad")
    metrics = Metrics("test")

    def opened(root):
        if root == bad:
            raise error
        return open_storage(root)

    source.say({bad: NamedTable(), good: NamedTable()})
    found = registry(source, storage_of=opened, metrics=metrics)
    assert found.tables() == (good,)
    assert found.failure(bad) == str(error)
    assert found.failure(good) is None
    assert metrics.value(TABLE_SCAN_FAILURES) == 1


def test_a_new_table_is_found_by_the_next_scan(tmp_path, source):
    later = tmp_path / "later"
    source.say({root_uri(str(later)): NamedTable()})
    found = registry(source)
    assert found.tables() == ()
    base = make_table(later)
    source.say({base: NamedTable(options={"a": "b"})})
    assert found.tables() == (), "a change of the source searches for new base paths only"
    found._clock.advance(60)
    assert found.tables() == (base,)
