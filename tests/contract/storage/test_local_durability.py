"""What survives a power loss on a local disk: a file's bytes are durable before its name is, and its name before the caller
hears of it.

The calls to the system are recorded as they happen; a disk is then imagined that lost everything that was not made durable by then.
"""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tideline_table.clock import SystemClock
from tideline_table.errors import ObjectExists
from tideline_table.hudi.formats import WRITTEN
from tideline_table.hudi.instant import Action, State
from tideline_table.hudi.write_stats import CommitMetadata
from tideline_table.log.body import Bare, Published
from tideline_table.log.entry import LOG_FOLDER
from tideline_table.log.table_log import Draft, TableLog
from tideline_table.storage import LocalStorage


@dataclass
class Disk:
    """Which files' bytes and which names are on the platter: an fsync of a file keeps its bytes, one of a folder keeps its
    names."""

    bytes_of: dict[int, bytes] = field(default_factory=dict)
    """Inode → durable content."""
    names: dict[Path, dict[str, int]] = field(default_factory=dict)
    """Folder → durable names and their inodes."""

    def synced(self, descriptor: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        if path.is_dir():
            self.names[path] = {entry.name: entry.inode() for entry in os.scandir(path)}
        else:
            self.bytes_of[os.fstat(descriptor).st_ino] = path.read_bytes()

    def after_power_loss(self, path: Path, root: Path) -> bytes | None:
        """What a reader finds at `path`, None for nothing; a name whose bytes were lost reads as an empty file."""
        at = root
        for name in path.relative_to(root).parts:
            if name not in self.names.get(at, {}):
                return None
            inode = self.names[at][name]
            at = at / name
        return self.bytes_of.get(inode, b"")


@pytest.fixture
def disk(monkeypatch):
    found = Disk()
    really = os.fsync

    def fsync(descriptor):
        really(descriptor)
        found.synced(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    return found


@pytest.fixture
def root(tmp_path):
    return tmp_path / "table"


@pytest.fixture
def storage(root):
    root.mkdir()
    return LocalStorage(root)


def put(storage, path, content):
    storage.put(path, content)


def put_if_absent(storage, path, content):
    storage.put_if_absent(path, content)


def open_output(storage, path, content):
    with storage.open_output(path) as sink:
        sink.write(content)


@pytest.mark.parametrize("write", [put, put_if_absent, open_output])
@pytest.mark.parametrize("path", ["a", "p=1/q/f.parquet", ".hoodie/.tideline/log/1.json"])
def test_what_was_acknowledged_is_there(disk, root, storage, write, path):
    write(storage, path, b"content")
    assert disk.after_power_loss(root / path, root) == b"content"


@pytest.mark.parametrize("write", [put, open_output])
def test_replacing_leaves_the_old_or_the_new(disk, root, storage, write, monkeypatch):
    storage.put("a/x", b"old")
    seen = []
    really = os.replace

    def replace(source, target):
        really(source, target)
        # The power goes before the folder is durable, or the new name made it by itself.
        seen.append(disk.after_power_loss(root / "a/x", root))
        seen.append(disk.bytes_of.get(os.stat(target).st_ino))

    monkeypatch.setattr(os, "replace", replace)
    write(storage, "a/x", b"new")
    assert seen == [b"old", b"new"]
    assert disk.after_power_loss(root / "a/x", root) == b"new"


def test_a_name_never_comes_before_its_bytes(disk, root, storage, monkeypatch):
    seen = []
    really = os.link

    def link(source, target):
        really(source, target)
        seen.append(disk.bytes_of.get(os.stat(target).st_ino))

    monkeypatch.setattr(os, "link", link)
    storage.put_if_absent("a/x", b"content")
    assert seen == [b"content"]


@pytest.mark.parametrize("write", [put, put_if_absent, open_output])
def test_folders_that_somebody_else_made_and_did_not_make_durable(disk, root, storage, write):
    (root / "p/q").mkdir(parents=True)
    write(storage, "p/q/x", b"content")
    assert disk.after_power_loss(root / "p/q/x", root) == b"content"


def test_the_table_log_has_no_holes_after_a_power_loss(disk, root, storage):
    """An entry that was won is there, and with it everything before it, whichever process wrote that."""
    logs = [TableLog(LocalStorage(root), SystemClock(), f"w{n}", WRITTEN) for n in range(3)]
    for sequence in range(1, 10):
        draft = Draft(
            f"{sequence:017d}",
            Action.COMMIT,
            State.INFLIGHT,
            State.COMPLETED,
            "UPSERT",
            Published(CommitMetadata("UPSERT", (), {"n": str(sequence)})),
        )
        entry = logs[sequence % 3].append(draft, sequence)
        assert logs[(sequence + 1) % 3].append(draft, sequence) is None
        for number in range(1, sequence + 1):
            content = disk.after_power_loss(root / f".hoodie/.tideline/log/{number:020d}.json", root)
            assert content == storage.read(f".hoodie/.tideline/log/{number:020d}.json")
        assert entry.sequence == sequence


@pytest.fixture
def failing_log_sync(disk, root, monkeypatch):
    """The first fsync of the log's folder fails, with nothing made durable by it."""
    recorded, left = os.fsync, [errno.EIO]

    def fsync(descriptor):
        if left and Path(os.readlink(f"/proc/self/fd/{descriptor}")) == root / LOG_FOLDER:
            code = left.pop()
            raise OSError(code, os.strerror(code))
        recorded(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    return left


def test_an_entry_that_its_writer_met_again_behind_a_failed_sync_survives(disk, root, storage, failing_log_sync):
    """The link succeeded and the sync of the folder did not: the second attempt finds its own entry and counts it as won."""
    log = TableLog(storage, SystemClock(), "w", WRITTEN)
    entry = log.append(Draft("1" * 17, Action.COMMIT, State.NONE, State.INFLIGHT, "UPSERT", Bare()), 1)
    assert not failing_log_sync, "the sync failed once"
    assert disk.after_power_loss(root / entry.path, root) == entry.to_bytes()


def test_what_refused_a_name_survives(disk, root, storage):
    """The process that wrote it may have died before the sync: who is told that it is there goes on from it."""
    storage.put_if_absent("a/x", b"1")
    (root / "a/y").write_bytes(b"2")
    disk.bytes_of[(root / "a/y").stat().st_ino] = b"2"
    with pytest.raises(ObjectExists):
        storage.put_if_absent("a/y", b"3")
    assert disk.after_power_loss(root / "a/y", root) == b"2"


def test_the_loser_leaves_nothing(root, storage):
    storage.put_if_absent("a/x", b"1")
    with pytest.raises(ObjectExists):
        storage.put_if_absent("a/x", b"2")
    assert sorted(str(p.relative_to(root)) for p in root.rglob("*") if p.is_file()) == ["a/x"]
