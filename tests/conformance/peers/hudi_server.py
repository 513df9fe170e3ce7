"""Apache Hudi in a long-lived Spark process: JSON lines in on one descriptor, JSON lines out on another.

Runs under the peer's own Python (PySpark 3.5), started by `apache_hudi.ApacheHudi`; imports nothing of this repository.
The standard streams belong to Spark's log, which is why the frames have descriptors of their own.

A request is `{"id", "command", ...arguments}`; a reply `{"id", "value"}` or `{"id", "error": {"kind", "message", "trace"}}`.
The end of the request stream ends the process.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import time
import traceback
from collections.abc import Iterator
from typing import Any, TextIO

from object_store_lock import ObjectStoreLock
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.java_gateway import ensure_callback_server_started
from pyspark.sql import DataFrame, SparkSession, functions

MESSAGE_LIMIT = 20_000

# Without these, Hudi 1.2 upgrades every table that it writes or calls a procedure on to version 9.
TABLE_VERSION = {"hoodie.write.table.version": "6", "hoodie.write.auto.upgrade": "false"}

# The code that C1 makes of Spark and Hudi does not fit into its default cache of 48 MB, and their classes not into the first
# metaspace.
JVM = (
    "-XX:TieredStopAtLevel=1",
    "-XX:ReservedCodeCacheSize=240m",
    "-XX:MetaspaceSize=512m",
    "-XX:+UseSerialGC",
    "-Xms1000m",
    "-Xmn400m",
)

UNUSED = ("adl.", "dfs.", "file.", "fs.adl.", "fs.azure.", "fs.ftp.", "fs.s3a.", "ftp.", "ha.", "hadoop.", "httpfs.", "ipc.", "mapreduce.", "mapred.", "net.", "nfs.", "rpc.", "seq.", "tfile.", "yarn.", "zlib.")  # fmt: skip
"""The beginnings of names of Hadoop's settings whose defaults are in its code, or whose parts do not run here."""

LATE = (
    "org.apache.hadoop.mapred.JobConf",
    "org.apache.hadoop.yarn.conf.YarnConfiguration",
    "org.apache.hadoop.hdfs.HdfsConfiguration",
)
"""Classes of Hadoop with defaults of their own."""


def start_session(bundle: str, folder: str, memory_mb: int) -> SparkSession:
    """A small local session in UTC. The bundle goes on the class path: as `spark.jars` it would be copied at every start."""
    settings = {
        "spark.master": "local[2]",
        "spark.app.name": "apache-hudi-peer",
        "spark.driver.memory": f"{memory_mb}m",
        "spark.driver.extraClassPath": bundle,
        "spark.driver.extraJavaOptions": f"-Duser.timezone=UTC -Djava.io.tmpdir={folder} {' '.join(JVM)}",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.local.dir": folder,
        "spark.sql.warehouse.dir": os.path.join(folder, "warehouse"),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        "spark.default.parallelism": "2",
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
        # A table may have been written by another process since the last query: no cached relations.
        "spark.sql.filesourceTableRelationCacheSize": "0",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.serializer": "org.apache.spark.serializer.KryoSerializer",
        "spark.kryo.registrator": "org.apache.spark.HoodieSparkKryoRegistrar",
        "spark.sql.extensions": "org.apache.spark.sql.hudi.HoodieSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.hudi.catalog.HoodieCatalog",
        **{f"spark.{key}": value for key, value in TABLE_VERSION.items()},
    }
    builder = SparkSession.builder
    for key, value in settings.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    _forget_settings(session.sparkContext)
    for key, value in TABLE_VERSION.items():
        session.conf.set(key, value)
    return session


def _forget_settings(context: SparkContext) -> None:
    """Remove from Hadoop's configuration what this process does not use.

    Hudi sends the configuration with each task, and Hadoop packs the origin of each of its 1,000 settings on its own. That took
    nearly half of the processor time.
    """
    for name in LATE:
        # Each adds files of defaults when it is loaded, and all configurations are read again.
        context._jvm.java.lang.Class.forName(name)
    configuration = context._jsc.hadoopConfiguration()
    held = configuration.iterator()
    names = []
    while held.hasNext():
        names.append(held.next().getKey())
    for name in names:
        if name.startswith(UNUSED):
            configuration.unset(name)


class Server:
    """One method per command; what a method returns is the reply's value."""

    def __init__(self, session: SparkSession) -> None:
        self._session = session
        self._locks: dict[str, Any] = {}
        self._object_store_locks: dict[str, ObjectStoreLock] = {}

    def ping(self) -> dict[str, str]:
        system = self._session.sparkContext._jvm.java.lang.System
        return {
            "spark": self._session.version,
            "java": system.getProperty("java.version"),
            "zone": system.getProperty("user.timezone"),
        }

    def read(self, base_path: str, options: dict[str, str], columns: list[str] | None, where: str | None, target: str) -> None:
        frame = self._session.read.format("hudi").options(**options).load(base_path)
        if where is not None:
            frame = frame.where(where)
        if columns is not None:
            frame = frame.select(*columns)
        frame.coalesce(1).write.parquet(target)

    def write(self, base_path: str, source: str, options: dict[str, str], mode: str, computed: dict[str, str]) -> None:
        rows = self._session.read.parquet(source)
        for name, expression in computed.items():
            rows = rows.withColumn(name, functions.expr(expression))
        rows.write.format("hudi").options(**TABLE_VERSION).options(**options).mode(mode).save(base_path)

    def sql(self, text: str, settings: dict[str, str]) -> list[dict[str, Any]]:
        with self._with_settings(settings):
            return _plain(self._session.sql(text))

    def roll_back(self, base_path: str, table: str, instant: str, options: dict[str, str]) -> bool:
        with self._client(base_path, table, options) as client:
            return bool(client.rollback(instant))

    def restore(self, base_path: str, table: str, instant: str, options: dict[str, str]) -> None:
        with self._client(base_path, table, options) as client:
            client.restoreToSavepoint(instant)

    @contextlib.contextmanager
    def _client(self, base_path: str, table: str, options: dict[str, str]) -> Iterator[Any]:
        context = self._session.sparkContext
        settings = context._jvm.java.util.HashMap()
        for key, value in {**TABLE_VERSION, **options}.items():
            settings.put(key, value)
        client = context._jvm.org.apache.hudi.DataSourceUtils.createHoodieClient(context._jsc, None, base_path, table, settings)
        try:
            yield client
        finally:
            client.close()

    def lock(self, base_path: str, wait_ms: int, options: dict[str, str]) -> bool:
        """Take the table's lock through Hudi's own provider and keep it."""
        java, hudi = self._session.sparkContext._jvm.java, self._session.sparkContext._jvm.org.apache.hudi
        settings = hudi.common.config.TypedProperties()
        for key, value in {"hoodie.base.path": base_path, **options}.items():
            settings.put(key, value)
        storage = hudi.storage.hadoop.HadoopStorageConfiguration(self._session.sparkContext._jsc.hadoopConfiguration())
        provider = hudi.client.transaction.lock.FileSystemBasedLockProvider(hudi.common.config.LockConfiguration(settings), storage)
        deadline = time.monotonic() + wait_ms / 1000
        while not provider.tryLock(0, java.util.concurrent.TimeUnit.MILLISECONDS):
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.02)
        self._locks[base_path] = provider
        return True

    def unlock(self, base_path: str) -> None:
        self._locks.pop(base_path).unlock()

    def make_object_store_lock(self, base_path: str, settings: dict[str, str], options: dict[str, str]) -> None:
        """Hudi's storage based provider, which calls back for what it asks of the store."""
        ensure_callback_server_started(self._session.sparkContext._gateway)
        made = ObjectStoreLock(self._session.sparkContext._jvm, base_path, settings, options)
        self._object_store_locks[base_path] = made

    def object_store_lock(self, base_path: str, method: str, arguments: dict[str, Any]) -> Any:
        """Call a method of what `make_object_store_lock` made."""
        return getattr(self._object_store_locks[base_path], method)(**arguments)

    def storage_lock(self, written: str) -> dict[str, Any]:
        """Hudi's bytes of a storage lock, and what Hudi reads in ours."""
        jvm = self._session.sparkContext._jvm
        models = jvm.org.apache.hudi.client.transaction.lock.models
        data = models.StorageLockData(False, 1_700_000_000_000, "hudi-owner")
        found = models.StorageLockFile.createFromStream(jvm.java.io.ByteArrayInputStream(bytearray(written.encode())), "etag")
        return {
            "bytes": bytes(models.StorageLockFile.toByteArray(data)).decode(),
            "owner": found.getOwner(),
            "expired": found.isExpired(),
            "valid_until_ms": found.getValidUntilMs(),
        }

    def timeline(self, base_path: str) -> list[dict[str, str | None]]:
        instants = self._meta_client(base_path).getActiveTimeline().getInstants()
        return [
            {"action": instant.getAction(), "state": instant.getState().name(), **_instant_times(instant)} for instant in instants
        ]

    def properties(self, base_path: str) -> dict[str, str]:
        return dict(self._meta_client(base_path).getTableConfig().getProps())

    def file_slices(self, base_path: str) -> list[dict[str, Any]]:
        hudi = self._session.sparkContext._jvm.org.apache.hudi
        collectors = self._session.sparkContext._jvm.java.util.stream.Collectors
        client = self._meta_client(base_path)
        engine = hudi.common.engine.HoodieLocalEngineContext(client.getStorageConf())
        listing = hudi.common.config.HoodieMetadataConfig.newBuilder().enable(False).build()
        view = hudi.common.table.view.FileSystemViewManager.createInMemoryFileSystemView(engine, client, listing)
        slices: list[dict[str, Any]] = []
        try:
            for partition in hudi.common.fs.FSUtils.getAllPartitionPaths(engine, client, False):
                for found in view.getLatestFileSlices(partition).collect(collectors.toList()):
                    slices.append(_slice(partition, found, collectors))
        finally:
            view.close()
        return slices

    def bloom_filters(self, base_path: str, partition: str, names: list[str], keys: list[str]) -> dict[str, list[bool]]:
        jvm = self._session.sparkContext._jvm
        hudi = jvm.org.apache.hudi
        client = self._meta_client(base_path)
        engine = hudi.common.engine.HoodieLocalEngineContext(client.getStorageConf())
        config = hudi.common.config.HoodieMetadataConfig.newBuilder().enable(True).build()
        metadata = client.getTableFormat().getMetadataFactory().create(engine, client.getStorage(), config, base_path)
        found: dict[str, list[bool]] = {}
        try:
            for name in names:
                held = metadata.getBloomFilter(partition, name)
                if held.isPresent():
                    found[name] = [held.get().mightContain(key) for key in keys]
        finally:
            metadata.close()
        return found

    def _meta_client(self, base_path: str) -> Any:
        context = self._session.sparkContext
        hudi = context._jvm.org.apache.hudi
        storage = hudi.storage.hadoop.HadoopStorageConfiguration(context._jsc.hadoopConfiguration())
        return hudi.common.table.HoodieTableMetaClient.builder().setConf(storage).setBasePath(base_path).build()

    @contextlib.contextmanager
    def _with_settings(self, settings: dict[str, str]) -> Iterator[None]:
        before: dict[str, str | None] = {key: self._session.conf.get(key, None) for key in settings}
        try:
            for key, value in settings.items():
                self._session.conf.set(key, value)
            yield
        finally:
            for key, value in before.items():
                if value is None:
                    self._session.conf.unset(key)
                else:
                    self._session.conf.set(key, value)


def _instant_times(instant: Any) -> dict[str, str | None]:
    try:
        return {"instant": instant.requestedTime(), "completion_time": instant.getCompletionTime()}
    except Py4JError:
        # Before release 1.0 there was one time, of another name.
        return {"instant": instant.getTimestamp(), "completion_time": None}


def _slice(partition: str, found: Any, collectors: Any) -> dict[str, Any]:
    base = found.getBaseFile()
    logs = found.getLogFiles().collect(collectors.toList())
    return {
        "partition_path": partition,
        "file_id": found.getFileId(),
        "base_instant": found.getBaseInstantTime(),
        "base_file": base.get().getFileName() if base.isPresent() else None,
        "log_files": sorted(log.getFileName() for log in logs),
    }


def _plain(frame: DataFrame) -> list[dict[str, Any]]:
    return [row.asDict(recursive=True) for row in frame.collect()]


def _error(error: Exception) -> dict[str, str]:
    kind, message = type(error).__name__, str(error)
    if isinstance(error, Py4JJavaError):
        java = error.java_exception
        kind = java.getClass().getName()
        causes: list[str] = []
        while java is not None and len(causes) < 20:
            causes.append(java.toString())
            java = java.getCause()
        message = "\ncaused by ".join(causes)
    elif isinstance(error, PySparkException) and getattr(error, "cause", None) is not None:
        message = f"{message}\ncaused by {error.cause}"  # type: ignore[attr-defined]
    return {"kind": kind, "message": message[:MESSAGE_LIMIT], "trace": traceback.format_exc()[-MESSAGE_LIMIT:]}


def _reply(server: Server, request: dict[str, Any]) -> dict[str, Any]:
    number, command = request.pop("id"), request.pop("command")
    try:
        # The client names only methods that exist, so a missing one is a defect of the client and answered as such.
        return {"id": number, "value": getattr(server, command)(**request)}
    except Exception as error:  # noqa: BLE001 - whatever fails here is the answer to the request
        return {"id": number, "error": _error(error)}


def serve(server: Server, requests: TextIO, replies: TextIO) -> None:
    for line in requests:
        replies.write(json.dumps(_reply(server, json.loads(line)), default=str) + "\n")
        replies.flush()


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--bundle", required=True)
    arguments.add_argument("--folder", required=True, help="for temporary files of Spark")
    arguments.add_argument("--memory-mb", type=int, required=True)
    arguments.add_argument("--requests", type=int, required=True, help="descriptor to read requests from")
    arguments.add_argument("--replies", type=int, required=True, help="descriptor to write replies to")
    given = arguments.parse_args()
    session = start_session(given.bundle, given.folder, given.memory_mb)
    try:
        with os.fdopen(given.requests, encoding="utf-8") as requests, os.fdopen(given.replies, "w", encoding="utf-8") as replies:
            serve(Server(session), requests, replies)
    finally:
        session.stop()


if __name__ == "__main__":
    main()
