"""How many buckets a write gets, what they fill, and how keys are looked up."""

from __future__ import annotations

import pytest

from tideline_spark.layout import WriteLayout, decide_layout
from tideline_table.config import Options
from tideline_table.errors import InvalidOption
from tideline_table.file_group import FileGroupId, FileSlice
from tideline_table.log import packed
from tideline_table.log import state as log_state
from tideline_table.log.state import TableState
from tideline_table.writer import Operation

MB = 1024 * 1024


def a_slice(partition: str, name: str, size_mb: float, rows: int = 100_000) -> FileSlice:
    instant = "20260101000000000"
    return FileSlice(FileGroupId(partition, name), instant, f"{name}_0-0-0_{instant}.parquet", int(size_mb * MB), rows)


def state_of(visible: list[FileSlice]) -> TableState:
    return TableState(slices={s.group: {s.base_instant: s} for s in visible})


def layout(
    visible: list[FileSlice],
    operation: Operation = Operation.UPSERT,
    *,
    closed: tuple[FileGroupId, ...] = (),
    partitioned: bool = True,
    cores: int = 8,
    source_bytes: int | None = None,
    **options: object,
) -> WriteLayout:
    chosen = Options({k.replace("_", "."): v for k, v in options.items()})
    return decide_layout(
        state_of(visible),
        closed,
        operation,
        chosen,
        is_partitioned=partitioned,
        has_logs=False,
        cores=cores,
        source_bytes=source_bytes,
    )


@pytest.mark.parametrize(
    ("visible", "operation", "partitioned", "source_bytes", "buckets"),
    [
        ([], Operation.BULK_INSERT, True, 10_000 * MB, 1),  # nobody knows how many partitions it has
        ([], Operation.BULK_INSERT, False, None, 8),
        ([], Operation.UPSERT, False, None, 1),
        ([], Operation.BULK_INSERT, False, 300 * MB, 3),
        ([], Operation.BULK_INSERT, False, 10_000 * MB, 8),
        ([a_slice("a", "x", 120), a_slice("b", "y", 120)], Operation.UPSERT, True, 480 * MB, 2),
        ([a_slice("a", "x", 120), a_slice("b", "y", 120)], Operation.UPSERT, True, 1, 1),
    ],
)
def test_buckets_follow_the_estimate(
    visible: list[FileSlice], operation: Operation, partitioned: bool, source_bytes: int | None, buckets: int
) -> None:
    assert layout(visible, operation, partitioned=partitioned, source_bytes=source_bytes).buckets == buckets


def test_the_option_decides_over_the_estimate() -> None:
    assert layout([], tideline_spark_insert_parallelism=5, source_bytes=1).buckets == 5
    with pytest.raises(InvalidOption):
        layout([], tideline_spark_insert_parallelism=-1)


def test_buckets_fill_the_smallest_open_files() -> None:
    visible = [a_slice("a", "large", 110), a_slice("a", "small", 3), a_slice("a", "middle", 40), a_slice("b", "only", 5)]
    found = layout(visible, tideline_spark_insert_parallelism=2)
    assert {place: filler.file_slice.group.file_id for place, filler in found.fillers.items()} == {
        ("a", 0): "small",
        ("a", 1): "middle",
        ("b", 0): "only",
    }
    assert found.fillers["a", 0].free_rows > found.fillers["a", 1].free_rows > 0
    assert found.filled_by == {FileGroupId("a", "small"): 0, FileGroupId("a", "middle"): 1, FileGroupId("b", "only"): 0}
    shut = layout(visible, closed=(FileGroupId("a", "small"),))
    assert shut.fillers["a", 0].file_slice.group.file_id == "middle"
    for operation in (Operation.BULK_INSERT, Operation.DELETE):
        assert not layout(visible, operation).fillers


def test_inserts_into_a_table_with_many_file_groups_ask_for_parts_with_small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed, "PART_GROUPS", 4)
    monkeypatch.setattr(log_state, "LEAST_PACKED", 8)
    visible = [a_slice(f"p{n // 4}", f"f{n}", 10 if n == 17 else 120) for n in range(40)]
    state = state_of(visible)
    assert state.pack() is not None
    read: list[str] = []
    inner = packed.Part.rows
    monkeypatch.setattr(packed.Part, "rows", lambda part: read.append(part.first.partition_path) or inner(part))

    def laid_out(operation: Operation) -> WriteLayout:
        read.clear()
        return decide_layout(
            state, (), operation, Options(), is_partitioned=True, has_logs=False, cores=8, source_bytes=10 * 480 * MB
        )

    found = laid_out(Operation.INSERT)
    assert [filler.file_slice.group.file_id for filler in found.fillers.values()] == ["f17"]
    assert set(read) <= {"p4", "p9"}, "the part with the small file, and the newest one for the size of a row"
    assert found.rows_per_file == 100_000, "as in the newest files"
    assert found.buckets == layout(visible, Operation.INSERT, source_bytes=10 * 480 * MB).buckets == 4
    assert laid_out(Operation.BULK_INSERT).fillers == {}
    assert "p4" not in read
    assert len(laid_out(Operation.UPSERT).looked_up) == 40


def test_keys_are_looked_up_only_where_the_operation_needs_them() -> None:
    visible = [a_slice("a", "x", 1, rows=400_000)]
    assert layout(visible, Operation.UPSERT).looked_up == tuple(visible)
    assert layout(visible, Operation.DELETE).looked_up == tuple(visible)
    assert layout(visible, Operation.INSERT).looked_up == ()
    policy = Options({"hoodie.datasource.insert.dup.policy": "drop"})
    held = state_of(visible)
    with_policy = decide_layout(held, (), Operation.INSERT, policy, is_partitioned=True, has_logs=False, cores=2, source_bytes=None)
    assert with_policy.looked_up == tuple(visible)


def test_large_tables_are_joined_by_a_shuffle() -> None:
    small, large = a_slice("a", "x", 1, rows=500_000), a_slice("a", "y", 1, rows=2_000_000)
    assert layout([small]).broadcasts_keys
    joined = layout([small, large])
    assert not joined.broadcasts_keys
    assert joined.join_tasks == 10
    unknown = a_slice("a", "z", 120, rows=-1)
    assert not layout([unknown]).broadcasts_keys, "the size stands in for an unknown row count"


def test_no_more_tasks_than_there_can_be_units() -> None:
    assert layout([], partitioned=False, tideline_spark_insert_parallelism=3).tasks == 3
    assert layout([a_slice("", "x", 120)], partitioned=False, tideline_spark_insert_parallelism=3).tasks == 4
    assert layout([]).tasks == 32
