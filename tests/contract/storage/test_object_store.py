"""What only object stores do: answers that get lost, conflicts without an object, names of folders, refusals, secrets."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import contextmanager

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.contract.storage.conftest import BUCKET
from tests.real.object_store import ACCESS_KEY, SECRET_KEY
from tests.real.s3_proxy import CUT_REPLY, LOST_REPLY, UNCONDITIONAL, Answer, proxy_before
from tests.unit.table.tables import create, listing, open_table, write

from tideline_locks import open_hudi_lock
from tideline_table.clock import SystemClock
from tideline_table.errors import (
    ObjectExists,
    ObjectNotFound,
    Recovery,
    StorageError,
    StorageFull,
    StorageRefused,
    UnsafePath,
    UnsupportedTable,
)
from tideline_table.hudi.formats import WRITTEN
from tideline_table.hudi.instant import Action, State
from tideline_table.log.body import Bare
from tideline_table.log.sharing import HudiLockKind, Sharing
from tideline_table.log.table_log import Draft, TableLog
from tideline_table.storage import ObjectStorage, open_storage, root_uri
from tideline_table.table import TableRequest, create_table, share_table

real = pytest.mark.real
BEGIN = Draft("20260101000000000", Action.COMMIT, State.NONE, State.INFLIGHT, "UPSERT", Bare())


@pytest.fixture
def proxy(minio):
    with proxy_before(minio) as running:
        yield running


@pytest.fixture
def behind(proxy, prefix):
    """The same place as `storage`, through the proxy."""
    return ObjectStorage(BUCKET, prefix, proxy.settings)


@pytest.fixture
def storage(minio, prefix):
    return minio.storage(BUCKET, prefix)


@contextmanager
def counted(proxy):
    before = len(proxy.requests)
    found = []
    yield found
    found += [request.method for request in proxy.requests[before:]]


# --- names and places ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "root"),
    [
        ("s3://bucket", "s3://bucket"),
        ("s3://bucket/", "s3://bucket"),
        ("s3a://bucket/a/b/", "s3://bucket/a/b"),
        ("S3://bucket/a b%2Fé?x#y", "s3://bucket/a b%2Fé?x#y"),
    ],
)
def test_roots(text, root):
    assert root_uri(text) == root
    assert root_uri(root) == root


@pytest.mark.parametrize(
    "text",
    [
        "",
        "gs://b/t",
        "abfs://x/y",
        "az://x/y",
        "http://h/t",
        "hdfs://n/t",
        "s3://",
        "s3://b/t",
        "s3://UPPER/t",
        "s3://buck/a//b",
        "s3://buck/../x",
    ],
)
def test_places_that_are_refused(text):
    for function in (open_storage, root_uri):
        with pytest.raises(UnsupportedTable) as caught:
            function(text)
        assert "s3://bucket/path" in str(caught.value) or "a path without" in str(caught.value)


def test_credentials_in_a_base_path_are_refused_and_not_repeated():
    for function in (open_storage, root_uri):
        with pytest.raises(UnsupportedTable, match="AWS_SECRET_ACCESS_KEY") as caught:
            function("s3://AKIAKEY:verysecret@bucket/t")
        assert "verysecret" not in str(caught.value)
        assert "AKIAKEY" not in str(caught.value)


@real
def test_a_base_path_and_the_environment_are_all_that_another_process_needs(minio, prefix, storage, monkeypatch):
    for name, value in minio.settings.items():
        monkeypatch.setenv(name, value)
    here = open_storage(f"s3a://{BUCKET}/{prefix}")
    assert here.root == storage.root == f"s3://{BUCKET}/{prefix}"
    here.put_if_absent("x", b"1")
    script = "import sys; from tideline_table.storage import open_storage; print(open_storage(sys.argv[1]).read('x'))"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script, here.root], capture_output=True, text=True, check=True, env=os.environ
    )
    assert done.stdout.strip() == "b'1'"


@real
def test_names_are_the_same_for_other_clients(server, prefix):
    storage = server.storage(BUCKET, prefix)
    names = ["a b", "p=1/x%2Fy", "é/漢😀", "a+b"]
    for name in names:
        storage.put_if_absent(name, name.encode())
    other = server.other_client()
    for name in names:
        with other.open_input_stream(f"{BUCKET}/{prefix}/{name}") as source:
            assert source.read() == name.encode()
    with other.open_output_stream(f"{BUCKET}/{prefix}/theirs é%2F") as sink:
        sink.write(b"theirs")
    assert storage.read("theirs é%2F") == b"theirs"


@real
def test_objects_that_stand_for_folders_are_none(server, prefix):
    storage = server.storage(BUCKET, prefix)
    server.other_client().create_dir(f"{BUCKET}/{prefix}/a/b")
    storage.put("a/b/x", b"1")
    storage.put("a/b.x", b"")
    assert [o.path for o in storage.list_objects("")] == ["a/b.x", "a/b/x"]
    assert [o.path for o in storage.list_folder("a").objects] == ["a/b.x"]
    assert storage.list_folder("a").folders == ("b",)
    assert [o.path for o in storage.list_folder("a/b").objects] == ["a/b/x"]
    assert storage.list_folder("").objects == ()


@real
@pytest.mark.parametrize("page", [1, 3, 1000])
def test_a_listing_after_a_name_passes_over_folders_whatever_a_page_holds(storage, monkeypatch, page):
    monkeypatch.setattr("tideline_table.storage.object_store._LIST_PAGE", page)
    for path in ("f/0", "f/1", "f/2", "f/d/1", "f/d/2", "f/d/e/3", "f/d0", "f/e/1", "f/z", "g/1"):
        storage.put(path, b"1")
    level = storage.list_folder("f", "f/0")
    assert (level.folders, [o.path for o in level.objects]) == (("d", "e"), ["f/1", "f/2", "f/d0", "f/z"])
    assert storage.list_folder("f", "f/d").folders == ("e",)
    assert storage.list_folder("f", "f/zz") == storage.list_folder("none")


@real
def test_control_characters_are_refused(storage):
    with pytest.raises(UnsafePath):
        storage.put("a\nb", b"1")


# --- conditional puts ------------------------------------------------------------------------------------------------------


@real
@pytest.mark.parametrize(("status", "code"), [(409, "ConditionalRequestConflict"), (412, "PreconditionFailed")])
def test_a_refusal_without_an_object_is_tried_again(proxy, behind, status, code):
    refusals = [Answer(status, code)] * 2
    proxy.rule = lambda request: refusals.pop() if request.is_conditional and refusals else None
    behind.put_if_absent("x", b"1")
    assert behind.read("x") == b"1"
    assert refusals == []


@real
def test_endless_refusals_end_in_an_error(proxy, behind):
    proxy.rule = lambda request: Answer(409, "ConditionalRequestConflict") if request.is_conditional else None
    with pytest.raises(StorageError, match="conflicts") as caught:
        behind.put_if_absent("x", b"1")
    assert caught.value.recovery is Recovery.RETRY
    assert len(proxy.requests) <= 10


@real
def test_a_put_whose_reply_got_lost_is_there(proxy, behind, storage):
    """obstore sends a broken connection's request again; the store refuses it: the port says that an object exists."""
    lost = [LOST_REPLY]
    proxy.rule = lambda request: lost.pop() if request.is_conditional and lost else None
    with pytest.raises((ObjectExists, StorageError)):
        behind.put_if_absent("x", b"1")
    assert storage.read("x") == b"1"


@real
@pytest.mark.parametrize("losses", [1, 2])
def test_the_table_log_knows_its_own_entry_after_a_lost_reply(proxy, behind, clock, losses):
    lost = [LOST_REPLY] * losses
    proxy.rule = lambda request: lost.pop() if request.is_conditional and lost else None
    log = TableLog(behind, clock, "me", WRITTEN)
    entry = log.append(BEGIN, 1)
    assert entry is not None
    assert log.read(1).append_id == entry.append_id
    assert log.append(BEGIN, 1) is None


@real
def test_server_errors_are_ridden_out(proxy, behind):
    failures = [Answer(503, "SlowDown")] * 2
    proxy.rule = lambda request: failures.pop() if failures else None
    behind.put_if_absent("x", b"1")
    assert failures == []
    failures += [Answer(500, "InternalError")]
    assert behind.read("x") == b"1"


@real
@pytest.mark.parametrize(
    "read",
    [
        lambda place: place.read("x"),
        lambda place: place.read_versioned("x")[0],
        lambda place: place.read_range("x", 0, 200_000),
        lambda place: place.open_input("x").read(),
        lambda place: next(place.list_objects("")).path.encode() * 200_000,
        lambda place: place.list_folder("").objects[0].path.encode() * 200_000,
    ],
    ids=["read", "read_versioned", "read_range", "open_input", "list_objects", "list_folder"],
)
def test_reads_over_dropped_connections_are_sent_again(proxy, behind, storage, read):
    storage.put("x", b"x" * 200_000)
    losses = [CUT_REPLY, LOST_REPLY]
    proxy.rule = lambda request: losses.pop() if losses else None
    assert read(behind) == b"x" * 200_000
    assert losses == []


@real
def test_a_store_that_ignores_conditions_is_refused_for_writing(proxy, behind, storage):
    request = TableRequest("t", pa.schema([pa.field("id", pa.string(), nullable=False)]), ("id",))
    proxy.rule = lambda request: UNCONDITIONAL if request.is_conditional else None
    with pytest.raises(UnsupportedTable, match="accepted a second conditional put") as caught:
        create_table(behind.root, request, storage=behind)
    assert caught.value.recovery is Recovery.STOP
    assert list(storage.list_objects("")) == []
    proxy.rule = lambda request: None
    create_table(behind.root, request, storage=behind)


@real
def test_a_store_that_ignores_versions_is_refused_for_sharing(proxy, behind, storage):
    """Both sides would hold Hudi's lock at once; tables of Tideline's alone do not need it."""
    create(behind, SystemClock())
    table = open_table(behind, SystemClock())
    write(table, [("a", "p", 1, "x")])
    before = listing(storage)
    proxy.rule = lambda request: UNCONDITIONAL if request.replaces_version else None
    with pytest.raises(UnsupportedTable, match="accepted a put over an older version") as caught:
        share_table(table, Sharing(HudiLockKind.STORAGE), open_hudi_lock)
    assert caught.value.recovery is Recovery.STOP
    assert listing(storage) == before
    assert any(request.replaces_version for request in proxy.requests)
    proxy.rule = lambda request: UNCONDITIONAL if request.is_conditional else None
    with pytest.raises(UnsupportedTable, match="accepted a second conditional put"):
        share_table(table, Sharing(HudiLockKind.STORAGE), open_hudi_lock)
    assert listing(storage) == before
    proxy.rule = lambda request: None
    assert share_table(table, Sharing(HudiLockKind.STORAGE), open_hudi_lock).sharing is not None


# --- refusals and secrets --------------------------------------------------------------------------------------------------


def everything(storage):
    return {
        "read": lambda: storage.read("x"),
        "read_range": lambda: storage.read_range("x", 0, 1),
        "put": lambda: storage.put("x", b"1"),
        "put_if_absent": lambda: storage.put_if_absent("x", b"1"),
        "delete": lambda: storage.delete("x"),
        "delete_below": lambda: storage.delete_below("x"),
        "list_objects": lambda: list(storage.list_objects("")),
        "list_folder": lambda: storage.list_folder(""),
        "open_input": lambda: storage.open_input("x"),
        "open_output": lambda: storage.open_output("x").__enter__().write(b"1"),
    }


@real
def test_wrong_credentials(server):
    wrong = "wrong-secret-wrong-secret"
    storage = server.storage(BUCKET, AWS_SECRET_ACCESS_KEY=wrong)
    for name, call in everything(storage).items():
        if name == "open_output":
            continue
        with pytest.raises(StorageRefused) as caught:
            call()
        assert caught.value.recovery is Recovery.STOP
        assert "AWS_SECRET_ACCESS_KEY" in str(caught.value), name
        for secret in (wrong, ACCESS_KEY + ":", SECRET_KEY, "Signature="):
            assert secret not in str(caught.value) + repr(caught.value), name


@real
def test_a_missing_bucket(minio):
    storage = minio.storage("no-such-bucket")
    calls = everything(storage)
    for name in ("read", "read_range", "put", "put_if_absent", "list_objects", "list_folder", "open_input"):
        with pytest.raises(StorageRefused, match="no bucket 'no-such-bucket'"):
            calls[name]()
    # The answer to a HEAD has no body that could say more.
    with pytest.raises(ObjectNotFound):
        storage.stat("x")


def test_an_unreachable_store_says_so_and_keeps_secrets(monkeypatch):
    monkeypatch.setattr("tideline_table.storage.object_store._RETRIES", {"max_retries": 0})
    settings = {"endpoint": "http://user:hunter2@127.0.0.1:9", "access_key_id": "AKIAX", "secret_access_key": "verysecret"}
    storage = ObjectStorage("bucket", "t", settings)
    for name, call in everything(storage).items():
        if name in ("open_output", "delete_below"):
            continue
        with pytest.raises(StorageError) as caught:
            call()
        assert caught.value.recovery is Recovery.RETRY, name
        for secret in ("hunter2", "verysecret", "AKIAX"):
            assert secret not in str(caught.value) + repr(caught.value) + repr(storage), name


def test_no_credentials_at_all(monkeypatch):
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setattr("tideline_table.storage.object_store._RETRIES", {"max_retries": 0})
    with pytest.raises(StorageRefused, match="AWS_ACCESS_KEY_ID"):
        ObjectStorage("bucket", "", {"metadata_endpoint": "http://127.0.0.1:9", "endpoint": "http://127.0.0.1:9"}).read("x")


# --- what it costs ---------------------------------------------------------------------------------------------------------


@real
def test_requests(proxy, behind):
    rows = pa.table({"a": list(range(1000)), "b": [str(n) for n in range(1000)]})
    costs = {}
    for name, call in {
        "put": lambda: behind.put("x", b"1"),
        "put_if_absent": lambda: behind.put_if_absent("y", b"1"),
        "read": lambda: behind.read("x"),
        "stat": lambda: behind.stat("x"),
        "list_folder": lambda: behind.list_folder(""),
        "list_objects": lambda: list(behind.list_objects("")),
        "delete": lambda: behind.delete("x"),
        "write parquet": lambda: write_parquet(behind, rows),
        "read parquet": lambda: pq.read_table(behind.open_input("p")),
        "three deletes": lambda: behind.delete_below("d"),
    }.items():
        if name == "three deletes":
            for n in range(3):
                behind.put(f"d/{n}", b"")
        with counted(proxy) as found:
            call()
        costs[name] = len(found)
    assert costs == {**dict.fromkeys(costs, 1), "three deletes": 2}


def write_parquet(storage, rows):
    with storage.open_output("p") as sink, pq.ParquetWriter(sink, rows.schema) as writer:
        writer.write_table(rows)


@real
def test_uploads_that_are_given_up_leave_no_parts(minio, storage):
    parts = minio.data / ".minio.sys" / "multipart"

    def fail():
        with storage.open_output("x") as sink:
            sink.write(bytes(30 * 1024 * 1024))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert list(parts.rglob("part.*")) == []
    with storage.open_output("x") as sink:
        sink.write(bytes(30 * 1024 * 1024))
    assert storage.stat("x").size_bytes == 30 * 1024 * 1024


@real
def test_an_upload_that_fails_half_way_is_an_error(proxy, behind, storage):
    proxy.rule = lambda request: Answer(403, "AccessDenied") if "partNumber=3" in request.query else None

    def write():
        with behind.open_output("x") as sink:
            for _ in range(8):
                sink.write(bytes(8 * 1024 * 1024))

    with pytest.raises(StorageRefused, match="AccessDenied"):
        write()
    with pytest.raises(ObjectNotFound):
        storage.stat("x")


FULL = [Answer(507, "XMinioStorageFull"), Answer(403, "QuotaExceeded"), Answer(400, "XMinioAdminBucketQuotaExceeded")]


@real
@pytest.mark.parametrize("answer", FULL, ids=lambda a: a.code)
def test_a_full_store_is_told_from_one_that_refuses(proxy, behind, storage, clock, answer):
    proxy.rule = lambda request: answer if request.method in ("PUT", "POST") else None
    with pytest.raises(StorageFull, match=answer.code) as caught:
        behind.put("x", b"1")
    assert caught.value.recovery is Recovery.RETRY
    log = TableLog(behind, clock, "w", WRITTEN)
    with pytest.raises(StorageFull):
        log.append(BEGIN, 1)
    assert log.read(1) is None
    proxy.rule = lambda request: None
    assert log.append(BEGIN, 1).sequence == 1


@real
def test_a_full_store_that_took_the_entry_all_the_same(proxy, behind, clock):
    """The client sent the request, lost the answer, sent it again, and only then the store was full."""
    puts = []

    def rule(request):
        if request.method != "PUT" or "/log/" not in request.key:
            return None
        puts.append(request)
        return LOST_REPLY if len(puts) == 1 else Answer(403, "QuotaExceeded")

    proxy.rule = rule
    log = TableLog(behind, clock, "w", WRITTEN)
    entry = log.append(BEGIN, 1)
    assert log.read(1) == entry
