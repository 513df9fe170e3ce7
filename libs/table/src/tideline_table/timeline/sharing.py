"""How a table is shared with Apache Hudi's writers: which lock both take, and the options that Hudi's side has to use."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tideline_table.errors import CorruptMetadata, InvalidOption

PEER_WRITER = "apache-hudi"
"""The writer of log entries that repeat what was found on the timeline."""
SHARING_KEY = "sharing"
"""In the body of the log entry from which on a table is shared."""
ADOPTED_KEY = "adopted"
"""In the same body: the state of a table that others had made."""
DEFAULT_EXPIRE_MIN = 10
_PACKAGE = "org.apache.hudi.client.transaction.lock"


class PeerLockKind(enum.StrEnum):
    """Hudi's lock providers that both sides can take."""

    FILE_SYSTEM = "filesystem"
    STORAGE = "storage"


@dataclass(frozen=True, slots=True)
class Sharing:
    """The lock of a shared table. `expire_min` is the age at which a lock file counts as left behind, for both sides."""

    lock: PeerLockKind
    expire_min: int = DEFAULT_EXPIRE_MIN

    def __post_init__(self) -> None:
        """Raises `InvalidOption`."""
        if self.expire_min < 1:
            raise InvalidOption(f"a lock that expires after {self.expire_min} minutes", expected="at least 1 minute")

    def hudi_options(self) -> dict[str, str]:
        """Write options for every Hudi writer of the table (format reference 13.2, 13.3, 16.1)."""
        options = {
            "hoodie.write.concurrency.mode": "optimistic_concurrency_control",
            "hoodie.cleaner.policy.failed.writes": "LAZY",
            "hoodie.write.table.version": "6",
            "hoodie.write.auto.upgrade": "false",
            "hoodie.metadata.enable": "false",
        }
        if self.lock is PeerLockKind.FILE_SYSTEM:
            return options | {
                "hoodie.write.lock.provider": f"{_PACKAGE}.FileSystemBasedLockProvider",
                "hoodie.write.lock.filesystem.expire": str(self.expire_min),
                "hoodie.write.lock.client.num_retries": "100",
                "hoodie.write.lock.client.wait_time_ms_between_retry": "200",
            }
        return options | {"hoodie.write.lock.provider": f"{_PACKAGE}.StorageBasedLockProvider"}

    def to_json(self) -> dict[str, Any]:
        """As log entries and checkpoints keep it."""
        return {"lock": self.lock.value, "expire_min": self.expire_min}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Sharing:
        """Raises `CorruptMetadata`."""
        try:
            return cls(PeerLockKind(document["lock"]), int(document["expire_min"]))
        except (KeyError, TypeError, ValueError, OverflowError, InvalidOption) as error:
            raise CorruptMetadata(
                f"sharing {document!r} ({type(error).__name__}: {error})",
                expected=f"a lock among {', '.join(PeerLockKind)} and its expiry in minutes",
            ) from None
