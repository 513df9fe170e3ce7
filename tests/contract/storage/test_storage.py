"""What every storage adapter promises (`tideline_table.storage.port`)."""

import errno
import os
import threading
import time
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tideline_table.errors import ObjectExists, ObjectNotFound, StorageError, UnsafePath, UnsupportedTable
from tideline_table.storage import LocalStorage, MemoryStorage, checked_path, open_storage, root_uri
from tideline_table.storage.local import STAGING

BAD_PATHS = ["/etc/passwd", "../x", "a/../../x", "a/./b", "a//b", "a/", "./a", "a\\b", "a\x00b", "..", "."]


@pytest.fixture(params=["memory", "local"])
def storage(request, tmp_path):
    return MemoryStorage() if request.param == "memory" else LocalStorage(tmp_path / "root")


@pytest.fixture
def local(tmp_path):
    return LocalStorage(tmp_path / "root")


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
    storage.put("c", b"1")
    with pytest.raises(ObjectExists):
        storage.put_if_absent("c", b"2")


def test_racing_put_if_absent_has_one_winner(storage):
    rounds, racers = 25, 8
    won: list[tuple[int, int]] = []
    failed = []
    gate = threading.Barrier(racers)

    def race(me):
        for n in range(rounds):
            gate.wait(timeout=30)
            try:
                storage.put_if_absent(f"log/{n:05d}", str(me).encode() * 1000)
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
    assert storage.delete("a/b") is True
    assert storage.delete("a/b") is False
    assert storage.delete("no/such/folder/x") is False
    assert paths(storage) == []


def test_delete_below(storage):
    for path in ("a/b/1", "a/b/c/2", "a/bc", "a/d"):
        storage.put(path, b"")
    storage.delete_below("a/b")
    assert paths(storage) == ["a/bc", "a/d"]
    storage.delete_below("a/b")
    storage.delete_below("never")


@pytest.mark.parametrize("folder", ["/", "..", "a/..", "."])
def test_delete_below_stays_inside(storage, folder):
    with pytest.raises(UnsafePath):
        storage.delete_below(folder)


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


def test_a_listing_follows_a_write_at_once(storage):
    for n in range(5):
        storage.put_if_absent(f"log/{n}", b"")
        assert paths(storage, "log") == [f"log/{m}" for m in range(n + 1)]
        assert [o.path for o in storage.list_folder("log").objects] == paths(storage, "log")


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


@pytest.mark.parametrize("path", ["a", "a/b", "a b", "é/漢😀", "p=1/x", "a%2Fb", ".hoodie/x", "...", "a..b", "x" * 200])
def test_paths_of_all_sorts(storage, path):
    storage.put_if_absent(path, b"1")
    assert paths(storage) == [checked_path(path)]
    assert storage.read(path) == b"1"


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
    for text in ("", "s3://b/t", "abfs://x/y", "http://h/t"):
        with pytest.raises(UnsupportedTable):
            open_storage(text)


def test_modification_times_do_not_go_back(local):
    local.put("a", b"1")
    first = local.stat("a").modified
    time.sleep(0.01)
    local.put("a", b"2")
    assert local.stat("a").modified >= first
