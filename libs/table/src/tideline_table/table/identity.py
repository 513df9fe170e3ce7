"""The identity of a table that Tideline owns: a uid bound to its base path, so that a copied table is detected, not mixed up."""

from __future__ import annotations

import contextlib
import json
import uuid
from dataclasses import dataclass

from tideline_table.clock import Clock
from tideline_table.errors import CorruptMetadata, ObjectExists, ObjectNotFound, TableFrozen
from tideline_table.json_text import parse_json
from tideline_table.storage import Storage

IDENTITY_PATH = ".hoodie/.tideline/table.json"
_FORMAT = 1


@dataclass(frozen=True, slots=True)
class TableIdentity:
    """Uid of the table and the base path (URI) that it was created at."""

    uid: str
    base_path: str

    def check_place(self, root: str) -> None:
        """Raise `TableFrozen` when the table stands somewhere else now: it was copied or moved."""
        if self.base_path != root:
            raise TableFrozen(
                f"table {self.uid} belongs to {self.base_path} and was opened at {root}",
                expected="the place that it was created at",
                remedy="if this is a copy or was moved on purpose, give it an identity of its own: tideline adopt PATH",
            )


def read_identity(storage: Storage) -> TableIdentity | None:
    """The identity, None for a table that others made."""
    try:
        document = parse_json(storage.read(IDENTITY_PATH))
        return TableIdentity(str(document["uid"]), str(document["base_path"]))
    except ObjectNotFound:
        return None
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise CorruptMetadata(
            f"{IDENTITY_PATH} cannot be read ({error})", expected="the table's uid and base path in JSON"
        ) from None


def check_stands(storage: Storage, opened: TableIdentity | None) -> None:
    """Raise `TableFrozen` when another table stands here than the one that was `opened`, or none. One request.

    For those who keep a table open from write to write: in one that was made anew they would go on behind the log of the old one, and leave
    its state to all who open the new one.
    """
    found = read_identity(storage)
    if found != opened:
        raise TableFrozen(
            f"table {found.uid if found else 'of nobody'} at {storage.root}",
            expected=f"table {opened.uid if opened else 'of nobody'}, which was opened",
            remedy="it was removed, made anew or adopted since: open it again",
        )


def _content(storage: Storage, clock: Clock) -> bytes:
    created = clock.now().isoformat()
    document = {"format": _FORMAT, "uid": str(uuid.uuid4()), "base_path": storage.root, "created": created}
    return json.dumps(document).encode()


def create_identity(storage: Storage, clock: Clock) -> TableIdentity:
    """Mint the identity; of many racing callers all get the same one."""
    # One that exists was left by a creation that did not get as far as hoodie.properties: go on with it.
    with contextlib.suppress(ObjectExists):
        storage.put_if_absent(IDENTITY_PATH, _content(storage, clock))
    identity = read_identity(storage)
    assert identity is not None
    return identity


def replace_identity(storage: Storage, clock: Clock) -> TableIdentity:
    """Give a copied or moved table a new uid at its present place."""
    storage.put(IDENTITY_PATH, _content(storage, clock))
    identity = read_identity(storage)
    assert identity is not None
    return identity
