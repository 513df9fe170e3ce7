"""Numbers of buckets by partition that Apache Hudi gives a shared table (format reference 12.3).

Hudi's procedure `partition_bucket_index_manager` writes a file of rules and rewrites partitions in a replace commit of the same
instant. A lower number leaves every file id in range, so that only this file shows it. A writer with the old number would write
a key into a second file group, and a reader would leave out the group that holds it.
"""

from __future__ import annotations

from collections.abc import Mapping

from tideline_table.config import column_list
from tideline_table.errors import InvalidOption, UnsupportedTable
from tideline_table.hudi import properties as p
from tideline_table.hudi.format import TableFormat
from tideline_table.hudi.formats import format_of
from tideline_table.hudi.instant import Action, State
from tideline_table.hudi.listing import list_timeline
from tideline_table.index.bucket import BucketIndex
from tideline_table.index.bucket_properties import declared_index
from tideline_table.index.partition_rules import FIRST_INSTANT, RULES_FOLDER, RulesFile
from tideline_table.storage import Storage


def newest_rules(storage: Storage, form: TableFormat) -> tuple[RulesFile, ...]:
    """Return the newest committed rules, and before them those of changes that are pending or died, the newest first.

    None without any.

    Lists the folder of the rules, reads the files that it returns, and lists the timeline if there are any. Raises
    `CorruptMetadata`.
    """
    found: list[RulesFile] = []
    names = (stat.path.rpartition("/")[2] for stat in storage.list_folder(RULES_FOLDER).objects)
    instants = {instant for name in names if (instant := RulesFile.instant_of(name))}
    pending = _pending(storage, form) if instants - {FIRST_INSTANT} else frozenset()
    for instant in sorted(instants, reverse=True):
        path = RulesFile.path_of(instant)
        found.append(RulesFile.parse(path, storage.read(path)))
        if instant not in pending:
            break
    return tuple(found)


def _pending(storage: Storage, form: TableFormat) -> frozenset[str]:
    """Return the replace commits that have begun and are not completed: those that write rules are among them."""
    found = list_timeline(storage, form).instants
    return frozenset(i.time for i in found if i.action is Action.REPLACE_COMMIT and i.state is not State.COMPLETED)


def check_numbers(storage: Storage, properties: Mapping[str, str]) -> None:
    """Raise `UnsupportedTable` if partitions of a bucket index have, or may soon have, other numbers than `properties` keep.

    Lists one folder.
    """
    index = declared_index(properties, column_list(properties.get(p.KEY_FIELDS, "")))
    if index is None or not index.has_rules:
        return
    found = newest_rules(storage, format_of(properties))
    for rules in found:
        if not _is_kept(index, rules):
            raise UnsupportedTable(
                f"partition rules {rules.expressions} and {rules.number} bucket(s) otherwise ({rules.path})",
                expected=f"{index.text}, which the table keeps: Apache Hudi's partition_bucket_index_manager changes the "
                "numbers of a shared table",
                remedy="write the table with Apache Hudi, or its rows into a new table",
            )
    if index.rules and not found:
        raise UnsupportedTable(
            f"partition rules {index.rules.text} in hoodie.properties, and none in {RULES_FOLDER}",
            expected="both: Apache Hudi's readers leave out buckets by the rules in the folder",
            remedy="restore the folder",
        )


def _is_kept(index: BucketIndex, found: RulesFile) -> bool:
    try:
        return (found.rules, found.number) == (index.rules, index.number)
    except InvalidOption:
        return False


def adopted_rules(storage: Storage, form: TableFormat) -> RulesFile | None:
    """Return the rules that partitions of a table of Apache Hudi follow, None for none.

    Raises `UnsupportedTable` while a change of them is pending, and for rules that this engine does not evaluate;
    `CorruptMetadata`.
    """
    found = newest_rules(storage, form)
    if not found:
        return None
    if len(found) > 1 or found[0].instant in _pending(storage, form):
        raise UnsupportedTable(
            f"a change of partition rules by Apache Hudi, {found[0].instant}, which is pending",
            expected="none",
            remedy="let Apache Hudi end it, or roll it back",
        )
    try:
        return found[0] if found[0].rules else None
    except InvalidOption as error:
        raise UnsupportedTable(
            f"partition rules of Apache Hudi with {error.found}",
            expected=error.expected,
            remedy="read the table, or write it with Apache Hudi",
        ) from None
