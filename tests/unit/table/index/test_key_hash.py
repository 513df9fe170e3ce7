"""Hashes of inserted keys: the same values as ever, and none where nobody asks for them."""

import numpy as np
import pyarrow as pa
import pytest
import xxhash
from tests.unit.table.tables import contents, new_table, write

from tideline_table.index.scope import key_hashes
from tideline_table.writer import Operation, task

KEYS = ["", "a", "é漢😀", "k" * 300, *(f"key-{n}" for n in range(40_000))]


@pytest.mark.parametrize("partition", ["", "p/q=ü"])
def test_hashes_are_those_of_one_key_at_a_time(partition):
    expected = [xxhash.xxh3_64_intdigest(f"{partition}\x00{key}".encode()) for key in KEYS]
    chunked = pa.chunked_array([KEYS[:3], [], KEYS[3:17], KEYS[17:]], pa.string())
    assert key_hashes(partition, pa.array(KEYS)).tolist() == expected
    assert key_hashes(partition, chunked).tolist() == expected
    assert key_hashes(partition, pa.array([], pa.string())).dtype == np.uint64


@pytest.mark.parametrize(
    ("operation", "options", "carried"),
    [
        (Operation.BULK_INSERT, {}, False),
        (Operation.INSERT, {}, False),
        (Operation.INSERT, {"hoodie.datasource.insert.dup.policy": "drop"}, True),
        (Operation.UPSERT, {}, True),
    ],
)
def test_more_keys_than_a_commit_carries_are_hashed_only_for_a_promise_of_unique_keys(operation, options, carried, monkeypatch):
    asked = []
    monkeypatch.setattr(task, "MAX_CARRIED_HASHES", 2)
    monkeypatch.setattr(task, "key_hashes", lambda p, keys: asked.append(len(keys)) or key_hashes(p, keys))
    table, _, _ = new_table()
    committed = write(table, [(k, "p", 1, "x") for k in "abc"], operation, **options)
    assert asked == ([3] if carried else [])
    assert (table.timeline.log.read(committed.sequence).body.inserted_key_hashes is not None) is carried
    write(table, [(k, "p", 2, "y") for k in "cd"])
    assert contents(table) == [("a", "p", 1, "x"), ("b", "p", 1, "x"), ("c", "p", 2, "y"), ("d", "p", 2, "y")]
