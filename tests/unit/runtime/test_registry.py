import fnmatch
import itertools
import json
import os
import subprocess
import sys
import threading

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.runtime.processes import clean_environment

from tideline_runtime import table_search
from tideline_runtime.errors import InvalidSetting
from tideline_runtime.metrics import TABLE_SCAN_FAILURES, TABLES, Metrics
from tideline_runtime.registry import BESIDE_FROM_S, TableRegistry
from tideline_runtime.shards import StaticShards, shard_of
from tideline_runtime.table_search import MAX_DEPTH, TablePattern, find_tables, level_pattern
from tideline_table.clock import ManualClock
from tideline_table.errors import StorageError
from tideline_table.storage import MemoryStorage, open_storage, root_uri


def make_table(base_path):
    folder = base_path / ".hoodie"
    folder.mkdir(parents=True)
    (folder / "hoodie.properties").write_text("hoodie.table.name=t\n")
    return root_uri(str(base_path))


def registry(*tables, clock=None, **options):
    return TableRegistry([str(t) for t in tables], clock or ManualClock(), **options)


def test_base_paths_are_tables_only_while_they_hold_one(tmp_path):
    clock = ManualClock()
    found = registry(tmp_path / "a", tmp_path / "b", clock=clock, rescan_s=60)
    a = make_table(tmp_path / "a")
    assert found.tables() == (a,)
    b = make_table(tmp_path / "b")
    clock.advance(59)
    assert found.tables() == (a,)
    assert found.next_scan_in_s() == 1
    clock.advance(1)
    assert found.tables() == tuple(sorted((a, b)))
    (tmp_path / "a/.hoodie/hoodie.properties").unlink()
    found.rescan()
    assert found.tables() == tuple(sorted((a, b))), "known tables cost no request at each scan"
    found.doubt(a)
    found.rescan()
    assert found.tables() == (b,)
    (tmp_path / "b/.hoodie/hoodie.properties").unlink()
    for _ in range(10):
        found.rescan()
    assert found.tables() == ()


def test_a_pattern_covers_the_tables_that_its_search_finds_and_no_others(tmp_path):
    inside = [make_table(tmp_path / path) for path in ("a/t 1", "b/x/t2", "b/x/y/t3", "c")]
    outside = [make_table(tmp_path / path) for path in ("a/u", "a/t/deeper", "d/t1", "cc")]
    found = registry(tmp_path / "a/t*", tmp_path / "b/**", tmp_path / "c")
    assert set(found.tables()) == set(inside)
    assert all(map(found.covers, inside))
    assert not any(map(found.covers, outside))


def test_a_pattern_that_selects_no_table_is_logged_once(tmp_path):
    make_table(tmp_path / "a/t")
    found = registry(tmp_path / "a/*", tmp_path / "b/*", tmp_path / "c")

    def logged():
        with structlog.testing.capture_logs() as lines:
            found.rescan()
        return [(line["event"], line["pattern"]) for line in lines]

    nothing = "no table matches"
    assert logged() == [(nothing, f"{root_uri(str(tmp_path / 'b'))}/*"), (nothing, root_uri(str(tmp_path / "c")))]
    assert logged() == []
    make_table(tmp_path / "c")
    assert logged() == []
    (tmp_path / "c/.hoodie/hoodie.properties").unlink()
    found.doubt(root_uri(str(tmp_path / "c")))
    assert logged() == [(nothing, root_uri(str(tmp_path / "c")))]


def test_star_is_one_level_and_double_star_any(tmp_path):
    near, far = make_table(tmp_path / "r/near"), make_table(tmp_path / "r/x/y/far")
    make_table(tmp_path / "r")  # `r/*` does not mean r itself
    make_table(tmp_path / "r/near/inside")  # not looked for inside a table
    make_table(tmp_path / "r/.hidden/t")
    assert registry(tmp_path / "r/*").tables() == (near,)
    assert registry(tmp_path / "r/**").tables() == (near, far)
    assert registry(f"{tmp_path}/r/**", f"{tmp_path}/r/near/", f"file:{tmp_path}/r/*").tables() == (near, far)
    assert registry(tmp_path / "none/**").tables() == ()


def test_wildcards_within_names_and_literal_brackets(tmp_path):
    a = make_table(tmp_path / "eu/orders_1")
    make_table(tmp_path / "eu/items_1")
    bracket = make_table(tmp_path / "eu/orders_[1]")
    assert registry(tmp_path / "*/orders_?").tables() == (a,)
    assert registry(tmp_path / "eu/orders_[1]").tables() == (bracket,)
    assert registry(tmp_path / "eu/orders_[*").tables() == (bracket,)


def test_a_pattern_with_many_stars_is_matched_in_linear_time(tmp_path):
    make_table(tmp_path / ("a" * 200))
    # Without atomic groups this match does not end.
    assert registry(tmp_path / ("*a" * 60 + "*b")).tables() == ()
    assert len(registry(tmp_path / ("*a" * 60 + "*")).tables()) == 1


@pytest.mark.parametrize("part", ["*", "**a", "a*", "*a*", "a*b*a", "?*?", "*a?b*", "*ab*ab", "a?*b"])
def test_a_level_matches_what_the_shell_would_match(part):
    names = ["".join(letters) for length in range(7) for letters in itertools.product("ab", repeat=length)]
    assert [n for n in names if level_pattern(part).fullmatch(n)] == [n for n in names if fnmatch.fnmatchcase(n, part)]


def test_a_table_has_one_name_however_it_is_found(tmp_path):
    odd = make_table(tmp_path / "r/a b%20ü+1")
    assert registry(tmp_path / "r/*", tmp_path / "r/a b%20ü+1").tables() == (odd,)
    assert open_storage(odd).stat(".hoodie/hoodie.properties").size_bytes > 0


def test_relative_patterns(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    a = make_table(tmp_path / "a")
    assert registry("*").tables() == (a,)


def test_names_that_no_storage_path_can_have_are_passed_over(tmp_path):
    a = make_table(tmp_path / "a")
    make_table(tmp_path / "b\\c")
    assert registry(tmp_path / "*").tables() == (a,)


def test_symbolic_links_are_not_followed(tmp_path):
    make_table(tmp_path / "elsewhere/t")
    (tmp_path / "root").mkdir()
    os.symlink(tmp_path / "elsewhere", tmp_path / "root/link")
    os.symlink(tmp_path / "root", tmp_path / "root/loop")
    assert registry(tmp_path / "root/**").tables() == ()


def test_depth_is_bounded(tmp_path):
    deepest = tmp_path.joinpath(*["d"] * MAX_DEPTH)
    at_bound = make_table(deepest)
    assert registry(tmp_path / "**").tables() == (at_bound,)
    (deepest / ".hoodie/hoodie.properties").unlink()
    make_table(deepest / "d")
    assert registry(tmp_path / "**").tables() == ()


def test_number_of_tables_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(table_search, "MAX_TABLES", 2)
    for name in "abc":
        make_table(tmp_path / name)
    with pytest.raises(InvalidSetting, match="at most 2 tables"):
        registry(tmp_path / "*").rescan()


@pytest.mark.parametrize("text", ["", "/a/**/b", "/a/x**", "s3://b/*", "gs://bucket/t"])
def test_patterns_that_cannot_be_understood(text):
    with pytest.raises(InvalidSetting) as caught:
        registry(text)
    assert caught.value.name == "tables"


class FailingStorage(MemoryStorage):
    fails = False

    def list_folder(self, path):
        if self.fails:
            raise StorageError("no answer")
        return super().list_folder(path)


def test_a_root_that_does_not_answer_keeps_its_tables():
    dark, bright = FailingStorage("memory:/dark"), FailingStorage("memory:/bright")
    for storage in (dark, bright):
        storage.put("t/.hoodie/hoodie.properties", b"")
    stores = {root_uri("/dark"): dark, root_uri("/bright"): bright}
    metrics = Metrics("probe")
    found = registry("/dark/*", "/bright/*", storage_of=stores.__getitem__, metrics=metrics)
    assert found.tables() == ("memory:/bright/t", "memory:/dark/t")
    dark.fails = True
    bright.put("u/.hoodie/hoodie.properties", b"")
    found.rescan()
    assert found.tables() == ("memory:/bright/t", "memory:/bright/u", "memory:/dark/t")
    assert metrics.value(TABLE_SCAN_FAILURES) == 1
    assert metrics.value(TABLES) == 3


def test_a_search_fails_if_it_fails_everywhere_and_the_cause_is_one_line():
    dark, other = FailingStorage("memory:/dark"), FailingStorage("memory:/other")
    stores = {root_uri("/dark"): dark, root_uri("/other"): other}
    # Two patterns at one root are searched one by one.
    found = registry("/dark/*", "/dark/**", "/other/*", storage_of=stores.__getitem__)
    assert found.search_failure() is None
    dark.fails = other.fails = True
    found.rescan()
    assert found.search_failure() == "every search for tables fails: file:/dark/* (and 2 more): no answer"
    other.fails = False
    found.rescan()
    assert found.search_failure() is None
    assert registry(storage_of=stores.__getitem__).search_failure() is None


def test_a_search_gives_signs_of_life_at_every_folder(tmp_path):
    for name in ("a", "b/c", "b/d"):
        make_table(tmp_path / name)
    beats = []
    registry(f"{tmp_path}/**", beat=lambda: beats.append(1)).rescan()
    assert len(beats) == 6  # the pattern, its root, a, b, b/c and b/d


def test_shards_split_the_tables_without_gap_or_overlap(tmp_path):
    everything = {make_table(tmp_path / f"t{n}") for n in range(40)}
    shards = [set(registry(tmp_path / "*", shards=StaticShards(i, 3)).tables()) for i in range(3)]
    assert set().union(*shards) == everything
    assert sum(map(len, shards)) == 40
    assert all(shards)


@given(st.text(max_size=40), st.integers(1, 200))
def test_more_shards_move_a_table_only_to_the_new_one(identity, count):
    before, after = shard_of(identity, count), shard_of(identity, count + 1)
    assert 0 <= before < count
    assert after in (before, count)


def test_shards_are_even():
    counts = [0] * 8
    for n in range(8000):
        counts[shard_of(f"file:/data/t{n}", 8)] += 1
    assert all(850 < count < 1150 for count in counts)


def test_shards_are_equal_in_every_process():
    names = [f"file:/data/t{n}" for n in range(20)]
    code = f"import json; from tideline_runtime.shards import shard_of; print(json.dumps([shard_of(n, 7) for n in {names!r}]))"
    environment = clean_environment(PYTHONHASHSEED="1")
    out = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, check=True, text=True, env=environment, timeout=240
    ).stdout
    assert json.loads(out) == [shard_of(n, 7) for n in names]


def test_memory_storage_names():
    storage = MemoryStorage("memory:/lake")
    storage.put("a/.hoodie/hoodie.properties", b"")
    assert list(find_tables(TablePattern("memory:/lake", ("*",)), storage)) == ["memory:/lake/a"]


class SlowStorage(MemoryStorage):
    """A folder whose listing takes a second of the clock, and may wait for the test."""

    def __init__(self, clock):
        super().__init__("s3://lake")
        self.clock, self.may_go, self.listed = clock, threading.Event(), 0
        self.may_go.set()

    def list_folder(self, folder):
        self.listed += 1
        assert self.may_go.wait(60)
        self.clock.advance(2 * BESIDE_FROM_S)
        return super().list_folder(folder)


def test_behind_a_slow_scan_the_next_ones_run_beside_the_visits():
    clock = ManualClock()
    lake = SlowStorage(clock)
    lake.put("a/.hoodie/hoodie.properties", b"")
    found = registry("s3://lake/*", clock=clock, rescan_s=60, storage_of=lambda _: lake)
    assert found.tables() == ("s3://lake/a",)
    lake.put("b/.hoodie/hoodie.properties", b"")
    lake.put("a/.hoodie/other", b"")
    lake.delete("a/.hoodie/hoodie.properties")
    lake.may_go.clear()
    clock.advance(60)
    assert found.tables() == ("s3://lake/a",), "the search is at work"
    found.doubt("s3://lake/a")  # while it searches: the next one asks
    assert found.tables() == ("s3://lake/a",)
    assert found.scans == 2
    lake.may_go.set()
    search_ends()
    assert found.tables() == ("s3://lake/a", "s3://lake/b")
    clock.advance(60)
    found.tables()
    search_ends()
    assert found.tables() == ("s3://lake/b",)
    assert (found.scans, lake.listed) == (3, 3)


class MovingShards(StaticShards):
    """One shard, which is taken later."""

    holds_it = False

    def held(self):
        return (0,) if self.holds_it else ()

    def term(self, shard):
        return "" if self.holds_it else None


def test_a_shard_taken_during_a_scan_is_served_at_once():
    clock, shards = ManualClock(), MovingShards()
    lake = SlowStorage(clock)
    lake.put("a/.hoodie/hoodie.properties", b"")
    found = registry("s3://lake/*", clock=clock, rescan_s=60, storage_of=lambda _: lake, shards=shards)
    assert found.tables() == ()
    lake.may_go.clear()
    clock.advance(60)
    found.tables()
    MovingShards.holds_it = True
    assert found.tables() == ("s3://lake/a",)
    lake.may_go.set()
    search_ends()
    assert found.tables() == ("s3://lake/a",)


def test_the_error_of_a_scan_beside_the_visits_is_raised_by_the_next_visit(monkeypatch):
    clock = ManualClock()
    lake = SlowStorage(clock)
    lake.put("a/.hoodie/hoodie.properties", b"")
    found = registry("s3://lake/*", clock=clock, rescan_s=60, storage_of=lambda _: lake)
    found.tables()
    monkeypatch.setattr(table_search, "MAX_TABLES", 0)
    clock.advance(60)
    found.tables()
    search_ends()
    with pytest.raises(InvalidSetting):
        found.tables()
    monkeypatch.undo()
    assert found.tables() == ("s3://lake/a",)
    search_ends()
    assert found.tables() == ("s3://lake/a",)


def search_ends():
    for thread in threading.enumerate():
        if thread.name == "table-search":
            thread.join(60)
