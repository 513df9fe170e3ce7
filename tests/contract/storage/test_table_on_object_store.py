"""Tables on a real object store, from creation to cleaning, by the API and by the command line."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path

import pyarrow as pa
import pytest
from tests.contract.storage.conftest import BUCKET
from tests.plans import schedule_clean, schedule_clustering
from tests.real.s3_proxy import LOST_REPLY, Answer, proxy_before
from tests.unit.table.tables import QUIET, SCHEMA, cluster, contents, create, write

import tideline
from tideline_runtime.errors import InvalidSetting
from tideline_runtime.registry import TableRegistry
from tideline_table.action import run_clean
from tideline_table.action.write.transaction import WriteTransaction
from tideline_table.clock import SystemClock
from tideline_table.errors import TableExists, TableNotFound
from tideline_table.log.state import TableState
from tideline_table.log.table_log import LogReader
from tideline_table.storage import open_storage
from tideline_table.table import Table, TableRequest, create_table

pytestmark = pytest.mark.real
TIDELINE = str(Path(sys.executable).with_name("tideline"))


@pytest.fixture
def base_path(minio, prefix, monkeypatch):
    """The environment as an operator would set it; tables are opened by path alone."""
    for name, value in minio.settings.items():
        monkeypatch.setenv(name, value)
    return f"s3://{BUCKET}/{prefix}/orders"


@pytest.fixture
def table(base_path):
    create(open_storage(base_path), SystemClock())
    return opened(base_path)


def test_by_the_public_api(base_path):
    rows = pa.table({"id": ["a", "b"], "day": ["é", "y z"], "fare": [90.0, 200.0]})
    made = tideline.create(base_path, schema=rows.schema, key="id", partition="day", type="mor", locks="storage:")
    made.upsert(rows)
    since = made.upsert(pa.table({"id": ["a"], "day": ["é"], "fare": [120.0]})).sequence
    assert made.sql("select sum(fare) from orders where day = 'é'").fetchall() == [(120.0,)]
    assert tideline.open(base_path).delete(["b"]).rows_deleted == 1
    assert made.lookup(["a", "b"]).to_pylist() == [{"id": "a", "day": "é", "fare": 120.0}]
    assert [c["before"]["id"] for c in made.changes(since=since).read().to_pylist()] == ["b"]
    assert made.maintenance.compact(options={"hoodie.compact.inline.max.delta.commits": 1}).log_files_merged > 0
    options = made.maintenance.share()
    assert options["hoodie.write.lock.provider"].endswith("StorageBasedLockProvider")
    tideline.open(base_path).upsert(rows)
    assert made.read(["id"], "fare > 100").to_pylist() == [{"id": "b"}]


def opened(base_path, writer="w", **options):
    return Table.open(base_path, options={**QUIET, **options}, writer_id=writer)


def test_from_creation_to_cleaning(base_path, table):
    assert table.storage.root == base_path
    for n in range(4):
        write(table, [(f"k{n}", f"day={n % 2}/a b", n, "é"), ("k0", "day=0/a b", n, f"v{n}")])
    expected = [("k0", "day=0/a b", 3, "v3"), *((f"k{n}", f"day={n % 2}/a b", n, "é") for n in (1, 2, 3))]
    assert contents(opened(base_path)) == expected
    early = table.state.completed_writes()[0].instant
    assert contents(table, as_of=early) == [("k0", "day=0/a b", 0, "v0")]
    schedule_clustering(table)
    assert cluster(table) is not None
    for _ in range(2):
        write(table, [("k0", "day=0/a b", 3, "v3")])
    schedule_clean(table, {"hoodie.cleaner.commits.retained": 1})
    assert run_clean(table) > 0
    lost = WriteTransaction.begin(table.timeline, table.lock, "UPSERT")
    lost.roll_back()
    again = opened(base_path)
    assert contents(again) == expected
    assert again.state == table.state
    names = {o.path.rpartition("/")[2] for o in again.storage.list_folder(".hoodie").objects}
    assert {"hoodie.properties", f"{early}.commit"} <= names
    files = {o.path for o in again.storage.list_objects("") if o.path.endswith(".parquet")}
    assert files == {s.path for s in again.state.every_slice()}
    assert [o.path for o in again.storage.list_objects(".hoodie/.temp")] == []


def test_writers_lose_no_update(base_path, table):
    """Four writers count up, each its own counter, all in one file group: a lost update leaves a counter behind."""
    writers, commits = 4, 10
    options = {
        "tideline.write.conflict.retries": 300,
        "hoodie.parquet.small.file.limit": 10**8,
        "tideline.log.checkpoint.interval": 10,
    }
    write(table, [(f"counter {n}", "p", 0, "0") for n in range(writers)])
    failures: list[BaseException] = []

    def count(name):
        try:
            mine = opened(base_path, name, **options)
            for _ in range(commits):
                mine.refresh()
                value = next(r[2] for r in contents(mine) if r[0] == f"counter {name}")
                write(mine, [(f"counter {name}", "p", value + 1, str(value + 1))])
        except BaseException as error:  # noqa: BLE001 - the main thread looks at it
            failures.append(error)

    threads = [threading.Thread(target=count, args=(str(n),)) for n in range(writers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    final = opened(base_path)
    assert contents(final) == [(f"counter {n}", "p", commits, str(commits)) for n in range(writers)]
    assert len(final.state.completed_writes()) == 1 + writers * commits
    whole = TableState()
    for entry in LogReader(final.storage).after(0):
        whole.apply(entry)
    assert whole == final.state
    assert {o.path for o in final.storage.list_objects("p") if o.path.endswith(".parquet")} == {s.path for s in whole.every_slice()}


def test_two_creations_race(base_path):
    outcomes = []
    gate = threading.Barrier(4)

    def run():
        gate.wait()
        try:
            create_table(base_path, TableRequest("t", SCHEMA, ("id",)))
            outcomes.append("created")
        except TableExists:
            outcomes.append("exists")

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["created", "exists", "exists", "exists"]
    assert opened(base_path).identity is not None


def test_opening_costs_six_requests(minio, base_path, table, monkeypatch):
    for n in range(33):
        write(table, [("k", "p", n, "x")])
    assert table.state.sequence == 66
    with proxy_before(minio) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
        assert opened(base_path).state == table.state
    assert len(proxy.requests) <= 6, proxy.requests


@pytest.mark.parametrize("fault", ["lost replies", "slow down"])
def test_commits_over_a_bad_line(minio, base_path, table, monkeypatch, fault):
    """Every third conditional put loses its answer or is told to wait: each commit counts once."""
    with proxy_before(minio) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
        seen = []

        def rule(request):
            if not request.is_conditional:
                return None
            seen.append(request)
            return {"lost replies": LOST_REPLY, "slow down": Answer(503, "SlowDown")}[fault] if len(seen) % 3 == 0 else None

        mine = opened(base_path)
        proxy.rule = rule
        for n in range(5):
            assert write(mine, [(f"k{n}", "p", n, "x")]).attempts == 1
    assert len(seen) > 15
    table.refresh()
    assert contents(table) == [(f"k{n}", "p", n, "x") for n in range(5)]
    assert len(table.state.completed_writes()) == 5


def test_no_table(base_path):
    with pytest.raises(TableNotFound):
        Table.open(base_path)


def test_discovery(base_path, table):
    root = base_path.rpartition("/")[0]
    for name in ("a b%2F", "deep/er/c"):
        create(open_storage(f"{root}/{name}"), SystemClock())
    assert TableRegistry([f"{root}/*"], SystemClock()).tables() == (f"{root}/a b%2F", base_path)
    assert TableRegistry([f"{root}/**"], SystemClock()).tables() == (f"{root}/a b%2F", f"{root}/deep/er/c", base_path)
    assert TableRegistry([base_path], SystemClock()).tables() == (base_path,)
    assert opened(f"{root}/a b%2F").identity.base_path == f"{root}/a b%2F"
    with pytest.raises(InvalidSetting) as caught:
        TableRegistry(["s3://key:verysecret@bucket/*"], SystemClock())
    assert "verysecret" not in str(caught.value)


@pytest.mark.parametrize(
    ("variable", "value", "pattern", "cause"),
    [
        ("AWS_SECRET_ACCESS_KEY", "another-secret", "", "403"),
        ("AWS_ACCESS_KEY_ID", "nobody", "", "403"),
        ("AWS_REGION", "", "s3://no-such-bucket/warehouse/*", "there is no bucket 'no-such-bucket'"),
    ],
)
def test_a_search_that_the_store_refuses_is_told_from_one_that_finds_nothing(
    base_path, table, monkeypatch, variable, value, pattern, cause
):
    root = base_path.rpartition("/")[0]
    right = TableRegistry([f"{root}/none/*", base_path], SystemClock())
    assert (right.tables(), right.search_failure()) == ((base_path,), None)
    nothing = TableRegistry([f"{root}/none/*"], SystemClock())
    assert (nothing.tables(), nothing.search_failure()) == ((), None)
    if value:
        monkeypatch.setenv(variable, value)
    refused = TableRegistry([pattern or f"{root}/*", *([] if pattern else [base_path])], SystemClock())
    assert refused.tables() == ()
    failure = refused.search_failure()
    assert failure is not None
    assert failure.startswith("every search for tables fails: s3://")
    assert cause in failure
    assert "another-secret" not in failure
    assert len(failure.splitlines()) == 1


def test_the_command_line(base_path, tmp_path):
    rows = tmp_path / "rows.csv"
    rows.write_text("id,city,n\na,Rome,1\nb,Oslo,2\n")

    def run(*arguments):
        done = subprocess.run([TIDELINE, *arguments], capture_output=True, text=True, check=False, timeout=120)
        assert done.returncode == 0, done.stderr
        return done.stdout

    created = json.loads(run("create", base_path, "--schema-from", str(rows), "--key", "id", "--partition", "city", "--json"))
    assert (created["base_path"], created["name"]) == (base_path, "orders")
    run("write", base_path, "--from", str(rows), "--locks", "storage:")
    shown = [json.loads(line) for line in run("read", base_path).splitlines()]
    assert sorted((r["id"], r["city"], r["n"]) for r in shown) == [("a", "Rome", 1), ("b", "Oslo", 2)]
