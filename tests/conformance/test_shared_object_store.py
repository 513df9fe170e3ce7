"""Apache Hudi and Tideline write one table of version 9 or 8 in a real object store in turn; Apache Hudi by Hadoop's S3A.

Apache Hudi's lock in object stores needs classes of its package for AWS, which `tests/conformance/test_hudi_locks.py` replaces; in
turn, its writers need no lock of another process.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pyarrow as pa
import pytest
from tests.artifacts import ensure_artifacts
from tests.conformance.both_in_turn import FAST, NAME, SCHEMA, trips
from tests.conformance.matrix import Comparison
from tests.conformance.peers.apache_hudi import ApacheHudi
from tests.conformance.peers.environment import prepare
from tests.plans import schedule_clean, schedule_clustering, schedule_compaction
from tests.real.object_store import ACCESS_KEY, SECRET_KEY, ObjectStoreServer, running_object_store

from tideline_locks import open_hudi_lock
from tideline_table.action import run_clean, run_clustering, run_compaction, write_rows
from tideline_table.hudi.formats import format_to_create
from tideline_table.log.sharing import HudiLockKind, Sharing
from tideline_table.table import Table, TableRequest, TableType, create_table, share_table
from tideline_table.writer import Operation

pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.of_peers,  # S3A needs 280 MB of jars
]
JARS = Path(__file__).with_name("s3a_jars.json")
BUCKET = "lake"
SHARING = Sharing(HudiLockKind.STORAGE)
METADATA = "files,column_stats,partition_stats"
START = """\
#!{python}
import json, sys
sys.argv = sys.argv[1:]
sys.path.insert(0, sys.argv[0].rpartition("/")[0])
import hudi_server
start = hudi_server.start_session
def start_with_store(*given):
    session = start(*given)
    for key, value in json.loads({settings!r}).items():
        session.sparkContext._jsc.hadoopConfiguration().set(key, value)
    return session
hudi_server.start_session = start_with_store
hudi_server.main()
"""
"""Stands in for the peer's Python: Hadoop learns of the store after the server has started its session."""


@pytest.fixture(scope="module")
def store() -> Iterator[ObjectStoreServer]:
    with running_object_store("minio") as server:
        server.make_bucket(BUCKET)
        yield server


@contextmanager
def hudi_by_s3a(endpoint: str, folder: Path, **more: str) -> Iterator[ApacheHudi]:
    """Apache Hudi that reaches the object store at `endpoint` by Hadoop's S3A; `more` settings of it have _ for points."""
    settings = {
        "fs.s3.impl": "org.apache.hadoop.fs.s3a.S3AFileSystem",
        "fs.s3a.endpoint": endpoint,
        "fs.s3a.path.style.access": "true",
        "fs.s3a.connection.ssl.enabled": "false",
        # Hudi's readers of log files leave streams open, and their connections with them.
        "fs.s3a.connection.maximum": "2000",
        "fs.s3a.access.key": ACCESS_KEY,
        "fs.s3a.secret.key": SECRET_KEY,
        **{key.replace("_", "."): value for key, value in more.items()},
    }
    found = prepare()
    python = folder / "python"
    python.write_text(START.format(python=found.python, settings=json.dumps(settings)))
    python.chmod(0o755)
    jars = [found.bundle, *ensure_artifacts(json.loads(JARS.read_text()))]
    with ApacheHudi(replace(found, python=python, bundle=Path(":".join(map(str, jars))))) as session:
        yield session


@pytest.fixture(scope="module")
def hudi_on_s3a(store: ObjectStoreServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheHudi]:
    with hudi_by_s3a(store.endpoint, tmp_path_factory.mktemp("peer")) as session:
        yield session


@dataclass
class Both:
    """A table in the store, and what it must hold: key → ordering value."""

    peer: ApacheHudi
    path: str
    kind: TableType
    version: int
    metadata: bool
    rows: dict[str, int] = field(default_factory=dict)
    compare: Comparison = field(default_factory=Comparison)

    @property
    def _options(self) -> dict[str, object]:
        return {**FAST, "tideline.shared.metadata": METADATA if self.metadata else "off"}

    @property
    def hudi_options(self) -> dict[str, str]:
        kept = METADATA.split(",") if self.metadata else ()
        return {
            "hoodie.table.name": NAME,
            "hoodie.datasource.write.table.type": self.kind.value,
            "hoodie.datasource.write.recordkey.field": "id",
            "hoodie.datasource.write.partitionpath.field": "part",
            "hoodie.datasource.write.precombine.field": "ts",
            "hoodie.parquet.small.file.limit": "0",
            "hoodie.compact.inline": "false",
            "hoodie.clean.automatic": "false",
            "hoodie.embed.timeline.server": "false",
            "hoodie.write.markers.type": "DIRECT",
            "hoodie.metadata.compact.max.delta.commits": "4",
            **SHARING.hudi_options(format_to_create(self.version), kept),
            "hoodie.write.lock.provider": "org.apache.hudi.client.transaction.lock.InProcessLockProvider",
        }

    def create(self) -> None:
        request = TableRequest(NAME, SCHEMA, ("id",), ("part",), "ts", self.kind, version=self.version)
        create_table(self.path, request)
        share_table(Table.open(self.path, options=self._options), SHARING, open_hudi_lock)

    def open(self) -> Table:
        return Table.open(self.path, options=self._options, hudi_lock=open_hudi_lock)

    def ours(self, rows: pa.Table, operation: Operation = Operation.UPSERT) -> None:
        write_rows(self.open(), rows, operation)
        self._wrote(rows, is_deletion=operation is Operation.DELETE)

    def theirs(self, rows: pa.Table, operation: str = "upsert") -> None:
        options = {**self.hudi_options, "hoodie.datasource.write.operation": operation}
        self.peer.write(self.path, rows, options, metadata=self.metadata)
        self._wrote(rows, is_deletion=operation == "delete")

    def call(self, procedure: str) -> None:
        self.peer.sql(f"call {procedure}", self.hudi_options)

    def _wrote(self, rows: pa.Table, *, is_deletion: bool) -> None:
        for key, ts in zip(rows["id"].to_pylist(), rows["ts"].to_pylist(), strict=True):
            self.rows.pop(key, None)
            if not is_deletion:
                self.rows[key] = ts

    def check(self, what: str) -> None:
        found = Table.open(self.path).read()
        assert dict(zip(found["id"].to_pylist(), found["ts"].to_pylist(), strict=True)) == self.rows, what
        self.compare.rows(found, self.peer.read(self.path, metadata=self.metadata), what)


@pytest.mark.parametrize(
    ("version", "kind", "metadata"),
    [(9, TableType.MOR, True), (9, TableType.COW, True), (8, TableType.MOR, False)],
    ids=str,
)
def test_both_write_a_table_in_an_object_store(
    store: ObjectStoreServer,
    hudi_on_s3a: ApacheHudi,
    monkeypatch: pytest.MonkeyPatch,
    version: int,
    kind: TableType,
    metadata: bool,
) -> None:
    for name, value in store.settings.items():
        monkeypatch.setenv(name, value)
    table = Both(hudi_on_s3a, f"s3://{BUCKET}/tables/v{version} {kind.value} é", kind, version, metadata)
    table.create()
    table.ours(trips(range(10), 1))
    table.theirs(trips(range(5, 14), 2))
    table.check("they upsert what we wrote")
    table.ours(trips(range(3, 12), 3))
    table.theirs(trips([4], 3), "delete")
    table.ours(trips([5], 4), Operation.DELETE)
    table.check("both delete")
    if kind is TableType.MOR:
        at_once = {"hoodie.compact.inline.max.delta.commits": 1}
        assert schedule_compaction(table.open(), at_once) is not None
        table.theirs(trips(range(6, 9), 5))
        assert run_compaction(table.open()) is not None
        table.check("we compacted, and they wrote behind the plan")
        table.ours(trips(range(7, 10), 6))
        assert schedule_compaction(table.open(), at_once) is not None
        table.call(f"run_compaction(op => 'run', path => '{table.path}')")
        table.check("they ran our plan")
    whole = {"hoodie.clustering.plan.strategy.small.file.limit": 10**9}
    assert schedule_clustering(table.open(), whole) is not None
    assert run_clustering(table.open()) is not None
    table.theirs(trips(range(8, 16), 7))
    table.check("we clustered, and they wrote")
    assert schedule_clean(table.open(), {"hoodie.cleaner.commits.retained": 1}) is not None
    assert run_clean(table.open()) is not None
    table.theirs(trips(range(2, 6), 8))
    table.ours(trips(range(4, 9), 9))
    table.check("we cleaned, and both wrote")
