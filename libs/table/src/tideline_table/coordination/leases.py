"""Reader leases: a query or a consumer registers the instant that it reads from, and cleaning and archival stay behind it.

A lease is a small file beside the table log. Its holder writes it again to renew it, and its age is that of the file by the store's
time, as for heartbeats. A lease that its holder does not renew expires, so a dead reader cannot hold cleaning back for longer
than the lease says.

A reader writes its lease and then reads the table log; a service publishes its plan in the log and then reads the leases. So at
least one of them sees the other: the reader refuses itself, or the service leaves out what the reader needs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from tideline_table.config import MOST_LEASE_S
from tideline_table.coordination.heartbeat import store_time
from tideline_table.errors import CorruptMetadata, InvalidOption, ObjectNotFound, WriteConflict, parsing
from tideline_table.file_group.slice import FileGroupId, FileSlice
from tideline_table.hudi.instant import WRITE_ACTIONS, Action
from tideline_table.json_text import parse_json
from tideline_table.log.plan import ArchivalPlanned, CleanPlanned
from tideline_table.log.state import TableState
from tideline_table.storage import Storage

LEASE_FOLDER = ".hoodie/.tideline/leases"
_ID = re.compile(r"[0-9a-f]{32}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Lease:
    """One reader lease, valid for `ttl_s` seconds since its holder last wrote it."""

    lease_id: str
    holder: str
    instant: str
    """The state as of this instant and all later ones stay readable."""
    since: str
    """When the holder took it (ISO 8601, UTC)."""
    ttl_s: float
    reads: str = ""
    """What the holder reads, in its own words."""
    expires: datetime | None = None
    """When it expires unless it is renewed; None before it was stored."""

    @property
    def path(self) -> str:
        """The path of its file."""
        return lease_path(self.lease_id)

    @property
    def text(self) -> str:
        """Who holds cleaning back, from which instant on and since when."""
        return f"reader lease {self.lease_id} of {self.holder} keeps instant {self.instant} since {self.since}"

    def to_bytes(self) -> bytes:
        """Return the content of its file."""
        document = {
            "id": self.lease_id,
            "holder": self.holder,
            "instant": self.instant,
            "since": self.since,
            "ttl_s": self.ttl_s,
            "reads": self.reads,
        }
        return json.dumps(document, sort_keys=True).encode()

    def to_json(self) -> dict[str, object]:
        """Return the lease as a document for people and programs."""
        return {
            "id": self.lease_id,
            "holder": self.holder,
            "instant": self.instant,
            "since": self.since,
            "ttl_s": self.ttl_s,
            "reads": self.reads,
            "expires": self.expires.isoformat() if self.expires else None,
        }


def lease_path(lease_id: str) -> str:
    """Return the path of the file of a lease."""
    return f"{LEASE_FOLDER}/{lease_id}.json"


def parse_lease(content: bytes, path: str, modified: datetime) -> Lease:
    """Parse the file of a lease that its holder wrote at `modified`. Raises `CorruptMetadata`."""
    with parsing(path, "a reader lease"):
        document: Mapping[str, object] = parse_json(content)
        ttl_s = float(str(document["ttl_s"]))
        if not 0 < ttl_s <= MOST_LEASE_S:
            raise ValueError(f"a duration of {ttl_s} s")
        holder, instant, since, reads = (str(document[key]) for key in ("holder", "instant", "since", "reads"))
        if not re.fullmatch(r"\d{17}", instant, re.ASCII):
            raise ValueError(f"instant {instant!r}")
        return Lease(str(document["id"]), holder, instant, since, ttl_s, reads, modified + timedelta(seconds=ttl_s))


def check_storable(lease: Lease) -> None:
    """Raise `InvalidOption` if the file of this lease could not be read again: cleaning would wait for its repair."""
    try:
        parse_lease(lease.to_bytes(), lease.path, datetime.fromtimestamp(0, UTC))
    except CorruptMetadata:
        raise InvalidOption(
            f"the holder {lease.holder!r} of a lease that reads {lease.reads!r}", expected="texts that UTF-8 can encode"
        ) from None


def every_lease(storage: Storage) -> list[Lease]:
    """Return all leases with a file, expired ones too, oldest instant first. Raises `CorruptMetadata` for an unreadable file."""
    found = []
    for stored in storage.list_folder(LEASE_FOLDER).objects:
        name = stored.path.rpartition("/")[2]
        if not name.endswith(".json") or not _ID.fullmatch(name.removesuffix(".json")):
            continue
        try:
            found.append(parse_lease(storage.read(stored.path), stored.path, stored.modified))
        except ObjectNotFound:
            continue  # released between the two requests
    return sorted(found, key=lambda lease: (lease.instant, lease.lease_id))


def live_leases(storage: Storage) -> list[Lease]:
    """Return the leases that have not expired by the store's time, oldest instant first. One request if there are none."""
    found = every_lease(storage)
    if not found:
        return found
    now = store_time(storage)
    return [lease for lease in found if lease.expires is None or lease.expires >= now]


def forget_expired(storage: Storage) -> list[Lease]:
    """Delete the files of expired leases; return these leases. A holder that renews an expired lease makes its file again."""
    found = every_lease(storage)
    if not found:
        return []
    now = store_time(storage)
    gone = [lease for lease in found if lease.expires is not None and lease.expires < now]
    for lease in gone:
        storage.delete(lease.path)
    return gone


def oldest(leases: Iterable[Lease]) -> Lease | None:
    """Return the lease that holds cleaning and archival back furthest, None if there is none."""
    return min(leases, key=lambda lease: (lease.instant, lease.since), default=None)


def leased_instant(state: TableState, as_of: str = "") -> str:
    """Return the instant from which a reader of the state as of `as_of` (empty: now) needs the files; empty in an empty table.

    A write that is pending now may complete with an older instant than the newest. So a reader of now keeps the state before it.
    """
    completed = [a.instant for a in state.completed_writes() if not as_of or a.instant <= as_of]
    pending = [a.instant for a in state.pending() if a.action in WRITE_ACTIONS | {Action.COMPACTION}]
    if pending and not as_of:
        completed = [instant for instant in completed if instant < min(pending)] or completed[:1]
    return completed[-1] if completed else as_of


def needed_by(state: TableState, instant: str, groups: Iterable[FileGroupId]) -> list[FileSlice]:
    """Return the slices of these file groups that queries as of `instant`, just before it and later read."""
    known = {group: state.slices[group] for group in sorted(groups) if group in state.slices}
    return [slices[at] for group, slices in known.items() for at in sorted(kept_since(slices, state.replaced.get(group), instant))]


def kept_since(slices: Mapping[str, FileSlice], replaced_by: str | None, since: str) -> frozenset[str]:
    """Return the base instants of the slices of one group that queries as of `since`, just before it and later read.

    `slices` is keyed by base instant. Below the slices from `since` on it is the newest, down to one with a base file.
    """
    if replaced_by is not None and replaced_by < since:
        return frozenset()
    kept = {instant for instant in slices if instant >= since}
    for instant in sorted((i for i in slices if i < since), reverse=True):
        kept.add(instant)
        if slices[instant].base_file:
            break
    return frozenset(kept)


def check_lease(state: TableState, lease: Lease) -> None:
    """Raise `WriteConflict` if a pending clean or archival takes what the lease is to keep."""
    needed = {path for file_slice in needed_by(state, lease.instant, state.slices) for path in file_slice.paths}
    for record in state.pending():
        plan = state.plans.get(record.instant)
        takes = (isinstance(plan, CleanPlanned) and not needed.isdisjoint(plan.paths)) or (
            isinstance(plan, ArchivalPlanned) and plan.archived.before > lease.instant
        )
        if takes:
            raise WriteConflict(
                f"{record.action} {record.instant} is about to remove what a reader of instant {lease.instant} needs",
                with_instant=record.instant,
                expected="a lease of a later instant",
                remedy="retry when it has run, or read a later instant",
            )
