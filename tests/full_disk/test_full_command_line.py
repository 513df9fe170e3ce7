"""The command on a full disk: one line, an exit code, no traceback; and the clean that frees the disk."""

import json
import os
import subprocess
import sys

import pytest
from tests.full_disk.small_disk import PAGE_BYTES

from tideline_cli.main import run


@pytest.fixture
def tideline(capfd):
    """Run a command line in this process: exit code, stdout, lines of stderr."""

    def call(*arguments):
        code = run([str(a) for a in arguments])
        out, err = capfd.readouterr()
        return code, out, err.splitlines()

    return call


@pytest.fixture
def done(tideline):
    def call(*arguments):
        code, out, err = tideline(*arguments)
        assert code == 0, err
        return out

    return call


def assert_one_line(code, err):
    assert code == 1
    assert len(err) == 1
    assert err[0].startswith("tideline: error: No space left on device while writing ")
    return err[0]


@pytest.fixture
def failed(tideline):
    """Run what must end with code 1 and one line, which is returned."""

    def call(*arguments):
        code, _, err = tideline(*arguments)
        return assert_one_line(code, err)

    return call


@pytest.fixture
def trips(disk, tmp_path, done):
    """A table on the disk with versions to clean, and files of rows that are not on it."""
    if os.geteuid():
        return None
    path = disk.folder / "trips"
    files = [tmp_path / "old.jsonl", tmp_path / "new.jsonl"]
    for number, file in enumerate(files):
        rows = [{"id": n, "at": number, "what": os.urandom(3000).hex()} for n in range(20)]
        file.write_text("\n".join(map(json.dumps, rows)))
    done("create", path, "--schema-from", files[0], "--key", "id", "--ordering", "at")
    for _ in range(4):
        done("write", path, "--from", files[0])
    return path, *files


def test_a_write_and_the_clean_that_makes_it_possible(disk, trips, done, failed):
    path, _, new = trips
    before = done("read", path, "--format", "csv")
    disk.fill()
    assert f"below '{path}'" in failed("write", path, "--from", new)
    assert done("read", path, "--format", "csv") == before
    planned = done("plan", "clean", path, "--option", "hoodie.cleaner.commits.retained=1")
    assert planned.startswith("planned clean ")
    assert "completed: 2 files deleted" in done("run", "clean", path)
    done("write", path, "--from", new)
    assert [json.loads(line)["at"] for line in done("read", path, "--format", "jsonl").splitlines()] == [1] * 20


def test_a_new_table(disk, trips, failed):
    _, old, _ = trips
    disk.fill()
    failed("create", disk.folder / "more", "--schema-from", old, "--key", "id")


@pytest.mark.parametrize("ending", ["parquet", "csv", "jsonl", "arrow"])
@pytest.mark.parametrize("free_pages", [0, 2])
def test_rows_into_a_file(disk, trips, failed, ending, free_pages):
    path, *_ = trips
    disk.fill(free_pages * PAGE_BYTES)
    output = disk.folder / f"rows.{ending}"
    assert repr(str(output)) in failed("read", path, "--output", output)
    assert [p.name for p in disk.folder.iterdir() if "rows" in p.name] == []


def test_a_file_without_an_inode(disk, trips, failed):
    path, *_ = trips
    disk.fill_names()
    failed("read", path, "--output", disk.folder / "rows.csv")


@pytest.mark.parametrize("arguments", [("--format", "csv"), ("--limit", "1")])
def test_rows_to_a_full_standard_output(trips, arguments):
    path, *_ = trips
    command = [sys.executable, "-m", "tideline_cli.main", "read", str(path), *arguments]
    with open("/dev/full", "w") as full:
        ended = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert "standard output" in assert_one_line(ended.returncode, ended.stderr.splitlines())
