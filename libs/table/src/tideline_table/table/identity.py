"""The identity of a table with a Tideline log: a uid bound to its base path, so that a copied table is detected."""

from __future__ import annotations

import contextlib
import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from tideline_table.clock import Clock
from tideline_table.errors import (
    CorruptMetadata,
    InvalidOption,
    ObjectExists,
    ObjectNotFound,
    TableExists,
    TableFrozen,
    UnsupportedTable,
)
from tideline_table.hudi.formats import says_more_than_version
from tideline_table.hudi.properties import PROPERTIES_PATH
from tideline_table.index.bucket import BY_PARTITION
from tideline_table.index.scope import KEPT_TYPES
from tideline_table.json_text import parse_sealed, sealed
from tideline_table.log.entry import IDENTITY_PATH
from tideline_table.log.resizes import BucketResize
from tideline_table.storage import Storage

_FORMAT = 1


@dataclass(frozen=True, slots=True)
class TableIdentity:
    """The uid of a table and the base path (URI) at which it was created."""

    uid: str
    base_path: str
    index: str = ""
    """The index that the table was created with (`TableDefinition.index_text`). Empty for none: `hoodie.properties` can be
    changed."""
    formerly: tuple[str, ...] = ()
    """The base paths at which the table was before it was copied or moved: plans made there name files below them."""
    declared: Mapping[str, str] = field(default_factory=dict)
    """The properties that decide what rows the files hold, as the table was created with them (`fixed_properties`). Of a table that
    Apache Hudi created at most the version."""
    former_uid: str | None = None
    """The uid of the table that it was before it was copied or moved."""
    created: str = field(default="", compare=False)
    """When this identity was made (ISO 8601): the table was created, shared or adopted then."""

    @property
    def is_created_here(self) -> bool:
        """Whether Tideline created the table, and has not returned it to Apache Hudi's writers since."""
        return says_more_than_version(self.declared)

    def index_after(self, resize: BucketResize | None) -> str:
        """Return `index` with the numbers of buckets of a resize; None leaves those of the creation."""
        if resize is None:
            return self.index
        rules = f"{BY_PARTITION}{resize.rules}" if resize.rules else ""
        return f"{resize.number} {hash_fields_in(self.index)}{rules}"

    def check_place(self, root: str) -> None:
        """Raise `TableFrozen` if the table is now at another base path: it was copied or moved."""
        if self.base_path != root:
            raise TableFrozen(
                f"table {self.uid} belongs to {self.base_path} and was opened at {root}",
                expected="the place that it was created at",
                remedy="if this is a copy or was moved on purpose, give it an identity of its own: tideline adopt PATH",
            )

    def check_declared(self, properties: Mapping[str, str]) -> None:
        """Raise `CorruptMetadata` if one of `declared` has another value in properties. No digest covers `hoodie.properties`."""
        for key, value in self.declared.items():
            if properties.get(key) != value:
                found = f"{key}={properties[key]}" if key in properties else f"no {key}"
                raise CorruptMetadata(
                    f"{PROPERTIES_PATH} with {found}",
                    expected=f"{key}={value}, with which the table was created ({IDENTITY_PATH})",
                    remedy="set it back, or restore the file from a copy; for another definition, write the rows into a new table",
                )


def read_identity(storage: Storage) -> TableIdentity | None:
    """Return the identity, None for a table without a Tideline log. Raises `CorruptMetadata`."""
    try:
        document = parse_sealed(storage.read(IDENTITY_PATH))
        uid, base_path = str(document["uid"]), str(document["base_path"])
        formerly = tuple(str(path) for path in document.get("formerly", ()))
        declared = {str(key): str(value) for key, value in dict(document.get("declared", {})).items()}
        former_uid = str(document["former_uid"]) if document.get("former_uid") else None
        index, created = str(document.get("index", "")), str(document.get("created", ""))
        return TableIdentity(uid, base_path, index, formerly, declared, former_uid, created)
    except ObjectNotFound:
        return None
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise CorruptMetadata(
            f"{IDENTITY_PATH} cannot be read ({error})", expected="the table's uid and base path in JSON"
        ) from None


def check_stands(storage: Storage, opened: TableIdentity | None) -> None:
    """Raise `TableFrozen` if there is no table here or another one than `opened`. One request.

    For writers that keep a table open between writes: after the table was created again, they would continue the log of the old one
    and pass its state on to every process that opens the new one.
    """
    found = read_identity(storage)
    if found != opened:
        raise TableFrozen(
            f"table {found.uid if found else 'without identity'} at {storage.root}",
            expected=f"table {opened.uid if opened else 'without identity'}, which was opened",
            remedy="it was removed, created again or adopted since: open it again",
        )


def hash_fields_in(index: str) -> str:
    """Return what `BucketIndex.text` says without numbers of buckets, which a resize does not change; empty for another index."""
    return index.partition(BY_PARTITION)[0].partition(" ")[2]


def check_index_unchanged(
    declared: str, identity: TableIdentity | None, resize: BucketResize | None = None, *, is_resizing: bool = False
) -> None:
    """Raise `UnsupportedTable` if the properties declare another index than the table has.

    That is the one of its creation, with the numbers of buckets of its last `resize` if it was resized. While it is being resized,
    only the hash fields of the properties count. A table without an index may get one by look-up later: rows stay where they are.
    """
    if identity is None or (not identity.index and declared in KEPT_TYPES):
        return
    expected = identity.index_after(resize)
    wrong = hash_fields_in(declared) != hash_fields_in(identity.index) if is_resizing else declared != expected
    if wrong:
        raise UnsupportedTable(
            f"hoodie.properties with {declared or 'no index'}",
            expected=f"{expected or 'no index'}: the rows of the table are where that index put them, or unique as it says",
            remedy="restore hoodie.properties; for another index or other buckets, write the rows into a new table",
        )


def _content(
    storage: Storage, clock: Clock, index: str, declared: Mapping[str, str], formerly: Sequence[str] = (), former_uid: str = ""
) -> bytes:
    created = clock.now().isoformat()
    document = {"format": _FORMAT, "uid": str(uuid.uuid4()), "base_path": storage.root, "created": created}
    more = {"index": index, "declared": dict(declared), "formerly": formerly, "former_uid": former_uid}
    return sealed(json.dumps({**document, **{name: value for name, value in more.items() if value}}).encode())


def create_identity(
    storage: Storage, clock: Clock, index: str = "", declared: Mapping[str, str] = MappingProxyType({})
) -> TableIdentity:
    """Create the identity and return it; concurrent callers all get the same one. `index`, `declared`: as in `TableIdentity`.

    Raises `TableExists` if a creation with another index or other properties began here and did not end.
    """
    # An existing identity was left by a creation that did not reach hoodie.properties: continue with it.
    with contextlib.suppress(ObjectExists):
        storage.put_if_absent(IDENTITY_PATH, _content(storage, clock, index, declared))
    identity = read_identity(storage)
    assert identity is not None
    if identity.index != index:
        raise TableExists(
            f"the beginning of a table with {identity.index or 'no index'} at {storage.root}",
            expected=index or "no index",
            remedy="create it as it was begun, or in an empty folder",
        )
    for key in sorted(identity.declared.keys() | declared.keys()):
        if identity.declared.get(key) != declared.get(key):
            raise TableExists(
                f"the beginning of a table with {key}={identity.declared.get(key, '')} at {storage.root}",
                expected=f"{key}={declared.get(key, '')}",
                remedy="create it as it was begun, or in an empty folder",
            )
    return identity


def change_declared(storage: Storage, identity: TableIdentity, declared: Mapping[str, str]) -> None:
    """Keep the identity of a table with other properties: Apache Hudi gave it another version while it was shared."""
    document = parse_sealed(storage.read(IDENTITY_PATH))
    if document["uid"] != identity.uid:
        raise TableFrozen(f"table {document['uid']} at {storage.root}", expected=f"table {identity.uid}", remedy="open it again")
    del document["xxh3"]
    storage.put(IDENTITY_PATH, sealed(json.dumps({**document, "declared": dict(declared)}).encode()))


def replace_identity(storage: Storage, clock: Clock, opened: TableIdentity | None, name: str, *, in_place: bool) -> TableIdentity:
    """Give the copied or moved table `name`, opened with the identity `opened`, a new uid at its present base path.

    Raises `UnsupportedTable` for a table without an identity, and `InvalidOption` for a table that is where it was created unless
    `in_place`.
    """
    if opened is None:
        raise UnsupportedTable(f"only Apache Hudi writes table {name!r}", expected="a table that Tideline created")
    if not in_place and opened.base_path == storage.root:
        raise InvalidOption(
            f"table {opened.uid} was neither copied nor moved: it is at {storage.root}, as recorded",
            expected="the path of a copy, or of a table that was moved",
            remedy="to stop its open writers and give it another uid all the same, confirm it: --yes, or in_place=True",
        )
    known = read_identity(storage)
    index, declared = (known.index, known.declared) if known is not None else ("", {})
    formerly = (*known.formerly, known.base_path) if known is not None else ()
    others = [path for path in dict.fromkeys(formerly) if path != storage.root]
    storage.put(IDENTITY_PATH, _content(storage, clock, index, declared, others, known.uid if known is not None else ""))
    identity = read_identity(storage)
    assert identity is not None
    return identity
