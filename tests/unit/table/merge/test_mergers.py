"""A merger of another package: the same rows by readers, writers of both types, compaction and queries of changes."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import tideline
from tideline_table.errors import InvalidInput, InvalidRecord, MergerUnusable, UnsupportedTable
from tideline_table.hudi import properties as p
from tideline_table.hudi.properties import change_properties
from tideline_table.merge import merger
from tideline_table.storage import open_storage
from tideline_table.table import Table, why_unsharable

STRATEGY = "11111111-2222-3333-4444-555555555555"
CODE = f"""
import pyarrow as pa
import pyarrow.compute as pc

class Ledger:
    '''Adds amounts, keeps the longer note, and remembers the order of versions, so that it is not associative.'''

    strategy_id = {STRATEGY!r}

    def merge(self, older, newer):
        total = pc.add(older["amount"], newer["amount"])
        longer = pc.greater(pc.utf8_length(older["note"]), pc.utf8_length(newer["note"]))
        path = pc.binary_join_element_wise("(", older["path"], newer["path"], ")", "")
        found = newer.set_column(newer.schema.get_field_index("amount"), "amount", total)
        found = found.set_column(found.schema.get_field_index("note"), "note", pc.if_else(longer, older["note"], newer["note"]))
        return found.set_column(found.schema.get_field_index("path"), "path", path)

class Own(Ledger):
    strategy_id = ""

class Short:
    def merge(self, older, newer):
        return newer.slice(0, 0)

class Failing:
    def merge(self, older, newer):
        raise ZeroDivisionError("no")
"""
ENTRIES = "[tideline.mergers]\nledger = a_ledger:Ledger\nown = a_ledger:Own\nshort = a_ledger:Short\nfailing = a_ledger:Failing\n"
SCHEMA = pa.schema(
    [("id", pa.string()), ("day", pa.string()), ("amount", pa.int64()), ("note", pa.string()), ("path", pa.string())]
)


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An installed package with mergers."""
    site = tmp_path / "site"
    info = site / "a_ledger-1.0.dist-info"
    info.mkdir(parents=True)
    (site / "a_ledger.py").write_text(CODE)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: a-ledger\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(ENTRIES)
    monkeypatch.syspath_prepend(str(site))
    merger._loaded.cache_clear()
    yield info
    merger._loaded.cache_clear()
    sys.modules.pop("a_ledger", None)


def made(path: Path, kind: str, merge: str = "ledger") -> tideline.Table:
    return tideline.create(path, schema=SCHEMA, key="id", partition="day", merge=merge, type=kind, table_version=9)


def rows(*given: tuple[str, int, str]) -> pa.Table:
    found = [{"id": key, "day": "mon", "amount": amount, "note": note, "path": note} for key, amount, note in given]
    return pa.Table.from_pylist(found, SCHEMA)


def contents(table: tideline.Table, **more: object) -> dict[str, tuple[int, str, str]]:
    return {r["id"]: (r["amount"], r["note"], r["path"]) for r in table.read(**more).to_pylist()}  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["cow", "mor"])
@pytest.mark.parametrize("compacts", [False, True])
def test_each_path_merges_alike(package: Path, tmp_path: Path, kind: str, compacts: bool) -> None:
    table = made(tmp_path / "t", kind)
    expected: dict[str, tuple[int, str, str]] = {}

    def write(*given: tuple[str, int, str]) -> int:
        done = table.upsert(rows(*given))
        pairs: dict[str, tuple[int, str, str]] = {}
        for target, source in ((pairs, given), (expected, None)):
            for key, amount, note, path in [(k, a, n, n) for k, a, n in source] if source else [(k, *v) for k, v in pairs.items()]:
                old = target.get(key)
                longer = old is not None and len(old[1]) > len(note)
                target[key] = (
                    (amount, note, path) if old is None else (old[0] + amount, old[1] if longer else note, f"({old[2]}{path})")
                )
        assert contents(table) == expected
        if compacts and kind == "mor":
            table.maintenance.compact(options={"hoodie.compact.inline.max.delta.commits": 1})
            assert contents(table) == expected
        return done.sequence

    write(("a", 1, "one"), ("b", 2, "two"), ("a", 10, "x"))
    start = write(("a", 5, "three"), ("c", 1, "c"))
    write(("a", 7, "y"), ("b", 1, "longest"))
    table.delete(["c"])
    expected.pop("c")
    write(("c", 4, "again"))
    assert contents(table, where="amount = 23") == {"a": expected["a"]}, "no file has this value"
    assert table.read(["note"], "amount > 20").to_pylist() == [{"note": "three"}]
    assert table.lookup(["a"], ["amount"]).to_pylist() == [{"amount": 23}]
    found = {r["op"] + r["after"]["id"]: r for r in table.changes(start).read().to_pylist()}
    assert found["ua"]["before"]["amount"] == 16
    assert found["ua"]["after"]["path"] == expected["a"][2]
    assert found.keys() == {"ua", "ub", "uc"}
    assert contents(tideline.open(table.path)) == expected


@pytest.mark.parametrize("kind", ["cow", "mor"])
def test_an_update_that_the_merger_would_change_is_refused(package: Path, tmp_path: Path, kind: str) -> None:
    table = made(tmp_path / "t", kind)
    table.upsert(rows(("a", 1, "one")))
    with pytest.raises(InvalidRecord, match="merger 'ledger' would change once more"):
        table.update({"amount": 7}, where="id = 'a'")
    assert table.delete(where="amount = 1").rows_deleted == 1


@pytest.mark.parametrize("kind", ["cow", "mor"])
def test_without_the_package_what_merges_is_refused(package: Path, tmp_path: Path, kind: str) -> None:
    table = made(tmp_path / "t", kind)
    table.upsert(rows(("a", 1, "one")))
    (package / "entry_points.txt").write_text("")
    merger._loaded.cache_clear()
    table = tideline.open(table.path)
    assert contents(table) == {"a": (1, "one", "one")}, "nothing has to be merged"
    with pytest.raises(MergerUnusable, match=r"merger 'ledger', which no installed package registers.*tideline\.mergers"):
        table.upsert(rows(("a", 1, "two")))
    (package / "entry_points.txt").write_text(ENTRIES)
    merger._loaded.cache_clear()
    table.upsert(rows(("a", 1, "two")))
    (package / "entry_points.txt").write_text("")
    merger._loaded.cache_clear()
    if kind == "mor":
        with pytest.raises(MergerUnusable):
            table.read()
        assert contents(table, read_optimized=True) == {"a": (1, "one", "one")}
    else:
        assert contents(table)["a"][0] == 2


@pytest.mark.parametrize(("name", "words"), [("short", "0 rows of merger 'short'"), ("failing", "ZeroDivisionError: no")])
def test_a_merger_that_does_not_work_is_named(package: Path, tmp_path: Path, name: str, words: str) -> None:
    table = made(tmp_path / "t", "cow", name)
    table.upsert(rows(("a", 1, "one")))
    with pytest.raises(MergerUnusable, match=words):
        table.upsert(rows(("a", 1, "two")))
    assert contents(table) == {"a": (1, "one", "one")}


def test_a_table_declares_its_merger(package: Path, tmp_path: Path) -> None:
    table = made(tmp_path / "t", "cow")
    found = Table.open(str(tmp_path / "t")).definition
    assert found.merge_rule.name == "ledger"
    assert {key: found.properties[key] for key in (p.MERGE_MODE, p.MERGE_STRATEGY, p.MERGER)} == {
        p.MERGE_MODE: "CUSTOM",
        p.MERGE_STRATEGY: STRATEGY,
        p.MERGER: "ledger",
    }
    assert table.inspect.type == "cow"
    with pytest.raises(UnsupportedTable, match="a merger of another package"):
        tideline.create(tmp_path / "six", schema=SCHEMA, key="id", merge="ledger")
    with pytest.raises(InvalidInput, match=r"merge rule 'unheard_of'.*"):
        made(tmp_path / "no", "cow", "unheard_of")


def test_who_may_share_a_table_with_apache_hudi(package: Path, tmp_path: Path) -> None:
    """Only one whose merger says that it does what the strategy of the table does."""
    made(tmp_path / "ours", "cow", "own")
    assert "stands for no merger of Apache Hudi" in why_unsharable(Table.open(str(tmp_path / "ours")))
    made(tmp_path / "both", "cow")
    assert "merger" not in why_unsharable(Table.open(str(tmp_path / "both")))


def test_a_table_of_apache_hudi_with_the_same_strategy_is_read(package: Path, tmp_path: Path) -> None:
    table = made(tmp_path / "t", "mor")
    for number in (1, 2):
        table.upsert(rows(("a", number, "x")))
    shutil.rmtree(tmp_path / "t/.hoodie/.tideline")
    storage = open_storage(str(tmp_path / "t"))

    def by_hudi(strategy: str) -> Table:
        change_properties(storage, lambda found: {**{k: v for k, v in found.items() if k != p.MERGER}, p.MERGE_STRATEGY: strategy})
        return Table.open(str(tmp_path / "t"))

    assert by_hudi(STRATEGY).read(["amount"]).to_pylist() == [{"amount": 3}]
    with pytest.raises(UnsupportedTable, match="code that cannot run here, unless a package registers"):
        by_hudi("00000000-1111-2222-3333-444444444444").read()
    assert pc.sum(by_hudi(STRATEGY).read(["amount"])["amount"]).as_py() == 3
