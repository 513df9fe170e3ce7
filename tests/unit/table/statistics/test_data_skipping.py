"""Queries leave out data files by the statistics that the table log holds, open no footer to find out, and lose no row."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from tests.unit.table.hudi_metadata import log_name
from tests.unit.table.tables import QUIET, cluster, compact

from tideline_table.action import (
    check_table,
    create_metadata,
    create_savepoint,
    repair_metadata,
    restore_to_savepoint,
    run_clean,
    write_rows,
)
from tideline_table.clock import ManualClock
from tideline_table.errors import InvalidOption
from tideline_table.hudi.file_names import parse_log_file_name
from tideline_table.log.body import Published
from tideline_table.log.metadata import COLUMN_STATS
from tideline_table.log.statistics import keep_statistics
from tideline_table.log.statistics_file import STATISTICS_FOLDER
from tideline_table.log.table_log import LogReader
from tideline_table.metadata_table import check, column_stats
from tideline_table.metadata_table.column_records import decode_column_stats
from tideline_table.metadata_table.column_stats import record_key
from tideline_table.metadata_table.finding import FindingKind
from tideline_table.metadata_table.layout import INDEX_DEFINITIONS_PATH, file_path
from tideline_table.metadata_table.partition import groups_of_keys, mapping_of
from tideline_table.metadata_table.reading import read_group, slice_files
from tideline_table.metadata_table.records import record_schema_json
from tideline_table.statistics import of_footer
from tideline_table.storage import MemoryStorage
from tideline_table.table import Table, TableRequest, TableType, create_table
from tideline_table.writer import Operation

NAN = float("nan")
SCHEMA = pa.schema([("id", pa.string()), ("part", pa.string()), ("n", pa.int64()), ("x", pa.float64()), ("text", pa.string())])


class Noting(MemoryStorage):
    """Notes the data files that are opened or read, and counts all other reads."""

    def __init__(self) -> None:
        super().__init__(clock=ManualClock())
        self.opened: set[str] = set()
        self.reads = 0

    def open_input(self, path: str, *args: Any, **more: Any) -> Any:
        self._note(path)
        return super().open_input(path, *args, **more)

    def read(self, path: str) -> bytes:
        self._note(path)
        return super().read(path)

    def _note(self, path: str) -> None:
        if path.startswith(".hoodie"):
            self.reads += 1
        else:
            self.opened.add(path)


def rows(number: int, **columns: Any) -> pa.Table:
    """Return four rows of partition `p<number>`; n and x are around 10 times its number."""
    base = {
        "id": [f"k{number}{at}" for at in range(4)],
        "part": [f"p{number}"] * 4,
        "n": [number * 10 + at for at in range(4)],
        "x": [number * 10.0 + at for at in range(4)],
        "text": [f"t{number}"] * 4,
    }
    return pa.table({**base, **columns}, schema=SCHEMA)


def made(kind: TableType = TableType.COW, files: int = 4, **options: Any) -> tuple[Table, Noting]:
    storage = Noting()
    create_table(storage.root, TableRequest("t", SCHEMA, ("id",), ("part",), "", kind), ManualClock(), storage)
    table = opened(storage, **options)
    for number in range(files):
        table.clock.advance(1)
        write_rows(table, rows(number), Operation.UPSERT, parallelism=1)
    return table, storage


def opened(storage: Noting, **options: Any) -> Table:
    return Table.open(storage.root, options={**QUIET, **options}, clock=ManualClock(), storage=storage)


def found(table: Table, storage: Noting, where: str | pc.Expression) -> tuple[list[str], set[str]]:
    """Return the ids that a query finds and the partitions of the files that it opens; all rows decide what is right."""
    expected = table.read().filter(table.snapshot().filtered(where)).column("id").to_pylist()
    storage.opened.clear()
    ids = table.read(where=where).column("id").to_pylist()
    assert sorted(ids) == sorted(expected)
    return sorted(ids), {path.partition("/")[0] for path in storage.opened}


@pytest.mark.parametrize("kind", list(TableType))
def test_a_query_opens_only_files_that_can_hold_its_rows(kind: TableType) -> None:
    table, storage = made(kind)
    for reader in (table, opened(storage)):
        assert found(reader, storage, "n between 11 and 12") == (["k11", "k12"], {"p1"})
        assert found(reader, storage, "text = 't2' or n > 32") == (["k20", "k21", "k22", "k23", "k33"], {"p2", "p3"})
        assert found(reader, storage, "x < 0 or text is null") == ([], set())
        assert found(reader, storage, "text like 't3%' and not n = 30")[1] == {"p3"}
        assert found(reader, storage, "_hoodie_record_key in ('k12', 'nothing')") == (["k12"], {"p1"})


def test_a_look_up_opens_no_footer_of_files_without_the_key() -> None:
    table, storage = made()
    storage.opened.clear()
    assert table.look_up(["k21"]).num_rows == 1
    assert {path.partition("/")[0] for path in storage.opened} == {"p2"}


def test_columns_with_nan_and_without_values() -> None:
    table, storage = made(files=0)
    for number, values in enumerate([[NAN] * 4, [NAN, 1.0, None, 2.0], [None] * 4, [-0.0, 0.0, 0.0, 0.0]]):
        write_rows(table, rows(number, x=values), Operation.UPSERT, parallelism=1)
    assert found(table, storage, "x = 1")[1] == {"p1"}
    assert found(table, storage, "x >= 0")[1] == {"p0", "p1", "p3"}  # NaN is the greatest
    assert found(table, storage, pc.is_nan(pc.field("x")))[1] == {"p0", "p1"}
    assert found(table, storage, "not (x > 0)")[1] == {"p1", "p3"}
    assert found(table, storage, "x is null")[1] == {"p1", "p2"}
    assert found(table, storage, "x is not null")[1] == {"p0", "p1", "p3"}
    assert found(table, storage, "x = 0")[1] == {"p3"}


@pytest.mark.parametrize("kind", list(TableType))
def test_a_nan_beside_one_value_is_found_by_what_is_true_for_it(kind: TableType) -> None:
    """The footer of the file names that value as the least and the greatest one, and no NaN."""
    table, storage = made(kind, files=1)
    write_rows(table, rows(1, x=[1.0, NAN, NAN, 1.0]), Operation.UPSERT, parallelism=1)
    for _ in range(2):
        for where in ("x <> 1", "not (x = 1)", "not (x <= 1) and n < 99", "x <> 1 or n = 11"):
            assert set(table.read(where=f"({where}) and part = 'p1'").column("id").to_pylist()) == {"k11", "k12"}
        assert found(table, storage, "x <> 1 and text = 't1'") == (["k11", "k12"], {"p1"})
        write_rows(table, rows(1, x=[1.0, NAN, NAN, 1.0]).slice(0, 1), Operation.UPSERT, parallelism=1)


def test_log_records_keep_a_slice_in_the_query() -> None:
    table, storage = made(TableType.MOR)
    write_rows(table, rows(1, n=[100, 11, 12, 13]), Operation.UPSERT, parallelism=1)
    assert table.slices()[1].log_files
    assert found(table, storage, "n = 100") == (["k10"], {"p1"})
    assert found(table, storage, "n = 10") == ([], {"p1"})  # the base file has it
    assert found(table, storage, "n = 33")[1] == {"p1", "p3"}  # between the values of base file and log
    assert found(table, storage, "text = 't3'")[1] == {"p3"}
    write_rows(table, rows(2).slice(0, 1), Operation.DELETE, parallelism=1)
    assert found(table, storage, "text = 't2'") == (["k21", "k22", "k23"], {"p2"})
    assert found(table, storage, "n = 0")[1] == {"p0"}
    compact(table)
    assert found(table, storage, "n = 10") == ([], set())


def test_merged_rows_with_values_of_several_files_are_found() -> None:
    """By file, no file of the slice has both values; a merged row may, where payloads keep older values."""
    storage = Noting()
    request = TableRequest("t", SCHEMA, ("id",), ("part",), "", TableType.MOR)
    create_table(storage.root, request, ManualClock(), storage)
    table = opened(storage)
    write_rows(table, rows(1), Operation.UPSERT, parallelism=1)
    write_rows(table, rows(1, text=["new"] * 4, n=[99] * 4), Operation.UPSERT, parallelism=1)
    storage.opened.clear()
    assert table.read(where="n = 10 and text = 'new'").num_rows == 0
    assert storage.opened  # judged by both files together


def test_clustering_and_a_changed_type_and_a_new_column_keep_queries_right() -> None:
    table, storage = made(files=3)
    write_rows(table, rows(0), Operation.INSERT, parallelism=1)
    cluster(table)
    assert found(table, storage, "n = 21")[1] == {"p2"}
    wider = rows(1).append_column("more", pa.array([7, 8, 9, None], pa.int32()))
    write_rows(table, wider, Operation.UPSERT, options={"tideline.write.schema.evolution": "evolve"}, parallelism=1)
    assert found(table, storage, "more = 8")[0] == ["k11"]
    assert found(table, storage, "more is null")[0][-1] == "k23"


@pytest.mark.parametrize("kind", list(TableType))
def test_rewritten_files_have_statistics_of_repeated_texts(kind: TableType) -> None:
    """A rewrite holds such columns as dictionaries."""
    table, storage = made(kind, files=2)
    for number in range(2):
        repeated = rows(number).set_column(SCHEMA.get_field_index("text"), "text", pa.array([f"t{number}"] * 4))
        write_rows(table, repeated, Operation.UPSERT, parallelism=1)
    if kind is TableType.MOR:
        compact(table)
    assert found(table, storage, "text = 't1'")[1] == {"p1"}
    write_rows(table, rows(0), Operation.INSERT, parallelism=1)
    write_rows(table, rows(1), Operation.INSERT, parallelism=1)
    cluster(table)
    assert found(table, storage, "text = 't1'")[1] <= {"p1"}


def test_planning_over_many_files_opens_none_and_costs_the_same_requests() -> None:
    costs = {}
    for files in (20, 60):
        _, storage = made(files=files, **{"tideline.log.checkpoint.interval": 2 * files})
        reader = opened(storage)
        storage.opened.clear()
        before = storage.reads
        assert len(reader.snapshot().only(pc.field("n") == 11).slices) == 1
        assert storage.opened == set()
        costs[files] = storage.reads - before
    assert costs[20] == costs[60] <= 2  # the checkpoint's statistics file


def test_a_checkpoint_merges_statistics_and_leaves_out_files_that_are_gone() -> None:
    table, storage = made(files=3, **{"tideline.log.checkpoint.interval": 4})
    for _ in range(3):
        write_rows(table, rows(1), Operation.UPSERT, parallelism=1)
    names = [found.path for found in storage.list_folder(STATISTICS_FOLDER).objects]
    assert 1 <= len(names) <= 3
    for damage in (b"", b"nonsense", storage.read(names[-1])[:-30]):
        storage.put(names[-1], damage)
        assert found(opened(storage), storage, "n = 11")[0] == ["k11"]
    for name in names:
        storage.delete(name)
    assert found(table, storage, "n = 11")[0] == ["k11"]
    assert found(opened(storage), storage, "n = 11")[0] == ["k11"]


PLACE = pa.struct([("city", pa.string()), ("at", pa.struct([("lat", pa.float64())]))])
PLACES = pa.schema([("id", pa.string()), ("part", pa.string()), ("place", PLACE)])
NESTED = {"hoodie.metadata.index.column.stats.column.list": "id,place.city,place.at.lat,place"}


def places(number: int, last: Any = None) -> pa.Table:
    held = {"city": f"c{number}", "at": {"lat": float(number)}}
    one = {"id": f"k{number}", "part": f"p{number}"}
    return pa.Table.from_pylist([{**one, "place": held}, {**one, "id": f"l{number}", "place": last or held}], PLACES)


@pytest.mark.parametrize("kind", list(TableType))
def test_fields_of_structs_have_statistics_if_they_are_named(kind: TableType) -> None:
    """Their statistics come from the log, from a statistics file, and, in the metadata table, also from footers."""
    storage = Noting()
    create_table(storage.root, TableRequest("t", PLACES, ("id",), ("part",), "", kind), ManualClock(), storage)
    table = opened(storage, **NESTED)
    for number, last in enumerate((None, {"city": None, "at": {"lat": NAN}}, {"city": "z", "at": None})):
        write_rows(table, places(number, last), Operation.UPSERT, parallelism=1)

    def prunes(table: Table) -> None:
        assert found(table, storage, "place.city = 'c1'") == (["k1"], {"p1"})
        assert found(table, storage, pc.field("place", "at", "lat") < 1) == (["k0", "l0"], {"p0"})
        assert found(table, storage, ~(pc.field("place", "at", "lat") <= 1)) == (["k2", "l1"], {"p1", "p2"})
        assert found(table, storage, pc.field("place", "at", "lat").is_null()) == (["l2"], {"p2"})
        assert found(table, storage, "place.city like 'c2%'") == (["k2"], {"p2"})

    prunes(table)
    with pytest.raises(InvalidOption, match="statistics of 'place'"):
        create_metadata(table, [COLUMN_STATS], ["place"])
    create_metadata(table, [COLUMN_STATS], ["place.city", "place.at.lat"])
    path = next(s.path for s in table.slices() if s.group.partition_path == "p1")
    city, lat = (of_file(table, path, name) for name in ("place.city", "place.at.lat"))
    assert city is not None
    assert lat is not None
    assert (city["minValue"], city["maxValue"], city["nullCount"]) == ({"value": "c1"}, {"value": "c1"}, 1)
    assert (lat["minValue"], lat["maxValue"], lat["nullCount"]) == ({"value": 1.0}, {"value": float("inf")}, 0)
    assert lat["totalSize"] > 0
    assert check_table(table) == []
    keep_statistics(storage, LogReader(storage).read, table.refresh())
    prunes(opened(storage, **NESTED))
    # A writer of another release knows only what the footers say.
    known = of_footer(pq.ParquetFile(storage.open_input(path)).metadata, table.schema, ["place.city"])
    assert known is not None
    assert (known.columns["place.city"].minimum, known.columns["place.city"].nulls) == ("c1", 1)


def test_writers_without_statistics_and_damaged_ones_leave_their_files_in() -> None:
    table, storage = made(files=1)
    write_rows(table, rows(1), Operation.UPSERT, options={"tideline.column.stats.enable": False}, parallelism=1)
    only_n = {"hoodie.metadata.index.column.stats.column.list": "n"}
    write_rows(table, rows(2), Operation.UPSERT, options=only_n, parallelism=1)
    assert found(opened(storage), storage, "n = 0")[1] == {"p0", "p1"}
    assert found(opened(storage), storage, "text = 't0'")[1] == {"p0", "p1", "p2"}
    entry = table.timeline.log.read(table.state.sequence)
    assert entry is not None
    assert isinstance(entry.body, Published)
    content = storage.read(entry.path).replace(b'"int64"', b'"nothing"')
    storage.put(entry.path, content)
    assert found(opened(storage), storage, "n = 20")[1] == {"p1", "p2"}


# --- the partition of the metadata table --------------------------------------------------------------------------------------


def held(table: Table) -> dict[str, dict[str, Any]]:
    """Return the records of the metadata table by key, read as its readers merge them; each is in the file group of its key."""
    known = table.refresh().metadata
    part = known.partition(COLUMN_STATS) if known is not None else None
    assert part is not None
    merged: dict[str, dict[str, Any]] = {}
    there = slice_files(table.storage, part)
    for group, files in enumerate(there.groups):
        records = mapping_of(read_group(table.storage, part, group, files))
        if records:
            keys = pa.array([key.decode() for key in records])
            assert set(groups_of_keys(keys, part.file_groups).tolist()) == {group}
        merged |= decode_column_stats(records.items(), record_schema_json(with_meta_fields=True))
    return merged


def of_file(table: Table, path: str, column: str) -> dict[str, Any] | None:
    return held(table).get(record_key(column, path))


@pytest.mark.parametrize("kind", list(TableType))
def test_every_action_keeps_the_records(kind: TableType) -> None:
    table, _ = made(kind, files=2, **{"hoodie.metadata.compact.max.delta.commits": 3, "hoodie.cleaner.commits.retained": 1})
    create_metadata(table, [COLUMN_STATS])
    saved = create_savepoint(table)
    files = set()

    def agree() -> None:
        assert check_table(table) == []
        files.update(path for file_slice in table.state.every_slice() for path in file_slice.paths)

    agree()
    for step in range(3):
        write_rows(table, rows(step, n=[step] * 4), Operation.UPSERT, parallelism=1)
        agree()
    compact(table) if kind is TableType.MOR else cluster(table)
    agree()
    write_rows(table, rows(0).slice(0, 1), Operation.DELETE, parallelism=1)
    run_clean(table)
    agree()
    restore_to_savepoint(table, saved.instant)
    agree()
    live = {path for file_slice in table.state.every_slice() for path in file_slice.paths}
    assert files > live
    assert {record["fileName"] for record in held(table).values()} == {path.rpartition("/")[2] for path in live}


@pytest.mark.parametrize(("precision", "scale"), [(14, 2), (15, 3), (14, 0), (15, 0), (17, 2), (18, 4), (19, 4), (30, 15)])
def test_decimals_of_every_size_that_a_record_can_hold(precision: int, scale: int) -> None:
    """With 14 or 15 digits before the point no record was made, and the partition lacked them until it was repaired."""
    storage, kind = Noting(), pa.decimal128(precision, scale)
    schema = pa.schema([("id", pa.string()), ("part", pa.string()), ("amount", kind)])
    create_table(storage.root, TableRequest("t", schema, ("id",), ("part",)), ManualClock(), storage)
    table = opened(storage)
    create_metadata(table, [COLUMN_STATS])
    most, step = Decimal((0, (9,) * precision, -scale)), Decimal((0, (1,), -scale))
    ends = [(most.copy_negate(), step.copy_negate()), (step, most)]
    given = {"id": ["a", "b", "c", "d"], "part": ["p1", "p1", "p2", "p2"], "amount": pa.array([*ends[0], *ends[1]], kind)}
    write_rows(table, pa.table(given, schema), Operation.UPSERT, parallelism=1)
    records = [record for record in held(table).values() if record["columnName"] == "amount"]
    assert sorted(tuple(record[end]["value"] for end in ("minValue", "maxValue")) for record in records) == ends
    assert check_table(table) == []
    assert found(table, storage, "amount < 0") == (["a", "b"], {"p1"})
    assert found(table, storage, "amount > 0") == (["c", "d"], {"p2"})


def test_what_a_record_says() -> None:
    table, _ = made(files=0)
    create_metadata(table, [COLUMN_STATS])
    write_rows(table, rows(1, x=[NAN, 1.0, None, 2.0], text=["z" * 100, "a", None, None]), Operation.UPSERT, parallelism=1)
    path = table.slices()[0].path
    x, text, n = (of_file(table, path, name) for name in ("x", "text", "n"))
    assert x is not None
    assert text is not None
    assert n is not None
    assert (x["minValue"]["value"], x["maxValue"]["value"], x["valueCount"], x["nullCount"]) == (1.0, float("inf"), 4, 1)
    assert (text["minValue"]["value"], text["maxValue"]["value"]) == ("a", "z" * 63 + "{")
    assert (n["minValue"]["value"], n["maxValue"]["value"], n["nullCount"]) == (10, 13, 0)
    assert n["totalSize"] > 0 < n["totalUncompressedSize"]


def test_a_file_without_rows_has_records_only_if_it_is_a_log_file() -> None:
    """As in Apache Hudi. A log file without records would keep its slice in each of its queries."""
    for kind in TableType:
        table, _ = made(kind, files=1)
        create_metadata(table, [COLUMN_STATS])
        write_rows(table, rows(0), Operation.DELETE, parallelism=1)
        (left,) = table.state.latest_slices()
        found = of_file(table, left.paths[-1], "n")
        if kind is TableType.COW:
            assert found is None
        else:
            assert found is not None
            assert (found["minValue"], found["maxValue"], found["valueCount"], found["nullCount"]) == (None, None, 0, 0)
        assert check_table(table) == []


@pytest.mark.parametrize(("recorded", "is_found"), [(0, False), (1, True)])
def test_a_log_file_of_an_earlier_release_that_only_deletes_needs_no_record(
    monkeypatch: pytest.MonkeyPatch, recorded: int, is_found: bool
) -> None:
    """Earlier releases made none.

    A record of some columns only is wrong: Apache Hudi takes the others for columns of nulls only.
    """
    table, storage = made(TableType.MOR, files=2)
    create_metadata(table, [COLUMN_STATS])
    columns = column_stats._columns_of
    with monkeypatch.context() as earlier:
        earlier.setattr(
            column_stats, "_columns_of", lambda path, file, own: columns(path, file, own)[: None if file.rows else recorded]
        )
        write_rows(table, rows(0), Operation.DELETE, parallelism=1)
    (left,) = (s for s in table.state.latest_slices() if s.log_files)
    assert of_file(table, left.paths[-1], "n") is None
    findings = check_table(table)
    assert bool(findings) == is_found
    assert all(f.kind is FindingKind.NOT_LISTED and left.log_files[-1].name in f.found for f in findings)
    assert found(table, storage, "n >= 0")[1] == {"p0", "p1"}
    # Other records are compared as before; a repair adds those that are missing.
    gone = record_key("n", left.path).encode()
    with monkeypatch.context() as damaged:
        read = check.mapping_of
        damaged.setattr(check, "mapping_of", lambda records: {key: datum for key, datum in read(records).items() if key != gone})
        assert any(left.base_file in f.found for f in check_table(table))
    repair_metadata(table)
    assert of_file(table, left.paths[-1], "n") is not None
    assert check_table(table) == []


def test_chosen_columns_and_files_that_lack_statistics_of_one() -> None:
    """Apache Hudi takes an indexed column without a record for one of nulls only: such a file has no record at all."""
    table, storage = made(files=1)
    with pytest.raises(InvalidOption, match="statistics of 'nothing'"):
        create_metadata(table, [COLUMN_STATS], ["nothing"])
    create_metadata(table, [COLUMN_STATS], ["n", "text"])
    assert b'"n"' in storage.read(INDEX_DEFINITIONS_PATH) and b'"x"' not in storage.read(INDEX_DEFINITIONS_PATH)  # noqa: PT018
    assert {record["columnName"] for record in held(table).values()} == {
        *("_hoodie_commit_time", "_hoodie_partition_path", "_hoodie_record_key"),
        *("n", "text"),
    }
    write_rows(table, rows(1), Operation.UPSERT, options={"hoodie.metadata.index.column.stats.column.list": "n"}, parallelism=1)
    assert len({record["fileName"] for record in held(table).values()}) == 1
    assert check_table(table) == []


def test_footers_of_older_files_are_read_when_the_partition_is_made() -> None:
    table, _ = made(files=2, **{"tideline.column.stats.enable": False})
    again = opened(table.storage)  # type: ignore[arg-type]
    create_metadata(again, [COLUMN_STATS])
    assert of_file(again, again.slices()[1].path, "n")["minValue"] == {"value": 10}  # type: ignore[index]
    assert check_table(again) == []


def test_a_lie_is_found_and_repaired() -> None:
    table, storage = made(files=1)
    create_metadata(table, [COLUMN_STATS])
    write_rows(table, rows(1), Operation.UPSERT, parallelism=1)
    part = table.state.metadata.partition(COLUMN_STATS)  # type: ignore[union-attr]
    assert part is not None
    older = part.deltas[-1].version
    for group in range(part.file_groups):
        from_file = file_path(log_name(part.base, older, f"col-stats-000{group}-0"), COLUMN_STATS)
        assert parse_log_file_name(from_file.rpartition("/")[2]) is not None
        storage.delete(from_file)
    storage.put(INDEX_DEFINITIONS_PATH, b"{}")
    kinds = {finding.kind.value for finding in check_table(table)}
    assert kinds & {"missing file", "not listed"}
    repair_metadata(table)
    assert check_table(table) == []
