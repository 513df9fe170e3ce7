"""Names and content of the objects that store lease epochs."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from urllib.parse import quote, unquote

from tideline_locks.rules import LeaseRecord, typed
from tideline_table.errors import CorruptMetadata

FORMAT = 1
OBJECT_LIMIT_BYTES = 16 * 1024
_EPOCH_NAME = re.compile(r"(\d{20})\.json", re.ASCII)


@dataclass(frozen=True, slots=True)
class LeaseObject:
    """One epoch of a lock: its state after an acquisition, renewal, release or break. `append_id` identifies the put."""

    append_id: str
    record: LeaseRecord

    def to_bytes(self) -> bytes:
        """Return the epoch as a JSON object."""
        content = {"format": FORMAT, "append_id": self.append_id, **self.record.to_json()}
        return json.dumps(content, sort_keys=True).encode()

    @classmethod
    def from_bytes(cls, content: bytes, path: str) -> LeaseObject:
        """Parse an epoch. Raises `CorruptMetadata` for content that this release does not write."""
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
            return cls(typed(fields["append_id"], str), LeaseRecord.from_json(fields))
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
            raise CorruptMetadata(
                f"lease object {path!r} cannot be parsed: {error!r}", remedy="delete it if no Tideline process wrote it"
            ) from error


def epoch_path(prefix: str, name: str, epoch: int) -> str:
    """Return the path of `epoch` of the lock `name`."""
    return f"{folder_path(prefix, name)}/{epoch:020d}.json"


def folder_path(prefix: str, name: str) -> str:
    """Return the folder of the lock `name`. The name is percent-encoded into one path part."""
    return f"{prefix}/{quote(name, safe='')}"


def lock_name(folder: str) -> str:
    """Return the name of the lock in the folder `folder`."""
    return unquote(folder)


def epoch_of(path: str) -> int | None:
    """Return the epoch of the object at `path`, None if it is no lease epoch."""
    found = _EPOCH_NAME.fullmatch(path.rpartition("/")[2])
    return int(found.group(1)) if found else None
