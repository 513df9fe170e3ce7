import re

import pytest

from tideline_table.hudi.file_names import (
    BaseFileName,
    LogFileName,
    base_file_name,
    new_file_id,
    parse_base_file_name,
    parse_log_file_name,
    write_token,
)

ID = "7eac0d7f-93b4-4f01-9a76-e91e7935aa2a-0"
T = "20261121105316129"


def test_base_file_name():
    name = base_file_name(ID, "0-14-18", T, "parquet")
    assert name == f"{ID}_0-14-18_{T}.parquet"
    assert parse_base_file_name(name) == BaseFileName(ID, "0-14-18", T, "parquet")
    assert parse_base_file_name(f"{ID}_1-0-1_{T[:14]}.orc") == BaseFileName(ID, "1-0-1", T[:14], "orc")


@pytest.mark.parametrize(
    "name",
    [
        f".{ID}_0-14-18_{T}.parquet.crc",
        f"{ID}_0-14-18_{T}.parquet.tmp",
        f"{ID}_{T}.parquet",
        f"a/{ID}_0-0-0_{T}.parquet",
        f"{ID}_0-0-0_2026.parquet",
        f"{ID}_0-0-0_{T}",
        f"{ID}_0-0-0_{T}.parquet\n",
        f"{ID}_0-0-0_{'٣' * 17}.parquet",
        ".hoodie_partition_metadata",
        "",
    ],
)
def test_other_names_are_no_base_files(name):
    assert parse_base_file_name(name) is None


def test_log_file_name():
    assert parse_log_file_name(f".{ID}_{T}.log.12_1-0-1") == LogFileName(ID, T, 12, "1-0-1", is_cdc=False)
    assert parse_log_file_name(f".{ID}_{T}.log.1") == LogFileName(ID, T, 1, "", is_cdc=False)
    assert parse_log_file_name(f".{ID}_{T}.log.1_1-0-1.cdc") == LogFileName(ID, T, 1, "1-0-1", is_cdc=True)


@pytest.mark.parametrize(
    "name", [f"..{ID}_{T}.log.1_1-0-1.crc", f".{ID}_{T}.log.1_1-0-1.crc", f"{ID}_{T}.log.1_1-0-1", f".{ID}_{T}.log.x"]
)
def test_other_names_are_no_log_files(name):
    assert parse_log_file_name(name) is None


def test_new_file_ids_repeat_for_the_same_task_only():
    first = new_file_id(T, "0", 0)
    assert re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}-0", first)
    assert new_file_id(T, "0", 0) == first
    others = {new_file_id(T, "1", 0), new_file_id(T, "0", 1), new_file_id("20261121105316130", "0", 0)}
    assert first not in others
    assert len(others) == 3
    assert parse_base_file_name(base_file_name(first, write_token(3, 1), T, "orc")) == BaseFileName(first, "3-0-1", T, "orc")
