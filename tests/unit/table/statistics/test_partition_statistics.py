"""Queries leave out whole partitions by their statistics, read those of few files then, and lose no row, whatever happened."""

from __future__ import annotations

from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from tests.plans import schedule_clean, schedule_compaction
from tests.simulation.faults import covering
from tests.unit.table.counting import NotingStorage
from tests.unit.table.tables import QUIET, cluster, compact

from tideline_table.action import cancel_plan, create_savepoint, delete_partitions, restore_to_savepoint, run_clean, write_rows
from tideline_table.clock import ManualClock
from tideline_table.log import known_statistics, state, statistics
from tideline_table.log.statistics_file import FEWEST_PARTITIONS, STATISTICS_FOLDER
from tideline_table.table import Table, TableRequest, TableType, create_table, data_skipping
from tideline_table.writer import Operation

NAN = float("nan")
SCHEMA = pa.schema([("id", pa.string()), ("part", pa.string()), ("n", pa.int64()), ("x", pa.float64()), ("text", pa.string())])
MANY = FEWEST_PARTITIONS + 8
EVERY = {"tideline.log.checkpoint.interval": 2}
"""A checkpoint, and with it statistics files, after each write: each is two entries."""


def row(number: int, **values: Any) -> dict[str, Any]:
    return {"id": f"k{number}", "part": f"p{number:04d}", "n": number, "x": number / 2, "text": f"t{number}", **values}


def made(kind: TableType = TableType.COW, partitions: int = MANY, **options: Any) -> tuple[Table, NotingStorage]:
    storage = NotingStorage()
    create_table(storage.root, TableRequest("t", SCHEMA, ("id",), ("part",), "", kind), ManualClock(), storage)
    table = opened(storage, **{**EVERY, **options})
    write(table, *map(row, range(partitions)))
    return table, storage


def opened(storage: NotingStorage, **options: Any) -> Table:
    return Table.open(storage.root, options={**QUIET, **options}, clock=ManualClock(), storage=storage)


def write(table: Table, *rows: dict[str, Any], operation: Operation = Operation.UPSERT, **options: Any) -> str:
    table.clock.advance(1)
    data = pa.Table.from_pylist(list(rows), SCHEMA)
    return write_rows(table, data, operation, options=options, parallelism=1).instant


def clean(table: Table) -> None:
    schedule_clean(table)
    run_clean(table)


def found(table: Table, where: str | pc.Expression, as_of: str = "") -> list[str]:
    """Return the ids that a query finds; all rows decide what is right."""
    snapshot = table.snapshot(as_of)
    expected = table.read(as_of=as_of).filter(snapshot.filtered(where)).column("id").to_pylist()
    ids = table.read(where=where, as_of=as_of).column("id").to_pylist()
    assert sorted(ids) == sorted(expected)
    return sorted(ids)


def partitions_of(table: Table, where: str) -> list[str]:
    snapshot = table.snapshot()
    return sorted(s.group.partition_path for s in snapshot.only(snapshot.filtered(where)).slices)


def by_partition(table: Table, where: str) -> list[str] | None:
    """Return the partitions that the statistics of partitions leave; None if the table cannot use them."""
    snapshot = table.snapshot()
    skipping, condition = snapshot.skipping, snapshot.filtered(where)
    assert skipping is not None
    names = [f.name for f in SCHEMA]
    known = skipping.known.of_partitions(
        list({s.group.partition_path for s in snapshot.slices}), names, table.state, skipping.sequence
    )
    if known is None:
        return None
    left = skipping._in_partitions(snapshot.slices, snapshot.schema, condition, frozenset(names))
    return sorted({s.group.partition_path for s in left})


def test_a_query_reads_statistics_of_partitions_and_none_of_files_that_it_leaves_out() -> None:
    table, storage = made()
    for reader in (opened(storage), table):
        storage.requests.clear()
        assert partitions_of(reader, "n = 7 or text = 't9'") == ["p0007", "p0009"]
        assert partitions_of(reader, "x is null") == []
        assert [path for _, path, _ in storage.requests if not path.startswith(".hoodie")] == []
    assert by_partition(table, "n between 3 and 4 and x > 1.6") == ["p0004"]
    assert found(table, "n = 7") == ["k7"]


def test_statistics_that_go_on_from_the_last_ones_are_those_of_a_look_at_all_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "LEAST_PACKED", 8)
    table, _ = made()
    draw, storage = Random(7), table.storage
    beside_a_base = []
    for number in range(6):
        partitions = draw.sample(range(MANY + 4), 3)
        write(table, *(row(number * 100 + n, part=f"p{n:04d}", n=draw.choice([None, n, -n]), x=draw.random()) for n in partitions))
        clean(table)
        held = table.state
        (last,) = statistics.stored_sequences(storage)[-1:]
        known, partitions_file = statistics.read_statistics_file(storage), statistics.read_partitions(storage, last)
        read = table.timeline.log.read
        files, expected = statistics._all(statistics.readable_files(storage, [last]), read, held)
        written = statistics.Written()
        statistics.read_written(read, held, known.sequence, written)
        again = statistics._continued(storage, known, written, held.slices, held.totals()[0], beside=False)
        assert again is not None, "the state is packed"
        columns = sorted(expected.column_names)
        assert again[1].select(columns).to_pylist() == expected.select(columns).to_pylist()
        assert set(files.column("path").to_pylist()) <= set(again[0].column("path").to_pylist())
        assert partitions_file.table().select(columns).to_pylist() == expected.select(columns).to_pylist()
        whole = files.sort_by("path")
        paths = whole.column("path").to_pylist()
        assert known.table(whole.column("path").combine_chunks()).sort_by("path").select(whole.column_names).equals(whole)
        assert dict(zip(paths, known.of(paths, ["n", "x"]), strict=True)) == {
            path: statistics.FileStatistics(found.rows, {name: found.columns[name] for name in ("n", "x") if name in found.columns})
            for path, found in statistics.files_in(whole).items()
        }
        beside_a_base.append(known.base is not None)
    assert beside_a_base == [True, True, True, False, True, True], "written whole once an eighth of the files is new"
    assert len(statistics.stored_sequences(storage)) <= 4, "the last three, and their base"


def test_statistics_beside_one_base_are_not_continued_above_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two processes store those of one entry: the file of partitions is of the one that wrote all, the other lies beside a base."""
    monkeypatch.setattr(state, "LEAST_PACKED", 8)
    table, storage = made()
    write(table, row(9001, part="p0001"))
    store, open_output = statistics.write_statistics_file, storage.open_output

    def both(storage: Any, sequence: int, files: pa.Table, partitions: pa.Table | None, base: int = 0) -> None:
        def after_the_other(path: str) -> Any:
            if path.endswith(".statistics"):
                storage.open_output = open_output
                known = statistics.readable_files(storage, statistics.stored_sequences(storage))
                store(storage, sequence, *statistics._all(known, table.timeline.log.read, table.state))
            return open_output(path)

        assert base
        storage.open_output = after_the_other
        store(storage, sequence, files, partitions, base)

    with monkeypatch.context() as racing:
        racing.setattr(statistics, "write_statistics_file", both)
        write(table, row(9003, part="p0003", n=5000))
    write(table, row(9005, part="p0005", n=7000))
    assert found(opened(storage), "n = 5000") == ["k9003"]


def test_few_partitions_have_no_statistics_of_their_own() -> None:
    table, storage = made(partitions=FEWEST_PARTITIONS - 1)
    assert {file.path.rpartition(".")[2] for file in storage.list_folder(STATISTICS_FOLDER).objects} == {"statistics"}
    assert partitions_of(opened(storage), "n = 7") == ["p0007"]
    write(table, row(FEWEST_PARTITIONS))
    assert by_partition(opened(storage), "n = 7") == ["p0007"]


def test_nulls_nan_and_long_texts() -> None:
    table, _ = made()
    write(table, row(1, x=NAN, n=None, text="z" * 100), row(2, x=None, text=None))
    write(table, row(1001, part="p0002", x=-0.0, text="z" * 100), row(1002, part="p0001", x=1e9))
    assert by_partition(table, "x is null") == ["p0002"]
    assert by_partition(table, "n is null") == ["p0001"]
    assert by_partition(table, "x < 0.5 and x > -1") == ["p0000", "p0002"]
    assert by_partition(table, "x = 0.5") == ["p0001", "p0002"]  # of the older slice of p0001; between the values of p0002
    assert by_partition(table, "text = '" + "z" * 100 + "'") == ["p0001", "p0002"]
    for where in ("not (x > 0)", "x = 0", "x <> 1", "text is null", pc.is_nan(pc.field("x")), "text like 'zz%'", "x >= 1e9"):
        found(table, where)


def test_files_without_statistics_keep_their_partition() -> None:
    table, storage = made()
    without = {"tideline.column.stats.enable": False}
    write(table, row(3, n=-5), **without)
    write(table, row(2000, part="new", n=-5), **without)
    for reader in (table, opened(storage)):
        assert by_partition(reader, "n = -5") == ["new", "p0003"]
        assert found(reader, "n = -5") == ["k2000", "k3"]
    opened(storage, **EVERY)
    only_n = {"hoodie.metadata.index.column.stats.column.list": "n"}
    write(table, row(4, n=-6), **only_n)
    assert by_partition(opened(storage), "text = 'none'") == ["new", "p0003", "p0004"]
    assert by_partition(opened(storage), "n = -6") == ["new", "p0003", "p0004"]


def newest(storage: NotingStorage, suffix: str) -> str:
    return max(file.path for file in storage.list_folder(STATISTICS_FOLDER).objects if file.path.endswith(suffix))


def damaged(content: bytes, older: bytes) -> dict[str, bytes]:
    middle = len(content) // 3
    flipped = content[:middle] + bytes([content[middle] ^ 0xFF]) + content[middle + 1 :]
    return {"empty": b"", "nonsense": b"nonsense", "torn": content[:-30], "stale": older, "flipped": flipped}


@pytest.mark.parametrize("damage", ["missing", "empty", "nonsense", "torn", "stale", "flipped"])
def test_missing_damaged_and_stale_statistics_are_not_used_and_written_anew(damage: str, caplog: pytest.LogCaptureFixture) -> None:
    table, storage = made()
    older = storage.read(newest(storage, ".partitions"))
    write(table, row(5, n=-1))
    path = newest(storage, ".partitions")
    content = storage.read(path)
    assert path != newest(storage, ".statistics") or content != older
    storage.delete(path) if damage == "missing" else storage.put(path, damaged(content, older)[damage])
    reader = opened(storage)
    for _ in range(3):
        assert found(reader, "n = -1") == ["k5"]
    assert by_partition(reader, "n = -1") is None
    assert [r.message.partition(" (")[0] for r in caplog.records] == ["statistics of partitions cannot be read"]
    # The next checkpoint, although no write has completed since.
    statistics.keep_statistics(storage, table.timeline.log.read, table.refresh())
    assert by_partition(opened(storage), "n = -1") == ["p0005"]


def test_old_and_new_readers_and_those_of_the_past_see_their_rows() -> None:
    table, storage = made(**{"hoodie.cleaner.commits.retained": 1})
    past = write(table, row(5, n=-1))
    stays_open, held = opened(storage), opened(storage).snapshot()
    write(table, row(5, n=-2))
    assert found(table, "n = -1", as_of=past) == ["k5"]
    assert found(table, "n = -1") == []
    assert by_partition(table, "n = -1") == ["p0005"]  # of a slice that is not cleaned
    for _ in range(3):
        write(table, row(6))
    clean(table)
    for _ in range(2):
        write(table, row(6))
    assert by_partition(opened(storage), "n = -1") == []
    assert by_partition(stays_open, "n = -1") is None  # the files are newer than what this reader sees
    assert stays_open.snapshot().only(pc.field("n") == -1).slices
    assert held.only(pc.field("n") == -1).slices
    stays_open.refresh()
    assert by_partition(stays_open, "n = -1") == []


def test_a_table_that_stays_open_takes_newer_files_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_statistics, "ENTRIES_BEFORE_REOPENING", 24)
    table, _ = made(**{"hoodie.cleaner.commits.retained": 1})
    write(table, row(5, n=-1))
    assert by_partition(table, "n = -1") == ["p0005"]
    write(table, row(5))
    write(table, row(5))
    clean(table)
    for _ in range(known_statistics.ENTRIES_BEFORE_REOPENING // 2):
        write(table, row(6))
    assert by_partition(table, "n = -1") == []


def test_entries_that_are_gone_archived_or_undone_turn_them_off() -> None:
    table, storage = made()
    saved = create_savepoint(table)
    later = opened(storage, **{"tideline.log.checkpoint.interval": 1000})
    write(later, row(5, n=-1))
    reader = opened(storage)
    held = reader.snapshot()
    assert by_partition(opened(storage), "n = -1") == ["p0005"]
    restore_to_savepoint(later, saved.instant)
    assert by_partition(opened(storage), "n = -1") is None
    reader.refresh()
    assert held.only(pc.field("n") == -1).slices  # which then fails with `HistoryUnavailable`, as without statistics
    write(opened(storage, **EVERY), row(6))
    write(opened(storage, **EVERY), row(6))
    assert by_partition(opened(storage), "n = -1") == []


def step(table: Table, random: Random) -> str:
    """Do something to the table; return its name."""
    rows = [
        row(number, part=random.choice(["a", "b", "c"]), n=random.randint(0, 9), x=random.choice([NAN, None, 1.0, 2.0]))
        for number in random.sample(range(40), 2)
    ]
    for each in rows:  # keys are of one partition, or they would be two records
        each["id"] += each["part"]
    done = random.choice(["upsert"] * 6 + ["delete", "overwrite", "drop", "compact", "cancel", "cluster", "clean", "restore"])
    is_mor = table.definition.has_logs
    partitions = sorted({s.group.partition_path for s in table.state.latest_slices()})
    match done:
        case "upsert":
            write(table, *rows, **({"tideline.column.stats.enable": False} if random.random() < 0.1 else {}))
        case "delete":
            write(table, *rows, operation=Operation.DELETE)
        case "overwrite":
            write(table, *rows, operation=Operation.INSERT_OVERWRITE)
        case "drop" if len(partitions) > 2:
            delete_partitions(table, partitions[:1])
        case "compact" if is_mor:
            compact(table)
        case "cancel" if is_mor:
            planned = schedule_compaction(table, {"hoodie.compact.inline.max.delta.commits": 1})
            if planned:
                write(table, *rows)
                cancel_plan(table, planned)
        case "cluster":
            cluster(table)
        case "clean":
            clean(table)
        case "restore" if table.state.savepoints:
            restore_to_savepoint(table, max(table.state.savepoints))
        case _ if not table.state.savepoints:
            create_savepoint(table)
    return done


@pytest.mark.parametrize(("kind", "seed"), covering(1, TableType, range(2)))
def test_any_history_leaves_queries_right(kind: TableType, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The thresholds are lowered, so that three partitions have statistics, many of them beside those of a base."""
    for module in (statistics, data_skipping):
        monkeypatch.setattr(module, "FEWEST_PARTITIONS", 1)
    monkeypatch.setattr(state, "LEAST_PACKED", 1)
    monkeypatch.setattr(statistics, "_BASE_SHARE", 1)
    random = Random(seed)
    table, storage = made(kind, 3, **{"tideline.log.checkpoint.interval": 7, "hoodie.cleaner.commits.retained": 3})
    long_open, done, used, instants, beside = opened(storage), [], 0, [], 0
    for _ in range(30):
        table.clock.advance(1)
        done.append(step(table, random))
        instants = [a.instant for a in table.state.completed_writes() if a.instant >= table.state.last_clean_retained][-3:]
        long_open.refresh()
        last = statistics.read_statistics_file(storage)
        beside += last is not None and last.base is not None
        where = random.choice(["n = {0}", "n > {0}", "not (x = 1) and n <= {0}", "x is null and n = {0}", "x = 2 or n = {0}"])
        where = where.format(random.randint(0, 9))
        for reader in (opened(storage), long_open):
            found(reader, where)
            found(reader, where, as_of=random.choice(instants))
            used += by_partition(reader, where) is not None
    assert used > 10, done
    assert beside > 3, done
