"""AWS Glue as a catalog, by the API that Athena, EMR and Apache Hudi's own sync use."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from tideline_catalogs.catalog import CatalogAway, CatalogMoved, CatalogRefused, Column, Partition, Registered, batches
from tideline_table.extras import extra

with extra("catalogs"):
    import boto3
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError, ClientError, HTTPClientError
    from botocore.exceptions import ConnectionError as NoConnection

ADDED, DROPPED, READ = 100, 25, 1000
"""Partitions of one request that adds or changes, that drops, and that reads: Glue refuses more."""
_ATTEMPTS = 8
_TIMEOUT_S = 60
_MISSING = "EntityNotFoundException"
_EXISTS = "AlreadyExistsException"
_MOVED = frozenset({_EXISTS, "ConcurrentModificationException"})
_AWAY = frozenset({"OperationTimeoutException", "InternalServiceException", "InternalFailure", "ServiceUnavailable"})
_INPUT = frozenset(
    {
        *("Name", "Description", "Owner", "LastAccessTime", "LastAnalyzedTime", "Retention", "StorageDescriptor", "PartitionKeys"),
        *("ViewOriginalText", "ViewExpandedText", "TableType", "Parameters", "TargetTable"),
    }
)
"""What a change of a table sends back of what was read: Glue refuses the rest."""


class Glue:
    """See `Catalog`. Requests are repeated with growing pauses if Glue asks for fewer. A change names the version that was read.

    `catalog_id`: of another account; empty: of the credentials. Credentials and endpoints are found as AWS's tools find them.
    """

    def __init__(self, region: str, catalog_id: str = "") -> None:
        self._where = f"Glue in {region}"
        self._id = {"CatalogId": catalog_id} if catalog_id else {}
        limits = Config(
            retries={"mode": "standard", "total_max_attempts": _ATTEMPTS}, connect_timeout=_TIMEOUT_S, read_timeout=_TIMEOUT_S
        )
        self._client = self._made(lambda: boto3.client("glue", region_name=region, config=limits))

    def databases(self) -> list[str]:
        """See `Catalog`."""
        return [one["Name"] for page in self._pages("get_databases") for one in page["DatabaseList"]]

    def create_database(self, database: str) -> None:
        """See `Catalog`."""
        with suppress(CatalogMoved):
            self._call("create_database", DatabaseInput={"Name": database})

    def table(self, database: str, name: str) -> Registered | None:
        """See `Catalog`."""
        found = self._raw(database, name)
        return None if found is None else _registered(found)

    def create_table(self, database: str, table: Registered) -> None:
        """See `Catalog`."""
        made = {
            "Name": table.name,
            "Owner": "tideline",
            "TableType": "EXTERNAL_TABLE",
            "Parameters": dict(table.parameters),
            "PartitionKeys": _fields(table.partition_keys),
            "StorageDescriptor": _storage_of(table, table.location),
        }
        self._call("create_table", DatabaseName=database, TableInput=made)

    def alter_table(self, database: str, table: Registered, expected: tuple[str, str] | None, *, cascade: bool) -> None:
        """See `Catalog`."""
        found = self._raw(database, table.name)
        if found is None:
            raise CatalogMoved(f"table {database}.{table.name} was dropped meanwhile")
        if expected and found.get("Parameters", {}).get(expected[0]) != expected[1]:
            raise CatalogMoved(f"table {database}.{table.name} was changed meanwhile")
        kept = {key: value for key, value in found.items() if key in _INPUT}
        storage = _storage_of(table, found["StorageDescriptor"].get("Location", table.location))
        own = found["StorageDescriptor"].get("SerdeInfo", {}).get("Parameters", {})
        storage["SerdeInfo"]["Parameters"] = own | table.serde_parameters
        changed = kept | {
            "StorageDescriptor": found["StorageDescriptor"] | storage,
            "Parameters": found.get("Parameters", {}) | table.parameters,
        }
        version = {"VersionId": found["VersionId"]} if found.get("VersionId") else {}
        # Glue keeps a limited number of versions of a table; a sync for each commit would use them up.
        self._call("update_table", DatabaseName=database, TableInput=changed, SkipArchive=True, **version)
        if cascade:
            there = self.partitions(database, table.name)
            self.move_partitions(database, table, [Partition(values, location) for values, location in there.items()])

    def drop_table(self, database: str, name: str) -> None:
        """See `Catalog`."""
        if self._raw(database, name) is not None:
            self._call("delete_table", DatabaseName=database, Name=name)

    def partitions(self, database: str, name: str, among: Collection[tuple[str, ...]] | None = None) -> dict[tuple[str, ...], str]:
        """See `Catalog`."""
        place = {"DatabaseName": database, "TableName": name}
        if among is None:
            found = (one for page in self._pages("get_partitions", ExcludeColumnSchema=True, **place) for one in page["Partitions"])
        else:
            found = (one for batch in batches(among, READ) for one in self._named(place, [{"Values": list(v)} for v in batch]))
        return {tuple(one["Values"]): one["StorageDescriptor"].get("Location", "") for one in found}

    def add_partitions(self, database: str, table: Registered, partitions: Sequence[Partition]) -> None:
        """See `Catalog`."""
        for batch in batches(partitions, ADDED):
            given = [_partition(table, one) for one in batch]
            self._batch("batch_create_partition", _EXISTS, DatabaseName=database, TableName=table.name, PartitionInputList=given)

    def move_partitions(self, database: str, table: Registered, partitions: Sequence[Partition]) -> None:
        """See `Catalog`."""
        for batch in batches(partitions, ADDED):
            given = [{"PartitionValueList": list(one.values), "PartitionInput": _partition(table, one)} for one in batch]
            self._batch("batch_update_partition", _MISSING, DatabaseName=database, TableName=table.name, Entries=given)

    def drop_partitions(self, database: str, table: Registered, values: Collection[tuple[str, ...]]) -> None:
        """See `Catalog`."""
        for batch in batches(values, DROPPED):
            given = [{"Values": list(one)} for one in batch]
            self._batch("batch_delete_partition", _MISSING, DatabaseName=database, TableName=table.name, PartitionsToDelete=given)

    def close(self) -> None:
        """See `Catalog`."""
        self._client.close()

    def _raw(self, database: str, name: str) -> Any:
        try:
            return self._call("get_table", DatabaseName=database, Name=name)["Table"]
        except CatalogRefused as error:
            if isinstance(error.__cause__, ClientError) and _code(error.__cause__.response["Error"]) == _MISSING:
                return None
            raise

    def _named(self, place: Mapping[str, str], wanted: list[dict[str, list[str]]]) -> Iterator[Any]:
        while wanted:
            answer = self._call("batch_get_partition", PartitionsToGet=wanted, **place)
            yield from answer["Partitions"]
            wanted = answer.get("UnprocessedKeys") or []

    def _batch(self, operation: str, tolerated: str, **arguments: Any) -> None:
        """Raise the first error of a partition that is not `tolerated`."""
        for one in self._call(operation, **arguments).get("Errors") or []:
            detail = one.get("ErrorDetail", {})
            if detail.get("ErrorCode") != tolerated:
                raise self._error(
                    detail.get("ErrorCode", ""), f"partition {one.get('PartitionValues')}: {detail.get('ErrorMessage')}"
                )

    def _pages(self, operation: str, **arguments: Any) -> Iterator[Any]:
        token: dict[str, str] = {}
        while True:
            answer = self._call(operation, **arguments, **token)
            yield answer
            if not answer.get("NextToken"):
                return
            token = {"NextToken": answer["NextToken"]}

    def _call(self, operation: str, **arguments: Any) -> Any:
        return self._made(lambda: getattr(self._client, operation)(**self._id, **arguments))

    def _made(self, request: Callable[[], Any]) -> Any:
        try:
            return request()
        except ClientError as error:
            found = error.response["Error"]
            raise self._error(_code(found), found.get("Message", "")) from error
        except (NoConnection, HTTPClientError) as error:
            raise CatalogAway(f"{self._where} does not answer: {error}", remedy="check the network, and repeat the sync") from error
        except (BotoCoreError, ValueError) as error:
            raise CatalogRefused(f"{self._where}: {error}", expected="a region of AWS, and credentials") from error

    def _error(self, code: str, message: str) -> CatalogAway | CatalogMoved | CatalogRefused:
        text = f"{self._where}: {code}: {message}"
        if code in _MOVED:
            return CatalogMoved(text)
        if code in _AWAY or "Throttl" in code or "TooManyRequests" in code:
            return CatalogAway(text, remedy="repeat the sync")
        return CatalogRefused(text, expected="a table that Glue can hold, and the right to register it")


def _code(error: Mapping[str, Any]) -> str:
    return str(error.get("Code", ""))


def _fields(columns: Sequence[Column]) -> list[dict[str, str]]:
    return [{"Name": one.name, "Type": one.type, "Comment": one.comment} for one in columns]


def _storage_of(table: Registered, location: str) -> dict[str, Any]:
    return {
        "Columns": _fields(table.columns),
        "Location": location,
        "InputFormat": table.input_format,
        "OutputFormat": table.output_format,
        "SerdeInfo": {"SerializationLibrary": table.serde, "Parameters": dict(table.serde_parameters)},
    }


def _partition(table: Registered, one: Partition) -> dict[str, Any]:
    return {"Values": list(one.values), "StorageDescriptor": _storage_of(table, one.location)}


def _registered(found: Mapping[str, Any]) -> Registered:
    def columns(fields: Sequence[Mapping[str, str]]) -> tuple[Column, ...]:
        return tuple(Column(one["Name"], one.get("Type", ""), one.get("Comment", "")) for one in fields)

    storage = found.get("StorageDescriptor", {})
    serde = storage.get("SerdeInfo", {})
    return Registered(
        name=found["Name"],
        columns=columns(storage.get("Columns", ())),
        partition_keys=columns(found.get("PartitionKeys", ())),
        location=storage.get("Location", ""),
        input_format=storage.get("InputFormat", ""),
        output_format=storage.get("OutputFormat", ""),
        serde=serde.get("SerializationLibrary", ""),
        parameters=dict(found.get("Parameters", {})),
        serde_parameters=dict(serde.get("Parameters", {})),
    )
