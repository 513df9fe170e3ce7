"""What Apache Hudi must not do to a shared table, as far as the table shows it; checked under the lock before each step.

- The table version stays 6: a writer that upgrades the table moves the timeline away.
- Failed writes are cleaned lazily: a write with a fresh heartbeat is left alone. Only the effects of Hudi's options are visible.
- No metadata table, unless some of its partitions are kept (`metadata`): Hudi's readers see only the files that it lists. An
  advertised one is turned off as Hudi does it: first its partitions are removed from the properties, then its folder is
  deleted.
- No bucket index that the table does not keep: with one, Hudi's writers read a bucket number in every file id and fail on the file
  groups that this engine creates otherwise. A table keeps the one it was created or shared with, and all file groups fit it.
- The numbers of buckets that the table keeps, also by partition (`partition_numbers`).
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from tideline_table.clock import Clock
from tideline_table.config import INDEX_TYPE, INSTANT_SKEW_S, Options, column_list
from tideline_table.coordination.heartbeat import allowed_silence
from tideline_table.coordination.shared.metadata import advertised, keep_only, turn_off_metadata
from tideline_table.coordination.shared.partition_numbers import check_numbers
from tideline_table.errors import ClockSkew, TableUpgraded, UnsupportedTable
from tideline_table.file_group.slice import FileSlice
from tideline_table.hudi import properties as p
from tideline_table.hudi.file_names import FIXED_ID, is_ring_file_id
from tideline_table.hudi.format import TableFormat
from tideline_table.hudi.instant import time_from_instant
from tideline_table.hudi.properties import read_properties
from tideline_table.index.bucket_kinds import RingIndex
from tideline_table.index.bucket_properties import declared_index
from tideline_table.log.state import TableState
from tideline_table.storage import Storage

_BUCKET_ID = re.compile(rf"000\d{{5}}(?:-[0-9a-f]{{4}}-4|{FIXED_ID}\Z)")
_HASHED_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-3")
_GROUPS_FOR_ONE_NUMBER = 50
BUCKET_FOLDER = ".hoodie/.bucket_index"
_RING_FOLDER = "consistent_hashing_metadata"
_RULES_FOLDER = "partition_bucket_index_meta"
_LOGGER = logging.getLogger(__name__)

OPTIONS_HINT = "'tideline share PATH' prints the options that its writers need"


def hold_to_rules(storage: Storage, form: TableFormat, kept: Collection[str] = ()) -> bool:
    """Reject or mend what breaks the rules; return True if a metadata table was turned off. Raises `UnsupportedTable`.

    A metadata table keeps the partitions `kept`, of which `files` is one if there are any.
    """
    properties = read_properties(storage)
    check_version(properties, form)
    check_numbers(storage, properties)
    partitions = advertised(properties)
    if not partitions or keep_only(storage, form, properties, kept):
        return False
    _LOGGER.warning(
        "a writer turned the metadata table on (%s) and it is turned off again: give every Hudi writer of this table "
        "hoodie.metadata.enable=false; %s",
        ", ".join(sorted(set(partitions))),
        OPTIONS_HINT,
    )
    turn_off_metadata(storage, properties)
    return True


def check_lazy(state: TableState, clock: Clock, options: Options) -> None:
    """Raise `UnsupportedTable` if Apache Hudi just rolled back a write whose heartbeat was fresh.

    Only a writer that cleans failed writes eagerly does so, and it would do so again to a new write. The error lasts for the
    allowed silence of a heartbeat, in which the writer can be given other options.
    """
    rollback = state.actions.get(state.eager_rollback)
    allowed = allowed_silence(options)
    if rollback is None or clock.now() - time_from_instant(rollback.instant) > allowed:
        return
    raise UnsupportedTable(
        f"Apache Hudi's rollback {rollback.instant} undid a write that was alive",
        expected="writers that clean failed writes lazily",
        remedy="give every Hudi writer of this table hoodie.cleaner.policy.failed.writes=LAZY, then wait "
        f"{allowed.total_seconds():g} s; {OPTIONS_HINT}",
    )


def check_not_ahead(state: TableState, clock: Clock, options: Options) -> None:
    """Raise `ClockSkew` while the last instant is further ahead of the clock than allowed: Hudi's writers would begin below it."""
    if not state.last_instant:
        return
    ahead_s, allowed_s = (time_from_instant(state.last_instant) - clock.now()).total_seconds(), options[INSTANT_SKEW_S]
    if ahead_s > allowed_s:
        raise ClockSkew(
            f"the last instant {state.last_instant} of a shared table lies {ahead_s:.1f} s ahead of this machine's clock",
            expected=f"at most {allowed_s:g} s: Apache Hudi's writers take instants by their clocks, and what they write below "
            "it is not read",
            remedy="set the clocks of all writers by NTP and the JVMs of Apache Hudi's to UTC (-Duser.timezone=UTC), and retry "
            "when that time has come",
        )


def check_version(properties: Mapping[str, str], form: TableFormat) -> None:
    """Raise `TableUpgraded` unless the table still has the format in which Tideline writes it."""
    if changed := form.changed_in(properties):
        raise TableUpgraded(
            f"a shared table of {changed}",
            expected=f"{form.version_text}: a writer changed its version",
            remedy="a service that opens it shares it in that version, and so does 'tideline share PATH'; open it again then. Or "
            f"downgrade it with Apache Hudi's command line, and give every Hudi writer hoodie.write.table.version={form.version} "
            f"and hoodie.write.auto.upgrade=false; {OPTIONS_HINT}",
        )


@dataclass(frozen=True, slots=True)
class Bucketing:
    """What shows a bucket index of Apache Hudi's writers; empty for nothing."""

    simple: str
    """Of the simple engine."""
    ring: str
    """Of consistent hashing."""
    other: str
    """Of another engine."""

    @classmethod
    def shown_by(cls, state: TableState, properties: Mapping[str, str], folders: Collection[str] = ()) -> Bucketing:
        """Return what properties, file ids and the `folders` in `BUCKET_FOLDER` show (format reference 12).

        In version 6 the properties usually show nothing. Consistent hashing names file groups by version-3 UUIDs, as no other
        writer does. The simple engine starts file ids with the bucket number, and so do 1 of 40,000 random ones: one counts in
        small tables only.
        """
        partitions: dict[str, list[str]] = {}
        for file_slice in state.latest_slices():
            partitions.setdefault(file_slice.group.partition_path, []).append(file_slice.group.file_id)
        hashed = [file_id for ids in partitions.values() for file_id in ids if _HASHED_ID.match(file_id)]
        numbered = [ids for ids in partitions.values() if all(map(_BUCKET_ID.match, ids))]
        groups = sum(map(len, partitions.values()))
        simple = ""
        if any(len(ids) > 1 for ids in numbered) or len(numbered) > groups / _GROUPS_FOR_ONE_NUMBER:
            simple = f"file id {min(file_id for ids in numbered for file_id in ids)}"
        elif properties.get(INDEX_TYPE.key, "").upper() == "BUCKET":
            simple = f"{INDEX_TYPE.key}=BUCKET"
        shown = {name: f"folder {BUCKET_FOLDER}/{name}" for name in sorted(folders)}
        ring, rules = shown.pop(_RING_FOLDER, ""), shown.pop(_RULES_FOLDER, "")
        return cls(simple or rules, f"file id {min(hashed)}" if hashed else ring, next(iter(shown.values()), ""))

    def refuse_other_engines(self) -> None:
        """Raise `UnsupportedTable` for an engine that is neither of the two."""
        if self.other:
            raise UnsupportedTable(
                f"a table with Apache Hudi's bucket index ({self.other})",
                expected="the simple engine, consistent hashing, or another index",
                remedy="read it, or write it with Apache Hudi",
            )


def check_not_bucketed(state: TableState, properties: Mapping[str, str], folders: Collection[str] = ()) -> None:
    """Raise `UnsupportedTable` if a table that keeps no bucket index shows one."""
    shown = Bucketing.shown_by(state, properties, folders)
    shown.refuse_other_engines()
    if shown.ring or shown.simple:
        raise UnsupportedTable(
            f"a table with Apache Hudi's bucket index ({shown.ring or shown.simple})",
            expected="another index: the bucket index fails over file groups without a bucket number, such as Tideline opens",
            remedy="read it, or write it with Apache Hudi",
        )


def check_buckets(state: TableState, properties: Mapping[str, str]) -> None:
    """Raise `UnsupportedTable` unless the file groups fit the bucket index that `properties` keep, or there is none in either.

    A table that was created with a bucket index keeps it there. Apache Hudi's Spark writers take it from there, too, and fail
    if their options say otherwise. Where other writers ignore it, this shows their file groups, and the next write of a base
    file their rows.
    """
    index = declared_index(properties, column_list(properties.get(p.KEY_FIELDS, "")))
    if index is None:
        check_not_bucketed(state, properties)
        return
    if isinstance(index, RingIndex):
        check_rings(state)
        return
    by_partition: dict[str, list[FileSlice]] = {}
    for file_slice in state.latest_slices():
        by_partition.setdefault(file_slice.group.partition_path, []).append(file_slice)
    for slices in by_partition.values():
        index.group_of_each(slices)


def check_rings(state: TableState) -> None:
    """Raise `UnsupportedTable` if Apache Hudi resizes buckets of a hash ring, or did so, or wrote behind a replacement of them.

    While its resize is pending, its writers append rows to file groups that do not exist yet (format reference 12.2).
    """
    expected = "hash rings as they were made: Hudi's writers need no hoodie.bucket.index.max.num.buckets and min.num.buckets"
    remedy = "read the table, or write it with Apache Hudi"
    resizes = sorted(a.instant for a in state.pending() if a.is_clustering and a.is_by_hudi)
    if resizes:
        raise UnsupportedTable(f"resize {resizes[0]} of Apache Hudi, which is pending", expected=expected, remedy=remedy)
    strange = {group: by for group, by in state.replaced.items() if by not in state.ring_resizes}
    if strange:
        group, by = min(strange.items())
        raise UnsupportedTable(f"file group {group.file_id} of a hash ring, which {by} replaced", expected=expected, remedy=remedy)
    for file_slice in state.latest_slices():
        if not is_ring_file_id(file_slice.group.file_id):
            raise UnsupportedTable(
                f"file group {file_slice.group.file_id}, which is of no first hash ring", expected=expected, remedy=remedy
            )
