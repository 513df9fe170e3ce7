"""Local storage on a disk without space, without inodes, and that may not be written."""

import os
import resource
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.full_disk.small_disk import PAGE_BYTES

from tideline_table.errors import Recovery, StorageFull, StorageRefused
from tideline_table.storage import STAGING, LocalStorage

LARGE = os.urandom(1 << 20)
ROWS = pa.table({"a": [os.urandom(64).hex() for _ in range(20_000)]})


def put(storage, path):
    storage.put(path, LARGE)


def put_if_absent(storage, path):
    storage.put_if_absent(path, LARGE)


def stream(storage, path):
    with storage.open_output(path) as sink:
        for start in range(0, len(LARGE), 1000):
            sink.write(LARGE[start : start + 1000])


def stream_few(storage, path):
    with storage.open_output(path) as sink:
        sink.write(b"fits into the buffer of the sink")


def stream_parquet(storage, path):
    with storage.open_output(path) as sink, pq.ParquetWriter(sink, ROWS.schema) as writer:
        writer.write_table(ROWS)


WRITES = [put, put_if_absent, stream, stream_few, stream_parquet]


@pytest.fixture
def storage(disk):
    found = LocalStorage(disk.folder / "table")
    if os.geteuid() == 0:
        found.put("there", b"before")
    return found


def staged(disk):
    return list((disk.folder / "table" / STAGING).iterdir())


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("path", ["new/folder/x", "there"])
@pytest.mark.parametrize("free_pages", [0, 1])
def test_a_write_without_space_says_what_and_where_and_leaves_nothing(disk, storage, write, path, free_pages):
    if write is stream_few and free_pages:
        disk.fill(0)
    else:
        disk.fill(free_pages * PAGE_BYTES)
    if path == "there" and write is put_if_absent:
        path = "absent"
    with pytest.raises(StorageFull) as caught:
        write(storage, path)
    assert caught.value.changed_nothing
    assert caught.value.recovery is Recovery.RETRY
    assert f"No space left on device while writing '{path}' below '{disk.folder}/table'" in caught.value.found
    assert "free space there" in caught.value.remedy
    assert staged(disk) == []
    assert {o.path: storage.read(o.path) for o in storage.list_objects("")} == {"there": b"before"}
    disk.free()
    write(storage, path)
    assert storage.stat(path).size_bytes > 0


@pytest.mark.parametrize("write", WRITES)
def test_a_write_without_inodes(disk, storage, write):
    disk.fill_names()
    with pytest.raises(StorageFull, match="No space left"):
        write(storage, "x")
    disk.free()
    write(storage, "x")


@pytest.mark.parametrize("write", WRITES)
def test_a_disk_that_may_not_be_written(disk, storage, write):
    disk.remount("ro")
    with pytest.raises(StorageRefused, match="Read-only file system while writing 'x'") as caught:
        write(storage, "x")
    assert not isinstance(caught.value, StorageFull)
    disk.remount("rw")
    write(storage, "x")


_LIMITED = """
import sys
from pathlib import Path
from tideline_table.errors import StorageRefused
from tideline_table.storage import LocalStorage
storage = LocalStorage(Path(sys.argv[1]))
try:
    with storage.open_output("x") as sink:
        sink.write(bytes(100_000))
except StorageRefused as error:
    print(error.found)
"""


def test_a_file_above_the_limit_of_the_process(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", _LIMITED, str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000)),
    )
    assert done.stdout.startswith("File too large while writing 'x'")
    assert list((tmp_path / STAGING).iterdir()) == []
