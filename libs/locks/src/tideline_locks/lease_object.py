"""Lease epochs as objects: names and bytes."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from datetime import datetime
from typing import TypeVar
from urllib.parse import quote, unquote

from tideline_locks.rules import LeaseRecord, Standing
from tideline_table.errors import CorruptMetadata

FORMAT = 1
OBJECT_LIMIT_BYTES = 16 * 1024
_V = TypeVar("_V", str, int)
_EPOCH_NAME = re.compile(r"(\d{20})\.json", re.ASCII)


@dataclass(frozen=True, slots=True)
class LeaseObject:
    """One epoch of a lock: what one acquisition, renewal, release or break made of it. `append_id` tells whose put this was."""

    append_id: str
    record: LeaseRecord

    def to_bytes(self) -> bytes:
        """JSON, one object."""
        record = self.record
        content = {
            "format": FORMAT,
            "append_id": self.append_id,
            "standing": record.standing.value,
            "owner": record.owner,
            "lease_id": record.lease_id,
            "fence": record.fence,
            "acquired": record.acquired.isoformat(),
            "expires": record.expires.isoformat(),
            "ttl_s": record.ttl_s,
        }
        return json.dumps(content, sort_keys=True).encode()

    @classmethod
    def from_bytes(cls, content: bytes, path: str) -> LeaseObject:
        """Raises `CorruptMetadata` for anything that this release would not have written."""
        if len(content) > OBJECT_LIMIT_BYTES:
            raise CorruptMetadata(f"lease object {path!r} of {len(content)} bytes", expected=f"at most {OBJECT_LIMIT_BYTES}")
        try:
            fields = json.loads(content)
            if fields["format"] != FORMAT:
                raise CorruptMetadata(
                    f"lease object {path!r} of format {fields['format']!r}",
                    expected=str(FORMAT),
                    remedy="use a newer release of Tideline",
                )
            record = LeaseRecord(
                Standing(fields["standing"]),
                _typed(fields["owner"], str),
                _typed(fields["lease_id"], str),
                _typed(fields["fence"], int),
                _instant(fields["acquired"]),
                _instant(fields["expires"]),
                float(fields["ttl_s"]),
            )
            return cls(_typed(fields["append_id"], str), record)
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
            raise CorruptMetadata(
                f"lease object {path!r} cannot be understood: {error!r}", remedy="delete it if no Tideline process wrote it"
            ) from error


def epoch_path(prefix: str, name: str, epoch: int) -> str:
    """Where `epoch` of the lock `name` lies."""
    return f"{folder_path(prefix, name)}/{epoch:020d}.json"


def folder_path(prefix: str, name: str) -> str:
    """The folder of the lock `name`; the name is percent-encoded to one part."""
    return f"{prefix}/{quote(name, safe='')}"


def lock_name(folder: str) -> str:
    """The lock whose folder is called `folder`."""
    return unquote(folder)


def epoch_of(path: str) -> int | None:
    """The epoch of the object at `path`; None for an object that is no lease epoch."""
    found = _EPOCH_NAME.fullmatch(path.rpartition("/")[2])
    return int(found.group(1)) if found else None


def _typed(value: object, kind: type[_V]) -> _V:
    if not isinstance(value, kind) or isinstance(value, bool):
        raise TypeError(f"{value!r} is no {kind.__name__}")
    return value


def _instant(value: object) -> datetime:
    instant = datetime.fromisoformat(_typed(value, str))
    if instant.tzinfo is None:
        raise ValueError(f"{value!r} without a time zone")
    return instant
