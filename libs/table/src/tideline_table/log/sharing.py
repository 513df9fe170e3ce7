"""Sharing of a table with Apache Hudi's writers: the lock that both sides take, and the options that Hudi writers must use."""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from tideline_table.errors import CorruptMetadata, InvalidOption
from tideline_table.hudi.format import TableFormat

HUDI_WRITER = "apache-hudi"
"""Writer id of log entries that were adopted from the timeline."""
DEFAULT_EXPIRE_MIN = 10
_METASTORE_EXPIRES_S = 300
"""The metastore ends a lock that its holder has not renewed for this long (`hive.txn.timeout`)."""
_RETRY_MS = 200
_VOUCHED = "an operator vouches for them: tideline share PATH --resume"
_ENABLED_BY = {
    "column_stats": "hoodie.metadata.index.column.stats.enable",
    "bloom_filters": "hoodie.metadata.index.bloom.filter.enable",
    "record_index": "hoodie.metadata.record.index.enable",
}
"""Partition of the metadata table → the option of Apache Hudi's writers that makes it, or drops it."""
_PARTITIONS_ENABLED_BY = "hoodie.metadata.index.partition.stats.enable"
"""That of `partition_stats`, which only releases 1.x make."""
_HOST, _NAME = r"(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:]+\]):[0-9]{1,5}", r"/(?!\.{1,2}(?:/|$))[A-Za-z0-9._=+@~-]+"
_PLACE = re.compile(rf"(?P<hosts>{_HOST}(?:,{_HOST})*)(?P<base>(?:{_NAME})+)/(?P<key>[A-Za-z0-9_=+@~-][A-Za-z0-9._=+@~-]*)")
_NAMED = re.compile(rf"(?P<hosts>{_HOST}(?:,{_HOST})*)/(?P<database>[a-z0-9_]+)/(?P<table>[a-z0-9_]+)")
_ITEM = re.compile(
    r"(?:(?P<endpoint>https?://[A-Za-z0-9.-]+(?::[0-9]{1,5})?)/)?(?P<region>[a-z0-9-]+)/"
    r"(?P<table>[A-Za-z0-9_.-]{3,255})/(?P<key>[^\s/]{1,512})"
)
_PACKAGE = "org.apache.hudi.client.transaction.lock"


class HudiLockKind(enum.StrEnum):
    """Lock providers of Apache Hudi that both sides can use."""

    FILE_SYSTEM = "filesystem"
    STORAGE = "storage"
    ZOOKEEPER = "zookeeper"
    METASTORE = "hive-metastore"
    DYNAMODB = "dynamodb"

    @classmethod
    def fitting(cls, root: str) -> HudiLockKind:
        """Return the kind for the location of a table: a lock object in an object store, a lock file on a disk."""
        return cls.FILE_SYSTEM if root.startswith("file:") else cls.STORAGE


@dataclass(frozen=True, slots=True)
class Sharing:
    """The lock of a shared table. After `expire_min` minutes both sides treat a lock file as abandoned.

    `place` says where a lock in ZooKeeper is, `host:port,host:port/base/path/key`, one in a Hive metastore,
    `host:port,host:port/database/table`, or one in DynamoDB, `region/table/key`; empty for locks in the table's folder.
    """

    lock: HudiLockKind
    expire_min: int = DEFAULT_EXPIRE_MIN
    place: str = ""

    def __post_init__(self) -> None:
        """Raise `InvalidOption` if `expire_min` is less than 1, or `place` does not fit the lock."""
        if self.expire_min < 1:
            raise InvalidOption(f"a lock that expires after {self.expire_min} minutes", expected="at least 1 minute")
        if self.lock in PLACES:
            PLACES[self.lock](self.place)
        elif self.place:
            raise InvalidOption(f"a place {self.place!r} of lock {self.lock}", expected="none: it is in the table's folder")

    @property
    def probation_ends(self) -> str:
        """What ends the probation of the table. A Hive metastore keeps no trace of a lock that ended."""
        if self.lock is HudiLockKind.METASTORE:
            return _VOUCHED
        return f"each commits under the lock while a mirror runs, or {_VOUCHED}"

    def hudi_options(self, form: TableFormat, metadata: Collection[str] = ()) -> dict[str, str]:
        """Return the write options for every Hudi writer of the table (format reference 13.2, 13.3, 16.1).

        `metadata` are the partitions of the metadata table that Tideline's writers keep (`tideline.shared.metadata`).
        """
        options = {
            "hoodie.write.concurrency.mode": "optimistic_concurrency_control",
            "hoodie.cleaner.policy.failed.writes": "LAZY",
            "hoodie.write.table.version": str(form.version),
            "hoodie.write.auto.upgrade": "false",
            "hoodie.metadata.enable": "false",
        }
        if metadata:
            options |= {"hoodie.metadata.enable": "true"}
            options |= {key: str(name in metadata).lower() for name, key in _ENABLED_BY.items()}
            if form.has_completion_times:
                options[_PARTITIONS_ENABLED_BY] = str("partition_stats" in metadata).lower()
        if self.lock is HudiLockKind.FILE_SYSTEM:
            return options | {
                "hoodie.write.lock.provider": f"{_PACKAGE}.FileSystemBasedLockProvider",
                "hoodie.write.lock.filesystem.expire": str(self.expire_min),
                **_waiting(60 * self.expire_min),
            }
        if self.lock is HudiLockKind.ZOOKEEPER:
            hosts, base_path, key = zookeeper_place(self.place)
            return options | {
                "hoodie.write.lock.provider": f"{_PACKAGE}.ZookeeperBasedLockProvider",
                # Hudi connects to the first option alone, and asks for the second in its checks only.
                "hoodie.write.lock.zookeeper.url": hosts,
                "hoodie.write.lock.zookeeper.port": hosts.partition(",")[0].rpartition(":")[2],
                "hoodie.write.lock.zookeeper.base_path": base_path,
                "hoodie.write.lock.zookeeper.lock_key": key,
            }
        if self.lock is HudiLockKind.METASTORE:
            hosts, database, table = metastore_place(self.place)
            return options | {
                "hoodie.write.lock.provider": "org.apache.hudi.hive.transaction.lock.HiveMetastoreBasedLockProvider",
                "hoodie.write.lock.hivemetastore.uris": ",".join(f"thrift://{host}" for host in hosts.split(",")),
                "hoodie.write.lock.hivemetastore.database": database,
                "hoodie.write.lock.hivemetastore.table": table,
                **_waiting(_METASTORE_EXPIRES_S),
            }
        if self.lock is HudiLockKind.DYNAMODB:
            endpoint, region, table, key = dynamodb_place(self.place)
            return options | {
                "hoodie.write.lock.provider": "org.apache.hudi.aws.transaction.lock.DynamoDBBasedLockProvider",
                "hoodie.write.lock.dynamodb.region": region,
                "hoodie.write.lock.dynamodb.table": table,
                "hoodie.write.lock.dynamodb.partition_key": key,
                **({"hoodie.write.lock.dynamodb.endpoint_url": endpoint} if endpoint else {}),
            }
        return options | {"hoodie.write.lock.provider": f"{_PACKAGE}.StorageBasedLockProvider"}

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form in log entries and checkpoints."""
        document = {"lock": self.lock.value, "expire_min": self.expire_min}
        return document | {"place": self.place} if self.place else document

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Sharing:
        """Parse the JSON form. Raises `CorruptMetadata` for any other document."""
        try:
            return cls(HudiLockKind(document["lock"]), int(document["expire_min"]), str(document.get("place", "")))
        except (KeyError, TypeError, ValueError, OverflowError, InvalidOption) as error:
            raise CorruptMetadata(
                f"sharing settings {document!r} ({type(error).__name__}: {error})",
                expected=f"a lock among {', '.join(HudiLockKind)} and its expiry in minutes",
            ) from None


def zookeeper_place(place: str) -> tuple[str, str, str]:
    """Return the servers, the base path and the key of a lock in ZooKeeper, as Hudi's options name them.

    Raises `InvalidOption` unless it is `host:port,host:port/base/path/key`.
    """
    matched = _PLACE.fullmatch(place)
    if matched is None:
        raise InvalidOption(f"place {place!r} of a lock in ZooKeeper", expected="HOST:PORT[,HOST:PORT...]/BASE/PATH/KEY")
    return matched["hosts"], matched["base"], matched["key"]


def metastore_place(place: str) -> tuple[str, str, str]:
    """Return the servers, the database and the table of a lock in a Hive metastore, as Hudi's options name them.

    Raises `InvalidOption` unless it is `host:port,host:port/database/table`.
    """
    matched = _NAMED.fullmatch(place)
    if matched is None:
        raise InvalidOption(
            f"place {place!r} of a lock in a Hive metastore", expected="HOST:PORT[,HOST:PORT...]/DATABASE/TABLE in small letters"
        )
    return matched["hosts"], matched["database"], matched["table"]


def dynamodb_place(place: str) -> tuple[str, str, str, str]:
    """Return the endpoint (empty: AWS's own), the region, the table and the key of a lock in DynamoDB, as Hudi's options name them.

    Raises `InvalidOption` unless it is `region/table/key`, with `https://host:port/` before it for another endpoint.
    """
    matched = _ITEM.fullmatch(place)
    if matched is None:
        raise InvalidOption(
            f"place {place!r} of a lock in DynamoDB",
            expected="REGION/TABLE/KEY, or ENDPOINT/REGION/TABLE/KEY with the URL of another endpoint than AWS's; TABLE "
            "has 3 to 255 letters, digits, and _.-",
        )
    return matched["endpoint"] or "", matched["region"], matched["table"], matched["key"]


def _waiting(expires_s: int) -> dict[str, str]:
    """Return the options by which a job waits longer than the lock of a process that died lasts. These providers do not wait."""
    return {
        "hoodie.write.lock.client.num_retries": str((expires_s + 60) * 1000 // _RETRY_MS),
        "hoodie.write.lock.client.wait_time_ms_between_retry": str(_RETRY_MS),
    }


PLACES: Mapping[HudiLockKind, Callable[[str], tuple[str, ...]]] = {
    HudiLockKind.ZOOKEEPER: zookeeper_place,
    HudiLockKind.METASTORE: metastore_place,
    HudiLockKind.DYNAMODB: dynamodb_place,
}
"""What reads the place of a lock that is not in the table's folder."""
