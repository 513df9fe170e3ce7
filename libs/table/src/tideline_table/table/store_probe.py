"""Probes of a store: it must refuse conditional puts whose condition fails, and accept those whose condition holds."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator

from tideline_table.errors import ObjectExists, UnsupportedTable
from tideline_table.storage import Storage

_PROBE = ".hoodie/.tideline/probe"
_REMEDY = "keep the table in another store; a proxy or gateway in front of this one may drop the conditions of puts"


def probe_conditional_put(storage: Storage) -> None:
    """Raise `UnsupportedTable` if the store ignores `If-None-Match` and overwrites an object. Appends to the log rely on it."""
    with _probe_object(storage) as path:
        with contextlib.suppress(ObjectExists):  # the name is random: an earlier try of this put succeeded
            storage.put_if_absent(path, b"1")
        try:
            storage.put_if_absent(path, b"2")
        except ObjectExists:
            return
    raise UnsupportedTable(
        f"storage {storage.root} accepted a second conditional put of one object",
        expected="a store that refuses it: concurrent writers are safe only there",
        remedy=_REMEDY,
    )


def probe_versioned_put(storage: Storage) -> None:
    """Raise `UnsupportedTable` if the store does not honour `If-Match` on replacing puts.

    Changes of `hoodie.properties` and Hudi's storage lock rely on it.
    """
    with _probe_object(storage) as path:
        storage.put(path, b"1")
        _, seen = storage.read_versioned(path)
        # A put may report a refusal although it succeeded, if its first reply was lost: read the object.
        took_fresh = storage.put_if_version(path, b"2", seen) or storage.read(path) == b"2"
        took_stale = storage.put_if_version(path, b"3", seen)
    if took_fresh and not took_stale:
        return
    fault = (
        "accepted a put over an older version of an object"
        if took_stale
        else "refused a put over the version of an object that it had returned"
    )
    raise UnsupportedTable(
        f"storage {storage.root} {fault}",
        expected="a store that replaces an object exactly if its version is still the one that was seen: changes of table "
        "properties, and the lock that is shared with Apache Hudi's writers, are safe only there",
        remedy=_REMEDY,
    )


@contextlib.contextmanager
def _probe_object(storage: Storage) -> Iterator[str]:
    path = f"{_PROBE}/{uuid.uuid4().hex}"
    try:
        yield path
    finally:
        storage.delete(path)
