"""Any rows in any files, any filter: data skipping never leaves out a file with a row for which the filter is true."""

import datetime as dt
import operator
from decimal import Decimal
from random import Random

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tideline_table.log.statistics import statistics_table
from tideline_table.log.statistics_file import read_partitions, write_statistics_file
from tideline_table.reader.data_skipping import may_match
from tideline_table.schema.arrow import named_field
from tideline_table.statistics import (
    FileStatistics,
    PartitionBounds,
    StatisticsCollector,
    bounds_of,
    by_partition,
    statistics_from,
    statistics_json,
)
from tideline_table.storage import MemoryStorage

NAN, INF = float("nan"), float("inf")
EPOCH = dt.datetime(1970, 1, 1)
MOMENTS = [EPOCH + dt.timedelta(hours=hours) for hours in (-40, -24, -1, 0, 3, 23, 24, 100)]
KINDS = {
    "flag": (pa.bool_(), [True, False]),
    "tiny": (pa.int8(), [-128, -1, 0, 1, 2, 127]),
    "whole": (pa.int64(), [-(2**63), -(2**53) - 1, -1, 0, 1, 2, 3, 2**53, 2**53 + 1, 2**63 - 1]),
    "small": (pa.float32(), [NAN, INF, -INF, -0.0, 0.0, 0.10000000149011612, 1.5, 16777216.0]),
    "real": (pa.float64(), [NAN, INF, -INF, -0.0, 0.0, 0.1, 1.5, 1e300, 2.0**53]),
    "money": (pa.decimal128(12, 2), [Decimal(text) for text in ("-99.99", "-0.01", "0.00", "0.01", "3.00", "100.00")]),
    "text": (
        pa.string(),
        ["", "a", "ab", "b" * 64, "b" * 64 + "c", "b" * 63 + "c", "\U0010ffff" * 65, "\ud7ff" * 70, "\ue000", "é漢", "😀"],
    ),
    "bytes": (pa.binary(), [b"", b"\0", b"a", b"a" * 70, b"\xff" * 70, b"\xff" * 64 + b"a"]),
    "day": (pa.date32(), [moment.date() for moment in MOMENTS]),
    "clock": (pa.time64("us"), [moment.time() for moment in MOMENTS]),
    "at": (pa.timestamp("us", "UTC"), [moment.replace(tzinfo=dt.UTC) for moment in MOMENTS]),
    "second": (pa.timestamp("ms"), MOMENTS),
    "other": (pa.int64(), [-1, 0, 1, 2, 2**63 - 1]),
}
INNER = pa.struct([(name, kind) for name, (kind, _) in KINDS.items() if name in ("whole", "real", "text", "day", "flag")])
SCHEMA = pa.schema([*(pa.field(name, kind) for name, (kind, _) in KINDS.items()), ("place", pa.struct([("inner", INNER)]))])
NESTED = [f"place.inner.{field.name}" for field in INNER]
COMPARISONS = [operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge]
PATTERNS = ["a%", "a_", "b_", "%", "", "b" * 64 + "%", "b" * 70 + "%", "é%", "a\\%", "\ud7ff%", "\U0010ffff%", "A%"]


def drawn_rows(random: Random) -> pa.Table:
    """Return a few rows; columns with one value, with few values, and of nulls only are frequent."""
    count = random.choice([0, 1, 1, 2, 3])
    columns = []
    for kind, pool in KINDS.values():
        few = random.sample(pool, random.randint(1, 2))
        columns.append(pa.array([random.choice([*few, None]) if random.random() < 0.5 else few[0] for _ in range(count)], kind))
        if random.random() < 0.15:
            columns[-1] = pa.nulls(count, kind)
    fields = dict(zip(KINDS, columns, strict=True))
    # Fields of a null struct are null, whatever the arrays below it hold.
    hidden = [pa.array([random.random() < 0.2 for _ in range(count)], pa.bool_()) for _ in range(2)]
    inner = pa.StructArray.from_arrays([fields[field.name] for field in INNER], fields=list(INNER), mask=hidden[0])
    columns.append(pa.StructArray.from_arrays([inner], names=["inner"], mask=hidden[1]))
    return pa.table(columns, schema=SCHEMA)


def drawn_field(random: Random, name: str) -> pc.Expression:
    """Return a reference to the column, or to the field of a struct with its values."""
    is_nested = f"place.inner.{name}" in NESTED and random.random() < 0.4
    return pc.field("place", "inner", name) if is_nested else pc.field(name)


def drawn_condition(random: Random, depth: int = 3) -> pc.Expression:
    shape = random.choice(["leaf", "leaf", "and", "or", "not", "null"]) if depth else "leaf"
    if shape in ("and", "or"):
        one, other = drawn_condition(random, depth - 1), drawn_condition(random, depth - 1)
        return one & other if shape == "and" else one | other
    if shape == "not":
        return ~drawn_condition(random, depth - 1)
    return drawn_condition(random, depth - 1).is_null() if shape == "null" else drawn_test(random)


def drawn_test(random: Random) -> pc.Expression:
    name = random.choice(list(KINDS))
    kind, pool = KINDS[name]
    column, value = drawn_field(random, name), pa.scalar(random.choice(pool), kind)
    compare = random.choice(COMPARISONS)
    shape = random.choice(["compare", "compare", "mirror", "in", "null", "valid", "special", "special"])
    if shape == "in":
        return column.isin(pa.array(random.sample([*pool, None], random.randint(1, 3)), kind))
    if shape in ("null", "valid"):
        return column.is_null(nan_is_null=random.random() < 0.3) if shape == "null" else column.is_valid()
    if shape == "special":
        return drawn_special(random, name, compare)
    return compare(column, value) if shape == "compare" else compare(pc.scalar(value), column)


def drawn_special(random: Random, name: str, compare: operator) -> pc.Expression:
    """Return a test that is of use for one type only, or that converts the column."""
    column = drawn_field(random, name)
    if name == "text":
        return random.choice([pc.match_like, pc.starts_with])(column, random.choice(PATTERNS), ignore_case=random.random() < 0.2)
    if name in ("small", "real"):
        return random.choice([pc.is_nan(column), compare(column, random.choice([0, 1, 16777217, 0.1, NAN]))])
    if name == "flag":
        return column
    if name in ("whole", "tiny"):
        converted = column.cast(random.choice([pa.float64(), pa.int16(), pa.int64()]))
        return compare(random.choice([column, converted]), random.choice([pc.field("other"), 0, 2, 0.5, 2.0**53, 1e18]))
    if name == "money":
        return compare(column, random.choice([Decimal("0.005"), Decimal("99.999"), Decimal(-3), 3]))
    if name in ("day", "at", "second"):
        moment = random.choice(MOMENTS).replace(tzinfo=dt.UTC if name == "at" else None)
        return random.choice([compare(column, pa.scalar(moment)), compare(column.cast(pa.date32()), moment.date())])
    return compare(column, column)


def statistics_of(rows: pa.Table, at: int) -> FileStatistics:
    """Return the statistics of rows that are written in two parts."""
    collector = StatisticsCollector([*SCHEMA.names, *NESTED])
    for part in (rows.slice(0, at), rows.slice(at)):
        collector.add(part)
    return collector.result()


@pytest.mark.parametrize("seed", range(2))
def test_no_file_with_a_matching_row_is_left_out(seed: int) -> None:
    random = Random(seed)
    left_out = matched = 0
    for _ in range(100):
        files = [drawn_rows(random) for _ in range(3)]
        written = {str(at): statistics_of(rows, random.randint(0, 2)) for at, rows in enumerate(files)}
        stored = statistics_from(statistics_json(written))
        assert stored == written
        held = [None if random.random() < 0.1 else stored[str(at)] for at in range(len(files))]
        where = drawn_condition(random)
        chosen = may_match(where, SCHEMA, len(files), lambda name, held=held: bounds_of(held, name, named_field(SCHEMA, name).type))
        for rows, is_chosen in zip(files, chosen, strict=True):
            try:
                matches = rows.filter(where).num_rows
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
                continue  # the query itself raises
            assert is_chosen or not matches, (where, rows.to_pylist())
            left_out, matched = left_out + (not is_chosen), matched + bool(matches)
    assert left_out > 20
    assert matched > 20


def together(files: list[FileStatistics | None]) -> FileStatistics | None:
    whole: FileStatistics | None = FileStatistics(0)
    for file in files:
        whole = None if whole is None or file is None else whole.union(file)
    return whole


def narrowed(random: Random, file: FileStatistics) -> FileStatistics:
    """Return the statistics as of a writer to which a whole number was of a smaller type, or that took none of some columns."""
    columns = dict(file.columns)
    if random.random() < 0.2 and "tiny" in columns:
        columns["whole"] = columns["tiny"]
    return FileStatistics(file.rows, {name: held for name, held in columns.items() if random.random() > 0.02})


@pytest.mark.parametrize("seed", range(2))
def test_partitions_are_judged_as_all_of_their_files_together(seed: int) -> None:
    """Some files are stored, some were written later, of some nothing is known; stored and read as a table does."""
    random = Random(seed)
    left_out = 0
    for _ in range(25):
        storage = MemoryStorage()
        live, later = {}, {}
        for partition in ("a", "b", "c", "d"):
            for number in range(random.choice([0, 1, 1, 2])):
                live[f"{partition}/{number}"] = (
                    None if random.random() < 0.1 else narrowed(random, statistics_of(drawn_rows(random), 0))
                )
            if random.random() < 0.4:
                later[partition] = None if random.random() < 0.1 else narrowed(random, statistics_of(drawn_rows(random), 0))
        table = statistics_table({path: held for path, held in live.items() if held is not None})
        partitions = by_partition(table, pa.array(live, pa.string()), pa.array([path[0] for path in live], pa.string()))
        write_statistics_file(storage, 7, table, partitions)
        known = read_partitions(storage, 7)
        wanted = random.sample(["a", "b", "c", "d"], 3)
        found = PartitionBounds(wanted, known.partitions, known.columns([*SCHEMA.names, *NESTED]), later)
        expected = [
            together([*(held for path, held in live.items() if path[0] == name), *([later[name]] if name in later else [])])
            if name in later or any(path[0] == name for path in live)
            else None
            for name in wanted
        ]
        for _ in range(20):
            where = drawn_condition(random)
            chosen = may_match(where, SCHEMA, 3, lambda name, found=found: found.bounds(name, named_field(SCHEMA, name).type))
            by_union = may_match(
                where, SCHEMA, 3, lambda name, held=expected: bounds_of(held, name, named_field(SCHEMA, name).type)
            )
            assert chosen.tolist() == by_union.tolist(), where
            left_out += 3 - int(chosen.sum())
    assert left_out > 50
