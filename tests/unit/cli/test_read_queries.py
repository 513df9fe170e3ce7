"""`tideline read` beyond the snapshot: keys, read-optimized, incremental and changes, on a merge-on-read table."""

from __future__ import annotations

import json

import pyarrow.parquet as pq
import pytest

from tideline_table.table import Table


@pytest.fixture
def rides(tmp_path, done):
    """Four writes: a, b, c; then b updated and d added; c deleted; a updated.

    Returns the path and each write's instant and sequence.
    """
    path = tmp_path / "rides"
    schema = {"type": "record", "name": "r", "fields": [{"name": "id", "type": "string"}]}
    schema["fields"] += [
        {"name": name, "type": ["null", kind], "default": None} for name, kind in (("city", "string"), ("n", "long"))
    ]
    (tmp_path / "rides.avsc").write_text(json.dumps(schema))
    done("create", path, "--schema-from", tmp_path / "rides.avsc", "--key", "id", "--type", "mor")
    points = []
    for operation, rows in [
        ("upsert", [("a", "Paris", 1), ("b", "Paris", 2), ("c", "Rome", 3)]),
        ("upsert", [("b", "Paris", 20), ("d", "Rome", 4)]),
        ("delete", [("c", "Rome", 3)]),
        ("upsert", [("a", "Lyon", 10)]),
    ]:
        lines = "\n".join(json.dumps(dict(zip(("id", "city", "n"), row, strict=True))) for row in rows)
        (tmp_path / "rows.jsonl").write_text(lines)
        committed = done("write", path, "--from", tmp_path / "rows.jsonl", "--operation", operation, "--json").document
        points.append((committed["instant"], Table.open(str(path)).state.actions[committed["instant"]].sequence))
    return path, points


def rows(outcome):
    return sorted((r["id"], r["n"]) for r in outcome.rows)


def test_snapshots_merge_logs(rides, done):
    path, points = rides
    assert rows(done("read", path)) == [("a", 10), ("b", 20), ("d", 4)]
    assert rows(done("read", path, "--as-of", points[1][0])) == [("a", 1), ("b", 20), ("c", 3), ("d", 4)]
    assert rows(done("read", path, "--where", "city <> 'Paris'")) == [("a", 10), ("d", 4)]
    many = ", ".join(f"'{n}'" for n in range(10_000))
    assert rows(done("read", path, "--where", f"city IN ('Lyon', {many})")) == [("a", 10)]
    assert rows(done("read", path, "--where", f"city NOT IN ('Lyon', {many})")) == [("b", 20), ("d", 4)]


def test_read_optimized(rides, done):
    path, _ = rides
    assert any(s.log_files for s in Table.open(str(path)).slices())
    found = rows(done("read", path, "--read-optimized"))
    assert ("a", 1) in found
    assert found != rows(done("read", path))


def test_keys(rides, done):
    path, points = rides
    assert rows(done("read", path, "--key", "b", "--key", "a", "--key", "nobody")) == [("a", 10), ("b", 20)]
    assert rows(done("read", path, "--key", "c")) == []
    assert rows(done("read", path, "--key", "c", "--as-of", points[0][0])) == [("c", 3)]
    assert rows(done("read", path, "--key", "a", "--key", "b", "--where", "n > 15")) == [("b", 20)]
    assert done("read", path, "--key", "a", "--columns", "n", "--json").document["rows"] == [{"n": 10}]


def test_rows_since_a_point(rides, done):
    path, points = rides
    (first, one), (second, two), *_ = points
    for since, until in ((one, two), (first, second)):
        assert rows(done("read", path, "--since", since, "--until", until)) == [("b", 20), ("d", 4)]
    assert rows(done("read", path, "--since", two)) == [("a", 10)]
    assert rows(done("read", path, "--until", one)) == [("a", 1), ("b", 2), ("c", 3)]
    assert rows(done("read", path, "--since", "2000-01-01")) == [("a", 10), ("b", 20), ("d", 4)]
    assert rows(done("read", path, "--since", one, "--where", "city = 'Rome'")) == [("d", 4)]


def test_changes_with_images(rides, done, tmp_path):
    path, points = rides
    found = done("read", path, "--since", points[0][1], "--changes", "--columns", "id,n").rows
    assert sorted(found, key=lambda r: r["op"] + str(r["after"])) == [
        {"op": "d", "before": {"id": "c", "n": 3}, "after": None},
        {"op": "i", "before": None, "after": {"id": "d", "n": 4}},
        {"op": "u", "before": {"id": "a", "n": 1}, "after": {"id": "a", "n": 10}},
        {"op": "u", "before": {"id": "b", "n": 2}, "after": {"id": "b", "n": 20}},
    ]
    target = tmp_path / "changes.parquet"
    done("read", path, "--changes", "--since", points[2][1], "--output", target)
    (row,) = pq.read_table(target).to_pylist()
    assert (row["op"], row["before"]["city"], row["after"]["city"]) == ("u", "Paris", "Lyon")


@pytest.mark.parametrize(
    "arguments",
    [
        ("--since", "1", "--as-of", "2024-01-01"),
        ("--changes", "--key", "a"),
        ("--until", "3", "--read-optimized"),
        ("--key", "a", "--read-optimized"),
        ("--since", "999999"),
        ("--since", "last week"),
        ("--since", "3", "--until", "1"),
        ("--changes", "--columns", "nope"),
        ("--key", "a", "--columns", "nope"),
    ],
)
def test_refusals(rides, refused, arguments):
    refused("read", rides[0], *arguments)


def test_fields_of_structs_are_named_by_dotted_paths(done, tmp_path):
    rows = [{"id": 1, "a": {"city": "Oslo"}}, {"id": 2, "a": None}, {"id": 3, "a": {"city": "Rome"}}]
    (tmp_path / "s.jsonl").write_text("\n".join(map(json.dumps, rows)))
    done("create", tmp_path / "t", "--schema-from", tmp_path / "s.jsonl", "--key", "id")
    done("write", tmp_path / "t", "--from", tmp_path / "s.jsonl")
    assert done("read", tmp_path / "t", "--columns", "a.city,id", "--where", "a.city = 'Rome'").rows == [
        {"a.city": "Rome", "id": 3}
    ]
    assert done("read", tmp_path / "t", "--columns", "id", "--where", "a.city IS NULL").rows == [{"id": 2}]


def test_some_operations_and_a_sequence_as_of(rides, done):
    path, points = rides
    (deleted,) = done("read", path, "--since", points[0][1], "--op", "deleted").rows
    assert (deleted["op"], deleted["before"]["id"]) == ("d", "c")
    assert [r["after"]["id"] for r in done("read", path, "--since", points[0][1], "--changes", "--op", "i").rows] == ["d"]
    assert rows(done("read", path, "--as-of", points[1][1], "--where", "n > 2")) == [("b", 20), ("c", 3), ("d", 4)]
