"""Vectorised key generation against one row at a time, as the format reference words it (3.2, 3.3)."""

import datetime as dt
from decimal import Decimal

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st
from tests.property.profile import quick

from tideline_table.errors import InvalidRecord
from tideline_table.keygen import KeyGenerator
from tideline_table.storage import checked_path

ENCODED = {chr(c) for c in [*range(0x20), 0x7F]} | set("\"#%'*/:=?\\{[]^")
texts = st.text(st.one_of(st.sampled_from("ab./=%:\\ é漢😀\x00\n"), st.characters(exclude_categories=["Cs"])), max_size=8)
KINDS = {
    "text": (pa.string(), texts),
    "int": (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "bool": (pa.bool_(), st.booleans()),
    "date": (pa.date32(), st.dates(dt.date(1, 1, 1), dt.date(9999, 12, 31))),
    "decimal": (pa.decimal128(12, 9), st.decimals(-999, 999, places=9, allow_nan=False).map(lambda d: d or Decimal("0E-9"))),
    "timestamp": (pa.timestamp("us"), st.datetimes(dt.datetime(1900, 1, 1), dt.datetime(2200, 1, 1))),
}


def text_of(value):
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dt.datetime):
        return str((value - dt.datetime(1970, 1, 1)) // dt.timedelta(microseconds=1))
    if isinstance(value, dt.date):
        return value.strftime("%Y-%m-%d").zfill(10)
    return str(value)


def key_of(generator, row):
    values = [text_of(row[name]) for name in generator.key_fields]
    if len(generator.key_fields) == 1 and len(generator.partition_fields) < 2:
        if not values[0]:
            raise InvalidRecord("no key")
        return values[0]
    if not any(values):
        raise InvalidRecord("no key")
    shown = ["__null__" if v is None else "__empty__" if v == "" else v for v in values]
    return ",".join(f"{name}:{v}" for name, v in zip(generator.key_fields, shown, strict=True))


def path_of(generator, row):
    levels = []
    for name in generator.partition_fields:
        text = text_of(row[name]) or "__HIVE_DEFAULT_PARTITION__"
        if generator.url_encode:
            text = "".join(f"%{ord(c):02X}" if c in ENCODED else c for c in text)
        parts = text.split("/")
        if "\\" in text or "\x00" in text or any(p in ("", ".", "..") or p.startswith(".hoodie") for p in parts):
            raise InvalidRecord("unsafe")
        levels.append(f"{name}={text}" if generator.hive_style else text)
    return "/".join(levels)


def outcome(call):
    try:
        return call()
    except InvalidRecord:
        return "refused"


@st.composite
def cases(draw):
    names = [f"c{n}" for n in range(draw(st.integers(1, 3)))]
    kinds = {name: KINDS[draw(st.sampled_from(sorted(KINDS)))] for name in names}
    rows = draw(st.lists(st.fixed_dictionaries({n: st.one_of(st.none(), values) for n, (_, values) in kinds.items()}), max_size=6))
    schema = pa.schema([pa.field(n, kind) for n, (kind, _) in kinds.items()])
    some = st.permutations(names)
    keys, partitions = draw(some)[: draw(st.integers(1, len(names)))], draw(some)[: draw(st.integers(0, len(names)))]
    generator = KeyGenerator(tuple(keys), tuple(partitions), hive_style=draw(st.booleans()), url_encode=draw(st.booleans()))
    return generator, pa.Table.from_pylist(rows, schema), rows


@quick
@given(cases())
def test_row_by_row(case):
    generator, table, rows = case
    assert outcome(lambda: generator.record_keys(table).to_pylist()) == outcome(lambda: [key_of(generator, r) for r in rows])
    assert outcome(lambda: generator.partition_paths(table).to_pylist()) == outcome(lambda: [path_of(generator, r) for r in rows])


@quick
@given(st.lists(texts, max_size=4), st.booleans())
def test_partition_paths_stay_inside(values, url_encode):

    generator = KeyGenerator(("p",), ("p",), url_encode=url_encode)
    for path in (
        []
        if (found := outcome(lambda: generator.partition_paths(pa.table({"p": pa.array(values, pa.string())})).to_pylist()))
        == "refused"
        else found
    ):
        assert checked_path(path) == path
        assert not path.startswith(".hoodie")
