"""What the other side of a shared table must not do, as far as the table shows it; asked under the lock before each step.

- The table version stays 6: a writer that upgrades it moves the timeline away.
- Failed writes are cleaned lazily: a write with a fresh heartbeat is left alone. What Hudi's options are cannot be seen, what they do can.
- No metadata table: its readers see only what it lists, and nobody but Hudi keeps it. One that is advertised is turned off as Hudi itself does
  when it is told to: the partitions go from the properties first, then the folder.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from tideline_table.clock import Clock
from tideline_table.config import Options
from tideline_table.errors import ObjectNotFound, UnsupportedTable
from tideline_table.file_group.state import TableState
from tideline_table.storage import Storage
from tideline_table.timeline import properties as p
from tideline_table.timeline.instant import time_from_instant
from tideline_table.transaction.heartbeat import allowed_silence

_LOGGER = logging.getLogger(__name__)

SHARED_VERSION = "6"
METADATA_FOLDER = ".hoodie/metadata"
_ADVERTISED = (p.METADATA_PARTITIONS, p.METADATA_PARTITIONS_INFLIGHT)
OPTIONS_HINT = "'tideline share PATH' prints the options that its writers need"


def hold_to_rules(storage: Storage) -> bool:
    """Refuse or mend what breaks the rules; True when a metadata table was turned off. Raises `UnsupportedTable`."""
    properties = read_properties(storage)
    check_version(properties)
    advertised = [name for key in _ADVERTISED for name in properties.get(key, "").split(",") if name]
    if not advertised:
        return False
    _LOGGER.warning(
        "a writer turned the metadata table on (%s) and it is turned off again: give every Hudi writer of this table "
        "hoodie.metadata.enable=false; %s",
        ", ".join(sorted(set(advertised))),
        OPTIONS_HINT,
    )
    turn_off_metadata(storage, properties)
    return True


def check_lazy(state: TableState, clock: Clock, options: Options) -> None:
    """Raise `UnsupportedTable` when the other side just rolled back a write whose heartbeat was fresh.

    Only a writer that cleans failed writes eagerly does; it would do it again to whatever begins now. Asked again after as long as a
    heartbeat may be missing, it has had the time to be given other options.
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


def check_version(properties: Mapping[str, str]) -> None:
    """Raise `UnsupportedTable` unless the table still has version 6 and its timeline layout 1."""
    version, layout = properties.get(p.VERSION, ""), properties.get(p.LAYOUT, "1")
    if version != SHARED_VERSION or layout != "1":
        raise UnsupportedTable(
            f"a shared table of version {version or 'unknown'} with timeline layout {layout}",
            expected=f"version {SHARED_VERSION} with layout 1: a writer upgraded it",
            remedy="downgrade it with Apache Hudi's command line, and give every Hudi writer hoodie.write.table.version=6 and "
            f"hoodie.write.auto.upgrade=false; {OPTIONS_HINT}",
        )


def read_properties(storage: Storage) -> dict[str, str]:
    """`hoodie.properties`, or its backup while somebody changes it (format reference 2.2)."""
    try:
        return p.parse_properties(storage.read(p.PROPERTIES_PATH))
    except ObjectNotFound:
        return p.parse_properties(storage.read(p.BACKUP_PATH), p.BACKUP_PATH)


def turn_off_metadata(storage: Storage, properties: Mapping[str, str]) -> None:
    """Advertise no partition of the metadata table any more, then delete it. Under the lock."""
    if any(properties.get(key) for key in _ADVERTISED):
        change_properties(storage, {**properties, **{key: "" for key in _ADVERTISED if key in properties}})
    storage.delete_below(METADATA_FOLDER)


def change_properties(storage: Storage, properties: Mapping[str, str]) -> None:
    """Replace `hoodie.properties` by Hudi's protocol (2.2): readers find the old or the new one at any moment, a crash leaves a backup."""
    try:
        current = storage.read(p.PROPERTIES_PATH)
    except ObjectNotFound:
        current = storage.read(p.BACKUP_PATH)
    storage.put(p.BACKUP_PATH, current)
    storage.put(p.PROPERTIES_PATH, p.format_properties(properties, "Updated by Tideline"))
    storage.delete(p.BACKUP_PATH)
