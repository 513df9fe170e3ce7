"""What every storage adapter promises (`tideline_table.storage.port`)."""

import errno
import fcntl
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tideline_table.errors import ObjectExists, ObjectNotFound, StorageError, UnsafePath
from tideline_table.storage import LocalStorage, checked_path, open_storage, root_uri
from tideline_table.storage import local as local_module
from tideline_table.storage.local import STAGING

BAD_PATHS = ["/etc/passwd", "../x", "a/../../x", "a/./b", "a//b", "a/", "./a", "a\\b", "a\x00b", "..", "."]


def paths(storage, prefix="", after=""):
    return [o.path for o in storage.list_objects(prefix, after)]


def test_put_and_read(storage):
    storage.put("a/b/c", b"12345")
    assert storage.read("a/b/c") == b"12345"
    assert storage.read_range("a/b/c", 1, 3) == b"234"
    assert storage.read_range("a/b/c", 3, 99) == b"45"
    assert storage.read_range("a/b/c", 99, 1) == b""
    storage.put("a/b/c", b"")
    assert storage.read("a/b/c") == b""


def test_stat(storage):
    before = datetime.now(UTC) - timedelta(seconds=2)
    storage.put("a", b"123")
    found = storage.stat("a")
    assert (found.path, found.size_bytes) == ("a", 3)
    assert before <= found.modified <= datetime.now(UTC) + timedelta(seconds=2)
    assert found.modified.tzinfo is not None


@pytest.mark.parametrize("call", ["read", "stat", "open_input"])
def test_absent_objects(storage, call):
    with pytest.raises(ObjectNotFound) as caught:
        getattr(storage, call)("no/such")
    assert caught.value.path == "no/such"
    with pytest.raises(ObjectNotFound):
        storage.read_range("no/such", 0, 1)


def test_put_if_absent(storage):
    storage.put_if_absent("a/b", b"1")
    with pytest.raises(ObjectExists) as caught:
        storage.put_if_absent("a/b", b"2")
    assert caught.value.path == "a/b"
    assert storage.read("a/b") == b"1"
    storage.delete("a/b")
    storage.put_if_absent("a/b", b"3")
    assert storage.read("a/b") == b"3"
    storage.put_if_absent("empty", b"")
    with pytest.raises(ObjectExists):
        storage.put_if_absent("empty", b"")
    storage.put("c", b"1")
    with pytest.raises(ObjectExists):
        storage.put_if_absent("c", b"2")


def test_racing_put_if_absent_has_one_winner(storage, opened, request):
    # SeaweedFS takes seconds for a contended name.
    rounds, racers = 3 if "seaweedfs" in request.node.name else 25, 8
    won: list[tuple[int, int]] = []
    failed = []
    gate = threading.Barrier(racers)

    def race(me):
        mine = opened()
        for n in range(rounds):
            gate.wait(timeout=60)
            try:
                mine.put_if_absent(f"log/{n:05d}", str(me).encode() * 1000)
                won.append((n, me))
            except ObjectExists:
                pass
            except BaseException as error:  # noqa: BLE001 - the main thread looks at it
                failed.append(error)

    threads = [threading.Thread(target=race, args=(me,)) for me in range(racers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert sorted(n for n, _ in won) == list(range(rounds))
    for n, me in won:
        assert storage.read(f"log/{n:05d}") == str(me).encode() * 1000
    assert paths(storage) == [f"log/{n:05d}" for n in range(rounds)]


def test_two_openings_of_one_place_race_fairly(tmp_path):
    one, two = LocalStorage(tmp_path), LocalStorage(tmp_path)
    one.put_if_absent("x", b"1")
    with pytest.raises(ObjectExists):
        two.put_if_absent("x", b"2")


def test_delete(storage):
    storage.put("a/b", b"1")
    storage.put("a/c", b"2")
    storage.delete("a/b")
    storage.delete("a/b")
    storage.delete("no/such/folder/x")
    assert paths(storage) == ["a/c"]


def test_delete_below(storage):
    for path in ("a/b/1", "a/b/c/2", "a/bc", "a/d"):
        storage.put(path, b"")
    storage.delete_below("a/b")
    assert paths(storage) == ["a/bc", "a/d"]
    storage.delete_below("a/b")
    storage.delete_below("never")
    assert paths(storage) == ["a/bc", "a/d"]


def test_delete_below_takes_any_number(storage, request):
    count = 30 if isinstance(storage, LocalStorage) else 1100
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: storage.put(f"many/{n % 7}/{n}", b""), range(count)))
    storage.put("manymore", b"")
    assert len(paths(storage, "many")) == count
    storage.delete_below("many")
    assert paths(storage) == ["manymore"]


@pytest.mark.parametrize("folder", ["/", "..", "a/..", "."])
def test_delete_below_stays_inside(storage, folder):
    with pytest.raises(UnsafePath):
        storage.delete_below(folder)


def test_names_that_are_too_long_for_a_disk(tmp_path):
    disk = LocalStorage(tmp_path)
    for path in ("x" * 300, "x" * 300 + "/a", "a/" + "é" * 128):
        for call in (disk.read, disk.stat, disk.delete, lambda path: disk.put(path, b""), disk.open_input):
            with pytest.raises(UnsafePath, match="255 bytes"):
                call(path)


def test_delete_below_never_takes_the_root(storage):
    storage.put("a", b"1")
    with pytest.raises(UnsafePath):
        storage.delete_below("")
    assert paths(storage) == ["a"]


def test_list_objects(storage):
    for path in ("b/2", "b/1", "b/c/3", "bb/4", "a", "b.5"):
        storage.put(path, path.encode())
    assert paths(storage) == sorted(["b/2", "b/1", "b/c/3", "bb/4", "a", "b.5"])
    assert paths(storage, "b") == ["b/1", "b/2", "b/c/3"]
    assert paths(storage, "b", after="b/1") == ["b/2", "b/c/3"]
    assert paths(storage, "b", after="b/15") == ["b/2", "b/c/3"]
    assert paths(storage, "b/c") == ["b/c/3"]
    assert paths(storage, "none") == []
    assert paths(storage, "a") == []
    assert [o.size_bytes for o in storage.list_objects("b")] == [3, 3, 5]


def test_list_folder(storage):
    for path in ("b/2", "b/1", "b/c/3", "b/d/e/4", "bb/4", ".hoodie/x"):
        storage.put(path, b"1")
    level = storage.list_folder("b")
    assert level.folders == ("c", "d")
    assert [o.path for o in level.objects] == ["b/1", "b/2"]
    assert storage.list_folder("").folders == (".hoodie", "b", "bb")
    assert storage.list_folder("none") == storage.list_folder("b/1")
    assert storage.list_folder("none").objects == ()


def test_a_listing_of_a_folder_goes_on_after_a_name(storage):
    for path in ("b/1", "b/2", "b/3", "b/d/4", "b/d/e/5", "b/e/6", "b/f", "c/7"):
        storage.put(path, b"1")
    level = storage.list_folder("b", "b/2")
    assert (level.folders, [o.path for o in level.objects]) == (("d", "e"), ["b/3", "b/f"])
    level = storage.list_folder("b", "b/d")
    assert (level.folders, [o.path for o in level.objects]) == (("e",), ["b/f"])
    assert storage.list_folder("b", "b/25").objects == storage.list_folder("b", "b/2").objects
    assert storage.list_folder("b", "b/z").folders == storage.list_folder("none", "none/a").folders == ()


def test_a_listing_follows_a_write_at_once(storage, opened):
    other = opened()
    for n in range(5):
        storage.put_if_absent(f"log/{n}", b"")
        assert paths(other, "log") == [f"log/{m}" for m in range(n + 1)]
        assert [o.path for o in other.list_folder("log").objects] == paths(storage, "log")
        assert other.read(f"log/{n}") == b""
    for n in range(5):
        storage.delete(f"log/{n}")
        assert paths(other, "log") == [f"log/{m}" for m in range(n + 1, 5)]
        with pytest.raises(ObjectNotFound):
            other.read(f"log/{n}")


def test_a_read_follows_an_overwrite_at_once(storage, opened):
    other = opened()
    for n in range(20):
        storage.put("x", b"%d" % n)
        assert other.read("x") == b"%d" % n
        assert other.stat("x").size_bytes == len(b"%d" % n)


def test_open_output_appears_whole_and_at_the_end(storage):
    with storage.open_output("p/f") as sink:
        sink.write(b"123")
        assert paths(storage) == []
        with pytest.raises(ObjectNotFound):
            storage.read("p/f")
        sink.write(b"456")
    assert storage.read("p/f") == b"123456"


def test_open_output_leaves_nothing_behind_when_the_writer_fails(storage):
    storage.put("p/f", b"old")

    def fail():
        with storage.open_output("p/f") as sink:
            sink.write(b"half")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert storage.read("p/f") == b"old"
    assert paths(storage) == ["p/f"]


def test_large_objects(storage, opened):
    """Larger than what an adapter sends or fetches at once, written in pieces that fit no boundary."""
    whole = np.random.default_rng(7).bytes(21 * 1024 * 1024 + 13)
    with storage.open_output("p/large") as sink:
        for start in range(0, len(whole), 1_000_003):
            assert sink.write(memoryview(whole)[start : start + 1_000_003]) in (1_000_003, len(whole) - start)
        assert sink.tell() == len(whole)
        assert paths(storage) == []
    other = opened()
    assert other.stat("p/large").size_bytes == len(whole)
    assert other.read("p/large") == whole
    for start, length in ((0, 1), (8 * 1024 * 1024 - 1, 2), (len(whole) - 3, 99), (5_000_000, 9_000_000)):
        assert other.read_range("p/large", start, length) == whole[start : start + length]
    with other.open_input("p/large") as source:
        assert source.size() == len(whole)
        source.seek(17_000_000)
        assert source.read(1000) == whole[17_000_000:17_001_000]
        assert source.read_at(300_000, len(whole) - 200_000) == whole[-200_000:]
        source.seek(-10, 2)
        assert source.read() == whole[-10:]
    storage.put("p/put", whole)
    storage.put_if_absent("p/absent", whole)
    assert other.read("p/put") == other.read("p/absent") == whole


def test_a_large_upload_that_is_given_up_leaves_nothing_behind(storage):
    def fail():
        with storage.open_output("p/f") as sink:
            sink.write(bytes(20 * 1024 * 1024))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert paths(storage) == []


def test_random_access_to_small_objects(storage):
    storage.put("e", b"")
    with storage.open_input("e") as source:
        assert (source.size(), source.read()) == (0, b"")
    storage.put("s", b"12345")
    with storage.open_input("s") as source:
        assert (source.size(), source.read(2), source.tell(), source.read()) == (5, b"12", 2, b"345")


def test_a_reader_sees_the_old_or_the_new_object(storage):
    contents = [bytes([n]) * 200_000 for n in (1, 2)]
    storage.put("x", contents[0])
    stop, seen = threading.Event(), set()

    def read():
        while not stop.is_set():
            seen.add(storage.read("x"))

    reader = threading.Thread(target=read)
    reader.start()
    for n in range(40):
        storage.put("x", contents[n % 2])
    stop.set()
    reader.join()
    assert seen <= set(contents)


def test_parquet_through_it(storage):
    rows = pa.table({"a": list(range(1000))})
    with storage.open_output("p/f.parquet") as sink, pq.ParquetWriter(sink, rows.schema) as writer:
        writer.write_table(rows)
    assert pq.read_table(storage.open_input("p/f.parquet")).equals(rows)


@pytest.mark.parametrize("path", BAD_PATHS)
def test_paths_that_leave_the_root(storage, path):
    with pytest.raises(UnsafePath):
        checked_path(path)
    for call in (
        lambda: storage.read(path),
        lambda: storage.read_range(path, 0, 1),
        lambda: storage.stat(path),
        lambda: storage.put(path, b""),
        lambda: storage.put_if_absent(path, b""),
        lambda: storage.delete(path),
        lambda: storage.delete_below(path),
        lambda: list(storage.list_objects(path)),
        lambda: storage.list_folder(path),
        lambda: storage.open_input(path),
        lambda: storage.open_output(path).__enter__(),
    ):
        with pytest.raises(UnsafePath):
            call()
    assert paths(storage) == []


@pytest.mark.parametrize(
    "path", ["a", "a/b", "a b", "é/漢😀", "p=1/x", "a%2Fb", ".hoodie/x", "...", "a..b", "x" * 200, "a+b&c?d#e", "a%b", 'q"[1]']
)
def test_paths_of_all_sorts(storage, path):
    storage.put_if_absent(path, b"1")
    assert paths(storage) == [checked_path(path)]
    assert storage.read(path) == b"1"
    assert storage.stat(path).path == path
    folder, _, _ = path.rpartition("/")
    assert [o.path for o in storage.list_folder(folder).objects] == [path]
    with pytest.raises(ObjectExists):
        storage.put_if_absent(path, b"2")
    storage.delete(path)
    assert paths(storage) == []


def test_names_that_look_alike_are_different_objects(storage):
    names = ["a b", "a+b", "a%20b", "a%2Bb", "A b", "a%2Fb", "a/b"]
    for name in names:
        storage.put_if_absent(name, name.encode())
    assert paths(storage) == sorted(names)
    assert {name: storage.read(name).decode() for name in names} == {name: name for name in names}


# --- local only ----------------------------------------------------------------------------------------------------------


def test_symbolic_links_do_not_lead_out(local, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_bytes(b"s")
    local.put("inside/x", b"1")
    root = tmp_path / "root"
    (root / "link").symlink_to(outside)
    (root / "file").symlink_to(outside / "secret")
    (root / "own").symlink_to(root / "inside")
    for call in (
        lambda: local.read("link/secret"),
        lambda: local.read("file"),
        lambda: local.read_range("file", 0, 1),
        lambda: local.stat("file"),
        lambda: local.open_input("file"),
        lambda: local.put("link/new", b""),
        lambda: local.put_if_absent("link/new", b""),
        lambda: local.delete("link/secret"),
        lambda: local.list_folder("link"),
        lambda: local.delete_below("link"),
        lambda: list(local.list_objects("link")),
    ):
        with pytest.raises(UnsafePath):
            call()
    assert sorted(p.name for p in outside.iterdir()) == ["secret"]
    assert local.read("own/x") == b"1"
    with pytest.raises(UnsafePath):
        local.read("")


def test_a_request_looks_once_at_each_part_of_its_path(local, monkeypatch):
    """Resolving the folder and the root took half of the processor time of the first start of a mirror."""
    local.put("a/b/c", b"1")
    asked, lstat = [], os.lstat
    monkeypatch.setattr(os, "lstat", lambda path, **more: asked.append(os.fspath(path)) or lstat(path, **more))
    assert local.read("a/b/c") == b"1"
    assert [path.removeprefix(local.root.removeprefix("file:")) for path in asked] == ["/a", "/a/b", "/a/b/c"]


def test_stale_checksum_siblings_go(local, tmp_path):
    local.put("p/f", b"1")
    crc = tmp_path / "root/p/.f.crc"
    for change in (lambda: local.put("p/f", b"2"), lambda: local.delete("p/f")):
        crc.write_bytes(b"crc")
        change()
        assert not crc.exists()


def test_half_written_objects_are_hidden_and_cleared(local, tmp_path):
    staging = tmp_path / "root" / STAGING
    with local.open_output("a") as sink:
        sink.write(b"1")
        assert len(list(staging.iterdir())) == 1
        assert paths(local) == []
        assert paths(local, ".hoodie") == []
    local.put("b", b"1")
    local.put_if_absent("c", b"1")
    with pytest.raises(ObjectExists):
        local.put_if_absent("c", b"1")
    assert list(staging.iterdir()) == []


@pytest.mark.parametrize("call", ["put", "put_if_absent", "open_output"])
@pytest.mark.parametrize("step", ["fsync", "link", "replace"])
def test_a_failing_disk_is_a_storage_error_and_leaves_nothing(local, tmp_path, monkeypatch, call, step):
    local.put("other", b"1")

    def fail(*args, **kwargs):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, step, fail)

    def attempt():
        if call == "open_output":
            with local.open_output("x") as sink:
                sink.write(b"1")
        else:
            getattr(local, call)("x", b"1")

    used = {"put": ("fsync", "replace"), "put_if_absent": ("fsync", "link"), "open_output": ("fsync", "replace")}[call]
    if step in used:
        with pytest.raises(StorageError, match="No space left"):
            attempt()
        monkeypatch.undo()
        assert paths(local) == ["other"]
        assert list((tmp_path / "root" / STAGING).iterdir()) == []
    else:
        attempt()


def test_a_file_where_a_folder_is_needed(local):
    local.put("a", b"1")
    with pytest.raises(StorageError):
        local.put("a/b", b"1")
    with pytest.raises(StorageError):
        local.put_if_absent("a/b", b"1")


def test_roots(tmp_path):
    assert LocalStorage(tmp_path).root == f"file:{tmp_path}"
    for text in (str(tmp_path), f"file:{tmp_path}", f"file://{tmp_path}", f"file://{tmp_path}/"):
        assert open_storage(text).root == root_uri(text) == f"file:{tmp_path}"
    odd = tmp_path / "a b%é#"
    storage = LocalStorage(odd)
    storage.put("x", b"1")
    assert open_storage(storage.root).read("x") == b"1"
    assert open_storage(str(odd)).read("x") == b"1"


def test_modification_times_do_not_go_back(local):
    local.put("a", b"1")
    first = local.stat("a").modified
    time.sleep(0.01)
    local.put("a", b"2")
    assert local.stat("a").modified >= first


def test_an_object_is_replaced_only_if_it_is_still_the_one_that_was_seen(storage):
    assert storage.put_if_version("a", b"1", "")
    assert not storage.put_if_version("a", b"2", "")
    content, first = storage.read_versioned("a")
    assert content == b"1"
    assert storage.put_if_version("a", b"2", first)
    assert not storage.put_if_version("a", b"3", first)
    assert storage.read("a") == b"2"
    storage.delete("a")
    assert not storage.put_if_version("a", b"3", first)
    with pytest.raises(ObjectNotFound):
        storage.read_versioned("a")
    assert [found.path for found in storage.list_objects("")] == []


def test_of_many_who_saw_the_same_one_replaces(opened):
    storage = opened()
    storage.put("a", b"0")
    _, seen = storage.read_versioned("a")
    with ThreadPoolExecutor(8) as pool:
        won = list(pool.map(lambda n: opened().put_if_version("a", f"{n + 1}".encode(), seen), range(8)))
    assert won.count(True) == 1
    assert storage.read("a") == f"{won.index(True) + 1}".encode()


def test_a_lock_on_a_file_that_was_deleted_meanwhile_is_no_lock(local, tmp_path, monkeypatch):
    """Another process deletes the folder of the file while this one waits: a third one would lock a new file."""
    guard, lock, locked = tmp_path / "root/.hoodie/.tideline/put-guard", fcntl.flock, []

    def meanwhile(descriptor, how):
        lock(descriptor, how)
        if how == fcntl.LOCK_UN:
            return
        locked.append(os.fstat(descriptor).st_ino)
        if len(locked) == 1:
            guard.rename(guard.with_name("deleted"))

    monkeypatch.setattr(fcntl, "flock", meanwhile)
    assert local.put_if_version("a", b"1", "")
    assert local.read("a") == b"1"
    assert len(locked) == 2
    assert locked[1] == guard.stat().st_ino != locked[0]


def test_a_file_system_without_locks_replaces_with_a_warning(local, monkeypatch, caplog):
    def missing(descriptor, how):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", missing)
    assert local.put_if_version("a", b"1", "")
    assert not local.put_if_version("a", b"2", "")
    assert "has no locks (No locks available)" in caplog.text


def test_a_process_that_keeps_the_lock_is_named(local, tmp_path, monkeypatch):
    assert local.put_if_version("a", b"1", "")
    monkeypatch.setattr(local_module, "_GUARD_DEADLINE_S", 0.03)
    _, seen = local.read_versioned("a")
    with (tmp_path / "root/.hoodie/.tideline/put-guard").open() as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(StorageError, match="another process has held the lock"):
            local.put_if_version("a", b"2", seen)
    assert local.read("a") == b"1"
    assert local.put_if_version("a", b"2", seen)


def test_a_forked_process_does_not_keep_the_lock(local, monkeypatch):
    """A child has a copy of each descriptor of its parent."""
    copies, put = [], local.put

    def forked_meanwhile(path, data):
        copies.extend(
            os.dup(int(held.name)) for held in Path("/proc/self/fd").iterdir() if os.path.realpath(held).endswith("put-guard")
        )
        put(path, data)

    monkeypatch.setattr(local, "put", forked_meanwhile)
    monkeypatch.setattr(local_module, "_GUARD_DEADLINE_S", 0.03)
    try:
        assert local.put_if_version("a", b"1", "")
        assert copies
        assert local.put_if_version("a", b"2", local.read_versioned("a")[1])
    finally:
        for copy in copies:
            os.close(copy)


def test_objects_that_come_while_a_local_folder_is_deleted_are_no_error(tmp_path, monkeypatch):
    """Found by writers beside `tideline check --repair`: the folder of the metadata table was not empty at its end."""
    storage, rmdir = LocalStorage(tmp_path), os.rmdir
    storage.put("folder/early", b"1")
    storage.put("folder/below/early", b"1")

    def behind_another(path, **more):
        (tmp_path / "folder" / "late").write_bytes(b"1")
        rmdir(path, **more)

    monkeypatch.setattr(os, "rmdir", behind_another)
    storage.delete_below("folder")
    monkeypatch.undo()
    assert [found.path for found in storage.list_objects("folder")] == ["folder/late"]


@pytest.mark.parametrize("step", ["link", "replace"])
def test_a_local_folder_that_another_process_deletes_before_an_object_gets_its_name_is_made_again(tmp_path, monkeypatch, step):
    """Found by writers beside `tideline check --repair`: their write failed, and was left pending."""
    storage, other, real, once = LocalStorage(tmp_path), LocalStorage(tmp_path), getattr(os, step), iter([True])
    storage.put("folder/early", b"1")

    def behind_another(source, target):
        if next(once, False):
            other.delete_below("folder")
        real(source, target)

    monkeypatch.setattr(os, step, behind_another)
    (storage.put_if_absent if step == "link" else storage.put)("folder/late", b"2")
    assert storage.read("folder/late") == b"2"
    assert [found.path for found in storage.list_objects("folder")] == ["folder/late"]


def test_an_object_that_another_process_deletes_does_not_end_the_deletion_of_a_local_folder(tmp_path, monkeypatch):
    storage, unlink = LocalStorage(tmp_path), os.unlink
    for name in ("a", "b", "c", "below/d"):
        storage.put(f"folder/{name}", b"1")

    def behind_another(path, **more):
        monkeypatch.undo()
        for found in ("a", "b"):
            (tmp_path / "folder" / found).unlink()
        unlink(path, **more)

    monkeypatch.setattr(os, "unlink", behind_another)
    storage.delete_below("folder")
    assert not (tmp_path / "folder").exists()
