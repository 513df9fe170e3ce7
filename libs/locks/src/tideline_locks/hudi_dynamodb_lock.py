"""The lock of Hudi's `DynamoDBBasedLockProvider`: an item of a DynamoDB table, replaced by conditional puts.

The provider is AWS's lock client for Java. An item has `key`, `ownerName`, `leaseDuration` (milliseconds, as text),
`recordVersionNumber` (a random id, new with each put and each heartbeat) and, if it is free, `isReleased`. No time is in it: a
waiter takes the lock from a holder whose version it saw unchanged for the lease duration. Hudi deletes the item at its release.
Tideline leaves a released item with its lease, so that a fence is kept, and a release is seen, until Hudi takes the lock.
"""

from __future__ import annotations

import json
import math
import os
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from tideline_locks.errors import LockAccessDenied, LockUnreachable
from tideline_locks.hudi_cell import NEVER, hudi_lease, lease_fields, lease_in, parsed_lock
from tideline_locks.record_lock import Seen
from tideline_locks.rules import LeaseRecord, Standing
from tideline_table.clock import Clock
from tideline_table.extras import extra

with extra("aws"):
    import boto3
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError, ClientError

_KEY, _OWNER, _DURATION, _VERSION, _RELEASED = "key", "ownerName", "leaseDuration", "recordVersionNumber", "isReleased"
_LEASE = "tideline"
_ABSENT = ""
_TIMEOUT_S = 10
_CHANGED, _NO_TABLE, _TABLE_EXISTS = "ConditionalCheckFailedException", "ResourceNotFoundException", "ResourceInUseException"
_DENIED = ("AccessDenied", "UnrecognizedClient", "InvalidSignature", "ExpiredToken", "Validation", "MissingAuthentication")
"""How errors begin that a repetition does not cure."""

_clients: dict[tuple[int, str, str], Any] = {}
_clients_guard = threading.Lock()


class DynamoDbLockCell:
    """`LockCell` on items of one DynamoDB `table`. `key_of` returns the key of a lock name, `known` the names to list.

    The table is created as Hudi's provider creates it, if it is missing when the first lock is taken. Credentials come from the
    places that AWS's clients know: environment, profile, role of the pod.
    """

    def __init__(
        self, client: Any, table: str, key_of: Callable[[str], str], known: Callable[[], Sequence[str]], *, clock: Clock
    ) -> None:
        self._client = client
        self._table = table
        self._key_of = key_of
        self._known = known
        self._clock = clock
        self._unchanged: dict[str, tuple[str, float]] = {}
        """By name: the version that was last seen, and when it was first seen (monotonic)."""

    def read(self, name: str) -> Seen:
        """See `LockCell.read`. How long a lock of Hudi lasts is known only after its version was seen unchanged for a while."""
        item = self._item(name)
        if item is None:
            return Seen(None, _ABSENT)
        version = item.get(_VERSION, "?")
        ours = _lease(item)
        if ours is None and _RELEASED not in item:
            return Seen(self._hudis(name, version, item), version)
        return Seen(ours, version)

    def swap(self, name: str, seen: Seen, record: LeaseRecord) -> bool:
        """See `LockCell.swap`. A put without a reply is read back; its version shows whether it took effect."""
        version = str(uuid.uuid4())
        item = {
            _KEY: self._key_of(name),
            _OWNER: record.owner,
            _DURATION: str(math.ceil(record.ttl_s * 1000)),
            _VERSION: version,
            _LEASE: json.dumps(lease_fields(record)),
        }
        if record.standing is not Standing.HELD:
            item[_RELEASED] = "1"
        condition: dict[str, Any] = {"ConditionExpression": "attribute_not_exists(#it)", "ExpressionAttributeNames": {"#it": _KEY}}
        if seen.version != _ABSENT:
            names, values = {"#it": _VERSION}, {":seen": {"S": seen.version}}
            condition = {
                "ConditionExpression": "#it = :seen",
                "ExpressionAttributeNames": names,
                "ExpressionAttributeValues": values,
            }
        request = {"TableName": self._table, "Item": {key: {"S": value} for key, value in item.items()}, **condition}
        with _translated(f"changing lock {name!r}"):
            try:
                self._put(request)
            except ClientError as error:
                if _code(error) != _CHANGED:
                    raise
                # The client repeats a put whose reply was lost, and the repetition meets what the put wrote.
                return self._has(name, version)
            except BotoCoreError:
                if self._has(name, version):
                    return True
                raise
        return True

    def names(self) -> Sequence[str]:
        """See `LockCell.names`."""
        return self._known()

    def was_taken(self, name: str) -> bool:
        """See `LockCell.was_taken`: Hudi replaces the lease that Tideline leaves in the item, and deletes the item."""
        item = self._item(name)
        return item is None or _lease(item) is None

    def _hudis(self, name: str, version: str, item: Mapping[str, str]) -> LeaseRecord:
        now_s = self._clock.monotonic_s()
        last, since_s = self._unchanged.get(name, ("", now_s))
        if last != version:
            since_s = now_s
            self._unchanged[name] = (version, now_s)
        since = self._clock.now() - timedelta(seconds=now_s - since_s)
        try:
            return hudi_lease(since, since + timedelta(milliseconds=int(item[_DURATION])))
        except (KeyError, ValueError, OverflowError):
            return hudi_lease(since, NEVER)

    def _item(self, name: str) -> dict[str, str] | None:
        key = {_KEY: {"S": self._key_of(name)}}
        with _translated(f"reading lock {name!r}"):
            try:
                found = self._client.get_item(TableName=self._table, Key=key, ConsistentRead=True).get("Item")
            except ClientError as error:
                if _code(error) != _NO_TABLE:
                    raise
                return None
        return None if found is None else {field: str(value["S"]) for field, value in found.items() if "S" in value}

    def _has(self, name: str, version: str) -> bool:
        item = self._item(name)
        return item is not None and item.get(_VERSION) == version

    def _put(self, request: Mapping[str, Any]) -> None:
        try:
            self._client.put_item(**request)
        except ClientError as error:
            if _code(error) != _NO_TABLE:
                raise
            self._create_table()
            self._client.put_item(**request)

    def _create_table(self) -> None:
        try:
            self._client.create_table(
                TableName=self._table,
                KeySchema=[{"AttributeName": _KEY, "KeyType": "HASH"}],
                AttributeDefinitions=[{"AttributeName": _KEY, "AttributeType": "S"}],
                BillingMode="PAY_PER_REQUEST",
            )
        except ClientError as error:
            if _code(error) != _TABLE_EXISTS:
                raise
        self._client.get_waiter("table_exists").wait(TableName=self._table)


def dynamodb_client(region: str, endpoint: str) -> Any:
    """Return the client of this process for DynamoDB in `region`; `endpoint` is empty for AWS's own.

    Raises `LockUnreachable` if AWS's client cannot be made.
    """
    limits = Config(connect_timeout=_TIMEOUT_S, read_timeout=_TIMEOUT_S, retries={"mode": "standard", "total_max_attempts": 3})
    # A fork must not speak on the connections of its parent.
    key = (os.getpid(), region, endpoint)
    with _clients_guard, _translated(f"DynamoDB in {region}"):
        if key not in _clients:
            _clients[key] = boto3.client("dynamodb", region_name=region, endpoint_url=endpoint or None, config=limits)
        return _clients[key]


def _lease(item: Mapping[str, str]) -> LeaseRecord | None:
    return lease_in(parsed_lock(item.get(_LEASE, "").encode()))


def _code(error: ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))


@contextmanager
def _translated(doing: str) -> Iterator[None]:
    try:
        yield
    except ClientError as error:
        if _code(error).startswith(_DENIED):
            raise LockAccessDenied(
                f"{doing}: {error}", expected="credentials that may read, put and create the table of locks, with the key `key`"
            ) from error
        raise LockUnreachable(f"{doing}: {error}", remedy="check DynamoDB, then retry") from error
    except (BotoCoreError, ValueError) as error:
        raise LockUnreachable(f"{doing}: {error}", remedy="check region, endpoint and credentials, then retry") from error
