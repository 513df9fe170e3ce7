"""Apache Hudi's storage based lock provider on an object store, inside the peer's process (see `hudi_server`).

The provider, its heartbeats and its clock are Hudi's own. The client that reads and replaces the lock object is not in Hudi's
Spark bundle, and Hudi's module for AWS is not to be had, so `LockClient` stands in for it, on AWS's own Python client: a put on
condition that there is no object or that it is the one that was read, and Hudi's answers to what the store says. Imports
nothing of this repository.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import boto3
from botocore.exceptions import BotoCoreError, ClientError

_HUDI = "org.apache.hudi"
_LOST = frozenset({404, 409, 412})
"""What a store answers to a put whose condition does not hold."""


class LockClient:
    """Hudi's `StorageLockClient`."""

    def __init__(self, jvm: Any, client: Any, bucket: str, key: str) -> None:
        self._hudi = jvm.org.apache.hudi
        self._jvm = jvm
        self._client, self._bucket, self._key = client, bucket, key
        self.cut_off = False
        """The store is out of reach, as for a process that stopped or lost its network."""

    def tryUpsertLockFile(self, data: Any, previous: Any) -> Any:  # noqa: N802 - Hudi's names
        """Replace the object that was read, or make it where none was."""
        results = self._models.LockUpsertResult
        if self.cut_off:
            return self._pair(results.UNKNOWN_ERROR, None)
        body = bytes(self._models.StorageLockFile.toByteArray(data))
        condition = {"IfMatch": previous.get().getVersionId()} if previous.isPresent() else {"IfNoneMatch": "*"}
        try:
            put = self._client.put_object(Bucket=self._bucket, Key=self._key, Body=body, **condition)
        except ClientError as error:
            lost = error.response["ResponseMetadata"]["HTTPStatusCode"] in _LOST
            return self._pair(results.ACQUIRED_BY_OTHERS if lost else results.UNKNOWN_ERROR, None)
        except BotoCoreError:
            return self._pair(results.UNKNOWN_ERROR, None)
        return self._pair(results.SUCCESS, self._models.StorageLockFile(data, put["ETag"]))

    def readCurrentLockFile(self) -> Any:  # noqa: N802
        """The object with its version."""
        results = self._models.LockGetResult
        if self.cut_off:
            return self._pair(results.UNKNOWN_ERROR, None)
        try:
            got = self._client.get_object(Bucket=self._bucket, Key=self._key)
            content = got["Body"].read()
        except ClientError as error:
            missing = error.response["ResponseMetadata"]["HTTPStatusCode"] == 404
            return self._pair(results.NOT_EXISTS if missing else results.UNKNOWN_ERROR, None)
        except BotoCoreError:
            return self._pair(results.UNKNOWN_ERROR, None)
        stream = self._jvm.java.io.ByteArrayInputStream(content)
        return self._pair(results.SUCCESS, self._models.StorageLockFile.createFromStream(stream, got["ETag"]))

    def readObject(self, path: str, check_exists_first: bool) -> Any:  # noqa: N802
        """Hudi's configuration of its audit: there is none."""
        return self._hudi.common.util.Option.empty()

    def writeObject(self, path: str, content: str) -> bool:  # noqa: N802
        """An audit that nobody asked for."""
        return False

    def close(self) -> None:
        """Nothing to give back."""

    @property
    def _models(self) -> Any:
        return self._hudi.client.transaction.lock.models

    def _pair(self, result: Any, found: Any) -> Any:
        return self._hudi.common.util.collection.Pair.of(result, self._hudi.common.util.Option.ofNullable(found))

    class Java:
        implements = (f"{_HUDI}.client.transaction.lock.StorageLockClient",)


class _Made:
    """Hudi's `Function3`, by a Python function."""

    def __init__(self, function: Any) -> None:
        self._function = function

    def apply(self, first: Any, second: Any, third: Any) -> Any:
        return self._function(first, second, third)

    class Java:
        implements = (f"{_HUDI}.common.util.Functions$Function3",)


class ObjectStoreLock:
    """Hudi's `StorageBasedLockProvider` for the table at `base_path` (s3://bucket/prefix) in the store that `settings` name."""

    def __init__(self, jvm: Any, base_path: str, settings: Mapping[str, str], options: Mapping[str, str]) -> None:
        self._jvm = jvm
        store = boto3.client(
            "s3",
            endpoint_url=settings["AWS_ENDPOINT_URL"],
            region_name=settings["AWS_REGION"],
            aws_access_key_id=settings["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=settings["AWS_SECRET_ACCESS_KEY"],
        )
        self._store, self._place = store, urlsplit(base_path)
        self._client: LockClient | None = None
        self._provider = self._made(base_path, options)

    def _made(self, base_path: str, options: Mapping[str, str]) -> Any:
        """By the constructor that Hudi's public one calls, too: that one looks for the missing client by name."""
        jvm, lock = self._jvm, self._jvm.org.apache.hudi.client.transaction.lock
        properties = jvm.org.apache.hudi.common.config.TypedProperties()
        for key, value in {"hoodie.base.path": base_path, **options}.items():
            properties.put(key, value)
        heartbeats = _Made(lock.models.LockProviderHeartbeatManager)
        logger = jvm.org.slf4j.LoggerFactory.getLogger("hudi-storage-lock")
        given = [str(uuid.uuid4()), properties, heartbeats, _Made(self._client_of), logger, None]
        kind = jvm.java.lang.Class.forName(f"{_HUDI}.client.transaction.lock.StorageBasedLockProvider")
        constructor = next(c for c in kind.getDeclaredConstructors() if c.getParameterCount() == len(given))
        constructor.setAccessible(True)
        arguments = jvm.java.util.ArrayList()
        for argument in given:
            arguments.add(argument)
        return constructor.newInstance(arguments.toArray())

    def _client_of(self, owner: str, lock_path: str, properties: Any) -> LockClient:
        place = urlsplit(lock_path)
        self._client = LockClient(self._jvm, self._store, place.netloc, place.path.lstrip("/"))
        return self._client

    def take(self, wait_s: float) -> bool:
        """Whether the lock was to be had."""
        deadline = time.monotonic() + wait_s
        while not self._provider.tryLock():
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.02)
        return True

    def give_back(self) -> None:
        self._provider.unlock()

    def interrupted(self) -> bool:
        """Whether Hudi's heartbeats interrupted the thread that took the lock; it is not, any more."""
        return bool(self._jvm.java.lang.Thread.interrupted())

    def cut_off(self, yes: bool) -> None:
        assert self._client is not None
        self._client.cut_off = yes

    def count(self, times: int, counter: str, wait_s: float) -> int:
        """Read and replace a number under the lock, without any condition: two holders at once would lose a step.

        How often it came to it.
        """
        done, deadline = 0, time.monotonic() + wait_s
        place = {"Bucket": self._place.netloc, "Key": f"{self._place.path.strip('/')}/{counter}"}
        while done < times and time.monotonic() < deadline:
            if not self.take(1.0):
                continue
            try:
                number = int(self._store.get_object(**place)["Body"].read())
                self._store.put_object(**place, Body=str(number + 1).encode())
                done += 1
            finally:
                self.give_back()
        return done
