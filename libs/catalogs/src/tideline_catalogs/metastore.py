"""A Hive metastore over Thrift, releases 2.3, 3 and 4. One connection; not thread-safe."""

from __future__ import annotations

import copy
import re
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import tenacity

from tideline_catalogs.catalog import CatalogAway, CatalogMoved, CatalogRefused, Column, Partition, Registered, batches
from tideline_table.extras import extra

with extra("catalogs"):
    from pymetastore.hive_metastore import ThriftHiveMetastore
    from pymetastore.hive_metastore import ttypes as t
    from thrift.protocol import TBinaryProtocol
    from thrift.Thrift import TApplicationException, TException
    from thrift.transport import TSocket, TTransport

BATCH = 500
"""Partitions of one request: a real server takes one to three seconds for so many."""
_ATTEMPTS = 5
_LOCK_WAIT_S = 10.0
_LOCK_LASTS_S = 300.0
"""Without a sign of its process, as by Hive's default (`hive.txn.timeout`)."""
_ESCAPED = frozenset("\"#%'*/:=?\\{[]^\x7f") | frozenset(map(chr, range(1, 0x20)))
_MOVED = re.compile("The table has been modified|duplicate (?:key|entry)|unique constraint", re.IGNORECASE)
"""What a server says if another client was first; of a second creation, release 4 says what its database does."""
_MISSING = (t.NoSuchObjectException, t.UnknownDBException, t.UnknownTableException)


class HiveMetastore:
    """See `Catalog`. Calls are repeated with growing pauses when the connection is lost: each may be carried out twice."""

    def __init__(self, host: str, port: int, timeout_s: float = 120.0) -> None:
        self._host = host
        self._port = port
        self._timeout_s = timeout_s
        self._transport: Any = None
        self._client: Any = None

    def databases(self) -> list[str]:
        """See `Catalog`."""
        return list(self._call("get_all_databases"))

    def create_database(self, database: str) -> None:
        """See `Catalog`."""
        with suppress(CatalogMoved):
            self._call("create_database", t.Database(name=database, description="", parameters={}))

    def table(self, database: str, name: str) -> Registered | None:
        """See `Catalog`."""
        found = self._raw(database, name)
        return None if found is None else _registered(found)

    def create_table(self, database: str, table: Registered) -> None:
        """See `Catalog`."""
        made = t.Table(
            tableName=table.name,
            dbName=database,
            owner="tideline",
            createTime=int(time.time()),
            lastAccessTime=0,
            retention=0,
            sd=_storage_of(table, table.location),
            partitionKeys=_fields(table.partition_keys),
            parameters=dict(table.parameters),
            tableType="EXTERNAL_TABLE",
        )
        self._call("create_table", made)

    def alter_table(self, database: str, table: Registered, expected: tuple[str, str] | None, *, cascade: bool) -> None:
        """See `Catalog`. Servers before 2.3.10, and 3.1, ignore `expected`: a lock keeps other syncs away."""
        with self._locked(database, table.name):
            self._alter_table(database, table, expected, cascade=cascade)

    def _alter_table(self, database: str, table: Registered, expected: tuple[str, str] | None, *, cascade: bool) -> None:
        found = self._raw(database, table.name)
        if found is None:
            raise CatalogMoved(f"table {database}.{table.name} was dropped meanwhile")
        if expected and found.parameters.get(expected[0]) != expected[1]:
            raise CatalogMoved(f"table {database}.{table.name} was changed meanwhile")
        storage = _storage_of(table, table.location)
        found.sd.cols, found.sd.inputFormat, found.sd.outputFormat = storage.cols, storage.inputFormat, storage.outputFormat
        found.sd.serdeInfo.serializationLib = table.serde
        found.sd.serdeInfo.parameters = {**(found.sd.serdeInfo.parameters or {}), **table.serde_parameters}
        found.parameters = {**found.parameters, **table.parameters}
        properties = {"CASCADE": "true"} if cascade else {}
        if expected:
            properties |= {"expected_parameter_key": expected[0], "expected_parameter_value": expected[1]}
        context = t.EnvironmentContext(properties=properties)
        self._call("alter_table_with_environment_context", database, table.name, found, context)

    def drop_table(self, database: str, name: str) -> None:
        """See `Catalog`."""
        if self._raw(database, name) is not None:
            self._call("drop_table", database, name, False)

    def partitions(self, database: str, name: str, among: Collection[tuple[str, ...]] | None = None) -> dict[tuple[str, ...], str]:
        """See `Catalog`."""
        return {tuple(one.values): one.sd.location for one in self._raw_partitions(database, name, among)}

    def add_partitions(self, database: str, table: Registered, partitions: Sequence[Partition]) -> None:
        """See `Catalog`."""
        for batch in batches(partitions, BATCH):
            parts = [
                t.Partition(
                    values=list(one.values),
                    dbName=database,
                    tableName=table.name,
                    createTime=int(time.time()),
                    lastAccessTime=0,
                    sd=_storage_of(table, one.location),
                    parameters={},
                )
                for one in batch
            ]
            request = t.AddPartitionsRequest(dbName=database, tblName=table.name, parts=parts, ifNotExists=True, needResult=False)
            self._call("add_partitions_req", request)

    def move_partitions(self, database: str, table: Registered, partitions: Sequence[Partition]) -> None:
        """See `Catalog`."""
        wanted = {one.values: one.location for one in partitions}
        for batch in batches(self._raw_partitions(database, table.name, wanted), BATCH):
            for one in batch:
                one.sd.location = wanted[tuple(one.values)]
            self._call("alter_partitions", database, table.name, batch)

    def drop_partitions(self, database: str, table: Registered, values: Collection[tuple[str, ...]]) -> None:
        """See `Catalog`."""
        keys = [key.name for key in table.partition_keys]
        for batch in batches([partition_name(keys, one) for one in values], BATCH):
            request = t.DropPartitionsRequest(
                dbName=database,
                tblName=table.name,
                parts=t.RequestPartsSpec(names=batch),
                deleteData=False,
                ifExists=True,
                needResult=False,
            )
            self._call("drop_partitions_req", request)

    def close(self) -> None:
        """See `Catalog`."""
        transport, self._transport, self._client = self._transport, None, None
        if transport is not None:
            transport.close()

    @contextmanager
    def _locked(self, database: str, name: str) -> Iterator[None]:
        """Hold a lock of Tideline's syncs, where the metastore has the tables for locks. Raises `CatalogMoved` while others do."""
        # Not on the table's own name: queries of Hive, and writers of Hudi, lock that.
        place = t.LockComponent(t.LockType.EXCLUSIVE, t.LockLevel.TABLE, database, f"{name}.tideline-sync")
        place.operationType = t.DataOperationType.NO_TXN
        held: Any = None
        with suppress(CatalogRefused):  # no tables for locks
            held = self._call("lock", t.LockRequest(component=[place], user="tideline", hostname="tideline"))
        until_s = time.monotonic() + _LOCK_WAIT_S
        try:
            while held is not None and held.state == t.LockState.WAITING:
                if time.monotonic() > until_s and not self._ended_dead_locks(place):
                    raise CatalogMoved(f"another sync holds the lock of {database}.{place.tablename} for {_LOCK_WAIT_S:g} s")
                time.sleep(0.05)
                held = self._call("check_lock", t.CheckLockRequest(lockid=held.lockid))
            yield
        finally:
            if held is not None:
                with suppress(CatalogRefused):  # the metastore, or who waited, ended it
                    self._call("unlock", t.UnlockRequest(lockid=held.lockid))

    def _ended_dead_locks(self, place: Any) -> bool:
        """End the locks of dead syncs; return whether there were some. Hive does so only where its compactor runs."""
        with suppress(CatalogRefused):
            found = [
                one
                for one in self._call("show_locks", t.ShowLocksRequest()).locks
                if (one.dbname, one.tablename) == (place.dbname, place.tablename) and one.lastheartbeat
            ]
            # Of the metastore's clock: that of the lock which waits here is from the last check.
            newest_ms = max((one.lastheartbeat for one in found), default=0)
            dead = [one for one in found if newest_ms - one.lastheartbeat > _LOCK_LASTS_S * 1000]
            for one in dead:
                self._call("unlock", t.UnlockRequest(lockid=one.lockid))
            return bool(dead)
        return False

    def _raw(self, database: str, name: str) -> Any:
        # `get_table` is gone in release 4.
        request = t.GetTableRequest(dbName=database, tblName=name)
        try:
            return self._call("get_table_req", request).table
        except CatalogRefused as error:
            if isinstance(error.__cause__, t.NoSuchObjectException):
                return None
            raise

    def _raw_partitions(self, database: str, name: str, among: Collection[tuple[str, ...]] | None) -> Iterator[Any]:
        if among is None:
            names = self._call("get_partition_names", database, name, -1)
        else:
            table = self.table(database, name)
            keys = [key.name for key in table.partition_keys] if table else []
            names = [partition_name(keys, values) for values in among]
        for batch in batches(names, BATCH):
            yield from self._call("get_partitions_by_names", database, name, batch)

    def _call(self, name: str, *arguments: Any) -> Any:
        retrying = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(CatalogAway),
            wait=tenacity.wait_random_exponential(multiplier=0.1, max=10),
            stop=tenacity.stop_after_attempt(_ATTEMPTS),
            reraise=True,
        )
        return retrying(self._call_once, name, arguments)

    def _call_once(self, name: str, arguments: Sequence[Any]) -> Any:
        where = f"metastore {self._host}:{self._port}"
        try:
            if self._client is None:
                self._connect()
            return getattr(self._client, name)(*arguments)
        except (TTransport.TTransportException, OSError) as error:
            self.close()
            raise CatalogAway(f"{where} does not answer: {error}", remedy="check its address, and repeat the sync") from error
        except t.AlreadyExistsException as error:
            raise CatalogMoved(f"{where}: {error.message}") from error
        except _MISSING as error:
            raise CatalogRefused(f"{where}: {error.message}", expected="a database and table that exist") from error
        except (t.InvalidObjectException, t.InvalidOperationException, t.MetaException) as error:
            if _MOVED.search(error.message or ""):
                raise CatalogMoved(f"{where}: {error.message}") from error
            raise CatalogRefused(f"{where}: {error.message}", expected="a table that the metastore can hold") from error
        except (TApplicationException, TException) as error:
            self.close()
            raise CatalogRefused(f"{where}: {error}", expected="a Hive metastore of release 2.3, 3 or 4") from error

    def _connect(self) -> None:
        socket = TSocket.TSocket(self._host, self._port)
        socket.setTimeout(self._timeout_s * 1000)  # without it a server that hangs blocks for ever
        self._transport = TTransport.TBufferedTransport(socket)
        self._transport.open()
        self._client = ThriftHiveMetastore.Client(TBinaryProtocol.TBinaryProtocolAccelerated(self._transport))


def partition_name(keys: Sequence[str], values: Sequence[str]) -> str:
    """Return a partition's name as Hive writes it: `key=value/key=value`, with what paths may not hold escaped."""
    return "/".join(f"{key}={_escaped(value)}" for key, value in zip(keys, values, strict=True))


def _escaped(text: str) -> str:
    return "".join(f"%{ord(c):02X}" if c in _ESCAPED else c for c in text)


def _fields(columns: Sequence[Column]) -> list[Any]:
    return [t.FieldSchema(name=column.name, type=column.type, comment=column.comment) for column in columns]


def _storage_of(table: Registered, location: str) -> Any:
    serde = t.SerDeInfo(name=None, serializationLib=table.serde, parameters=dict(table.serde_parameters))
    return t.StorageDescriptor(
        cols=_fields(table.columns),
        location=location,
        inputFormat=table.input_format,
        outputFormat=table.output_format,
        compressed=False,
        numBuckets=-1,
        serdeInfo=serde,
        bucketCols=[],
        sortCols=[],
        parameters={},
        storedAsSubDirectories=False,
    )


def _registered(found: Any) -> Registered:
    def columns(fields: Sequence[Any] | None) -> tuple[Column, ...]:
        return tuple(Column(one.name, one.type, one.comment or "") for one in fields or ())

    return Registered(
        name=found.tableName,
        columns=columns(found.sd.cols),
        partition_keys=columns(found.partitionKeys),
        location=found.sd.location or "",
        input_format=found.sd.inputFormat or "",
        output_format=found.sd.outputFormat or "",
        serde=found.sd.serdeInfo.serializationLib or "",
        parameters=copy.copy(found.parameters or {}),
        serde_parameters=copy.copy(found.sd.serdeInfo.parameters or {}),
    )
