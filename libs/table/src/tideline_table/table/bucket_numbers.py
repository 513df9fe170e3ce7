"""The numbers of buckets of an exclusive table.

The table log says them, `hoodie.properties` and the files of partition rules follow.

During a resize, the properties name no bucket index (`RESIZING`), because Apache Hudi's readers would leave out buckets by a wrong
number. The inflight replace commit of the resize is in the log before the properties change and until it completes or is rolled
back. So a process that finds `RESIZING` and no such action knows that the resize ended, and completes what it left. The
properties may also name the numbers of an earlier resize, which a slow process wrote while a later one committed: that is
completed in the same way.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import suppress
from functools import partial

from tideline_table.coordination import ActiveTimeline
from tideline_table.errors import ObjectExists, TidelineError
from tideline_table.hudi.instant import Action
from tideline_table.hudi.properties import change_properties, read_properties
from tideline_table.index.bucket import RESIZING, BucketIndex
from tideline_table.index.bucket_properties import resizing_properties, with_numbers_of
from tideline_table.index.partition_rules import FIRST_INSTANT, PartitionRules, RulesFile
from tideline_table.log.state import TableState
from tideline_table.table.definition import TableDefinition
from tideline_table.table.identity import TableIdentity, check_index_unchanged
from tideline_table.writer.task import Operation

_LOGGER = logging.getLogger(__name__)
RESIZE_OPERATION = Operation.INSERT_OVERWRITE_TABLE
"""The operation of a resize until it completes. Overwrites of a table have it, too."""
_TURNS = 10
"""How often a completion begins again because another resize began or ended meanwhile."""


def check_index(declared: TableDefinition, identity: TableIdentity | None, timeline: ActiveTimeline) -> None:
    """Raise `UnsupportedTable` if the properties declare another index than the table has. Refreshes the state if they seem to.

    Those of an exclusive table may name earlier numbers of buckets (`complete_ended_resize`). Apache Hudi's writers of a shared
    table would use these, so they are refused there.
    """
    if identity is None:
        return
    if identity.index and not declared.is_resizing and declared.index_text not in _numbers_in(timeline.state, identity):
        timeline.refresh_view()  # another process resized the table
    state = timeline.state
    if state.sharing is not None or declared.index_text not in _numbers_in(state, identity):
        check_index_unchanged(declared.index_text, identity, state.bucket_resize(), is_resizing=declared.is_resizing)


def is_behind(declared: TableDefinition, identity: TableIdentity, state: TableState) -> bool:
    """Return whether the properties name no bucket index because of a resize, or other numbers of buckets than the log."""
    resize = state.bucket_resize()
    return declared.is_resizing or (resize is not None and declared.index_text != identity.index_after(resize))


def hide_index(timeline: ActiveTimeline) -> None:
    """Let `hoodie.properties` name no bucket index. For a resize that is in the log, at its begin and again before its commit.

    The second call undoes a slow process that completed an earlier resize.
    """
    change_properties(timeline.storage, lambda found: found if RESIZING in found else resizing_properties(found))


def complete_resize(timeline: ActiveTimeline, identity: TableIdentity) -> bool:
    """Let the files of rules and `hoodie.properties` say the numbers of buckets that the log says, unless a resize is pending.

    Return whether they do now. Any number of processes may do it at once, beside resizes that begin and end meanwhile. The
    files come first: Apache Hudi's readers leave out buckets by them as soon as the properties name the index.
    """
    storage, has_written = timeline.storage, False
    for _ in range(_TURNS):
        timeline.refresh()
        properties = read_properties(storage)
        declared = TableDefinition.from_properties(properties)
        if is_resize_pending(timeline.state):
            if not has_written and (declared.is_resizing or not is_behind(declared, identity, timeline.state)):
                return False
            # The resize began after a process had looked, this one or another. What that one wrote may have undone `hide_index`.
            hide_index(timeline)
            has_written = False
            continue
        index = declared.resized(timeline.state.bucket_resize()).buckets
        if index is None or (not declared.is_resizing and index.properties.items() <= properties.items()):
            return True
        for file in _rules_files(timeline.state, identity, index) if index.rules else ():
            with suppress(ObjectExists):
                storage.put_if_absent(file.path, file.content)
        has_written |= change_properties(storage, partial(_naming, index))
    return False


def _naming(index: BucketIndex, found: Mapping[str, str]) -> dict[str, str]:
    """Return properties that name this index."""
    return {**{key: value for key, value in found.items() if key != RESIZING}, **index.properties}


def complete_ended_resize(declared: TableDefinition, identity: TableIdentity | None, timeline: ActiveTimeline) -> bool:
    """Do `complete_resize` for a writer that read the properties `declared`; return whether they changed since.

    Costs nothing unless a resize is under way or died. A failure is a warning: the writer does not need the properties, and the
    next one completes them.
    """
    if identity is None or timeline.state.sharing is not None or not is_behind(declared, identity, timeline.state):
        return False
    try:
        return complete_resize(timeline, identity)
    except TidelineError as error:
        _LOGGER.warning(
            "hoodie.properties of table %r still lack the numbers of buckets of the last resize: %s", declared.name, error
        )
        return False


def is_resize_pending(state: TableState) -> bool:
    """Return whether a resize may still commit. An overwrite of the table looks the same, and only delays the completion."""
    return any(
        a.action is Action.REPLACE_COMMIT and a.operation == RESIZE_OPERATION.hudi_name and not a.fenced_by for a in state.pending()
    )


def _numbers_in(state: TableState, identity: TableIdentity) -> set[str]:
    """Return the text of the index with each of the numbers of buckets that the table has had."""
    return {identity.index, *map(identity.index_after, state.bucket_resizes())}


def _rules_files(state: TableState, identity: TableIdentity, index: BucketIndex) -> list[RulesFile]:
    """Return the files of the creation and of each resize.

    While a table had no rules, one for all partitions stands for its number.

    Each resize has one of its own instant, as each change by Hudi's procedure has, so that queries as of an earlier time find the
    rules of that time.
    """
    found = []
    for resize in (None, *state.bucket_resizes()):
        then = with_numbers_of(index, identity.index_after(resize))
        rules = then.rules or PartitionRules.of_all(then.number)
        found.append(RulesFile(resize.instant if resize is not None else FIRST_INSTANT, rules.text, then.number))
    return found
