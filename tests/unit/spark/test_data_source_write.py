"""What the processes of a write through the format `tideline` do, without Spark: stage rows, and commit them once."""

from __future__ import annotations

import pickle
from pathlib import Path

import pyarrow as pa
import pytest

import tideline
from tideline_spark import data_source_write
from tideline_spark.data_source_write import StreamWriter, WriteOptions, Writer
from tideline_table.errors import InvalidOption, StorageError
from tideline_table.storage import STAGING

ROWS = pa.table({"id": ["a", "b", "c"], "n": pa.array([1, 2, 3], pa.int64())})
MORE = pa.table({"id": ["a", "z"], "n": pa.array([10, 26], pa.int64())})


@pytest.fixture
def table(tmp_path: Path) -> tideline.Table:
    made = tideline.create(str(tmp_path / "t"), schema=ROWS.schema, key="id")
    made.upsert(ROWS)
    return made


def options(table: tideline.Table, *, overwrite: bool = False, is_stream: bool = False, **more: str) -> WriteOptions:
    return WriteOptions.of({"path": table.path, **more}, overwrite=overwrite, is_stream=is_stream)


def staged(table: tideline.Table) -> list[str]:
    return [found.path for found in table._table.storage.list_folder(STAGING).objects]


def commits(table: tideline.Table) -> int:
    return len(table._table.refresh().completed_writes())


def test_the_rows_of_all_tasks_are_one_commit(table):
    writer = pickle.loads(pickle.dumps(Writer(options(table))))
    tasks = [writer.write(iter(part.to_batches())) for part in (MORE.slice(0, 1), MORE.slice(2), MORE.slice(1))]
    assert len(staged(table)) == 2
    assert commits(table) == 1
    writer.commit(pickle.loads(pickle.dumps(tasks)))
    assert table.read().sort_by("id").to_pydict() == {"id": ["a", "b", "c", "z"], "n": [10, 2, 3, 26]}
    assert (commits(table), staged(table)) == (2, [])
    overwrite = Writer(options(table, overwrite=True))
    overwrite.commit([overwrite.write(iter(MORE.to_batches())), None])
    assert table.read().num_rows == 2


HUDI_OPERATION = "hoodie.datasource.write.operation"


@pytest.mark.parametrize(
    ("given", "overwrite"),
    [
        ({HUDI_OPERATION: "delete"}, True),
        ({HUDI_OPERATION: "delete_partition"}, True),
        ({"operation": "insert", HUDI_OPERATION: "delete"}, False),
        ({"operation": "upsert", "hoodie.datasource.write.insert.drop.duplicates": "true"}, False),
    ],
)
@pytest.mark.parametrize("is_stream", [False, True])
def test_an_operation_that_would_do_something_else_is_refused(table, given, overwrite, is_stream):
    with pytest.raises(InvalidOption, match="operation"):
        options(table, overwrite=overwrite, is_stream=is_stream, **given, **({"query_id": "q"} if is_stream else {}))


def test_an_aborted_write_leaves_nothing(table):
    writer = Writer(options(table))
    writer.abort([writer.write(iter(MORE.to_batches())), None])
    assert (commits(table), staged(table)) == (1, [])


def test_a_commit_stands_if_its_staged_rows_cannot_be_deleted(table, monkeypatch, caplog):
    def refuse(*_):
        raise StorageError("no answer")

    writer = Writer(options(table))
    tasks = [writer.write(iter(MORE.to_batches())), None]
    monkeypatch.setattr(data_source_write, "open_storage", refuse)
    writer.commit(tasks)
    assert (commits(table), len(staged(table))) == (2, 1)
    assert "could not be deleted: no answer" in caplog.text


def test_a_write_beyond_the_limit_is_refused(table):
    limited = {"tideline.spark.collect.bytes": "40"}
    with pytest.raises(InvalidOption, match=r"use tideline_spark\.write\.write_dataframe"):
        Writer(options(table, **limited)).write(iter(pa.concat_tables([MORE, MORE]).to_batches()))
    writer = Writer(options(table, **limited))
    tasks = [writer.write(iter(MORE.slice(0, 1).to_batches())) for _ in range(4)]
    with pytest.raises(InvalidOption, match="one process commits it"):
        writer.commit(tasks)
    writer.abort(tasks)
    assert (commits(table), staged(table)) == (1, [])


def test_each_batch_of_a_stream_is_written_once(table):
    writer = StreamWriter(options(table, is_stream=True, query_id="q"))
    for batch, made in ((0, 2), (0, 2), (1, 3)):
        writer.commit([writer.write(iter(MORE.to_batches()))], batch)
        assert commits(table) == made
    writer.commit([writer.write(iter(()))], 2)
    assert commits(table) == 4, "a batch without rows moves the progress"
    assert staged(table) == []


@pytest.mark.parametrize(
    ("kind", "more", "told"),
    [
        ({}, {"colour": "red"}, "option 'colour' of a write"),
        ({}, {"hoodie.nothing": "1"}, "unknown option 'hoodie.nothing'"),
        ({}, {"operation": "insert_overwrite"}, "in mode append"),
        ({"overwrite": True}, {"operation": "upsert"}, "in mode overwrite"),
        ({}, {"query_id": "q"}, "query_id of a batch write"),
        ({"is_stream": True}, {}, "without query_id"),
        ({"is_stream": True, "overwrite": True}, {"query_id": "q"}, "output mode complete"),
    ],
)
def test_wrong_options_are_refused_by_name(table, kind, more, told):
    with pytest.raises(InvalidOption, match=told):
        options(table, **kind, **more)
