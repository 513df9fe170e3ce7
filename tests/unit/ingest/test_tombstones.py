"""Tombstones beside rows of the same keys: the table is what record by record it would be."""

import random

import numpy as np
import pyarrow as pa
import pytest
from tests.unit.ingest.topics import SCHEMA, Topics, application, new_table, row, run

from tideline_ingest.batch import Batch, Received, order_of
from tideline_ingest.errors import Undecodable
from tideline_ingest.screening import rejected_among
from tideline_runtime.errors import InvalidSetting
from tideline_table.clock import SystemClock
from tideline_table.storage import MemoryStorage
from tideline_table.table import Table, TableRequest, TableType, create_table

T0, T1 = ("t", 0), ("t", 1)


def records_of(texts, place=T0):
    """`a` is a row of key a, `-a` its tombstone."""
    return [Received(place, at, t[-1].encode(), None if t[0] == "-" else b"row") for at, t in enumerate(texts)]


def order(records, **more):
    rows = [i for i, r in enumerate(records) if r.value is not None]
    gone = [i for i, r in enumerate(records) if r.value is None]

    def identities(positions):
        return pa.chunked_array([pa.array([records[i].key.decode() for i in positions], pa.string())])

    return order_of(records, rows, identities(rows), gone, identities(gone), **more)


@pytest.mark.parametrize(
    ("texts", "cut", "stays"),
    [
        ("a b -c", None, [True, True]),
        ("a -a b", None, [False, True]),
        ("a a -a -a", None, [False, False]),
        ("-a b a c", 2, None),
        ("a -a b a -a a", 3, None),
        ("-a -b b a", 2, None),
    ],
)
def test_what_one_commit_can_hold(texts, cut, stays):
    found = order(records_of(texts.split()))
    assert found.cut == ({} if cut is None else {T0: cut})
    if stays is not None:
        assert found.stays.tolist() == stays


@pytest.mark.parametrize(
    ("texts", "stays", "removes"),
    [
        ("a b -c", [True, True], [True]),
        ("a -a b", [False, True], [True]),
        ("-a a", [True], [False]),
        ("a -a a a -b", [False, True, True], [False, True]),
        ("a -a a -a", [False, False], [True, True]),
    ],
)
def test_where_the_last_one_wins_nothing_waits(texts, stays, removes):
    found = order(records_of(texts.split()), last_wins=True)
    assert (found.cut, found.stays.tolist(), found.removes.tolist()) == ({}, stays, removes)


def test_a_cut_leaves_other_partitions_alone():
    batch = Batch(tuple(records_of(["-a", "a", "b"]) + records_of(["c", "d"], T1)), {T0: 3, T1: 7}, 0.0)
    found = order(batch.records)
    assert found.cut == {T0: 1}
    rest = batch.without(found.cut)
    assert [(r.place, r.offset) for r in rest.records] == [(T0, 0), (T1, 0), (T1, 1)]
    assert rest.next == {T0: 1, T1: 7}


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(("kind", "ordering"), [(TableType.COW, ""), (TableType.COW, "ts"), (TableType.MOR, "")])
def test_the_table_is_what_record_by_record_it_would_be(tmp_path, seed, kind, ordering):
    choose = random.Random(seed)
    storage = MemoryStorage()
    new_table(storage, SystemClock(), ordering_field=ordering, partition_fields=(), type=kind)
    topics, state = Topics(), {}
    for n in range(120):
        key = choose.randrange(8)
        name, place = f"k{key}", ("t", key % 2)
        if choose.random() < 0.25:
            topics.send(place, name, None)
            state.pop(name, None)
            continue
        found = row(name, choose.randrange(50), float(n))
        topics.send(place, name, found)
        if not ordering or name not in state or found["ts"] >= state[name]["ts"]:
            state[name] = found
    service, _ = application(topics, storage, tmp_path, tombstones="delete", batch_rows=40)
    service.start()
    table = Table.open(storage.root, storage=storage)
    for _ in range(100):
        service.tick()
        if all(service._reader.next[place] == len(kept) for place, kept in topics.records.items()):
            break
    service.stop()
    table.refresh()
    found = sorted(table.read(SCHEMA.names).to_pylist(), key=lambda r: r["id"])
    assert found == sorted(state.values(), key=lambda r: r["id"])


@pytest.mark.parametrize("at_most", [None, 1])
def test_records_that_are_refused_are_found_by_halving(at_most):
    records = [Received(T0, n, None, b"bad" if n in (0, 77, 78, 199) else b"good") for n in range(200)]
    calls = []

    def accept(some):
        calls.append(len(some))
        if any(r.value == b"bad" for r in some):
            raise Undecodable("bad")

    found = rejected_among(records, accept, at_most)
    assert [r.record.offset for r in found] == ([0] if at_most else [0, 77, 78, 199])
    assert len(calls) < (20 if at_most else 70)
    assert rejected_among([], accept) == []
    assert isinstance(order(records_of(["a"])).stays, np.ndarray)


PLACE = pa.struct([("id", pa.string()), ("city", pa.string()), ("ts", pa.int64())])


def nested_table(partition_fields):
    storage = MemoryStorage()
    schema = pa.schema([("a", PLACE), ("amount", pa.float64())])
    create_table(storage.root, TableRequest("t", schema, ("a.id",), partition_fields, "a.ts"), SystemClock(), storage)
    return storage


@pytest.mark.parametrize(
    ("key_format", "partition_fields", "key"),
    [("text", (), "k1"), ("json", (), '{"a.id": "k1"}'), ("json", ("a.city",), '{"a.id": "k1", "a.city": "Oslo"}')],
)
def test_a_tombstone_names_fields_of_structs(tmp_path, key_format, partition_fields, key):
    storage, topics = nested_table(partition_fields), Topics()
    for name in ("k1", "k2"):
        topics.send(T0, name, {"a": {"id": name, "city": "Oslo", "ts": 5}, "amount": 1.0})
    topics.send(T0, key, None)
    service, _ = application(topics, storage, tmp_path, tombstones="delete", key_format=key_format)
    run(service, 1)
    assert Table.open(storage.root, storage=storage).read(["a.id"]).to_pylist() == [{"a.id": "k2"}]


def test_keys_of_several_fields_of_structs_cannot_come_from_a_registry(tmp_path):
    storage = nested_table(("a.city",))
    service, _ = application(
        Topics(), storage, tmp_path, tombstones="delete", key_format="avro_registry", schema_registry="http://localhost:1"
    )
    with pytest.raises(InvalidSetting, match=r"fields of structs \(a\.id, a\.city\).*json"):
        service.start()
