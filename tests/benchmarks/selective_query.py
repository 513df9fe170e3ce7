"""Requests and bytes of a query that one of 100,000 files can answer, here and in Apache Hudi 1.2.0, over one real object store.

`python -m tests.benchmarks.selective_query --files 100000`

The table of version 9 looks as Apache Hudi's writers leave it: no table log, and a metadata table with the partitions `files`,
`column_stats` and `record_index`. All its files but a few are copies of one file; their names, statistics and keys are put into
the base files of the metadata table, each with values of its own. Both readers go through a proxy that counts. Hudi reads by
Hadoop's S3A, told to read at random, in a process that has read another table before.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pyarrow as pa
from tests.conformance.peers.apache_hudi import ApacheHudi
from tests.conformance.test_shared_object_store import hudi_by_s3a
from tests.real.object_store import running_object_store
from tests.real.s3_proxy import S3Proxy, proxy_before

from tideline_table.action import create_metadata, write_rows
from tideline_table.file_group.slice import FileGroupId
from tideline_table.hudi.file_names import parse_log_file_name
from tideline_table.log_format.hfile import HFile
from tideline_table.log_format.hfile_writer import hfile_bytes
from tideline_table.metadata_table.column_records import statistics_datum
from tideline_table.metadata_table.column_stats import record_key
from tideline_table.metadata_table.layout import base_name, file_id_of, file_path
from tideline_table.metadata_table.partition import Records, by_group
from tideline_table.metadata_table.reading import entries_of
from tideline_table.metadata_table.record_index import encode_location, location_of
from tideline_table.metadata_table.records import FilesRecords, decode_records, encode_records
from tideline_table.statistics import ColumnStatistics, FileStatistics
from tideline_table.storage import Storage, open_storage
from tideline_table.table import Table, TableRequest, create_table
from tideline_table.writer import Operation

BUCKET, PARTITIONS = "lake", 100
SCHEMA = pa.schema([pa.field("id", pa.string(), nullable=False), ("part", pa.string()), ("ts", pa.int64())])
WANTED = 10**9
WHERE = f"ts = {WANTED}"
KEY = "wanted"
SKIPPING = {"hoodie.enable.data.skipping": "true"}
METADATA = ".hoodie/metadata"
ROWS = 4


@dataclass(frozen=True)
class Made:
    """A file that is only in the metadata table and a copy in the store."""

    number: int
    instant: str

    @property
    def partition(self) -> str:
        return f"p{self.number % PARTITIONS:03}"

    @property
    def file_id(self) -> str:
        return f"{uuid.UUID(int=self.number, version=4)}-0"

    @property
    def path(self) -> str:
        return f"{self.partition}/{self.file_id}_0-0-0_{self.instant}.parquet"

    @property
    def keys(self) -> list[str]:
        return [f"k{self.number * ROWS + n:08}" for n in range(ROWS)]

    @property
    def statistics(self) -> FileStatistics:
        low, high = self.number * ROWS, self.number * ROWS + ROWS - 1
        bounds = {
            "_hoodie_commit_time": (self.instant, self.instant),
            "_hoodie_partition_path": (self.partition, self.partition),
            "_hoodie_record_key": (self.keys[0], self.keys[-1]),
        }
        texts = {name: ColumnStatistics("string", *ends, 0, 0, 100, 100) for name, ends in bounds.items()}
        return FileStatistics(ROWS, {**texts, "ts": ColumnStatistics("int64", low, high, 0, 0, 100, 100)})


def make(storage: Storage, base_path: str, files: int) -> None:
    """Create the table: a few files by commits, and `files` in the metadata table."""
    create_table(base_path, TableRequest("selective", SCHEMA, ("id",), ("part",), "ts", version=9))
    table = Table.open(base_path, options={"hoodie.parquet.small.file.limit": 0})
    for number in range(4):
        rows = [(KEY if number == 3 else f"n{number}", "p000", WANTED - 3 + number)]
        columns = {name: [row[at] for row in rows] for at, name in enumerate(SCHEMA.names)}
        write_rows(table, pa.table(columns, schema=SCHEMA), Operation.UPSERT)
    create_metadata(table, ["column_stats", "record_index"], columns=["ts"])
    instant = min(a.instant for a in table.refresh().completed_writes())
    made = [Made(number, instant) for number in range(files)]
    content = storage.read(table.state.latest_slices()[0].path)
    marker = storage.read("p000/.hoodie_partition_metadata")
    objects = [(one.path, content) for one in made] + [(f"p{n:03}/.hoodie_partition_metadata", marker) for n in range(PARTITIONS)]
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda one: storage.put(*one), objects))
    _list(storage, made, len(content))
    _add(storage, "column_stats", _statistics(made))
    _add(storage, "record_index", _locations(made))
    for found in list(storage.list_objects(".hoodie/.tideline")):
        storage.delete(found.path)


def _statistics(made: Iterable[Made]) -> Iterable[tuple[bytes, bytes]]:
    for one in made:
        known = one.statistics
        for column in known.columns:
            datum = statistics_datum(one.path.rpartition("/")[2], column, known, typed=True)
            yield record_key(column, one.path).encode(), datum


def _locations(made: Iterable[Made]) -> Iterable[tuple[bytes, bytes]]:
    for one in made:
        datum = encode_location(location_of(FileGroupId(one.partition, one.file_id), one.instant))
        for key in one.keys:
            yield key.encode(), datum


def _list(storage: Storage, made: Iterable[Made], size_bytes: int) -> None:
    [(path, held, schema)] = _bases(storage, "files")
    records, added = decode_records(held.items(), schema.decode(), path), FilesRecords(partitions={})
    for one in made:
        assert added.partitions is not None
        added.partitions[one.partition] = 0
        added.list_file(one.partition, one.path.rpartition("/")[2], size_bytes)
    records.merge(added)
    _put(storage, path, dict(encode_records(records)), schema)


def _add(storage: Storage, partition: str, entries: Iterable[tuple[bytes, bytes]]) -> None:
    """Add entries to the base files of a partition, each to the file group that its key belongs to."""
    bases = _bases(storage, partition)
    for (path, held, schema), group in zip(bases, by_group(Records.of(entries), len(bases)), strict=True):
        keys, values = (group.updates.column(name).cast(pa.binary()).to_pylist() for name in ("key", "value"))
        _put(storage, path, {**held, **dict(zip(keys, values, strict=True))}, schema)


def _bases(storage: Storage, partition: str) -> list[tuple[str, dict[bytes, bytes], bytes]]:
    """Return path, entries and schema of the base file of each file group, also of one that has none yet."""
    paths = [found.path for found in storage.list_folder(f"{METADATA}/{partition}").objects]
    held = {path: HFile(storage.read(path)) for path in paths if path.endswith(".hfile")}
    some = next(iter(held))
    base = some.rpartition("_")[2].removesuffix(".hfile")
    count = len({found.file_id for path in paths if (found := parse_log_file_name(path.rpartition("/")[2])) is not None})
    wanted = [file_path(base_name(base, file_id_of(partition, number)), partition) for number in range(count)]
    schema = held[some].file_info["schema"]
    return [(path, dict(entries_of(held[path])) if path in held else {}, schema) for path in wanted]


def _put(storage: Storage, path: str, entries: dict[bytes, bytes], schema: bytes) -> None:
    if entries:
        info = {"schema": schema, "minRecordKey": min(entries), "maxRecordKey": max(entries)}
        storage.put(path, hfile_bytes(sorted(entries.items()), info))


# --- both readers -----------------------------------------------------------------------------------------------------------------


def counted(proxy: S3Proxy, name: str, work: Callable[[], object]) -> None:
    """Print what `work` asks the store for."""
    proxy.requests.clear()
    proxy.sent.clear()
    began = time.perf_counter()
    found = work()
    methods = Counter("LIST" if "list-type" in one.query or "prefix=" in one.query else one.method for one in proxy.requests)
    keys = Counter("/".join(one.key.split("/")[1:4]) for one in proxy.requests)
    print(
        f"{name}: {found}; {len(proxy.requests)} requests {dict(methods)}, {sum(proxy.sent):,} bytes, "
        f"{time.perf_counter() - began:.1f} s; {keys.most_common(8)}",
        flush=True,
    )


READ = """
import sys, time
from tideline_table.table import Table
how, what, path = sys.argv[1:]
began = time.process_time()
table = Table.open(path, options={"hoodie.index.type": "RECORD_INDEX"})
rows = table.look_up([what], ["id", "ts"]) if how == "key" else table.read(["id", "ts"], where=what)
print(rows.to_pylist(), f"{time.process_time() - began:.2f} s of processor")
"""


def read_here(how: str, proxy: S3Proxy, base_path: str) -> str:
    """In a process of its own."""
    command = [sys.executable, "-c", READ, how, KEY if how == "key" else WHERE, base_path]
    done = subprocess.run(command, env={**os.environ, **proxy.settings}, check=True, stdout=subprocess.PIPE, text=True)
    return done.stdout.strip()


def read_there(how: str, peer: ApacheHudi, base_path: str) -> str:
    """By the metadata table."""
    where = f"id = '{KEY}'" if how == "key" else WHERE
    options = {**SKIPPING, **({"hoodie.metadata.record.index.enable": "true"} if how == "key" else {})}
    rows = peer.read(base_path, metadata=True, columns=["id", "ts"], where=where, options=options)
    return str(rows.to_pylist())


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.selective_query", description=__doc__)
    parser.add_argument("--files", type=int, default=100_000)
    given = parser.parse_args()
    with (
        running_object_store("minio") as server,
        proxy_before(server) as proxy,
        tempfile.TemporaryDirectory(prefix="tideline-query-") as folder,
    ):
        server.make_bucket(BUCKET)
        os.environ.update(server.settings)
        for name, files in (("small", 10), ("large", given.files)):
            began = time.perf_counter()
            make(open_storage(f"s3://{BUCKET}/{name}"), f"s3://{BUCKET}/{name}", files)
            print(f"{name}: {files} files made in {time.perf_counter() - began:.0f} s", flush=True)
        path = f"s3://{BUCKET}/large"
        for how in ("value", "key"):
            counted(proxy, f"Tideline by {how}", partial(read_here, how, proxy, path))
        with hudi_by_s3a(proxy.endpoint, Path(folder), fs_s3a_experimental_input_fadvise="random") as peer:
            for how in ("value", "key"):
                counted(proxy, f"Apache Hudi by {how}, small table", partial(read_there, how, peer, f"s3://{BUCKET}/small"))
                counted(proxy, f"Apache Hudi by {how}", partial(read_there, how, peer, path))


if __name__ == "__main__":
    main()
