"""What a waiter makes of an item of AWS's lock client, and of replies that are lost. The server is moto's, in the process."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import pytest
from botocore.exceptions import ClientError, ReadTimeoutError
from moto import mock_aws
from tests.real.dynamodb import CREDENTIALS, DYNAMODB_REGION

from tideline_locks import HudiLockProvider
from tideline_locks.errors import LockAccessDenied, LockUnreachable
from tideline_locks.hudi_cell import HUDI_OWNER
from tideline_locks.hudi_dynamodb_lock import DynamoDbLockCell, dynamodb_client
from tideline_table.clock import ManualClock

TABLE = "hudi_locks"


@pytest.fixture
def client() -> Iterator[Any]:
    with patch.dict(os.environ, CREDENTIALS), mock_aws():
        made = dynamodb_client(DYNAMODB_REGION, "")
        made.create_table(
            TableName=TABLE,
            KeySchema=[{"AttributeName": "key", "KeyType": "HASH"}],
            AttributeDefinitions=[{"AttributeName": "key", "AttributeType": "S"}],
            BillingMode="PAY_PER_REQUEST",
        )
        yield made


def opened(client: Any, clock: ManualClock) -> HudiLockProvider:
    return HudiLockProvider(DynamoDbLockCell(client, TABLE, lambda _: "trips", lambda: (), clock=clock), clock=clock)


def hudi_takes(client: Any, version: str, **more: str) -> None:
    """The item as AWS's lock client writes it."""
    item = {"key": "trips", "ownerName": "host-1", "leaseDuration": "60000", "recordVersionNumber": version, **more}
    client.put_item(TableName=TABLE, Item={key: {"S": value} for key, value in item.items()})


def test_a_lock_is_taken_over_after_its_version_stood_still_for_the_lease_duration(client: Any) -> None:
    clock = ManualClock()
    provider = opened(client, clock)
    hudi_takes(client, "one")
    assert provider.try_acquire("table", owner="tideline", ttl_s=30) is None
    clock.advance(59)
    hudi_takes(client, "two")  # a heartbeat
    held = provider.read("table")
    assert held is not None
    assert (held.owner, held.expired) == (HUDI_OWNER, False)
    clock.advance(60)
    assert provider.try_acquire("table", owner="tideline", ttl_s=30) is None, "the clocks of two machines run differently"
    clock.advance(1)
    assert opened(client, clock).try_acquire("table", owner="tideline", ttl_s=30) is None, "a new waiter has seen nothing yet"
    lease = provider.try_acquire("table", owner="tideline", ttl_s=30)
    assert lease is not None
    assert lease.release()
    assert not provider.was_taken("table")
    hudi_takes(client, "three")
    assert provider.was_taken("table")
    client.delete_item(TableName=TABLE, Key={"key": {"S": "trips"}})  # what Hudi does at its release
    assert provider.was_taken("table")


def test_a_lock_that_says_no_duration_is_not_taken_over(client: Any) -> None:
    clock = ManualClock()
    provider = opened(client, clock)
    hudi_takes(client, "one", leaseDuration="soon")
    assert provider.try_acquire("table", owner="tideline", ttl_s=30) is None
    clock.advance(1e6)
    assert provider.try_acquire("table", owner="tideline", ttl_s=30) is None
    hudi_takes(client, "two", isReleased="1")
    assert provider.try_acquire("table", owner="tideline", ttl_s=30) is not None


def test_the_table_is_created_with_the_first_lease(client: Any) -> None:
    client.delete_table(TableName=TABLE)
    provider = opened(client, ManualClock())
    assert provider.read("table") is None
    assert provider.try_acquire("table", owner="tideline", ttl_s=30) is not None
    assert client.describe_table(TableName=TABLE)["Table"]["KeySchema"] == [{"AttributeName": "key", "KeyType": "HASH"}]


class LossyClient:
    """Puts take effect, or not, and answer with an error."""

    def __init__(self, client: Any, error: Exception, *, takes_effect: bool) -> None:
        self.client, self.error, self.takes_effect = client, error, takes_effect

    def __getattr__(self, name: str) -> Any:
        return getattr(self.client, name)

    def put_item(self, **request: Any) -> Any:
        if self.takes_effect:
            self.client.put_item(**request)
        raise self.error


TIMEOUT = ReadTimeoutError(endpoint_url="https://dynamodb.example")
CHANGED = ClientError({"Error": {"Code": "ConditionalCheckFailedException", "Message": ""}}, "PutItem")
"""What the client's own repetition of a put whose reply was lost gets."""
DENIED = ClientError({"Error": {"Code": "AccessDeniedException", "Message": "not authorized"}}, "PutItem")


@pytest.mark.parametrize("error", [TIMEOUT, CHANGED], ids=["timeout", "repeated"])
def test_a_put_whose_reply_is_lost_is_read_back(client: Any, error: Exception) -> None:
    lossy = opened(LossyClient(client, error, takes_effect=True), ManualClock())
    lease = lossy.try_acquire("table", owner="tideline", ttl_s=30)
    assert lease is not None
    assert opened(client, ManualClock()).try_acquire("table", owner="other", ttl_s=30) is None


@pytest.mark.parametrize(("error", "expected"), [(TIMEOUT, LockUnreachable), (DENIED, LockAccessDenied)], ids=["timeout", "denied"])
def test_a_put_that_fails_grants_nothing(client: Any, error: Exception, expected: type[Exception]) -> None:
    lossy = opened(LossyClient(client, error, takes_effect=False), ManualClock())
    with pytest.raises(expected):
        lossy.try_acquire("table", owner="tideline", ttl_s=30)
    assert opened(client, ManualClock()).try_acquire("table", owner="other", ttl_s=30) is not None
